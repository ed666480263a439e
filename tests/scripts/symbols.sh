#!/bin/sh
# libtessera.so exports the functions that tessera.h declares, all of them and nothing else.
# Usage: tests/scripts/symbols.sh LIBRARY HEADER
set -u
exported=$(nm -D --defined-only "$1" | awk '{ print $NF }' | sort)
declared=$(tr '\n' ' ' <"$2" | grep -oE 'TESS_API [^;]*;' | grep -oE 'tess_[a-z_0-9]+ ?\(' |
    tr -d ' (' | sort)
[ -n "$declared" ] || { echo "no declarations found in $2"; exit 1; }
if [ "$exported" != "$declared" ]; then
    echo "exported, not declared:"; echo "$exported" | grep -vxF "$declared"
    echo "declared, not exported:"; echo "$declared" | grep -vxF "$exported"
    exit 1
fi
echo "$exported" | wc -l | xargs printf '%s functions exported, as declared\n'
