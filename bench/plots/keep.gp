# Time against the fraction of blocks that is kept, beside dense attention.
set title 'Time over kept blocks: bf16, 16 heads, 8,192 tokens, D = 128'
set logscale xy 10
set xlabel 'blocks kept (%)'
set ylabel 'time (ms)'
set xtics (1, 2, 5, 10, 20, 50, 100)
set xrange [0.9:110]
blocks = '32x32 64x64 128x128'
plot for [b = 1:3] csv using (100 * keep(0)):(is("pipeline", "fused") && is("block", word(blocks, b)) ? \
        number("ms") : NaN) smooth unique with linespoints ls b title 'fused, '.word(blocks, b), \
    for [b = 1:3] csv using (100 * keep(0)):(is("pipeline", "staged") && is("block", word(blocks, b)) ? \
        number("ms") : NaN) smooth unique with linespoints ls b + 10 title 'staged, '.word(blocks, b), \
    csv using (100 * keep(0)):(is("kernel", "dense_cublas") ? number("ms") : NaN) smooth unique \
        with lines ls 7 title 'dense, cuBLAS'
