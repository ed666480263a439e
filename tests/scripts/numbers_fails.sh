#!/bin/bash
# numbers.sh finds what it is there to find: tests/scripts/numbers_fails.sh PAGE...
#
# Planted faults, one a page, beside pages that are right. Then every number of the real pages is
# altered in its last digit, and as many must be found.
# shellcheck disable=SC2015,SC2016 # backquotes are Markdown's
set -u
cd "$(dirname "$0")/../.." || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/results" "$work/published"
checks=0 failures=0

fail() {
    failures=$((failures + 1))
    echo "FAILED: $1"
    cat "$work/page.md" "$work/out"
}

cat >"$work/results/a.csv" <<'END'
case,pipeline,kernel,ms,tflops,speedup,peak_share,commit
"h=1,n=64,pattern=random(0.1,1),seed=0",fused,cpu_attention_avx2,1.25,500.4,,0.812,0123456789abcdef
"h=1,n=64,pattern=random(0.1,1),seed=0",staged,x+y+z,4.75,100,,,0123456789abcdef
"h=1,n=64,pattern=random(0.1,1),seed=0",dense,cudnn_dense,2.5,250,2,,0123456789abcdef
"h=2,n=64,pattern=random(0.1,1),seed=0",fused,cpu_attention_avx2,7,1,,,0123456789abcdef
"h=4,n=64,pattern=random(0.1,1),seed=0",fused,cpu_attention_avx2,9,1,,,fedcba9876543210
"h=5,n=64,pattern=random(0.1,1),seed=0",fused,cpu_attention_avx2,11,1,,,0123456789abcdef-dirty
"h=6,n=64,pattern=random(0.1,1),seed=0",fused,cpu_attention_avx2,13,1,,,
END
sed '/"h=[456]/d' "$work/results/a.csv" >"$work/results/b.csv"
cat >"$work/published/a.csv" <<'END'
# theirs
entry,case,kernel,field,published,need
"their best","h=1,n=64,pattern=random(0.1,1)",,ms,12,beat
END

# page STATUS WORDS: numbers.sh ends with STATUS and says WORDS of the page on standard input, behind HEAD.
head='By commit 0123456:'
page() {
    checks=$((checks + 1))
    { printf '%s\n\n' "$head" && cat; } >"$work/page.md"
    TABLES=$work tests/scripts/numbers.sh "$work/page.md" >"$work/out" 2>&1
    local status=$?
    { [ $status -eq "$1" ] && grep -qF -- "$2" "$work/out"; } || fail "status $status, not $1 and '$2'"
}
# says STATUS WORDS TEXT: the same of one paragraph.
says() {
    page "$1" "$2" <<<"$3"
}

fused='a h=1,n=64 fused'
says 0 '1 numbers, 0 not' "It takes 1.25 ms. <!-- from: $fused ms -->"
says 0 '5 numbers, 0 not' "It takes 1.25 ms at 500 TFLOP/s, 81 % of the peak, 2.0 times as fast
as 2.5 ms.
<!-- from: $fused ms; tflops; peak_share; a h=1 cudnn_dense ms / fused ms; cudnn_dense ms -->"
says 0 '4 numbers, 0 not' "With 10 % they take 1.25 (here) and 4.8 ms, 3.8x the time.
<!-- from: $fused keep; ms; staged ms; staged ms / fused ms -->"
says 0 '1 numbers, 0 not' "They report 12 times. <!-- from: published/a \"their best\" published -->"
says 0 '3 numbers, 0 not' \
    "Of 5 % and 20 % the union is 24 % at most. <!-- from: given 5; given 20; = 100 * (1 - 0.95 * 0.8) -->"

# Numbers without a row; in the next line, in a list, with words between, in another paragraph.
says 1 '1.25 ms: no row is named' 'It takes 1.25 ms.'
says 1 '500 TFLOP/s: no row is named' 'It runs at 500
TFLOP/s.'
says 1 '2.0 times: no row is named' "It takes 1.25 ms <!-- from: $fused ms -->, by 2.0 times less."
says 1 '4.8 ms: no row is named' "It takes 1.25 (here) and 4.8 ms. <!-- from: $fused ms -->"
says 1 '81 %: no row is named' "It has 81%."
says 1 '3.8 times: no row is named' "It is 3.8× as fast."
says 1 '1.25 ms: no row is named' "- It takes 1.25 ms.
- <!-- from: $fused ms -->"
# Wrong numbers, items that say nothing, and those of no number.
says 1 '1.26 ms: the row says 1.25' "It takes 1.26 ms. <!-- from: $fused ms -->"
says 1 '1.2 times: the row says 2' "It is 1.2 times as fast. <!-- from: a h=1 cudnn_dense speedup -->"
says 1 '24.1 %: the row says 24' "It is 24.1 %. <!-- from: = 100 * (1 - 0.95 * 0.8) -->"
says 1 '11 times: the row says 12' "They report 11 times. <!-- from: published/a \"their best\" published -->"
says 1 '3.9 times: the row says 3.8' "It is 3.9 times. <!-- from: a h=1 staged ms / fused ms -->"
says 1 '6 %: the row says 5' "It is 6 %. <!-- from: given 5 -->"
says 1 'a measured number is not given' "It takes 5 ms. <!-- from: given 5 -->"
says 1 '5 rows are fused of n=64 in a' "It takes 1.25 ms. <!-- from: a n=64 fused ms -->"
says 1 'no row is fused of h=3 in a' "It takes 1.25 ms. <!-- from: a h=3 fused ms -->"
says 1 'no row is fused of h=1 in c' "It takes 1.25 ms. <!-- from: c h=1 fused ms -->"
says 1 'column tflops is not in ms' "It takes 500 ms. <!-- from: $fused tflops -->"
says 1 'no number in column speedup' "It is 2 times as fast. <!-- from: $fused speedup -->"
says 1 "'ms' is of no number" "It is fast. <!-- from: ms -->"
says 1 "is no sum" 'It is 5 %. <!-- from: = system("true") -->'
says 1 'no numbers' 'It is fast.'

# Tables: a case's row needs no comment, other rows do; the line before says where the rows are.
table() {
    printf '| case | fused | staged |\n|---|---|---|\n%s\n' "$1"
}
page 0 '2 numbers, 0 not' < <(table '| `h=1,n=64` | 1.25 ms | 4.8 ms |')
page 1 '4.9 ms of staged' < <(table '| `h=1,n=64` | 1.25 ms | 4.9 ms |')
page 1 '1.25 ms of fused for h=3,n=64' < <(table '| `h=3,n=64` | 1.25 ms | |')
page 1 '1.25 ms: no row is named' < <(table '| the first | 1.25 ms | |')
page 1 '500 TFLOP/s: no row is named' < <(table '| `h=1,n=64` | 500 TFLOP/s | |')
page 0 '1 numbers, 0 not' < <(table "| the first | 1.25 ms <!-- from: $fused ms --> | |")
page 0 '1 numbers, 0 not' < <(echo '<!-- table: b h=1 -->' && table '| `n=64` | 1.25 ms | |')
page 1 '1.25 ms of fused for n=64,h=2' < <(echo '<!-- table: b h=2 -->' && table '| `n=64` | 1.25 ms | |')
page 1 '1.25 ms of fused' < <(echo '<!-- table: c h=1 -->' && table '| `n=64` | 1.25 ms | |')
page 1 'fused of n=64,h=1 stands twice' < <(table '| `h=1,n=64` | 1.25 ms | |
| `n=64,h=1` | 1.25 ms | |')

# Rows of another commit than the page names before them in the section, of none, of a changed tree.
says 0 '1 numbers, 0 not' "By commit fedcba9 it takes 9 ms. <!-- from: a h=4 fused ms -->"
says 1 '9 ms: the row is of commit fedcba9, the page names 0123456' "It takes 9 ms. <!-- from: a h=4 fused ms -->"
says 1 '9 ms: the row is of commit fedcba9, the page names 0123456' \
    "It takes 9 ms by commit fedcba9. <!-- from: a h=4 fused ms -->"
says 1 '1.25 ms: the row is of commit 0123456, the page names fedcba9' \
    "By commit fedcba9 it takes 9 ms, where another took 1.25 ms. <!-- from: a h=4 fused ms; $fused ms -->"
says 0 '2 numbers, 0 not' \
    "By commit fedcba9 it takes 9 ms, by commit 0123456 1.25 ms. <!-- from: a h=4 fused ms; $fused ms -->"
says 1 '11 ms: the row is of commit 0123456789abcdef-dirty' "It takes 11 ms. <!-- from: a h=5 fused ms -->"
says 1 '13 ms: the row is of no commit' "It takes 13 ms. <!-- from: a h=6 fused ms -->"
page 1 '9 ms of fused for h=4,n=64: the row is of commit fedcba9' < <(table '| `h=4,n=64` | 9 ms | |')
page 0 '1 numbers, 0 not' < <(printf 'By commit fedcba9:\n\n' && table '| `h=4,n=64` | 9 ms | |')
page 1 '1.25 ms of fused for h=1,n=64: the row is of commit 0123456, the page names none' \
    < <(printf '## Next\n\n' && table '| `h=1,n=64` | 1.25 ms | |')
picture="1.25 ms <!-- from: $fused ms --> ![Times](../bench/results/NAME.png)"
says 0 '1 numbers, 0 not' "${picture/NAME/b}"
says 1 'a.png: the row is of commit fedcba9' "${picture/NAME/a}"
says 1 'c.png: no rows in results' "${picture/NAME/c}"
head=
says 1 '1.25 ms: the row is of commit 0123456, the page names none' "It takes 1.25 ms. <!-- from: $fused ms -->"

checks=$((checks + 1))
tests/scripts/numbers.sh none.md >"$work/out" 2>&1
[ $? -eq 2 ] || fail 'a page that is not there'

# The real pages: each number altered, then each commit.
for real; do
    checks=$((checks + 1))
    sed -E 's/([0-9])( \([^()]*\))?( (ms|times|TFLOP\/s|%))/\1\x01\2\3/g' "$real" >"$work/marked.md"
    altered=$(grep -o $'\x01' "$work/marked.md" | wc -l)
    sed -E 's/9\x01/0/g; s/8\x01/9/g; s/7\x01/8/g; s/6\x01/7/g; s/5\x01/6/g; s/4\x01/5/g
        s/3\x01/4/g; s/2\x01/3/g; s/1\x01/2/g; s/0\x01/1/g' "$work/marked.md" >"$work/page.md"
    tests/scripts/numbers.sh "$work/page.md" >"$work/out" 2>&1
    grep -q " numbers, $altered not in the results" "$work/out" && [ "$altered" -gt 0 ] ||
        fail "$real: $altered numbers altered, but $(tail -n 1 "$work/out")"
    sed -E 's/([Cc]ommit )[0-9a-f]{7}/\10000000/g' "$real" >"$work/page.md"
    tests/scripts/numbers.sh "$work/page.md" >"$work/out" 2>&1
    while read -r _ commit; do
        checks=$((checks + 1))
        grep -qF "is of commit $commit, the page names 0000000" "$work/out" ||
            fail "$real: no number is of commit $commit"
    done < <(grep -oE '[Cc]ommit [0-9a-f]{7}' "$real" | sort -u)
done

echo "numbers_fails.sh: $checks checks, $failures failed"
[ "$failures" -eq 0 ]
