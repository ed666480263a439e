#!/usr/bin/env bash
# shellcheck disable=SC2054 # cases are words with commas
# What is run on a machine with a GPU, from a folder that tools/scripts/gpu_stage.sh made:
#   tests/scripts/gpu.sh [STAGE [MINUTES [STEP...]]]      (default .stage, 9 minutes)
#
# STEP is verify, lists, hard, tests, hopper, memcheck, initcheck, synccheck, racecheck, bench or million;
# without one, all are run. hopper: all four sanitizers, over cases of Hopper's kernels alone. All but bench
# and million run eight at a time: each keeps two cores of the host busy more than it does the GPU.
# Logs go to $OUT when it is set, else to build/gpu. Steps past the time are skipped by name; the
# last lines count. Exit status 1 when a step failed, 2 without a device.
set -u
cd "$(dirname "$0")/../.." || exit 2
stage=$(realpath "${1:-.stage}") || exit 2
[[ ${2:-9} =~ ^[0-9]+$ ]] || { echo "gpu.sh: '$2' are not whole minutes" >&2; exit 2; }
end=$((SECONDS + 60 * ${2:-9}))
wanted=" ${*:3} "
out=${OUT:-build/gpu}
mkdir -p "$out"
log=$out/gpu.log
: >"$log"
export LD_LIBRARY_PATH=$stage${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_WAIT_POLICY=passive
tessera=$stage/tessera
passed=0 failed=0 skipped=0 summary=()

result() {
    summary+=("$(printf '%-52s %4d s  %s' "$1" "$2" "$3")")
    printf '%s\n' "${summary[-1]}"
}

# counted NAME SECONDS STATUS LIMIT OUTPUT: a command that took SECONDS has ended with STATUS.
counted() {
    local name=$1 status=$3 line
    printf '\n==== %s\n' "$name" | cat - "$5" >>"$log"
    line=$(grep -E '^verify: |ERROR SUMMARY|RACECHECK SUMMARY|tests? run|PASSED' "$5" | tail -n 1)
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        result "$name" "$2" "ok${line:+: $line}"
    else
        failed=$((failed + 1))
        [ "$status" -ne 124 ] || line="not done after $4 s${line:+; $line}"
        result "$name" "$2" "FAILED ($status)${line:+: $line}"
        grep -vE '^(\[|=========\s*$)' "$5" | head -n 30
    fi
    rm -f "$5"
}

# in_time NAME SECONDS: `limit`, which is SECONDS or what is left of the time; fails where none is.
in_time() {
    limit=$((end - SECONDS < $2 ? end - SECONDS : $2))
    [ "$limit" -lt 5 ] || return 0
    skipped=$((skipped + 1))
    result "$1" 0 'skipped: no time left'
    return 1
}

# asked STEP: it is one of those named, or none is.
asked() {
    [[ $wanted = '  ' || $wanted = *" $1 "* ]]
}

# step NAME SECONDS COMMAND...: into the log, ended after SECONDS or when the time is over.
step() {
    local name=$1 limit start=$SECONDS
    in_time "$name" "$2" || return 0
    shift 2
    timeout "$limit" "$@" >"$out/step.log" 2>&1 </dev/null
    counted "$name" $((SECONDS - start)) $? "$limit" "$out/step.log"
}

# beside NAME SECONDS COMMAND...: the same, while others run; counted by ended.
names=()
beside() {
    local name=$1 limit number=${#names[@]}
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do
        sleep 0.2
    done
    in_time "$name" "$2" || return 0
    shift 2
    names+=("$name")
    (
        start=$SECONDS
        OMP_NUM_THREADS=2 timeout "$limit" stdbuf -oL "$@" >"$out/beside-$number.log" 2>&1 </dev/null
        echo "$? $((SECONDS - start)) $limit" >"$out/beside-$number.status"
    ) &
}

# Waits for what runs beside, and counts it.
ended() {
    local number status seconds limit
    wait
    for number in "${!names[@]}"; do
        read -r status seconds limit <"$out/beside-$number.status"
        counted "${names[number]}" "$seconds" "$status" "$limit" "$out/beside-$number.log"
        rm -f "$out/beside-$number.status"
    done
    names=()
}

# parts NAME N: the cases of NAME.txt in files $out/NAME-0.txt ... NAME-(N - 1).txt
parts() {
    "$tessera" verify --list --cases "tests/cases/$1.txt" |
        awk -v n="$2" -v to="$out/$1-" '{ print >(to (NR - 1) % n ".txt") }'
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader || true
"$tessera" info | tee -a "$log"
if "$tessera" info | grep -q '^cuda *none'; then
    echo 'gpu: no device'
    exit 2
fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
# sanitized TOOL NAME CASES
sanitized() {
    if [ -n "$sanitizer" ]; then
        beside "$2" 500 "$sanitizer" --tool "$1" --error-exitcode 3 --print-limit 5 \
            "$tessera" verify --cases "$3"
    else
        skipped=$((skipped + 1))
        result "$2" 0 'skipped: compute-sanitizer is not here'
    fi
}

# What takes longest begins first.
for test in cuda cuda_bits cuda_fill cuda_pool cuda_select cuda_order cuda_threads decode api plan; do
    ! asked tests || [ ! -x "$stage/test_$test" ] || beside "test_$test" 400 "$stage/test_$test"
done
for example in generate_cuda select_blocks_cuda; do
    ! asked tests || [ ! -x "$stage/$example" ] || beside "$example" 60 "$stage/$example"
done
if asked hard; then
    parts hard 6
    for part in 0 1 2 3 4 5; do
        beside "verify, hard cases, part $part" 500 "$tessera" verify --cases "$out/hard-$part.txt"
    done
fi
for seed in 1 2 3 4; do
    ! asked verify || beside "verify, 800 cases, seed $seed" 400 \
        "$tessera" verify --backend cuda --count 800 --seed $seed
    ! asked lists || beside "verify, 500 cases of lists on the device, seed $seed" 300 \
        "$tessera" verify --backend cuda --lists --count 500 --seed $seed
done
for tool in memcheck initcheck synccheck racecheck; do
    ! asked hopper || sanitized "$tool" "hopper, $tool" tests/cases/sm90.txt
    [ "$tool" = racecheck ] || ! asked "$tool" || sanitized "$tool" "$tool" tests/cases/reduced.txt
done
if asked racecheck; then # the slowest by far; its reports on rings: docs/design/hopper.md, "Sanitizers"
    parts reduced 8
    for part in 0 1 2 3 4 5 6 7; do
        sanitized racecheck "racecheck, part $part" "$out/reduced-$part.txt"
    done
fi
ended
rm -f "$out"/hard-?.txt "$out"/reduced-?.txt

bench=("$tessera" bench --seconds 0.3 --json "$out/bench.json"
    h=8,n=4096,d=64,dtype=f32,block=64x64,pattern='random(0.1,1)',backend=cuda
    h=8,n=4096,d=64,dtype=f16,block=64x64,pattern='random(0.1,1)',backend=cuda
    h=8,n=4096,d=64,dtype=bf16,block=64x64,pattern='random(0.1,1)',backend=cuda
    h=16,n=16384,d=128,dtype=bf16,block=128x128,pattern='random(0.1,1)',backend=cuda
    h=8,n=4096,d=64,dtype=f32,block=8x8,pattern='random(0.05,1)',backend=cuda
    h=8,n=4096,d=64,dtype=f32,block=1x1,pattern='random(0.01,1)',backend=cuda
    h=1,n=16384,d=768,dtype=f32,block=8x8,pattern='random(0.05,1)',backend=cuda
    h=1,n=16384,d=768,dtype=f32,block=32x32,pattern='random(0.05,1)',backend=cuda)
! asked bench || step 'bench' 150 "${bench[@]}"
sed -n '/^==== bench/,$p' "$log" | cut -c 1-200
# Sampled rows are held against the oracle.
million=("$tessera" bench --seconds 0.05
    h=8,n=1048576,d=64,dtype={f32,bf16},pattern='window(512,512)',lists=1,backend=cuda)
! asked million || step 'bench, a million tokens' 120 "${million[@]}"

printf '\n'
printf '%s\n' "${summary[@]}" "$passed passed, $failed failed, $skipped skipped, $SECONDS s" |
    tee -a "$log"
[ "$failed" -eq 0 ]
