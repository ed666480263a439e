# Time over length at a fixed window: a straight line of slope 1 is linear growth.
set title 'Time over length: window of 256 keys to either side, D = 64'
set logscale xy 10
set xlabel 'tokens'
set ylabel 'time (ms)'
set xtics ('1,024' 1024, '4,096' 4096, '16,384' 16384, '65,536' 65536, '262,144' 262144, '1,048,576' 1048576)
plot csv using (number("n")):(is("backend", "cuda") ? number("ms") : NaN) smooth unique \
        with linespoints ls 1 title 'CUDA, bf16, 8 heads', \
    csv using (number("n")):(is("backend", "cpu") ? number("ms") : NaN) smooth unique \
        with linespoints ls 2 title 'CPU, f32, 1 head'
