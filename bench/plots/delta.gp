# Time of dense runs with column sums, and of a step of deltas over listed columns.
set title 'Column sums and deltas: bf16, 24 heads, D = 128'
set xlabel 'queries of a block'
set ylabel 'time (ms)'
set logscale y 10
set xrange [96:224]
set xtics (128, 192)
queries(row) = substr(stringcolumn("block"), 1, strstrt(stringcolumn("block"), 'x') - 1) + 0
sums(row) = strstrt(stringcolumn("kernel"), 'sums') > 0
plot csv using (queries(0)):(is("pattern", 'dense') && !sums(0) ? number("ms") : NaN) with points ls 1 ps 1.5 \
        title 'dense, 32,768 tokens', \
    csv using (queries(0)):(is("pattern", 'dense') && sums(0) ? number("ms") : NaN) with points ls 2 ps 1.5 \
        title 'with column sums', \
    csv using (queries(0)):(is("pattern", 'causal') ? number("ms") : NaN) with points ls 3 ps 1.5 \
        title 'causal, 16,384 tokens', \
    csv using (queries(0)):(is("block", '192x1') ? number("step_ms") : NaN) with points ls 4 ps 1.5 \
        title '7 % of single columns, 118,784 tokens: fill and run'
