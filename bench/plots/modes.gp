# The modes of "Sparse Attention in CUDA": warm replays of small problems.
set multiplot layout 1, 2 margins 0.09, 0.70, 0.16, 0.84 spacing 0.08 title 'The modes of "Sparse Attention in CUDA": f32, 8 heads, warm graph replays'
set logscale xy 2
set format y '%g'
set logscale y 10
set xlabel 'tokens'
set ylabel 'time (ms)'
set xtics 128, 2, 1024
modes = 'blockdiag(16) global_grid(16) dense'
blocks = '16x16 16x16 64x64'
names = '"window, 16" "global, 16" "all pairs"'
do for [d in '64 512'] {
    set title 'D = '.d
    unset key
    if (d eq '512') { set key at screen 0.985, 0.84 right top; set ylabel '' }
    plot for [m = 1:3] csv using (number("n")):(is("pipeline", "staged") && is("backend", "cuda") && is("pattern", word(modes, m)) && is("block", word(blocks, m)) && \
            stringcolumn("d") eq d ? number("ms") : NaN) smooth unique with linespoints ls m \
            title word(names, m), \
        csv using (number("n")):(is("pipeline", "staged") && is("backend", "cuda") && stringcolumn("d") eq d && \
            strstrt(stringcolumn("pattern"), 'random_row(') && keep(0) * number("n") == 16 ? number("ms") : NaN) \
            smooth unique with linespoints ls 4 title 'random, 16 keys', \
        csv using (number("n")):(is("kernel", "dense_cublas") && stringcolumn("d") eq d ? number("ms") : NaN) \
            smooth unique with linespoints ls 7 title 'dense, cuBLAS', \
        csv using (number("n")):(is("kernel", "naive_gpu") && stringcolumn("d") eq d ? number("ms") : NaN) \
            smooth unique with linespoints ls 8 title 'dense, naive'
    unset label 100
}
unset multiplot
