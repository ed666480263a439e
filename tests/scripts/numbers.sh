#!/bin/bash
# Every number that a page tells of a measurement is in a committed table: tests/scripts/numbers.sh PAGE...
#
# In tables, a cell "X ms" of the row of a case and the column of a pipeline or peer is the time that
# bench/results holds for them, a cell "X %" in the column of a level its share of the peak. A line
# <!-- table: FILE CASE --> before a table says in which file its rows are, and what all cases share.
#
# In words, each number before ms, TFLOP/s, times, x or % has an item of a comment after it, in the same
# paragraph, list item or table row; items stand in the order of the numbers:
#
#     Dense attention takes 3.31 ms, 1.15 times ours.
#     <!-- from: peers h=16,n=16384,pattern=random(1,1) cudnn_dense ms; cudnn_dense ms / fused ms -->
#
# An item is one of
#     FILE CASE WHO COLUMN   of the only row of FILE.csv whose case is CASE, or holds all that CASE says;
#                            WHO is fused, staged or a kernel. Words left out at the left are those of
#                            the item before. The column keep is the fraction of a random pattern.
#     FILE "ENTRY" COLUMN    of a published entry; FILE begins with published/
#     ITEM / ITEM            their quotient
#     = SUM                  what the arithmetic comes to
#     given X                % alone: what the text supposes, and no one measured
# Rows are of the commit that the page names last before the number, as "commit 0123456", in the same section: from
# one heading to the next. Rows behind a picture of results are of commits that its section names before it. A case
# stands once on a page for each column.
#
# Numbers are compared as they are rounded. TABLES, default bench, is the folder with results and published.
set -u
cd "$(dirname "$0")/../.." || exit 2
tables=${TABLES:-bench}
for page; do
    [ -r "$page" ] || { echo "numbers: no page $page"; exit 2; }
done
exec awk -v pages="$*" "$(cat bench/csv.awk tests/scripts/numbers.awk)" \
    "$tables"/results/*.csv "$tables"/published/*.csv
