# A fill's time over the entries of its lists.
set title 'Fills of lists on the device'
lists(row) = is("lists", "q") ? number("h") : is("lists", "kv") ? number("hkv") : 1
entries(row) = number("topk") * lists(0) * ceil(number("n") / block(0))
set logscale xy
set xlabel 'entries of all block rows'
set ylabel 'fill (us)'
set key inside top left
forms = 'topk rows bits ranges'
names = '"indices" "block rows" "block bits" "ranges"'
devices = 'cuda cpu'
is_form(name) = substr(stringcolumn("pattern"), 1, strlen(name)) eq name
plot for [d = 1:2] for [f = 1:4] csv using (entries(0)):(is("backend", word(devices, d)) && \
        is_form(word(forms, f)) ? 1e3 * number("fill_ms") : NaN) with points ls f + (d - 1) * 10 \
        title word(names, f).(d == 1 ? ', GPU' : ', CPU')
