# Each stage's time over its floor.
set multiplot layout 1, 2 title 'The stages over what the machine allows (1 = floor): 1 head, 16,384 tokens'
set yrange [0:*]
set ylabel 'time over floor'
set xlabel 'rows and columns of a block'
set logscale x 2
set xtics 1, 2, 128
set key inside bottom left
set xrange [0.8:160]
set arrow 1 from graph 0, first 1 to graph 1, first 1 nohead ls 20
set title 'SDDMM and SpMM, bf16, 10 % of the blocks'
plot for [d = 1:2] for [s = 1:2] csv using (block(0)):(is("pipeline", "staged") && is("dtype", "bf16") && number("h") == 1 && \
        keep(0) == 0.1 && number("d") == 64 * d ? number(word('sddmm spmm', s).'_over_floor') : NaN) \
    smooth unique with linespoints ls d + (s - 1) * 10 title sprintf('%s, D = %d', word('SDDMM SpMM', s), 64 * d)
unset label 100
set title 'Softmax'
set key off
plot csv using (block(0)):(is("pipeline", "staged") && is("dtype", "f32") ? number("softmax_over_floor") : NaN) \
    smooth unique with linespoints ls 3 title 'softmax'
unset multiplot
