# Time of an MLP over the columns that it computes, with and without caches.
set title 'The MLP over listed columns: 3,840 rows, 3,072 dims, 12,288 columns, groups of 128'
set logscale xy 10
set xlabel 'columns listed (%)'
set ylabel 'time (ms)'
set xtics (5, 10, 20, 30, 50, 100)
set xrange [4:110]
columns(row) = is("pattern", 'dense') ? 100 : 100 * keep(0)
cached(row) = strstrt(stringcolumn("case"), 'cache=') > 0
measured(backend, type, caches) = is("backend", backend) && is("dtype", type) && cached(0) == caches && \
    strstrt(stringcolumn("block"), '128x') == 1 && strstrt(stringcolumn("pattern"), 'topk') == 0 ? number("ms") : NaN
plot csv using (columns(0)):(measured('cuda', 'bf16', 1)) smooth unique with linespoints ls 1 title 'bf16, caches written', \
    csv using (columns(0)):(measured('cuda', 'bf16', 0)) smooth unique with linespoints ls 2 title 'bf16, without caches', \
    csv using (columns(0)):(measured('cpu', 'bf16', 1)) smooth unique with linespoints ls 3 title 'bf16, CPU', \
    csv using (columns(0)):(measured('cpu', 'f32', 1)) smooth unique with linespoints ls 4 title 'f32, CPU'
