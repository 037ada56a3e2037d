#!/usr/bin/env bash
# bundle.sh [BUILD_DIR [BUNDLE_DIR]] - collects what run.sh needs on a machine with a GPU into build/gpu-bundle/.
#
# Happy path: the programs of a finished build (default build/release, made with FEEDD_TESTS=ON) without what debuggers
# need, the shared libraries they load, and run.sh with its parts. Left out are the libraries of glibc and of GCC, which
# have to be the machine's own: other programs there need newer ones than these.
# What can fail: a program that isn't built, a library that isn't found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=${1-build/release}
bundle=${2-build/gpu-bundle}
programs=(daemon/feedd client/feedctl tests/gpu/gpu_client tests/gpu/kernel_check tests/bench/bench_normalize_cuda)
machine='^(ld-linux-.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s))\.so'

rm -rf "$bundle"
mkdir -p "$bundle/lib"
for program in "${programs[@]}"; do
    libraries=$(ldd "$build/$program")
    if grep 'not found' <<<"$libraries" >&2; then
        exit 1
    fi
    strip -o "$bundle/${program##*/}" "$build/$program"
    awk '$2 == "=>" { print $3 }' <<<"$libraries" | while read -r library; do
        [[ ${library##*/} =~ $machine ]] || strip -o "$bundle/lib/${library##*/}" "$library"
    done
done
cp tests/gpu/{run.sh,rig.py,sections.py,modes.py} "$bundle/"
du -sh "$bundle"
