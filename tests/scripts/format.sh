#!/usr/bin/env bash
# format.sh - checks that every C file of the tree is formatted as .clang-format says; changes nothing.
# Without git, so that it works in a copy of the tree too: whatever lies outside build folders counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

find . \( -path ./build -o -path ./.venv -o -path ./.git \) -prune -o -type f -name '*.[ch]' -print0 |
    sort -z | xargs -0 clang-format-14 --dry-run -Werror -ferror-limit=1
