# Time over length at a fixed window: a straight line of slope 1 is linear growth.
set title 'Time over length: window of 256 keys to either side, bf16, 8 heads, D = 64'
set logscale xy 10
set xlabel 'tokens'
set ylabel 'time (ms)'
set xtics ('1,024' 1024, '4,096' 4096, '16,384' 16384, '65,536' 65536, '262,144' 262144, '1,048,576' 1048576)
set xrange [*<900:1200000<*]
set key off
plot csv using (number("n")):(number("ms")) smooth unique with linespoints ls 1
