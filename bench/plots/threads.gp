# The CPU: rate over threads.
set title 'The CPU over threads: f32, 8 heads, 4,096 tokens'
set yrange [0:*]
set ylabel 'GFLOP/s'
set xlabel 'threads'
set logscale x 2
set xtics (1, 2, 4, 8, 16)
set xrange [0.9:18]
set key inside top left
patterns = 'dense random(0.1,1)'
plot for [d = 1:2] for [p = 1:2] csv using (of_case('threads')):(number("d") == 64 * d && \
        is("pattern", word(patterns, p)) ? 1000 * number("tflops") : NaN) \
    smooth unique with linespoints ls d + (p - 1) * 10 title sprintf('D = %d, %s', 64 * d, word(patterns, p))
