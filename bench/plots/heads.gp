# Rate over the size of a head.
set title 'Useful rate over head size: fused, 8 heads, 8,192 tokens, 20 % of 128x128 blocks'
set xlabel 'dims of a head'
set ylabel 'TFLOP/s'
set logscale x 2
set xtics (32, 64, 80, 96, 128, 192, 256, 512)
set yrange [0:*]
set xrange [28:580]
types = 'bf16 f16 f32'
plot for [t = 1:3] csv using (number("d")):(is("dtype", word(types, t)) ? number("tflops") : NaN) \
    smooth unique with linespoints ls t title word(types, t)
