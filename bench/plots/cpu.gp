# The CPU: share of the peak of its multipliers, of one thread, at the level that the file is named by.
set title sprintf("Share of the multipliers' peak: %s, one thread, f32, 4,096 tokens; of blocks 512 keys a query", behind(name, '_'))
set yrange [0:100]
set ylabel '% of the peak'
set xlabel 'rows and columns of a block'
set logscale x 2
set xtics 1, 2, 128
set xtics add (192)
set xrange [0.8:260]
ours(d) = number("d") == d && is("pipeline", "fused") && is("dtype", "f32")
square(row) = stringcolumn("block") eq sprintf('%dx%d', block(0), block(0))
column_of(text) = text[strlen(text) - 1:strlen(text)] eq 'x1' && text ne '1x1'
plot for [d = 1:2] csv using (block(0)):(ours(64 * d) && square(0) && \
        strstrt(stringcolumn("pattern"), 'random_row') ? 100 * number("peak_share") : NaN) \
        smooth unique with linespoints ls d title sprintf('blocks, D = %d', 64 * d), \
    for [d = 1:2] csv using (block(0)):(ours(64 * d) && is("pattern", "dense") ? 100 * number("peak_share") : NaN) \
        smooth unique with points ls d + 2 ps 2 title sprintf('dense, D = %d', 64 * d), \
    for [d = 1:2] csv using (block(0)):(ours(64 * d) && column_of(stringcolumn("block")) ? \
        100 * number("peak_share") : NaN) smooth unique with points ls d + 4 ps 1.5 title sprintf('columns, D = %d', 64 * d)
