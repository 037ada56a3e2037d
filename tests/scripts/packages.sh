#!/usr/bin/env bash
# packages.sh SECTION... - installs what the named sections of packages.txt list.
#
# Happy path: dpkg has them all, and nothing is asked of the network. Otherwise apt-get, as root or through sudo.
# What can fail: the sections' names, no root and no sudo, apt; its log is shown then.
set -euo pipefail
export LC_ALL=C
list=$(dirname "${BASH_SOURCE[0]}")/../../packages.txt

missing=()
for section; do
    packages=$(awk -v want="$section" '/^#/ { on = NF == 2 && $2 == want; next } on && NF { print $1 }' "$list")
    if [[ -z $packages ]]; then
        echo "packages.sh: packages.txt has no section '$section'" >&2
        exit 2
    fi
    for package in $packages; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=none
        [[ $status == installed || " ${missing[*]} " == *" $package "* ]] || missing+=("$package")
    done
done
if ((${#missing[@]} == 0)); then
    echo "packages: all there ($*)"
    exit 0
fi

echo "packages: installing ${missing[*]}"
as_root=()
if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
        echo "packages.sh: neither root nor sudo; as root: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 \
        "$@" </dev/null >"$log" 2>&1 && return
    cat "$log" >&2
    echo "packages.sh: apt-get $1 failed; its output stands above" >&2
    exit 1
}
apt update
apt install -y --no-install-recommends "${missing[@]}"
