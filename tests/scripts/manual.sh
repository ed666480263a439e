#!/bin/sh
# The manual page names every option that the program has, and no other.
# Usage: tests/scripts/manual.sh TESSERA PAGE
set -eu
program=$1 page=$2
commands='info run pattern plan verify gradcheck bench'
have=$(for command in $commands; do "$program" "$command" --help; done |
    grep -o -E -- '^ +(-[a-z], +)?--[a-z-]+' | grep -o -E -- '--[a-z-]+' |
    grep -v -x -E -- '--(help|usage|version)' | sort -u)
told=$(sed 's/\\-/-/g' "$page" | grep -o -E -- '--[a-z-]+' | sort -u)
[ "$have" = "$told" ] || {
    echo 'options of the program (<) and of its page (>):'
    folder=$(mktemp -d)
    echo "$have" >"$folder/have"
    echo "$told" >"$folder/told"
    diff "$folder/have" "$folder/told" || :
    rm -r "$folder"
    exit 1
}
for command in $commands; do
    grep -q "^\.B tessera $command" "$page" || { echo "no $command in the synopsis"; exit 1; }
done
echo "$told" | wc -l
