# A decode step's time over splits of its lists, beside the published ones.
set title 'Decode over top-k lists of 2048 entries by splits: 16 heads, bf16, keys from memory'
splits(row) = number("split") > 0 ? 2048 / number("split") : 132
meant(queries, valid) = is("backend", "cuda") && number("n") == queries && number("valid") == valid
set logscale xy
set xlabel 'splits of a list; right: the plan''s own'
set ylabel 'time of a step (us)'
set xrange [6:180]
set xtics (8, 32, 64, 'plan' 132)
set yrange [3:200]
$published << END
8 64
32 81
64 53
END
plot $published using 1:2 with points ls 20 pt 7 title 'published: mean of 23 workloads', \
    for [i = 1:2] csv using (splits(0)):(meant(i == 1 ? 8 : 1, i == 1 ? 0.14 : 0.02) ? \
        1e3 * number("step_ms") : NaN) with points ls i ps 1.5 \
        title i == 1 ? '8 queries, 14 % of the entries valid' : '1 query, 2 % valid'
