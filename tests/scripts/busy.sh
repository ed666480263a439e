#!/bin/sh
# Latencies of one query beside programs that keep the processors busy: a measurement, not a test.
# Usage: tests/scripts/busy.sh BUILD_DIR [LOOPS]
latency=$1/latency loops=${2:-4}
[ -x "$latency" ] || { echo "no $latency: build the target latency"; exit 2; }
pids=
trap 'kill $pids' EXIT
while [ "$loops" -gt 0 ]; do
    sh -c 'while :; do :; done' &
    pids="$pids $!"
    loops=$((loops - 1))
done
"$latency"
