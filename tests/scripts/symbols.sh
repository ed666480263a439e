#!/bin/sh
# libtessera.so exports the functions that tessera.h declares, all of them and nothing else; and a
# program that links libtessera.a meets no other name.
# Usage: tests/scripts/symbols.sh SHARED STATIC HEADER
set -u
declared=$(tr '\n' ' ' <"$3" | grep -oE 'TESS_API [^;]*;' | grep -oE 'tess_[a-z_0-9]+ ?\(' |
    tr -d ' (' | sort)
[ -n "$declared" ] || { echo "no declarations found in $3"; exit 1; }

# held NAMES LIBRARY: whether these are the functions declared.
held() {
    [ "$1" = "$declared" ] && return
    echo "$2 exports, not declared:"; echo "$1" | grep -vxF "$declared"
    echo "declared, $2 lacks:"; echo "$declared" | grep -vxF "$1"
    exit 1
}
held "$(nm -D --defined-only "$1" | awk '{ print $NF }' | sort)" "$1"
held "$(nm -g --defined-only "$2" | awk 'NF == 3 { print $NF }' | sort)" "$2"
echo "$declared" | wc -l | xargs printf '%s functions exported, as declared\n'
