#!/usr/bin/env bash
# run.sh - runs the GPU programs of a bundle (bundle.sh) on a machine with a GPU: the checks, then the table of speeds.
#
# Takes them from its own folder, or from build/gpu-bundle when it is run from the tree. A program that fails doesn't
# stop the next; the exit code is 0 only when none failed. OUT: folder to which the output is written too, as log.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -x $here/kernel_check ]] || here=$(cd "$here/../../build/gpu-bundle" && pwd) || exit 2

run() {
    local rc=0
    printf '\n== %s\n' "$1"
    LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout --kill-after=5 200 "$here/$1" || rc=$?
    printf -- '-- %s: exit code %d\n' "$1" "$rc"
    return "$rc"
}

all() {
    local failed=0
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader
    run kernel_check || failed=1
    run bench_normalize_cuda || failed=1
    return "$failed"
}

if [[ -n ${OUT-} ]]; then
    all 2>&1 | tee "$OUT/log"
else
    all 2>&1
fi
