# Time of choosing columns over the scores that are read.
set title 'Lists chosen of scores: f32 rows'
lists(row) = is("lists", "q") ? number("h") : is("lists", "kv") ? number("hkv") : 1
side(row) = real(behind(stringcolumn("block"), 'x'))
scores(row) = number("b") * lists(0) * ceil(number("n") / block(0)) * ceil(number("nkv") / side(0))
set logscale xy
set xlabel 'scores'
set ylabel 'time (us)'
set key inside top left
devices = 'cuda cpu'
plot for [d = 1:2] csv using (scores(0)):(is("backend", word(devices, d)) ? 1e3 * number("select_ms") : NaN) \
        with points ls 1 + (d - 1) * 10 title 'select'.(d == 1 ? ', GPU' : ', CPU'), \
    for [d = 1:2] csv using (scores(0)):(is("backend", word(devices, d)) ? 1e3 * number("step_ms") : NaN) \
        with points ls 2 + (d - 1) * 10 title 'select, fill and run'.(d == 1 ? ', GPU' : ', CPU')
