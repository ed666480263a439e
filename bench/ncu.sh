#!/usr/bin/env bash
# What Nsight Compute reads off the three kernels, as in the figures of "Blocked Dynamic Sparse
# Attention" (Goel and Agrawal):
#   bench/ncu.sh TESSERA OUT.csv [CASE...]
#
# Without cases: those of that paper, N = 32768, G = 8, p = 0.95, d = 768, and its N = 1024. The CSV has a
# line for each case and kernel: time, throughput of compute and of memory in percent of the peak,
# and the warps that wait for each reason in percent of all that wait or run. Exit status 2 where
# ncu is not.
set -eu
tessera=$1
out=$2
shift 2
[ $# -gt 0 ] || set -- \
    'h=1,n=32768,d=768,block=8x8,pattern=random(0.05,1),backend=cuda,pipeline=staged' \
    'h=1,n=1024,d=768,block=8x8,pattern=random(0.05,1),backend=cuda,pipeline=staged'
ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null) ||
    { echo 'ncu.sh: ncu is not here' >&2; exit 2; }

stalls=(long_scoreboard short_scoreboard mio_throttle lg_throttle barrier math_pipe_throttle wait
    not_selected selected no_instruction dispatch_stall imc_miss branch_resolving drain membar
    sleeping tex_throttle misc gmma)
metrics=gpu__time_duration.sum
for name in sm__throughput gpu__dram_throughput lts__throughput l1tex__throughput \
    sm__warps_active; do
    metrics+=,$name.avg.pct_of_peak_sustained_elapsed
done
for stall in "${stalls[@]}"; do
    metrics+=,smsp__average_warps_issue_stalled_${stall}_per_issue_active.ratio
done

log=$(mktemp)
rows=$(mktemp)
trap 'rm -f "$log" "$rows"' EXIT
printf 'case,kernel,us,sm_pct,dram_pct,l2_pct,l1_pct,occupancy_pct' >"$rows"
printf ',%s_pct' "${stalls[@]}" >>"$rows"
printf '\n' >>"$rows"
for case in "$@"; do
    # the first launch of each, in the run that is checked
    "$ncu" --clock-control none --csv --page raw --print-units base --launch-count 4 \
        --kernel-name 'regex:^(sddmm|softmax|spmm)' --metrics "$metrics" \
        "$tessera" bench --seconds 0 --hot "$case" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    # ncu's columns, by name, into ours; cells are in quotes, thousands without separators
    awk -v of="$case" -v stalls="${stalls[*]}" '
        function cut(line, to, count) { # cells of a CSV line, quotes off
            count = 0
            while (match(line, /^"[^"]*"(,|$)/) || match(line, /^[^,]*(,|$)/)) {
                cell = substr(line, 1, RLENGTH)
                sub(/,$/, "", cell)
                gsub(/"/, "", cell)
                to[++count] = cell
                if (RLENGTH == 0 || RLENGTH == length(line)) break
                line = substr(line, RLENGTH + 1)
            }
            return count
        }
        function value(name) { gsub(/,/, "", cells[column[name]]); return cells[column[name]] + 0 }
        /^"ID"/ { n = cut($0, names); for (i = 1; i <= n; i++) column[names[i]] = i; next }
        /^"[0-9]+"/ {
            cut($0, cells)
            if (seen[cells[column["Kernel Name"]]]++) next
            split("sm__throughput gpu__dram_throughput lts__throughput l1tex__throughput " \
                  "sm__warps_active", peaks, " ")
            printf "\"%s\",\"%s\",%.1f", of, cells[column["Kernel Name"]],
                value("gpu__time_duration.sum") / 1000
            for (i = 1; i <= 5; i++)
                printf ",%.1f", value(peaks[i] ".avg.pct_of_peak_sustained_elapsed")
            count = split(stalls, names_of, " ")
            total = 0
            for (i = 1; i <= count; i++)
                total += value("smsp__average_warps_issue_stalled_" names_of[i] \
                               "_per_issue_active.ratio")
            for (i = 1; i <= count; i++) {
                share = value("smsp__average_warps_issue_stalled_" names_of[i] \
                              "_per_issue_active.ratio")
                printf ",%.1f", total ? 100 * share / total : 0
            }
            printf "\n"
            told = 1
        }
        END { exit !told }' "$log" >>"$rows" || { cat "$log" >&2; exit 1; }
done
cat "$rows" >"$out"
cat "$out"
