# What all figures share. tools/scripts/plot.sh has set the terminal; `csv`, the file of rows, whose cells it
# has parted by tabs; `source`, the machine and commit that they are of; and the file's `name`.
set datafile separator tab
set datafile columnheaders
set datafile missing NaN # a row that is not of a series leaves no gap in it
set encoding utf8
set border 3
set tics nomirror out
set grid ytics lc rgb '#dddddd' lw 1
set key outside right top Left reverse samplen 2 spacing 1.3 noenhanced
set label 100 source at screen 0.005, screen 0.02 left font ',10' tc rgb '#777777' noenhanced

# Colours that the colour-blind tell apart (Okabe and Ito), and points that differ without colour.
array colour[8] = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000', '#999999']
array point[8] = [7, 5, 9, 11, 13, 15, 2, 1]
do for [i = 1:8] {
    set style line i lc rgb colour[i] lw 2 pt point[i] ps 0.9
    set style line (i + 10) lc rgb colour[i] lw 2 dt 2 pt (i < 7 ? point[i] - 1 : point[i]) ps 0.9
}
set style line 20 lc rgb '#888888' lw 1.5 dt 3 # what would be ideal

# Of a row: whether a text is so, a number, the kept fraction, the side of a block.
is(name, text) = stringcolumn(name) eq text
number(name) = strlen(stringcolumn(name)) ? stringcolumn(name) + 0 : NaN
head(text, end) = strstrt(text, end) ? substr(text, 1, strstrt(text, end) - 1) : text
behind(text, mark) = substr(text, strstrt(text, mark) + strlen(mark), strlen(text))
inside(text, mark) = strstrt(text, mark) ? real(head(head(behind(text, mark), ','), ')')) : NaN
keep(row) = inside(stringcolumn("pattern"), '(')
block(row) = real(head(stringcolumn("block"), 'x'))
of_case(name) = inside(stringcolumn("case"), name . '=')
