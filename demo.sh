#!/usr/bin/env bash
# demo.sh - feedd in a minute: installs what it needs, builds, and feeds two clients at once from Debian's Fashion-MNIST.
#
# Happy path: packages, build, configuration, daemon, two clients of one epoch each, status, contact sheet, a clean stop.
# Leaves build/release and demo-output/: the configuration, what daemon and clients printed, the contact sheet.
# What can fail: any step; what it printed is shown then. Daemon and clients end with the script in every case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export LC_ALL=C

out=$PWD/demo-output
build=$PWD/build/release
data=/usr/share/datasets/fashion-mnist
work=$(mktemp -d /tmp/feedd-demo.XXXXXX) # not in $TMPDIR: a socket's name may have 107 bytes at most
processes=()                             # what still runs

cleanup() {
    local i process
    trap - EXIT
    for ((i = ${#processes[@]} - 1; i >= 0; i--)); do # clients before the daemon
        process=${processes[i]}
        kill "$process" 2>/dev/null || continue
        timeout 5 tail -f /dev/null --pid="$process" || kill -KILL "$process"
        wait "$process" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "demo.sh: $1" >&2
    exit 1
}

heading() {
    printf '\n== %s\n' "$1"
}

indent() {
    cut -c -110 | sed 's/^./    &/'
}

# quiet COMMAND... - shows what a command prints only when it fails.
quiet() {
    "$@" >"$work/log" 2>&1 && return
    cat "$work/log" >&2
    fail "failed: $*"
}

heading "Packages"
tests/scripts/packages.sh build demo

heading "Build"
quiet cmake --preset release -DFEEDD_TESTS=OFF
quiet cmake --build "$build"
echo "build/release: the daemon feedd, the library libfeedd.so, the command feedctl, the example contact_sheet"

heading "Configuration: demo-output/feedd.conf"
mkdir -p "$out"
cat >"$out/feedd.conf" <<END
datasets:
  fashion:
    reader: idx
    images: $data/train-images-idx3-ubyte.gz
    labels: $data/train-labels-idx1-ubyte.gz
    classes: [T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot]
streams:
  train:
    dataset: fashion
    batch_size: 64
    order: shuffle
    seed: 1
    tail: partial
END
indent <"$out/feedd.conf"
"$build/daemon/feedd" --config "$out/feedd.conf" --check-config >"$work/log" || fail "feedd refuses its configuration"

heading "Daemon"
export FEEDD_SOCKET=$work/feedd.sock # where clients look
"$build/daemon/feedd" --config "$out/feedd.conf" --socket "$FEEDD_SOCKET" 2>"$out/feedd.log" &
feedd=$!
processes+=("$feedd")
for ((i = 0; i < 100; i++)); do
    [[ ! -S $FEEDD_SOCKET ]] || break
    kill -0 "$feedd" 2>/dev/null || break
    sleep 0.1
done
if [[ ! -S $FEEDD_SOCKET ]]; then
    cat "$out/feedd.log" >&2
    fail "feedd didn't start"
fi
echo "feedd runs as process $feedd; its log is demo-output/feedd.log"

heading "Two clients at once: feedctl cat train, one epoch each"
echo "A line a batch: its place in the epoch, digests of its arrays, the numbers of its samples."
for client in 1 2; do
    "$build/client/feedctl" cat train --epochs 1 >"$out/client-$client.txt" &
    processes+=("$!")
done
wait "${processes[1]}" || fail "client 1 failed"
wait "${processes[2]}" || fail "client 2 failed"
processes=("$feedd")
for client in 1 2; do
    echo "client $client:"
    head -n 2 "$out/client-$client.txt" | indent
    echo "    ..."
    tail -n 2 "$out/client-$client.txt" | indent
done
# Same stream, same seed: the same batches, their pixels and labels included. Only the last two lines may differ.
cmp <(head -n -2 "$out/client-1.txt") <(head -n -2 "$out/client-2.txt") || fail "the clients got different batches"
for client in 1 2; do
    sed -n "s|.*: \([0-9]*\) samples/s\$|client $client: \1 images/s|p" "$out/client-$client.txt"
done
echo "Both got the same batches, in the same order."

heading "feedctl status, while a third client reads without end"
"$build/client/feedctl" cat train --epochs 0 >/dev/null &
processes+=("$!")
sleep 2 # rates are of the last second
"$build/client/feedctl" status | indent
kill -TERM "${processes[1]}"
wait "${processes[1]}" || fail "the third client failed"
processes=("$feedd")

heading "Contact sheet: a client of 200 lines of C (client/examples/contact_sheet.c)"
"$build/client/examples/contact_sheet" train "$out/contact-sheet.png"

heading "Stop"
kill -TERM "$feedd"
wait "$feedd" || fail "feedd ended with exit code $?; its log is demo-output/feedd.log"
processes=()
echo "feedd stopped by SIGTERM, exit code 0"
