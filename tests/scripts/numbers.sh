#!/bin/bash
# Every time and ratio that a page tells is in a committed file of results: tests/scripts/numbers.sh PAGE...
#
# In tables, a cell "X ms" of the row of a case and the column of a pipeline or peer is the time that
# bench/results holds for them, a cell "X %" in the column of a level its share of the peak. In
# words, numbers before "ms" are some time of bench/results, those before "TFLOP/s" some rate, those
# before "times" some speed-up or published one. Numbers are compared as they are rounded.
set -u
cd "$(dirname "$0")/../.." || exit 2

cat bench/results/*.csv bench/published/*.csv | awk -v pages="$*" "$(cat bench/csv.awk)"'
# Who ran: a pipeline of ours, or a kernel that is compared with it.
function who(pipeline, kernel) {
    if (pipeline == "fused" || pipeline == "staged") return pipeline
    if (kernel ~ /\+/) return "staged"
    if (kernel ~ /_attention/) return "fused"
    return kernel
}
function rounded(value, as) {
    return sprintf("%." (as ~ /\./ ? length(as) - index(as, ".") : 0) "f", value) == as
}
# Whether every key=value of a case is one of another.
function within(some, all, n, i, depth, word, c) {
    all = "," all ","
    some = some ","
    for (i = 1; i <= length(some); i++) {
        c = substr(some, i, 1)
        depth += (c == "(") - (c == ")")
        if (c == "," && depth == 0) {
            if (!index(all, "," word ",")) return 0
            word = ""
        } else word = word c
    }
    return 1
}
function complain(words) { print page ":" line ": " words; failures++ }

/^"?(asked|case|entry)"?,/ { # a head: the columns of the rows that follow
    delete column
    n = cut($0, names)
    for (i = 1; i <= n; i++) column[names[i]] = i
    next
}
/^#/ || /^$/ { next }
{
    delete cells
    n = cut($0, cells)
    for (i = 1; i <= n; i++)
        if (cells[i] ~ /^[0-9.]+(e[-+]?[0-9]+)?$/) {
            unit = names[i] ~ /ms$/ ? "ms" : names[i] ~ /tflops$/ ? "TFLOP/s" : \
                names[i] ~ /speedup$|_over_dense$/ || names[i] == "published" ? "times" : ""
            pool[++n_pool] = cells[i] + 0
            pool_unit[n_pool] = unit
        }
    if (!("ms" in column) || cells[column["ms"]] == "") next
    rows++
    row_case[rows] = cells[column["case"]]
    row_who[rows] = who("pipeline" in column ? cells[column["pipeline"]] : "", cells[column["kernel"]])
    row_ms[rows] = cells[column["ms"]] + 0
    row_kernel[rows] = cells[column["kernel"]]
    row_share[rows] = "peak_share" in column ? 100 * cells[column["peak_share"]] : 0
}
END {
    peers["FlexAttention"] = "flex"; peers["cuDNN, dense"] = "cudnn_dense"
    peers["tiled, dense"] = "dense_tiled"; peers["cuBLAS, dense"] = "dense_cublas"
    peers["PyTorch"] = "flash2_dense"; peers["plain Triton"] = "triton"; peers["VSA"] = "vsa"
    peers["FlashAttention 4"] = "flash4"
    levels["AVX-512"] = "cpu_attention_avx512"; levels["AVX2"] = "cpu_attention_avx2"
    levels["AVX-512 BF16"] = "cpu_attention_avx512bf16"
    n_pages = split(pages, page_names, " ")
    for (p = 1; p <= n_pages; p++) {
        page = page_names[p]
        line = 0
        before = told
        while ((getline text < page) > 0) {
            line++
            if (text ~ /^\|/) {
                n = split(text, table, / *\| */)
                if (table[2] !~ /^`/) { # a head, or the line under it
                    if (text !~ /---/) for (i = 2; i < n; i++) heads[i] = table[i]
                    continue
                }
                asked = substr(table[2], 2, length(table[2]) - 2)
                for (i = 3; i < n; i++) {
                    if (table[i] !~ / (ms|%)$/) continue
                    shown = table[i]
                    share = shown ~ / %$/
                    sub(/ (ms|%)$/, "", shown)
                    gsub(/,/, "", shown)
                    wanted = heads[i] in peers ? peers[heads[i]] : \
                        heads[i] in levels ? levels[heads[i]] : heads[i]
                    found = 0
                    for (r = 1; r <= rows && !found; r++)
                        found = (share ? row_kernel[r] : row_who[r]) == wanted && \
                            rounded(share ? row_share[r] : row_ms[r], shown) && within(asked, row_case[r])
                    told++
                    if (!found) complain(table[i] " of " wanted " for " asked)
                }
                continue
            }
            while (match(text, /[0-9][0-9.]*((, | and |, and )[0-9][0-9.]*)* (ms|times|TFLOP\/s)/)) {
                list = substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH)
                unit = list
                sub(/.* /, "", unit)
                n = split(list, words, /, and |, | and | /)
                for (w = 1; w < n; w++) {
                    found = 0
                    for (i = 1; i <= n_pool && !found; i++)
                        found = pool_unit[i] == unit && rounded(pool[i], words[w])
                    told++
                    if (!found) complain(words[w] " " unit)
                }
            }
        }
        close(page)
        if (told == before) complain("no numbers")
    }
    print told + 0 " numbers, " failures + 0 " not in the results"
    exit failures > 0
}'
