#!/usr/bin/env bash
# shellcheck disable=SC2054 # cases are words with commas
# What is run on a machine with a GPU, from a folder that tools/scripts/gpu_stage.sh made:
#   tests/scripts/gpu.sh [STAGE [MINUTES [STEP...]]]      (default .stage, 9 minutes)
#
# STEP is verify, tests, hopper, bench, million, memcheck, initcheck, synccheck, racecheck or hard;
# without one, all are run. hopper: all four sanitizers, over cases of Hopper's kernels alone.
# Logs go to $OUT when it is set, else to build/gpu. Steps past the time are skipped by name; the
# last lines count. Exit status 1 when a step failed, 2 without a device.
set -u
cd "$(dirname "$0")/../.." || exit 2
stage=$(realpath "${1:-.stage}") || exit 2
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
    summary+=("$(printf '%-34s %4d s  %s' "$1" "$2" "$3")")
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

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader || true
"$tessera" info | tee -a "$log"
if "$tessera" info | grep -q '^cuda *none'; then
    echo 'gpu: no device'
    exit 2
fi

verify=("$tessera" verify --backend cuda)
! asked verify || step 'verify, 3200 cases' 400 "${verify[@]}"
! asked verify || step 'verify, 2000 cases of lists on the device' 300 "${verify[@]}" --lists --count 2000
# Nothing runs beside them: processes that share a GPU wait for their turns.
! asked hard || step 'verify, hard cases' 500 "$tessera" verify --cases tests/cases/hard.txt
for test in cuda cuda_bits cuda_fill decode api plan; do
    ! asked tests || [ ! -x "$stage/test_$test" ] || step "test_$test" 240 "$stage/test_$test"
done

! asked tests || [ ! -x "$stage/generate_cuda" ] || step 'generate_cuda' 60 "$stage/generate_cuda"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck initcheck synccheck racecheck; do
    if asked hopper && [ -n "$sanitizer" ]; then
        step "hopper, $tool" 120 "$sanitizer" --tool "$tool" --error-exitcode 3 --print-limit 5 \
            "$tessera" verify --cases tests/cases/sm90.txt
    fi
done

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

# A few beside one another: each keeps a core of the host busy, but all share the GPU. racecheck is the
# slowest by far, and has an eighth of the cases at a time.
declare -A running limits
names=() start=$SECONDS
for part in memcheck initcheck synccheck racecheck-{0,1,2,3,4,5,6,7}; do
    tool=${part%-*} cases=tests/cases/reduced.txt
    asked "$tool" || continue
    if [ "$part" != "$tool" ]; then
        cases=$out/$part.txt
        "$tessera" verify --list --cases tests/cases/reduced.txt |
            awk -v split="${part#*-}" '(NR - 1) % 8 == part' >"$cases"
    fi
    while [ "$(jobs -rp | wc -l)" -ge 4 ]; do
        sleep 1
    done
    if [ -z "$sanitizer" ]; then
        skipped=$((skipped + 1))
        result "$part" 0 'skipped: compute-sanitizer is not here'
    elif in_time "$part" 500; then
        timeout "$limit" stdbuf -oL "$sanitizer" --tool "$tool" --error-exitcode 3 --print-limit 5 \
            "$tessera" verify --cases "$cases" >"$out/$part.log" 2>&1 </dev/null &
        names+=("$part") running[$part]=$! limits[$part]=$limit
    fi
done
for name in "${names[@]}"; do
    wait "${running[$name]}"
    counted "$name" $((SECONDS - start)) $? "${limits[$name]}" "$out/$name.log"
done

printf '\n'
printf '%s\n' "${summary[@]}" "$passed passed, $failed failed, $skipped skipped, $SECONDS s" |
    tee -a "$log"
[ "$failed" -eq 0 ]
