#!/usr/bin/env bash
# clean_root.sh [COMMAND...] - proves commands in fresh Debian 12 roots; by default ./demo.sh, then ./test.sh.
#
# Happy path, for each command: mmdebstrap makes a root from this machine's own apt sources and settings, the tree is
# copied to /feedd in it, the command runs there, and the root is removed. ./demo.sh runs twice, the second time without
# a network: nothing may be fetched again.
# What can fail: a host that isn't Debian 12 with root, git and mmdebstrap; the mirror; the command.
# Mounts and processes live in namespaces of their own and end with the command.
#
# FEEDD_TEST_DATA  as for test.sh; appears at /shared/data in the root, read-only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
commands=("$@")
((${#commands[@]} > 0)) || commands=(./demo.sh ./test.sh)
data=$(realpath -m "${FEEDD_TEST_DATA:-../shared/data}")

if ! grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release || ((EUID != 0)) ||
    ! command -v mmdebstrap >/dev/null || ! command -v git >/dev/null; then
    echo "clean_root.sh: needs Debian 12, root, git and mmdebstrap" >&2
    exit 1
fi

work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

# copy FILE... - puts files or folders of this machine at the same place in the root, if they exist.
copy() {
    local path
    for path; do
        [[ ! -e $path ]] || cp -RL --parents "$path" "$root"
    done
}

make_root() {
    local file sources=()
    root=$work/root
    rm -rf --one-file-system "$root"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
        [[ ! -s $file ]] || sources+=("$file")
    done
    apt-config dump | grep '^Acquire::' | grep -vE '^Acquire::(Changelogs|CompressionTypes|IndexTargets)' >"$work/apt.conf"
    mmdebstrap --quiet --mode=root --variant=apt --aptopt="$work/apt.conf" bookworm "$root" "${sources[@]}"
    # How this machine reaches its mirrors and the Python index: names, keys, certificates, pip's settings.
    copy /etc/resolv.conf /etc/hosts /etc/apt/trusted.gpg /etc/apt/trusted.gpg.d /etc/apt/keyrings /usr/share/keyrings \
        /usr/local/share/ca-certificates /etc/pip.conf ~/.config/pip ~/.pip
    mkdir -p "$root/feedd" "$root/shared/data"
    git ls-files -z --cached --others --exclude-standard |
        while IFS= read -rd '' file; do [[ ! -e $file ]] || printf '%s\0' "$file"; done |
        tar -c --null -T - | tar -x -C "$root/feedd"
}

# enter COMMAND [UNSHARE_OPTION...] - runs a command in the root, with no more of the environment than the network needs.
enter() {
    local name carried=()
    for name in $(compgen -e); do
        [[ ! $name =~ ^PIP_|^SSL_|_CA_BUNDLE$|^(HTTPS?|NO|ALL|FTP)_PROXY$|^(https?|no|all|ftp)_proxy$ ]] ||
            carried+=("$name=${!name}")
    done
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --mount --pid --fork --kill-child "${@:2}" bash -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /sys "$1/sys"
        mount --rbind /dev "$1/dev"
        if [ -d "$2" ]; then mount --bind -o ro "$2" "$1/shared/data"; fi
        root=$1
        shift 2
        exec env -i "${@:2}" chroot "$root" sh -c "cd /feedd && $1"
    ' enter "$root" "$data" "$1" PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CI=true "${carried[@]}" </dev/null
}

# prove COMMAND [UNSHARE_OPTION...]
prove() {
    local began=$SECONDS
    if ! enter "$@"; then
        echo "clean_root.sh: $1${2+ without a network} failed" >&2
        exit 1
    fi
    proven+=("OK: $1${2+ again, without a network} ($((SECONDS - began)) s)")
}

proven=()
for command in "${commands[@]}"; do
    echo "== a fresh Debian 12 root: $command"
    make_root
    prove "$command"
    [[ $command != ./demo.sh ]] || prove "$command" --net
done
printf '%s\n' "${proven[@]}"
