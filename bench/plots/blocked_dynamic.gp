# Speed-up over dense attention, as in the figures of "Blocked Dynamic Sparse Attention".
set multiplot layout 2, 2 margins 0.11, 0.98, 0.15, 0.85 spacing 0.07, 0.17 \
    title 'Staged pipeline over dense attention, tiled (solid) and cuBLAS (dashed): f32, 1 head, D = 768'
set logscale xy 10
set xtics (1, 5, 10, 50)
set yrange [0.1:500]
set xrange [0.8:60]
lengths = '1024 4096 16384 32768'
blocks = '1x1 2x2 8x8 32x32'
do for [b = 1:4] {
    side = word(blocks, b)
    set title 'blocks of '.side
    unset key
    if (b > 2) { set xlabel 'blocks kept (%)' }
    if (b == 1) { set key inside top right maxrows 3 font ',12' spacing 1.1 }
    set ylabel (b % 2 ? 'times as fast' : '')
    plot for [n = 1:4] csv using (100 * keep(0)):(is("kernel", "dense_tiled") && is("block", side) && \
            is("n", word(lengths, n)) ? number("speedup") : NaN) smooth unique with linespoints ls n \
            title word('1,024 4,096 16,384 32,768', n).' tokens', \
        for [n = 1:4] csv using (100 * keep(0)):(is("kernel", "dense_cublas") && is("block", side) && \
            is("n", word(lengths, n)) ? number("speedup") : NaN) smooth unique with linespoints ls n + 10 \
            notitle, \
        100 / x with lines ls 20 title '1 / (1 - p)'
    unset label 100
}
unset multiplot
