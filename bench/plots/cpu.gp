# The CPU: share of the peak of its multipliers, of one thread.
set title 'Share of the multipliers'' peak: one thread, f32, 4,096 tokens, 512 keys to a query'
set yrange [0:100]
set ylabel '% of the peak'
set xlabel 'rows and columns of a block'
set logscale x 2
set xtics 1, 2, 128
set xrange [0.8:160]
square(row) = stringcolumn("block") eq sprintf('%dx%d', block(0), block(0))
column_of(text) = text[strlen(text) - 1:strlen(text)] eq 'x1' && text ne '1x1'
plot for [d = 1:2] csv using (block(0)):(number("d") == 64 * d && square(0) && is("dtype", "f32") && \
        strstrt(stringcolumn("pattern"), 'random_row') ? 100 * number("peak_share") : NaN) \
        smooth unique with linespoints ls d title sprintf('blocks, D = %d', 64 * d), \
    for [d = 1:2] csv using (block(0)):(number("d") == 64 * d && is("pattern", "dense") && is("dtype", "f32") && \
        is("pipeline", "fused") ? 100 * number("peak_share") : NaN) \
        smooth unique with points ls d + 2 ps 2 title sprintf('dense, D = %d', 64 * d), \
    for [d = 1:2] csv using (block(0)):(number("d") == 64 * d && column_of(stringcolumn("block")) ? \
        100 * number("peak_share") : NaN) smooth unique with points ls d + 4 ps 1.5 title sprintf('columns, D = %d', 64 * d)
