# Time of heads of many dims over the size of blocks, fused and staged.
set multiplot layout 1, 3 margins 0.10, 0.98, 0.17, 0.80 spacing 0.06, 0.11 \
    title 'Time over block size, a tenth of the blocks: 8 heads, 4,096 tokens'
set logscale x 2
set logscale y 10
set xtics 8, 2, 128
set xrange [6:160]
set yrange [0.06:8]
set ytics (0.1, 0.2, 0.5, 1, 2, 4, 8)
set xlabel 'rows and columns of a block'
array dims[3] = [512, 768, 1024]
do for [i = 1:3] {
    set title sprintf('D = %d', dims[i])
    set ylabel (i == 1 ? 'time (ms)' : '')
    if (i == 1) { set key inside top right } else { unset key }
    chosen = dims[i]
    plot for [t = 1:2] for [p = 1:2] csv using (block(0)): \
            (is("pipeline", word('fused staged', p)) && is("dtype", word('bf16 f32', t)) && \
             keep(0) == 0.1 && number("d") == chosen ? number("ms") : NaN) smooth unique \
            with linespoints ls 2 * (t - 1) + p title word('bf16 f32', t).', '.word('fused staged', p)
}
unset multiplot
