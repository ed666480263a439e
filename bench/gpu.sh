#!/usr/bin/env bash
# All measurements that need a GPU, from a folder that tools/gpu_stage.sh made:
#   bench/gpu.sh [STAGE [SECONDS [NAME...]]]     (default .stage, 450 seconds, every sweep)
#
# NAME is a sweep of bench/sweeps, peers (PyTorch's, of bench/peers/cases.txt) or ncu. Files go to
# $OUT when it is set, else to bench/results. What bench/results has of these names, of the same
# commit, is kept and only what it lacks is measured, so a run that the time cuts short is continued
# by another, once its files lie in bench/results. Each sweep writes NAME.json and NAME.csv;
# machine.txt says what they were measured on and how fast its clocks ran meanwhile.
# Exit status: 0 all is measured, 1 a step failed, 2 no device, 3 something is left for another run.
set -u
cd "$(dirname "$0")/.." || exit 2
stage=$(realpath "${1:-.stage}") || exit 2
end=$((SECONDS + ${2:-450}))
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- readme stages modes keep granularity columns heads length threads cpu peers \
    blocked_dynamic ncu
out=${OUT:-bench/results}
mkdir -p "$out"
export LD_LIBRARY_PATH=$stage:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OMP_WAIT_POLICY=passive
tessera=$stage/tessera
if "$tessera" info | grep -q '^cuda *none'; then
    echo 'bench/gpu.sh: no device'
    exit 2
fi
commit=$(cat "$stage/commit")
# commit_of FILE.json: what its rows were measured of
commit_of() { sed -n 's/^ *"commit": "\(.*\)",\{0,1\}$/\1/p' "$1" 2>/dev/null | sort -u; }
for name; do
    if ! [ "$out" -ef bench/results ]; then
        cp "bench/results/$name".{json,csv} "$out" 2>/dev/null
    fi
    if [ -e "$out/$name.json" ] && [ "$(commit_of "$out/$name.json")" != "$commit" ]; then
        (cd "$out" && rm -fv "$name".{json,csv}) | sed 's/^/bench\/gpu.sh: of another commit: /'
    fi
done

watched=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active

# Clocks, temperature and why they were held back, every second while a command runs.
watch_clocks() {
    local log
    log=$(mktemp)
    nvidia-smi --format=csv,noheader,nounits -l 1 --query-gpu="$watched" >"$log" 2>/dev/null &
    local watcher=$!
    "${@:2}"
    local status=$?
    kill $watcher 2>/dev/null # it may have ended by itself
    wait $watcher 2>/dev/null
    # idle seconds, in which the host plans, say nothing about the kernels
    awk -F', ' -v name="$1" '$3 > 200 {
            if (!n || $1 < low) low = $1
            if ($1 > high) high = $1
            if ($4 > hot) hot = $4
            sum += $1; n++; reasons[$5]++
        }
        END {
            if (!n) exit
            printf "%s: SM clock %d to %d MHz, mean %d, in %d busy seconds; memory %d MHz;", name,
                low, high, sum / n, n, $2
            printf " at most %d C; clock event reasons", hot
            for (r in reasons) printf " %s (%d s)", r, reasons[r]
            printf "\n"
        }' "$log" >>"$out/machine.txt"
    rm -f "$log"
    return $status
}

{
    echo "commit $commit"
    date -u '+%Y-%m-%d %H:%M:%S UTC'
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit \
        --format=csv,noheader
    lscpu | sed -n 's/^Model name: */host: /p' | head -n 1
    echo "threads: $(nproc)"
} >>"$out/machine.txt"

failed=0 left=0
for name; do
    if [ "$name" = ncu ]; then
        [ $((end - SECONDS)) -gt 60 ] || { left=1; continue; }
        bench/ncu.sh "$tessera" "$out/ncu.csv" || failed=1
        continue
    fi
    if [ "$name" = peers ]; then
        [ ! -s "$out/peers.csv" ] || continue
        [ $((end - SECONDS)) -gt 150 ] || { left=1; continue; }
        watch_clocks peers python3 bench/peers/peers.py --library "$stage/libtessera.so" \
            --sweep bench/peers/cases.txt --rounds 7 --json "$out/peers.json" \
            --peers tessera_fused,tessera_staged,cudnn_dense,flex,flashinfer \
            --csv "$out/peers.csv" || failed=1
        continue
    fi
    # the last case that is begun may take a while
    limit=$((end - SECONDS - 40))
    [ $limit -gt 0 ] || { left=1; continue; }
    threads=$(nproc)
    [ "$name" != cpu ] || threads=1 # OpenBLAS has as many as there are
    OMP_NUM_THREADS=$threads watch_clocks "$name" "$tessera" bench --resume --time-limit $limit \
        --sweep "bench/sweeps/$name.txt" --json "$out/$name.json" --csv "$out/$name.csv" \
        >"$out/step.log" || failed=1
    tail -n 1 "$out/step.log"
    grep -q 'cases are left' "$out/step.log" && left=1
    rm -f "$out/step.log"
done
for name in bench/published/*.csv bench/goals/*.csv; do
    measured=$out/$(basename "$name" .csv).json
    [ -e "$measured" ] || continue
    "$tessera" bench --resume --json "$measured" --against "$name" >"$out/step.log"
    case $? in
    0) ;;
    1) [ $left -eq 1 ] || failed=1 ;; # what is left is not beaten yet
    *) failed=1 ;;
    esac
    grep -vE ' (beaten|not reached)$' "$out/step.log"
    rm -f "$out/step.log"
done
[ $failed -eq 0 ] || exit 1
[ $left -eq 0 ] || exit 3
