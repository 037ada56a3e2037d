#!/usr/bin/env bash
# run.sh [--bundle DIR] [--quick] [--fake] [SECTION...] - checks and measures feedd on this machine's GPU.
#
# Happy path: the sections that are named, or all (about five minutes; --quick: those that compare, not those that
# measure), with the programs of a bundle (bundle.sh) or of a build folder. A section that fails doesn't stop the next.
# Needs bash and python3; builds and fetches nothing, changes no setting of the GPU.
# What can fail: any section: the exit code is 1 then, and 77 when there is no GPU, and so nothing to run.
# Processes end with the script, and its files in /tmp.
#
# --bundle, FEEDD_BUNDLE  where the programs are; default: beside this script, or build/gpu-bundle of the tree
# --fake                  they are built with -DFEEDD_CUDA=FAKE
# OUT                     folder to which the output is written too, as log
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle=${FEEDD_BUNDLE-}
if [[ ${1-} == --bundle ]]; then
    bundle=${2-}
    shift 2
fi
if [[ -z $bundle ]]; then
    bundle=$here
    [[ -x $here/gpu_client ]] || bundle=$here/../../build/gpu-bundle
fi
if ! [[ -d $bundle ]]; then
    echo "run.sh: no programs in $bundle: build with FEEDD_TESTS=ON, then tests/gpu/bundle.sh" >&2
    exit 2
fi

exec python3 -B -u "$here/sections.py" --bundle "$bundle" "$@"
