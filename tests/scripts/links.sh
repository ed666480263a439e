#!/bin/sh
# Links of pages lead somewhere: tests/scripts/links.sh [ROOT]
#
#     [words](FILE#ANCHOR)         of a page: the file is there, and a heading of it has the anchor
#     [words](FILE), "HEADING"     likewise, by the heading's words
#     docs/FILE.md, "HEADING"      of a page or a source
#
# Prints every reference to nothing; exit 1 if there was any. Links to other places are not followed.
cd "${1:-$(dirname "$0")/../..}" || exit 2
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find . \( -path ./build -o -path ./.git \) -prune -o -print >"$list"
# shellcheck disable=SC2046 # no name of a file has blanks
awk -f tests/scripts/links.awk "$list" $(grep -E '^\./[^/]*\.md$|^\./docs/.*\.md$' "$list") \
    $(grep -E '^\./(src|lab|include|tests|bench|tools|examples|cmake)/.*(\.([ch]|cu|cuh|def|md|txt|sh|py|cmake|in|awk|gp)$|/CMakeLists\.txt$)' \
        "$list" | grep -v '/pages_fails\.sh$') # which plants faults
