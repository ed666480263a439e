#!/bin/bash
# bench/fit.sh gives back the costs of a model: tests/scripts/fit.sh
#
# A program stands in for tessera, and for the script that times: it answers info and plan as tessera does, and its times
# are those of known costs. The file that fit.sh writes has these costs, but for kernels whose lists were cut short.
# And src/cuda/costs.def is what bench/fit.awk makes of bench/results/costs.csv, which was measured on a GPU.
set -u
cd "$(dirname "$0")/../.." || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/tessera" <<'END'
#!/bin/bash
# Costs: launch as bench/fit.awk has it; item 500 + rows, plain 400 + rows, masked 600 + rows, of
# runs of 8 keys 500 and 700 + rows, gathered 900 and 1000 + rows.
value() { sed -E "s/.*[,:]?$1=([^,]*).*/\1/" <<<",$case"; }
lists() {
    local rows=$(value tile) block=$(value block) keep=$(sed 's/.*random_row(\([^,]*\),.*/\1/' <<<"$case")
    tiles=$((3072 / rows)) items=$((3072 / rows * $(value h)))
    keys=$(awk -v keep="$keep" 'BEGIN { print 4096 * keep }')
    if [ "${block%x*}" -eq "$rows" ]; then full=$keys masked=0; else full=256 masked=$((2 * keys - 512)); fi
}
case=${!#}
case $1 in
info)
    echo 'cuda       0: NVIDIA Model, sm_90, 132 multiprocessors, 1.0 GiB of memory'
    for kernel in bf16_sm90_d64 bf16_sm90_d64_r64 f16_sm90_d64 bf16_d64; do
        echo "kernel     cuda_attention_$kernel (cuda attention)"
    done ;;
plan)
    case $(value kernel),$(value tile) in
    *_d64,128 | *_r64,8 | *_r64,64) ;;
    *) exit 2 ;;
    esac
    lists
    echo "$case"
    echo "  lists     $tiles query tiles, $(((full + masked) * tiles)) packed keys: $((full * tiles)) in 9 full runs," \
        "$((masked * tiles)) masked in 9 runs"
    echo "  schedule  $items work items, 0 split tiles" ;;
bench)
    while [ $# -gt 0 ]; do
        case $1 in --sweep) sweep=$2 ;; --csv) csv=$2 ;; esac
        shift
    done
    echo 'asked,case,ms' >"$csv"
    while read -r case; do
        [ -z "${CUT-}" ] || [ "$(value tile)" != "$CUT" ] || continue
        lists
        awk -v rows="$(value tile)" -v block="$(value block)" -v items="$items" -v full="$full" -v masked="$masked" \
            -v case="$case" 'BEGIN {
                sub(/.*x/, "", block)
                step = block == 1 ? 900 : 400 + 100 * log(64 / block) / log(8)
                masks = block == 1 ? 1000 : 600 + 100 * (64 / block - 1) / 7
                item = 500 + rows + full / 64 * (step + rows) + masked / 64 * (masks + rows)
                printf "\"x\",\"%s\",%.9g\n", case, 1e-6 * (3000 + items / 132 * item)
            }'
    done <"$sweep" >>"$csv" ;;
esac
END
cat >"$work/python" <<'END'
#!/bin/bash
exec "${0%python}tessera" bench --sweep "${!#}" "${@:2:$#-2}"
END
chmod +x "$work/tessera" "$work/python"
echo 0123456 >"$work/commit"
wanted='CUDA_COSTS(bf16_sm90_d64,
           {128, 3000, 628, 528, 728, 628, 828, 1028, 1128})
CUDA_COSTS(bf16_sm90_d64_r64,
           {8, 3000, 508, 408, 608, 508, 708, 908, 1008},
           {64, 3000, 564, 464, 664, 564, 764, 964, 1064})'
# fits STATUS COSTS: fit.sh ends with STATUS and writes these costs, of this card and commit.
fits() {
    PYTHON=$work/python bench/fit.sh "$work" ^cuda_attention_bf16_sm90_ "$work" >"$work/said" 2>&1
    [ $? -eq "$1" ] && [ "$(grep -A9 '^CUDA_COSTS' "$work/costs.def")" = "$2" ] &&
        grep -q 'bench/fit.sh: NVIDIA Model, commit 0123456\.' "$work/costs.def" && return
    echo "FAILED: fit.sh wrote"
    cat "$work/said" "$work/costs.def"
    exit 1
}
fits 0 "$wanted"
CUT=8 fits 3 "$(grep -v '{8,' <<<"$wanted")"
awk -f bench/fit.awk bench/results/costs.csv 2>/dev/null | cmp - src/cuda/costs.def ||
    { echo 'FAILED: src/cuda/costs.def is not what bench/fit.awk makes of bench/results/costs.csv'; exit 1; }
echo '2 fits give back their costs; costs.def is the fit of what was measured'
