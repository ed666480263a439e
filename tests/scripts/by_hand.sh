#!/bin/sh
# Costs by hand are few: numbers of struct kernel_cost and of families that no script has measured, each stated once.
# Usage: tests/scripts/by_hand.sh [ROOT]. Prints how many there are, by file; exit 1 if they are more than MOST.
most=44
cd "${1:-$(dirname "$0")/../..}" || exit 2

# numbers FILE [FROM [TO]]: of lines from one pattern to another; of names, comments and 0 and 1 none
numbers() {
    sed -n "/${2:-^}/,/${3:-no such line}/p" "$1" |
        sed -E 's|/\*.*\*/||; s|^ *\*.*||; s|/\*.*||; s/(^|[^0-9.A-Za-z_])[A-Za-z_#][A-Za-z_#0-9]*/\1/g' |
        grep -oE '[0-9]*\.?[0-9]+(e-?[0-9]+)?' | grep -cvxE '0|1'
}

cuda=$(numbers src/cuda/host/costs.h)
launches=$(sed -n '/^function launch/,/^}/s/.*return//p' bench/fit.awk | grep -oE '[0-9]{4}' | wc -l)
cpu=$(numbers src/cpu/table.c '^.. Costs:' '^#define LEVEL_KERNELS')
# No number stands in a row of the tables, nor in a family's answers.
rows=$(grep -hoE '\.(item|key_row_dim|key_dim|score|masked_key|launch|combine|parts_rate) = [^,]*[0-9]e?-?[0-9]*\.?[0-9]+' \
    src/cuda/host/table.c src/cuda/host/families.c | wc -l)
sum=$((cuda + launches + cpu + rows))
echo "costs by hand: $sum: $cuda of CUDA, $launches of launches, $cpu of the CPU, $rows elsewhere"
for n in "$cuda" "$launches" "$cpu"; do
    [ "$n" -gt 0 ] || { echo 'a file has none: the script does not know it any more'; exit 1; }
done
[ "$sum" -le $most ] || { echo "at most $most are held: derive them, or measure them by a script"; exit 1; }
