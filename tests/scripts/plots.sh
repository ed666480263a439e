#!/bin/bash
# Draws the figures of what a small bench wrote, and holds sweeps, figures and the gallery together:
#   tests/scripts/plots.sh path/to/tessera
# Exit status 77 (skipped) without gnuplot.
# shellcheck disable=SC2015
set -u
repository=$(realpath "$(dirname "$0")/../..")
# shellcheck source=tests/scripts/checks.sh
. "$repository/tests/scripts/checks.sh"
command -v gnuplot >/dev/null || { echo 'plots: needs gnuplot (package gnuplot-nox)'; exit 77; }

# ---- every sweep has a figure, every figure a sweep or the peers ----
for sweep in "$repository"/bench/sweeps/*.txt; do
    [[ $sweep != */readme*.txt ]] || continue # tables
    checks=$((checks + 1))
    [ -s "$repository/bench/plots/$(basename "$sweep" .txt).gp" ] || fail "no figure of $sweep"
done
for figure in "$repository"/bench/plots/*.gp; do
    name=$(basename "$figure" .gp)
    checks=$((checks + 1))
    [ "$name" = common ] || [ "$name" = peers ] || [ -s "$repository/bench/sweeps/$name.txt" ] ||
        fail "no sweep of $figure"
done

# ---- figures ----
small='backend=cpu,pipeline=fused'
# draws NAME WORD...: the figure of NAME.json, whose SVG has each word.
draws() {
    local name=$1 word
    shift
    checks=$((checks + 2))
    "$repository/tools/scripts/plot.sh" "$name.json" figures >std 2>err && [ ! -s err ] ||
        fail "plot.sh $name.json: $(cat err)"
    [ "$(head -c 4 "figures/$name.png" | tail -c 3)" = PNG ] || fail "figures/$name.png is none"
    for word; do
        checks=$((checks + 1))
        grep -qF -- "$word" "figures/$name.svg" || fail "$name.svg lacks '$word'"
    done
}
good bench --seconds 0 "h=2,n=64,d=8,block=8x8,pattern=random(0.1,1),threads=1,backend=cpu" \
    "h=2,n=64,d=64,pattern=dense,threads=2,backend=cpu" --json threads.json --csv threads.csv
draws threads 'The CPU over threads' 'GFLOP/s' 'threads' 'D = 64, dense' "commit $("$built/read_files" field \
    threads.json commit | head -n 1 | cut -c 1-10)"
printf 'h=1,n={64,128,256},d=8,pattern=window(3,3),backend=cpu,pipeline=fused\n' >sweep.txt
good bench --seconds 0 --sweep sweep.txt --json length.json --csv length.csv
draws length 'tokens' 'time (ms)' 'window of 256 keys'
good bench --seconds 0 "h=1,n=64,d=64,pattern=random_row(0.125,1),block=16x16,threads=1,$small" \
    --json cpu_frob.json --csv cpu_frob.csv
draws cpu_frob 'peak: frob, one thread' 'blocks, D = 64'
listed="h=16,hkv=1,lists=kv,n=8,nkv=300,d=16,dtype=bf16,$small"
good bench --seconds 0 --rotate "$listed,topk=80,valid=1" "$listed,topk=80,valid=0.5" \
    --json topk.json --csv topk.csv
draws topk 'Decode over top-k lists' 'valid keys' '8 queries of 16 heads' 'published mean'
good bench --seconds 0 --rotate "$listed,topk=80,valid=0.14,split=64" --json splits.json --csv splits.csv
draws splits 'by splits' 'time of a step' 'published: mean' '8 queries, 14 %'
good bench --seconds 0 "$listed,topk=80" "$listed,block=8x8,topk=4,form=rows" --json fill.json --csv fill.csv
draws fill 'Fills of lists' 'entries of all' 'indices, CPU' 'block rows, CPU'
good bench --seconds 0 "h=2,n=64,d=16,block=8x8,select=topk(3),$small" --json select.json --csv select.csv
draws select 'Lists chosen of scores' 'select, CPU' 'select, fill and run, CPU'
good bench --seconds 0 "n=64,nkv=80,d=16,block=128x128,pattern=dense,op=mlp,cache=delta,backend=cpu" \
    "n=64,nkv=80,d=16,block=128x1,pattern=random_row(0.3,1),op=mlp,cache=delta,backend=cpu" \
    --json mlp.json --csv mlp.csv
draws mlp 'The MLP over listed columns' 'columns listed' 'f32, CPU'
good bench --seconds 0 "h=1,n=64,d=64,pattern=window(16,16),form=mask,$small" "h=1,n=128,d=64,pattern=dense,$small" \
    --json mask.json --csv mask.csv
draws mask 'A window from a mask' 'fill, mask on the device' 'published, N = 128' 'dense'
good bench --seconds 0 "h=1,n=128,d=16,pattern=dense,sums=128,$small" "h=1,n=384,d=16,block=192x1,topk=8,$small" \
    --json delta.json --csv delta.csv
draws delta 'Column sums and deltas' 'dense, 32,768 tokens' 'fill and run'
printf 'h=8,n=64,d=64,dtype=bf16,block={8x8,16x16},pattern=random(0.1,1),op={attention,backward},%s\n' "$small" >sweep.txt
good bench --seconds 0 --sweep sweep.txt --json backward.json --csv backward.csv
draws backward 'Forward and backward' 'rows and columns' 'backward'
for bad in none.json stage.txt threads.txt; do
    checks=$((checks + 1))
    "$repository/tools/scripts/plot.sh" $bad figures >std 2>err
    [ $? -eq 2 ] && grep -q '^plot.sh: ' err || fail "plot.sh took $bad"
done
checks=$((checks + 1))
: >frob.json
"$repository/tools/scripts/plot.sh" frob.json figures >std 2>err
grep -qF 'no figure of frob; there are backward, blocked_dynamic, columns, cpu_LEVEL, ' err ||
    fail 'which figures there are is not said'
# A results file of one sweep under another's name has none of its lines.
cp length.json keep.json && cp length.csv keep.csv
checks=$((checks + 1))
"$repository/tools/scripts/plot.sh" keep.json figures >std 2>err && fail 'a figure without lines'

# ---- the gallery ----
# Every term of spec_terms.c is in it, and it can be drawn.
sed -n '/^static const struct term terms/,/^};/s/^ *{"\([a-z_]*\)".*/\1/p' "$repository/src/pattern/spec_terms.c" |
    while read -r term; do
        grep -qE "^$term(\$|\()" "$repository/docs/gallery.txt" || echo "$term"
    done >missing
checks=$((checks + 2))
[ ! -s missing ] || fail "not in docs/gallery.txt: $(cat missing)"
"$repository/tools/scripts/gallery.sh" "$tessera" "$PWD/gallery.png" >std 2>err &&
    [ "$(wc -c <gallery.png)" -gt 10000 ] || fail "the gallery: $(cat err)"

echo "plots.sh: $checks checks, $failures failed"
[ "$failures" -eq 0 ]
