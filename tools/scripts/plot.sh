#!/usr/bin/env bash
# Draws the figure of a sweep's results: tools/scripts/plot.sh RESULTS.json [FOLDER]
#
# RESULTS.json is what `tessera bench --sweep bench/sweeps/NAME.txt --json NAME.json --csv NAME.csv`
# wrote, its CSV beside it. NAME.svg and NAME.png go to FOLDER, or stand beside the results. They are
# drawn by gnuplot, by bench/plots/NAME.gp, or by cpu.gp for cpu_LEVEL: change that for another figure
# of the same rows.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tools/scripts/packages.sh"

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo 'usage: tools/scripts/plot.sh RESULTS.json [FOLDER]' >&2
    exit 2
fi
json=$1
csv=${json%.json}.csv
name=$(basename "$json" .json)
folder=${2:-$(dirname "$json")}
script=$here/bench/plots/$name.gp
[[ $name != cpu_* ]] || script=$here/bench/plots/cpu.gp
if [ ! -e "$script" ]; then
    figures=$(cd "$here/bench/plots" && printf '%s, ' *.gp |
        sed 's/\.gp//g; s/common, //; s/cpu,/cpu_LEVEL,/')
    echo "plot.sh: there is no figure of $name; there are ${figures%, }: results are named so" >&2
    exit 2
fi
for file in "$json" "$csv"; do
    [ -r "$file" ] || { echo "plot.sh: cannot read $file" >&2; exit 2; }
done
packages_need gnuplot-nox:gnuplot || exit 2
mkdir -p "$folder"

# Of every machine and commit that the rows name.
words() {
    sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p" "$json" | sort -u | paste -s -d '+' |
        sed 's/+/ + /g'
}
source="$(words device), commit $(words commit | sed 's/\([0-9a-f]\{10\}\)[0-9a-f]\{30\}/\1/g')"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# gnuplot would end a text at a comma, also in quotes.
awk '{
    text = ""
    for (i = 1; i <= length($0); i++) {
        c = substr($0, i, 1)
        if (c == "\"") quoted = !quoted
        else text = text (c == "," && !quoted ? "\t" : c)
    }
    print text
}' "$csv" >"$work/rows"

draw() { # draw TERMINAL OPTIONS SUFFIX
    local said # such as that a series has no rows yet
    said=$(gnuplot -e "set terminal $1 $2; set output '$work/$name.$3'; csv = '$work/rows'" \
        -e "source = '$source'; name = '$name'" "$here/bench/plots/common.gp" "$script" 2>&1) ||
        { printf '%s\n' "$said" >&2; exit 1; }
}
draw svg "size 1000,520 dynamic background '#ffffff' font 'sans,14'" svg
draw pngcairo "size 1600,832 font 'sans,20' linewidth 1.5 pointscale 1.5" png
mv "$work/$name.svg" "$work/$name.png" "$folder"
echo "$folder/$name.svg $folder/$name.png"
