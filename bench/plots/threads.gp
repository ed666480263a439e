# The CPU: rate over threads, and over the block size for one thread.
set multiplot layout 1, 2 title 'The CPU in f32'
set yrange [0:*]
set ylabel 'GFLOP/s'
set xlabel 'threads'
set logscale x 2
set xtics (1, 2, 4, 8, 16)
set xrange [0.9:18]
set key inside top left
set title '8 heads, 4,096 tokens'
patterns = 'dense random(0.1,1)'
plot for [d = 1:2] for [p = 1:2] csv using (of_case('threads')):(number("d") == 64 * d && \
        is("block", "64x64") && is("pattern", word(patterns, p)) ? 1000 * number("tflops") : NaN) \
    smooth unique with linespoints ls d + (p - 1) * 10 title sprintf('D = %d, %s', 64 * d, word(patterns, p))
unset label 100
set title 'one thread, 12.5 % of the blocks'
set xlabel 'rows and columns of a block'
set xtics 1, 2, 128
set xrange [0.8:160]
plot for [p = 1:2] csv using (block(0)):(is("pattern", "random(0.125,1)") && \
        is("pipeline", word('fused staged', p)) ? 1000 * number("tflops") : NaN) \
    smooth unique with linespoints ls p title word('fused staged', p)
unset multiplot
