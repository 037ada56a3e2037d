#!/usr/bin/env bash
# demo.sh [IMAGE_FOLDER] - feedd in a minute: installs what it needs, builds, and feeds clients from Debian's
# Fashion-MNIST, then from photos: IMAGE_FOLDER's (a folder of class folders) or those in Debian's libdlib19.1.
#
# Happy path: packages, build, photos, configuration, daemon; two clients at once, status, contact sheet; of photos a
# group of two clients and a private one, status meanwhile, contact sheet; a clean stop.
# Leaves build/release, build/demo-photos (fetched once) and demo-output/: the configuration, what daemon and clients
# printed, the contact sheets.
# What can fail: any step; what it printed is shown then. Only when Debian's photos can't be fetched, the demo goes on
# without any. Daemon and clients end with the script in every case.
set -euo pipefail
images=
if (($# > 1)) || [[ ${1-} == -* ]] || { (($# == 1)) && ! images=$(realpath -e -- "$1"); }; then
    echo "usage: ./demo.sh [IMAGE_FOLDER]" >&2
    exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")"
export LC_ALL=C

out=$PWD/demo-output
build=$PWD/build/release
feedctl=$build/client/feedctl
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

# show NAME - the first and the last lines that a client printed.
show() {
    echo "$1:"
    head -n 2 "$out/$1.txt" | indent
    echo "    ..."
    tail -n 3 "$out/$1.txt" | indent
}

# same NAME NAME - compares what two clients got, pixels and labels included; their last three lines may differ.
same() {
    cmp <(head -n -3 "$out/$1.txt") <(head -n -3 "$out/$2.txt") || fail "$1 and $2 got different batches"
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

heading "Photos"
photos_dataset='' photos_stream=''
if [[ -z $images && -d build/demo-photos ]]; then
    images=$PWD/build/demo-photos
elif [[ -z $images ]] && tests/scripts/packages.sh --download "$work" photos >"$work/log" 2>&1; then
    dpkg-deb -x "$work"/libdlib19.1_*.deb "$work/package"
    examples=$work/package/usr/share/doc/libdlib19.1/examples
    new=build/demo-photos.new
    rm -rf $new
    mkdir -p $new/{faces,video_frames}
    cp -r "$examples"/johns/* $new
    cp "$examples"/faces/*.jpg $new/faces
    cp "$examples"/video_frames/*0.jpg $new/video_frames # every tenth frame
    mv $new build/demo-photos
    images=$PWD/build/demo-photos
fi
if [[ -n $images ]]; then
    echo "from $images"
    photos_dataset="
  photos:
    reader: folder
    root: '${images//\'/\'\'}'"
    photos_stream="
  photos:
    dataset: photos
    batch_size: 16
    order: shuffle
    seed: 1
    tail: partial
    transform: {resize: 256, center_crop: 224, flip: 0.5}"
else
    echo "left out, as Debian's libdlib19.1 can't be fetched: $(grep -m 1 '^E: ' "$work/log" || tail -n 1 "$work/log")"
fi

heading "Configuration: demo-output/feedd.conf"
mkdir -p "$out"
cat >"$out/feedd.conf" <<END
datasets:
  fashion:
    reader: idx
    images: $data/train-images-idx3-ubyte.gz
    labels: $data/train-labels-idx1-ubyte.gz
    classes: [T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot]$photos_dataset
streams:
  train:
    dataset: fashion
    batch_size: 64
    order: shuffle
    seed: 1
    tail: partial$photos_stream
END
indent <"$out/feedd.conf"
"$build/daemon/feedd" --config "$out/feedd.conf" --check-config >"$work/log" || fail "feedd refuses its configuration"

heading "Daemon"
export FEEDD_SOCKET=$work/feedd.sock # where clients look
export CACHE_DIRECTORY=$work/cache   # of the daemon: nothing of the demo stays outside of its folder
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
for client in client-1 client-2; do
    "$feedctl" cat train --epochs 1 >"$out/$client.txt" &
    processes+=("$!")
done
wait "${processes[1]}" || fail "client-1 failed"
wait "${processes[2]}" || fail "client-2 failed"
processes=("$feedd")
show client-1
show client-2
same client-1 client-2
for client in client-1 client-2; do
    sed -n "s|.*: \([0-9]*\) samples/s\$|$client: \1 images/s|p" "$out/$client.txt"
done
echo "Same stream, same seed: both got the same batches, in the same order."

heading "feedctl status, while a third client reads without end"
"$feedctl" cat train --epochs 0 >/dev/null &
processes+=("$!")
sleep 2 # rates are of the last second
"$feedctl" status | indent
kill -TERM "${processes[1]}"
wait "${processes[1]}" || fail "the third client failed"
processes=("$feedd")

heading "Contact sheet: a client of 200 lines of C (client/examples/contact_sheet.c)"
"$build/client/examples/contact_sheet" train "$out/contact-sheet.png"

if [[ -n $images ]]; then
    heading "Photos: two members of a group, and a private client at the same time"
    echo "The group's batches are decoded once, for both members. The private client has a stream of its own."
    photos=(cat photos --epochs 0 --batches 40) # the pauses stand for training steps
    for client in member-1 member-2; do
        "$feedctl" "${photos[@]}" --share broadcast --members 2 --pause 100 >"$out/$client.txt" &
        processes+=("$!")
    done
    "$feedctl" "${photos[@]}" --pause 150 >"$out/private.txt" &
    processes+=("$!")
    sleep 2.5
    "$feedctl" status | indent
    for client in member-1 member-2 private; do
        wait "${processes[1]}" || fail "$client failed"
        unset 'processes[1]' && processes=("${processes[@]}")
    done
    show member-1
    show member-2
    same member-1 member-2
    same member-1 private
    echo "The members' digests are equal; so are the private client's: sharing changes nothing in what is delivered."

    heading "Contact sheet of photos: resized, cropped, some flipped, as the stream's transform says"
    "$build/client/examples/contact_sheet" photos "$out/contact-sheet-photos.png" 5 8
fi

heading "Stop"
kill -TERM "$feedd"
wait "$feedd" || fail "feedd ended with exit code $?; its log is demo-output/feedd.log"
processes=()
echo "feedd stopped by SIGTERM, exit code 0"
echo "to look at: demo-output/contact-sheet.png${images:+ demo-output/contact-sheet-photos.png}"
