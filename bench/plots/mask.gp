# Time of a window from a mask over the tokens.
set title 'A window from a mask: bf16, 4 batches of 8 heads, D = 64'
set logscale xy 2
set xlabel 'tokens'
set ylabel 'time (us)'
set yrange [1:4000]
from_mask(row) = is("pattern", 'mask(window(16,16))') && number("d") == 64
of_host(pattern) = is("pattern", pattern) && number("d") == 64
set arrow 1 from graph 0, first 130 to graph 1, first 130 nohead ls 20
set label 1 'published, N = 128: 130' at graph 0.4, first 145 tc rgb '#888888' font ',11'
plot csv using (number("n")):(from_mask(0) ? 1e3 * number("fill_ms") : NaN) smooth unique with linespoints ls 1 \
        title 'fill, mask on the device', \
    csv using (number("n")):(from_mask(0) ? 1e3 * number("ms") : NaN) smooth unique with linespoints ls 2 \
        title 'run over it', \
    csv using (number("n")):(from_mask(0) ? 1e3 * number("step_ms") : NaN) smooth unique with linespoints ls 3 \
        title 'fill and run', \
    csv using (number("n")):(of_host('window(16,16)') ? 1e3 * number("ms") : NaN) smooth unique with linespoints ls 4 \
        title 'run, mask of the host', \
    csv using (number("n")):(of_host('dense') ? 1e3 * number("ms") : NaN) smooth unique with linespoints ls 5 \
        title 'dense'
