# Time of single columns of keys.
set title 'Time of single columns: bf16, 24 heads, 32,768 tokens, D = 128'
set logscale xy 10
set xlabel 'columns kept (%)'
set ylabel 'time (ms)'
set xtics (3, 7, 20)
set xrange [2.5:24]
blocks = '64x1 128x1 192x1'
plot for [b = 1:3] csv using (100 * keep(0)):(is("block", word(blocks, b)) && number("n") == 32768 ? number("ms") : NaN) \
    smooth unique with linespoints ls b title word(blocks, b).' blocks'
