# Time of the forward and of the backward over the size of blocks.
set title 'Forward and backward over block size: a tenth of the blocks, 64 dims, bf16'
set logscale x 2
set logscale y 10
set xtics 8, 2, 128
set xrange [6:160]
set xlabel 'rows and columns of a block'
set ylabel 'time (ms)'
set key inside top right
of(op) = is("op", op) && is("pipeline", "fused") && is("dtype", "bf16") && number("d") == 64 && number("h") == 8 && \
    keep(0) == 0.1
plot for [i = 1:2] csv using (block(0)):(of(word('attention backward', i)) ? number("ms") : NaN) smooth unique \
    with linespoints ls i title word('forward backward', i)
