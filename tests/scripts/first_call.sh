#!/usr/bin/env bash
# How long a process waits for its first run, of two libraries:
#   tests/scripts/first_call.sh PROGRAM OLD.so NEW.so cpu|cuda CASE...
#
# PROGRAM is `first_call` of the build (tests/promises/first_call.c). Of ROUNDS processes of each, 21 unless given, in
# turns: medians of the first run, and of the second.
set -u
[ $# -gt 4 ] || { echo "usage: first_call.sh PROGRAM OLD.so NEW.so cpu|cuda CASE..."; exit 2; }
program=$1 old=$(realpath "$2") new=$(realpath "$3") backend=$4
shift 4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
median() { sed "s/.*$1 \([0-9.]*\) ms.*/\1/" "$2" | sort -g | awk '{x[NR] = $1} END {print x[int((NR + 1) / 2)]}'; }
for case; do
    rm -f "$folder"/*
    for ((i = 0; i < ${ROUNDS:-21}; i++)); do
        for library in old new; do
            LD_PRELOAD=${!library} "$program" "$case" "$backend" >>"$folder/$library" || exit 1
        done
    done
    printf '%s: first %s ms and %s, second %s and %s\n' "$case" "$(median first "$folder/old")" \
        "$(median first "$folder/new")" "$(median second "$folder/old")" "$(median second "$folder/new")"
done
