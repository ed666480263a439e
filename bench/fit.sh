#!/usr/bin/env bash
# Costs of fused CUDA kernels, measured on this machine's GPU:
#   bench/fit.sh [FOLDER [KERNELS [OUT]]]
#
# FOLDER is a build folder or what tools/scripts/gpu_stage.sh made of one (default build/release), KERNELS a
# regular expression (default: the forward of bf16, whose f16 twins have the same costs, and of f32), OUT the folder
# (default $OUT, or the current one) of costs.csv, what was measured, and costs.def, what bench/fit.awk makes of it. Those
# that are kept, bench/results/costs.csv and src/cuda/costs.def, tests/scripts/fit.sh holds together. For each kernel and
# tile height 8 or 12 lists are timed that fill the device in whole waves, by bench/peers/choices.py ($PYTHON, default
# python3, has PyTorch) on one set of tensors, so that no run waits for memory (docs/design/lists.md, "Measured costs").
# About two minutes for all kernels, LIMIT seconds at most: what that cuts short is named, and its kernels are left out.
# Exit status: 0 all is written, 1 a step failed, 3 some kernels are left out.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=$(realpath "${1:-build/release}") || exit 1
kernels=${2:-^cuda_attention_(bf16|f32)_}
out=${3:-${OUT:-.}}
limit=${LIMIT:-540} # seconds of timing
export LD_LIBRARY_PATH=$folder:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
tessera=$folder/tessera
info=$("$tessera" info) || { echo "bench/fit.sh: no program in $folder: build first" >&2; exit 1; }
device=$(sed -n 's/^cuda *0: \(.*, sm_.*\)/\1/p' <<<"$info")
card=${device%%, sm_*}
multiprocessors=${device% multiprocessors*}
multiprocessors=${multiprocessors##* }
[ -n "$card" ] || { echo 'bench/fit.sh: there is no GPU' >&2; exit 1; }
commit=$(cat "$folder/commit" 2>/dev/null || sed 's/.*"\(.*\)"/\1/' "$folder/commit/commit.h")
commit=${commit:0:7}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
began=$SECONDS

# Items in whole waves, of 1 to 4 CTAs on a multiprocessor: 3072 queries are 16 tiles of 192 rows.
heads=$((multiprocessors % 4 ? multiprocessors : multiprocessors / 4))

# case_of KERNEL ROWS BLOCK KEEP: equal lists, one for all heads, in whole tiles
case_of() {
    local d=${1##*_d} v type=${1#cuda_attention_}
    v=${d#*_v}
    d=${d%%_*} v=${v%%_*} type=${type%%_*}
    echo "h=$heads,n=3072,nkv=4096,d=$d,dv=$v,dtype=$type,block=$3,pattern=random_row($4,1),lists=1,backend=cuda,$(
        )pipeline=fused,kernel=$1,tile=$2,split=1048576"
}

# lists_of KERNEL ROWS: a line for each list: its case, then what costs.csv has before the time. 4, 12 and 32 steps; in
# runs of 64 keys, of 8 and single, blocks as high as the tile and half as high, which leave masks; and by Hopper's kernels
# unions of blocks of 16 rows. Fails where the kernel refuses one.
lists_of() {
    local list unions=()
    if [[ $1 = *sm90* && $2 -ge 32 ]]; then
        unions=("16x64 .25" "16x16 .25" "16x8 .25" "16x8 .5")
    fi
    for list in "${2}x64 .0625" "${2}x64 .1875" "${2}x64 .5" "$(($2 / 2))x64 .25" "${2}x1 .25" \
        "$(($2 / 2))x1 .25" "${2}x8 .25" "$(($2 / 2))x8 .25" "${unions[@]}"; do
        # shellcheck disable=SC2086 # two words
        "$tessera" plan "$(case_of "$1" "$2" $list)" 2>/dev/null >"$work/plan" || return
        awk -v of="$1,$2,$heads,${list// /,}" '
            NR == 1 { name = $0 }
            $1 == "lists" { tiles = $2; full = $8; masked = $13 }
            $1 == "schedule" { items = $2 }
            END { print name, of "," items "," full / tiles "," masked / tiles }' "$work/plan"
    done
}

"$tessera" info --kernels | sed -n 's/^kernel *\(cuda_attention_[^ ]*\) .*/\1/p' | grep -E -- "$kernels" |
    while read -r kernel; do
        for rows in 8 16 32 64 128 192; do
            lists_of "$kernel" $rows >"$work/lists" && cat "$work/lists"
        done
    done >"$work/design"
[ -s "$work/design" ] || { echo "bench/fit.sh: no kernel of this machine matches $kernels" >&2; exit 1; }
echo "bench/fit.sh: $card, $multiprocessors multiprocessors: $(wc -l <"$work/design") timings"
cut -d ' ' -f 1 "$work/design" >"$work/cases"
"${PYTHON:-python3}" bench/peers/choices.py --quiet --sets 1 --seconds $limit --library "$folder/libtessera.so" \
    --csv "$work/times.csv" "$work/cases"
[ -s "$work/times.csv" ] || { echo 'bench/fit.sh: the timing failed' >&2; exit 1; }

# What was measured: lists that were not timed leave.
awk -f bench/csv.awk -f <(cat <<'END'
BEGIN { print "kernel,tile,heads,block,keep,items,full,masked,ms,device,multiprocessors,commit" }
FNR == 1 { file++ }
file == 1 && FNR == 1 { n = cut($0, names); for (i = 1; i <= n; i++) column[names[i]] = i }
file == 1 { cut($0, cells); ms[cells[column["case"]]] = sprintf("%.7g", cells[column["ms"]]); next }
ms[$1] > 0 { print $2 "," ms[$1] "," card }
END
) -v card="$card,$multiprocessors,$commit" "$work/times.csv" "$work/design" >"$work/costs.csv"
awk -f bench/fit.awk "$work/costs.csv" >"$work/costs.def" || exit 1
cp "$work/costs.csv" "$work/costs.def" "$out"
fitted=$(grep -c '^ *{' "$work/costs.def")
echo "bench/fit.sh: $fitted costs in $out after $((SECONDS - began)) s"
[ "$fitted" -eq "$(cut -d ' ' -f 2 "$work/design" | cut -d , -f 1,2 | sort -u | wc -l)" ] || exit 3
