#!/usr/bin/env bash
# bundle.sh [BUILD_DIR] - collects what run.sh needs on a machine with a GPU into build/gpu-bundle/.
#
# Happy path: the GPU programs of a finished build (default build/release, made with FEEDD_TESTS=ON) and the shared
# libraries they load, but for those of glibc, which have to fit the machine. What can fail: a program that isn't built,
# a library that isn't found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=${1-build/release}
bundle=build/gpu-bundle
glibc='^(ld-linux-.*|lib(c|m|dl|rt|pthread|util|resolv))\.so'

rm -rf "$bundle"
mkdir -p "$bundle/lib"
for program in tests/gpu/kernel_check tests/bench/bench_normalize_cuda; do
    cp "$build/$program" "$bundle/"
    libraries=$(ldd "$build/$program")
    if grep 'not found' <<<"$libraries" >&2; then
        exit 1
    fi
    awk '$2 == "=>" { print $3 }' <<<"$libraries" | while read -r library; do
        [[ ${library##*/} =~ $glibc ]] || cp -L "$library" "$bundle/lib/"
    done
done
cp tests/gpu/run.sh "$bundle/"
du -sh "$bundle"
