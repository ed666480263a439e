#!/bin/sh
# Links of pages lead somewhere: tests/scripts/links.sh [ROOT]
#
#     [words](FILE#ANCHOR)         of a page: the file is there, and a heading of it has the anchor
#     [words](FILE), "HEADING"     likewise, by the heading's words
#     docs/FILE.md, "HEADING"      of a page or a source
#
# Prints every reference to nothing; exit 1 if there was any. Links to other places are not followed.
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/../..}" || exit 2
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find . \( -path ./build -o -path ./.git \) -prune -o -print >"$list"
ends='(\.([ch]|cu|cuh|def|md|txt|sh|py|cmake|in|awk|gp)|/CMakeLists\.txt)$'
sources="^\./(src|lab|include|tests|bench|tools|examples|cmake)/.*$ends"
# pages_fails.sh plants faults; no name of a file has blanks
# shellcheck disable=SC2046
awk -f "$here/links.awk" "$list" $(grep -E '^\./[^/]*\.md$|^\./docs/.*\.md$' "$list") \
    $(grep -E "$sources" "$list" | grep -v '/pages_fails\.sh$')
