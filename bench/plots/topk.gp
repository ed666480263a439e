# A decode step's time over the keys that its lists hold.
set title 'Decode over top-k lists: 512 + 64 dims, bf16, keys from memory; dashed: with the fill'
keys(row) = number("topk") * number("valid")
meant(device, heads, queries) = is("backend", device) && is("timing", "rotate") && number("h") == heads && \
    number("n") == queries
set logscale xy
set xlabel 'valid keys of each query'
set ylabel 'time (us)'
set xrange [25:3500]
set xtics (41, 128, 512, 2048)
set key inside top left font ',12'
set arrow 1 from 25, 53 to 3500, 53 nohead ls 20
set label 1 'published mean: 53' at 30, 60 tc rgb '#888888' font ',11'
set arrow 2 from 25, 26 to 3500, 26 nohead ls 20
set label 2 'few queries: 26' at 30, 29 tc rgb '#888888' font ',11'
set yrange [3:1000]
queries = '1 8 128 64'
of_heads(i, heads) = sprintf(i == 1 ? '%s query of %d heads' : '%s queries of %d heads', word(queries, i), heads)
plot for [i = 1:4] csv using (keys(0)):(meant("cuda", i < 4 ? 16 : 128, real(word(queries, i))) ? \
        1e3 * number("ms") : NaN) smooth unique with linespoints ls i \
        title of_heads(i, i < 4 ? 16 : 128), \
    for [i = 1:4] csv using (keys(0)):(meant("cuda", i < 4 ? 16 : 128, real(word(queries, i))) ? \
        1e3 * number("step_ms") : NaN) smooth unique with linespoints ls i + 10 notitle
