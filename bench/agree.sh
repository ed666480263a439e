#!/usr/bin/env bash
# Whether two runs of a sweep on one machine agree: bench/agree.sh ONE.csv OTHER.csv
#
# Rows are of the same case, kernel and timing; they agree when their medians are within 5 % of one
# another. A row that either run marks noisy (its stretches lie more than 5 % apart) or throttled may
# differ. Exit status: 0 all others agree, 1 some do not, or there is nothing to compare; 2 bad use.
set -u
if [ $# -ne 2 ] || [ ! -r "$1" ] || [ ! -r "$2" ]; then
    echo 'usage: bench/agree.sh ONE.csv OTHER.csv' >&2
    exit 2
fi
awk "$(cat "$(dirname "$0")/csv.awk")"'
FNR == 1 {
    files++
    split("", column)
    n = cut($0, names)
    for (i = 1; i <= n; i++) column[names[i]] = i
    next
}
{
    cut($0, cells)
    ms = cells[column["ms"]]
    if (ms == "") next
    ms += 0
    key = cells[column["case"]] " " cells[column["kernel"]] " " cells[column["timing"]]
    doubt = cells[column["noise"]] + 0 > 0.05 || cells[column["throttled"]] != ""
    if (files == 1) {
        first[key] = ms
        doubted[key] = doubt
    } else if (key in first) {
        apart = ms > first[key] ? ms / first[key] - 1 : first[key] / ms - 1
        rows++
        marked += doubted[key] || doubt
        if (apart <= 0.05) agree++
        else if (!(doubted[key] || doubt)) {
            printf "%g and %g ms: %s\n", first[key], ms, key
            bad++
        }
    }
}
END {
    printf "%d rows, %d agree, %d are marked noisy or throttled, %d of the others do not agree\n",
        rows, agree, marked, bad
    exit bad > 0 || rows == 0
}' "$1" "$2"
