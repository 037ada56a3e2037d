#!/usr/bin/env bash
# loader_bundle.sh [BUILD_DIR] - collects what loader.py needs on a machine with a GPU into build/loader-bundle/.
#
# Happy path: daemon, feedctl and libfeedd of a finished build (default build/release, made with FEEDD_CUDA=ON) and the
# shared libraries they load, but for those of glibc; the Python package, its examples and the benchmark; Fashion-MNIST;
# and photos, where FEEDD_TEST_DATA has them. There: LD_LIBRARY_PATH=build/loader-bundle/lib python3
# build/loader-bundle/tests/gpu/loader.py. What can fail: a program that isn't built, a library that isn't found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=${1-build/release}
bundle=build/loader-bundle
data=${FEEDD_TEST_DATA:-../shared/data}
fashion=/usr/share/datasets/fashion-mnist
glibc='^(ld-linux-.*|lib(c|m|dl|rt|pthread|util|resolv))\.so'

rm -rf "$bundle"
mkdir -p "$bundle"/{bin,lib,client/python,tests/gpu,tests/bench,data}
cp "$build/daemon/feedd" "$build/client/feedctl" "$bundle/bin/"
cp -L "$build/client/libfeedd.so.0" "$bundle/lib/"
for file in "$build/daemon/feedd" "$build/client/feedctl" "$build/client/libfeedd.so.0"; do
    libraries=$(ldd "$file")
    if grep 'not found' <<<"$libraries" >&2; then
        exit 1
    fi
    awk '$2 == "=>" { print $3 }' <<<"$libraries" | while read -r library; do
        [[ ${library##*/} =~ $glibc ]] || cp -L "$library" "$bundle/lib/"
    done
done
cp -r client/python/feedd client/python/examples "$bundle/client/python/"
cp tests/gpu/loader.py "$bundle/tests/gpu/"
cp tests/bench/loader.py "$bundle/tests/bench/"
find "$bundle" -name __pycache__ -prune -exec rm -r {} +
[[ ! -d $fashion ]] || cp -r "$fashion" "$bundle/data/"
[[ ! -d $data/imagenet-sample ]] || cp -r "$data/imagenet-sample" "$bundle/data/"
du -sh "$bundle"
