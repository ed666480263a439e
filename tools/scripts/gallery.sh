#!/usr/bin/env bash
# Draws every pattern of docs/gallery.txt as a small picture: tools/scripts/gallery.sh [TESSERA [FILE.png]]
# (default build/release/tessera, docs/gallery.png). Needs gnuplot.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
tessera=$(realpath "${1:-$here/build/release/tessera}")
file=$(realpath "${2:-$here/docs/gallery.png}")
cd "$here"
. tools/scripts/packages.sh
packages_need gnuplot-nox:gnuplot || exit 2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
specs=()
while read -r spec; do
    case $spec in '' | '#'*) continue ;; esac
    "$tessera" pattern --pattern "$spec" --n 128 --block 4x4 --bare --png "$folder/${#specs[@]}.png" >/dev/null
    specs+=("$spec")
done <docs/gallery.txt

columns=5
rows=$(((${#specs[@]} + columns - 1) / columns))
{
    echo "set terminal pngcairo size $((260 * columns)),$((275 * rows)) font 'sans,12'"
    echo "set output '$file'"
    echo "set multiplot layout $rows,$columns margins 0.01, 0.99, 0.01, 0.955 spacing 0.015, 0.045"
    echo 'unset tics; set border 15 lc rgb "#999999"; unset key; set size ratio -1; set autoscale fix'
    for i in "${!specs[@]}"; do
        echo "set title '${specs[$i]}' noenhanced offset 0, -0.6"
        echo "plot '$folder/$i.png' binary filetype=png with rgbimage"
    done
} >"$folder/gallery.gp"
gnuplot "$folder/gallery.gp"
echo "$file"
