#!/bin/bash
# Programs linked with an earlier library of the same SOVERSION go on working: the functions and
# types of tessera.h are held against tests/package/tessera.abi, which abidw read off the first.
#   tests/package/abi.sh [CC]            exit status 77 (skipped) without abidiff
#   tests/package/abi.sh --write [CC]    writes tessera.abi anew: for a new SOVERSION, or when functions
#                                        were added or fields appended to structs that begin with
#                                        their size
set -u
cd "$(dirname "$0")/../.." || exit 2
write=
[ "${1-}" != --write ] || { write=1; shift; }
[ "$(uname -m)" = x86_64 ] || { echo 'abi: tessera.abi is of x86_64'; exit 77; }
command -v abidiff >/dev/null || { echo 'abi: needs abidiff (package abigail-tools)'; exit 77; }

# The core has all that is exported; with what debuggers are told, so unlike what is shipped.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mapfile -t core < <(find src -name '*.c' ! -path 'src/cpu/*' ! -path 'src/cuda/*')
[ ${#core[@]} -gt 0 ] || { echo 'abi: the core has no files'; exit 1; }
"${1:-cc}" -g -fPIC -shared -fvisibility=hidden -fopenmp -I include -I src "${core[@]}" \
    -o "$folder/libtessera.so" || exit 1
recorded=tests/package/tessera.abi
if [ -n "$write" ]; then
    abidw --no-corpus-path --no-comp-dir-path --drop-private-types \
        --headers-dir include --out-file $recorded "$folder/libtessera.so"
    exit
fi
# 4: something differs, 8: it breaks programs; functions that are new are neither.
abidiff --no-added-syms $recorded "$folder/libtessera.so"
