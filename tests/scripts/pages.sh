#!/bin/bash
# What pages show can be typed: tests/scripts/pages.sh TESSERA CC PAGE...
#
#     `SPEC`      in the text: terms of patterns and numbers alone; tessera pattern takes it
#     `KEY=...`   in the text: two keys of a case or more; tessera plan takes it, for an H100 too where the library
#                 has CUDA
#     ```c        a snippet of C compiles, its variables being those below
#
# Prints what is not taken; exit 1 if there was any, 2 where a page has none of all that.
set -u
root=$(realpath "$(dirname "$0")/../..") tessera=$(realpath "$1") compiler=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
tried=0 failures=0

# tries WHAT COMMAND...
tries() {
    local what=$1
    shift
    tried=$((tried + 1))
    "$@" >"$work/std" 2>"$work/err" && return
    failures=$((failures + 1))
    echo "$page: $what"
    sed 's/^/    /' "$work/err"
}

terms=$(sed -n '/^static const struct term terms/,/^};/s/^ *{"\([a-z_]*\)".*/\1/p' "$root/src/pattern/spec_terms.c" |
    paste -sd '|')
keys=$("$tessera" --help case | sed -n 's/^  \([a-z]*\)  .*/\1/p' | paste -sd '|')
for list in "$terms" "$keys"; do
    [ -n "$list" ] || { echo 'pages: no terms, or no keys of cases'; exit 2; }
done
spec="^($terms|each|[0-9.]+|[()+&,; ])+$" told='\([0-9]|^(causal|dense)$'
value="($keys)=[a-z0-9.]+" case="^$value(,$value|,pattern=[^ ]+)+$"
targets=('')
"$tessera" info | grep -q 'built without CUDA' || targets+=(h100)

cat >"$work/begin.c" <<'END'
#include <math.h>
#include <tessera.h>
static tess_tensor q, k, v, o, lse, o_shared, o_own, lse_shared, lse_own;
static tess_pattern_shape shape;
static tess_pattern *pattern, *square, *parts[3];
static tess_problem problem;
static tess_plan *plan;
static tess_arguments arguments;
static tess_error error;
static float *slopes, *sinks;
static uint64_t seed;
static int64_t n_q, n_kv;
static double query_pre_attn_scalar;
void snippet(void);
void snippet(void) {
END

for page; do
    before=$tried
    awk '/^ *```/ { fenced = !fenced; next }
        !fenced { while (match($0, /`[^`]+`/)) {
                print substr($0, RSTART + 1, RLENGTH - 2)
                $0 = substr($0, RSTART + RLENGTH)
            } }' "$page" | sort -u >"$work/quoted"
    while read -r text; do
        if [[ $text =~ $case ]]; then
            for target in "${targets[@]}"; do
                tries "$text $target" "$tessera" plan ${target:+--target "$target"} \
                    "$text${target:+,backend=cuda,pipeline=fused}"
            done
        elif [[ $text =~ $spec ]] && [[ $text =~ $told ]]; then
            tries "$text" "$tessera" pattern --n 4096 --block 128x128 --pattern "$text"
        fi
    done <"$work/quoted"
    rm -f "$work"/snippet*
    awk -v to="$work/snippet" '/^```c$/ { n++; inside = 1; next }
        /^```/ { inside = 0 }
        inside { print >(to n ".c") }' "$page"
    for snippet in "$work"/snippet*.c; do
        [ -e "$snippet" ] || continue
        { cat "$work/begin.c" "$snippet" && echo '}'; } >"$work/whole.c"
        tries "$(head -n 1 "$snippet") ..." "$compiler" -std=c11 -Wall -Wextra -Werror -Wno-unused \
            -fsyntax-only -I "$root/include" "$work/whole.c"
    done
    [ $tried -gt $before ] || { echo "$page: nothing to try"; exit 2; }
done
echo "$tried tried, $failures not taken"
[ $failures -eq 0 ]
