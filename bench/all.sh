#!/usr/bin/env bash
# Everything that README and docs tell numbers of, measured anew:
#   bench/all.sh [FOLDER [SECONDS [NAME...]]]
#
# FOLDER is a build folder or what tools/scripts/gpu_stage.sh made of one (default build/release), SECONDS
# what it may take (default 450). NAME is a sweep of bench/sweeps; cpu_LEVEL, which is the sweep cpu
# at that level; peers, floors and peers_cpu, PyTorch on the cases of bench/peers; or ncu. Without
# names it is all that this machine has devices for. What is not here is named and passed by.
#
# Files go to $OUT when it is set, else to bench/results. What bench/results has of these names, of
# the same commit, is kept and only what it lacks is measured, so a run that the time cuts short is
# continued by another, once its files lie in bench/results. Each name has its NAME.json and
# NAME.csv, and its figure where gnuplot is; machine.txt says what they were measured on and how fast
# its clocks ran meanwhile.
# Exit status: 0 all is measured, 1 a step failed, 3 something is left for another run.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=$(realpath "${1:-build/release}") || exit 1
end=$((SECONDS + ${2:-450}))
shift $(($# < 2 ? $# : 2))
out=${OUT:-bench/results}
mkdir -p "$out"
export LD_LIBRARY_PATH=$folder:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OMP_WAIT_POLICY=passive
tessera=$folder/tessera
info=$("$tessera" info) || { echo "bench/all.sh: no program in $folder: build first" >&2; exit 1; }
if [ $# -eq 0 ]; then
    set -- readme_cpu cpu_avx512 cpu_avx512bf16 cpu_avx2 threads peers_cpu
    grep -q '^cuda *none' <<<"$info" || set -- readme backward stages modes keep granularity columns heads \
        wide length topk splits fill select mask delta mlp peers floors "$@" blocked_dynamic ncu
fi
commit=$(cat "$folder/commit" 2>/dev/null || sed 's/.*"\(.*\)"/\1/' "$folder/commit/commit.h")
# take_over NAME: what there is of it already, unless it was measured of another commit
take_over() {
    [ "$out" -ef bench/results ] || cp -n "bench/results/$1".{json,csv} "$out" 2>/dev/null
    local of
    of=$(sed -n 's/^ *"commit": "\(.*\)",\{0,1\}$/\1/p' "$out/$1.json" 2>/dev/null | sort -u)
    # two builds of a tree with changes, or of none, have one name
    if [ -e "$out/$1.json" ] && [[ $of != "$commit" || $of =~ dirty|unknown ]]; then
        (cd "$out" && rm -fv "$1".{json,csv}) | sed 's/^/bench\/all.sh: of another commit: /'
    fi
}

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
        --format=csv,noheader 2>/dev/null || echo 'no GPU'
    lscpu | sed -n 's/^Model name: */host: /p' | head -n 1
    echo "threads: $(nproc)"
} >>"$out/machine.txt"

# sweep NAME FILE: what the time allows of a sweep
sweep() {
    local limit=$((end - SECONDS - 40)) # the last case that is begun may take a while
    [ $limit -gt 0 ] || { left=1; return; }
    take_over "$1"
    watch_clocks "$1" "$tessera" bench --resume --time-limit $limit --sweep "bench/sweeps/$2.txt" \
        --json "$out/$1.json" --csv "$out/$1.csv" >"$out/step.log" || failed=1
    tail -n 1 "$out/step.log"
    grep -q 'cases are left' "$out/step.log" && left=1
    rm -f "$out/step.log"
}

# peers NAME SECONDS OPTION...: where there is PyTorch and about so much time
peers() {
    python3 -c 'import torch' 2>/dev/null || { echo "bench/all.sh: $1: no PyTorch here"; return; }
    take_over "$1"
    [ ! -s "$out/$1.csv" ] || return 0
    [ $((end - SECONDS)) -gt "$2" ] || { left=1; return; }
    watch_clocks "$1" python3 bench/peers/peers.py --library "$folder/libtessera.so" \
        --sweep "bench/peers/$1.txt" --json "$out/$1.json" --csv "$out/$1.csv" "${@:3}" || failed=1
}

failed=0 left=0
for name; do
    case $name in
    ncu)
        [ $((end - SECONDS)) -gt 60 ] || { left=1; continue; }
        bench/ncu.sh "$tessera" "$out/ncu.csv"
        [[ $? =~ ^[02]$ ]] || failed=1 # 2: it is not here, and has said so
        ;;
    peers)
        peers peers 200 --rounds 7 \
            --peers tessera_fused,tessera_staged,cudnn_dense,flex,triton,vsa,flash4
        ;;
    floors)
        peers floors 60 --rounds 9 --peers tessera_fused,cudnn_dense
        ;;
    peers_cpu)
        peers peers_cpu 60 --rounds 5 --device cpu --peers tessera_fused,flash2_dense
        ;;
    cpu_*)
        level=${name#cpu_}
        TESSERA_ISA=$level "$tessera" info | grep -q "^kernel *cpu_attention_$level (cpu attention)\$" ||
            { echo "bench/all.sh: $name: this machine has no $level"; continue; }
        # one thread, of OpenBLAS too
        TESSERA_ISA=$level OMP_NUM_THREADS=1 sweep "$name" cpu
        ;;
    *) OMP_NUM_THREADS=$(nproc) sweep "$name" "$name" ;;
    esac
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
for name; do
    figure=$name
    [[ $name != cpu_* ]] || figure=cpu
    if [ -e "bench/plots/$figure.gp" ] && [ -s "$out/$name.csv" ] && command -v gnuplot >/dev/null
    then
        tools/scripts/plot.sh "$out/$name.json" || failed=1
    fi
done
[ $failed -eq 0 ] || exit 1
[ $left -eq 0 ] || exit 3
