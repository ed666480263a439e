#!/usr/bin/env bash
# Whether two libraries give the same bits:
#   tests/scripts/outputs.sh PROGRAM OLD.so NEW.so cpu|cuda FILE...
#
# PROGRAM is `outputs` of the build (tests/promises/outputs.c), FILE a list of cases. On the CPU at
# every level that the machine has. Prints cases that differ, then counts: one that both refuse is the
# same, but told apart. Exit status 1 where any differ.
set -u
program=$1 old=$(realpath "$2") new=$(realpath "$3") backend=$4
shift 4
[ $# -gt 0 ] || { echo "usage: outputs.sh PROGRAM OLD.so NEW.so cpu|cuda FILE..."; exit 2; }
levels=any
[ "$backend" = cuda ] || levels="portable avx2 avx512 avx512bf16 amx"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
differ=0 all=0 refused=0
for level in $levels; do
    for file; do
        for library in old new; do
            if [ "$level" = any ]; then
                LD_PRELOAD=${!library} "$program" "$file" "$backend"
            else
                LD_PRELOAD=${!library} TESSERA_ISA=$level "$program" "$file" "$backend"
            fi >"$folder/$library" 2>"$folder/$library.errors"
            [ -s "$folder/$library" ] || { cat "$folder/$library.errors"; exit 2; }
        done
        diff "$folder/old" "$folder/new" >"$folder/differ"
        n=$(grep -c '^>' "$folder/differ")
        sed "s/^/$level /" "$folder/differ" | grep -E ' [<>] '
        differ=$((differ + n)) all=$((all + $(wc -l <"$folder/new")))
        refused=$((refused + $(grep -c '^-' "$folder/new")))
    done
done
echo "outputs: $((all - differ)) of $all the same, $refused of them refused"
[ "$differ" -eq 0 ]
