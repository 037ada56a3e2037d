#!/usr/bin/env bash
# demo.sh - feedd in a minute: installs what it needs, builds, and feeds two clients at once from Debian's Fashion-MNIST.
#
# Happy path: packages, build, configuration, daemon, two clients of one epoch each, status, contact sheet, a clean stop.
# Leaves behind build/release and demo-output/: feedd.conf, the daemon's and the clients' output, contact-sheet.png.
# What can fail: any step; its output is shown then. The daemon and the clients end with the script in every case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export LC_ALL=C
out=$PWD/demo-output
bin=$PWD/build/release

heading() {
    printf '\n== %s\n' "$1"
}

indent() {
    sed 's/^/    /'
}

# quiet COMMAND... - shows the output of a command only when it fails.
quiet() {
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        echo "demo.sh: failed: $*" >&2
        exit 1
    }
}

work=$(mktemp -d /tmp/feedd-demo.XXXXXX) # not in $TMPDIR: the name of a socket may have 107 bytes at most
processes=()
cleanup() {
    trap - EXIT INT TERM
    ((${#processes[@]} == 0)) || kill "${processes[@]}" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

heading "Packages"
tests/scripts/packages.sh build demo

heading "Build"
