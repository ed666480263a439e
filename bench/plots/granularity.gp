# Time of small and large blocks, fused and staged, and how far it is from what the machine allows.
set multiplot layout 2, 3 margins 0.10, 0.98, 0.17, 0.85 spacing 0.07, 0.11 \
    title 'Time over block size, and over its floor: bf16, 8 heads, 16,384 tokens, D = 64'
set logscale x 2
set logscale y 10
set xtics 1, 2, 128
set xrange [0.8:160]
unset key
array kept[3] = [0.1, 0.05, 0.01]
array field[2] = ['ms', 'over_floor']
array label[2] = ['time (ms)', 'time over floor']
do for [row = 1:2] {
    if (row == 2) { set xlabel 'rows and columns of a block' }
    do for [i = 1:3] {
        set title (row == 1 ? sprintf('%g %% of the blocks', 100 * kept[i]) : '')
        set ylabel (i == 1 ? label[row] : '')
        if (row == 1 && i == 3) { set key inside top right } else { unset key }
        chosen = kept[i]
        plot for [p = 1:2] csv using (block(0)):(is("pipeline", word('fused staged', p)) && keep(0) == chosen ? \
                number(field[row]) : NaN) smooth unique with linespoints ls p title word('fused staged', p)
        unset label 100
    }
}
unset multiplot
