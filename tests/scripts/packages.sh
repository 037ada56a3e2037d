#!/usr/bin/env bash
# packages.sh [--download FOLDER] SECTION... - installs what the named sections of packages.txt list.
# --download: puts the package files into a folder that exists, and installs nothing.
#
# Happy path: dpkg has them all, and nothing is asked of the network. Otherwise apt-get, as root or through sudo;
# a download needs neither as long as apt's lists are fresh.
# What can fail: the sections' names, no root and no sudo, apt; its log is shown then.
set -euo pipefail
export LC_ALL=C
list=$(dirname "${BASH_SOURCE[0]}")/../../packages.txt
folder=
if [[ ${1-} == --download && $# -gt 2 ]]; then
    folder=$(realpath "$2")
    shift 2
fi

missing=()
for section; do
    packages=$(awk -v want="$section" '/^#/ { on = NF == 2 && $2 == want; next } on && NF { print $1 }' "$list")
    if [[ -z $packages ]]; then
        echo "packages.sh: packages.txt has no section '$section'" >&2
        exit 2
    fi
    for package in $packages; do
        status=none
        [[ -n $folder ]] || status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=none
        [[ $status == installed || " ${missing[*]} " == *" $package "* ]] || missing+=("$package")
    done
done
if ((${#missing[@]} == 0)); then
    echo "packages: all there ($*)"
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
as_root=()
# apt COMMAND... - apt-get, its output in $log.
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 \
        "$@" </dev/null >"$log" 2>&1
}
fail() {
    cat "$log" >&2
    echo "packages.sh: apt-get $1 failed; its output stands above" >&2
    exit 1
}

if [[ -n $folder ]]; then
    echo "packages: downloading ${missing[*]}"
    cd "$folder"
    apt download "${missing[@]}" && exit 0
fi
if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
        [[ -z $folder ]] || fail download
        echo "packages.sh: neither root nor sudo; as root: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
if [[ -n $folder ]]; then
    apt update || fail update # the lists may be old
    apt download "${missing[@]}" || fail download
else
    echo "packages: installing ${missing[*]}"
    apt update || fail update
    apt install -y --no-install-recommends "${missing[@]}" || fail install
fi
