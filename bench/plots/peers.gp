# Times beside other libraries', a panel for each case.
cases = system(sprintf("awk -F '\\t' 'NR > 1 && !seen[$1]++ { print $1 }' '%s'", csv))
many = words(cases) > 4 ? 2 : 1 # rows of panels
set multiplot layout many, (words(cases) + many - 1) / many margins 0.09, 0.98, 0.12, 0.82 \
    spacing 0.07, 0.17 title 'Time beside other libraries (dense: of all pairs)'
kernels = 'fused staged triton vsa flash4 flex cudnn_dense'
names = '"Tessera, fused" "Tessera, staged" Triton VSA "FlashAttention 4" FlexAttention "cuDNN, dense"'
which(text) = strstrt(text, '+') ? 'staged' : strstrt(text, '_attention') ? 'fused' : text
set style fill solid
set boxwidth 0.8
set yrange [0:*]
set offsets 0, 0, graph 0.08, 0
set xrange [0.4:7.6]
unset xtics
unset key
set ylabel 'time (ms)'
do for [k = 1:7] {
    rows = system(sprintf("grep -c '%s' '%s'", word(kernels, k), csv))
    timed = system(sprintf("awk -F '\\t' '$2 == \"%s\" && $7' '%s' | wc -l", word(kernels, k), csv))
    absent = k > 2 && timed == 0 ? ' (absent)' : ''
    if (k < 3 || rows > 0) {
        set label k '■ '.word(names, k).absent at screen 0.05 + 0.137 * (k - 1), 0.05 tc rgb colour[k] font ',11'
    }
}
do for [c = 1:words(cases)] {
    cut = strstrt(word(cases, c), ',block=')
    set title substr(word(cases, c), 1, cut)."\n".substr(word(cases, c), cut + 1, 1000) font ',12' noenhanced
    plot for [k = 1:7] csv using (is("case", word(cases, c)) && which(stringcolumn("kernel")) eq word(kernels, k) ? \
            k : NaN):(number("ms")) with boxes lc rgb colour[k], \
        for [k = 1:7] csv using (is("case", word(cases, c)) && which(stringcolumn("kernel")) eq word(kernels, k) ? \
            k : NaN):(number("ms")):(sprintf('%.3g', number("ms"))) with labels offset 0, 0.7 font ',10'
    set ylabel ''
    unset label
}
unset multiplot
