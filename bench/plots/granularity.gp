# Time of small and large blocks, fused and staged.
set multiplot layout 1, 3 title 'Time over block size: bf16, 8 heads, 16,384 tokens, D = 64'
set logscale x 2
set logscale y 10
set xtics 1, 2, 128
set xlabel 'rows and columns of a block'
set ylabel 'time (ms)'
set yrange [*:*]
set xrange [0.8:160]
unset key
array kept[3] = [0.1, 0.05, 0.01]
do for [i = 1:3] {
    set title sprintf('%g %% of the blocks', 100 * kept[i])
    if (i == 3) { set key inside top right }
    chosen = kept[i]
    plot for [p = 1:2] csv using (block(0)):(is("pipeline", word('fused staged', p)) && keep(0) == chosen ? \
            number("ms") : NaN) smooth unique with linespoints ls p title word('fused staged', p)
    set ylabel ''
    unset label 100
}
unset multiplot
