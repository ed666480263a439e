/* Rates of a CPU's multipliers and of its memory: the limits that kernels of a level are set
 * beside. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <stdint.h>

/*
 * TFLOP/s that `threads` threads together (0: all that OpenMP offers) reach in a loop of nothing but
 * the level's multiply-add on registers: the best of some tries, a few milliseconds in all. NAN for
 * a level without such a loop here. A level's name ends the names of its kernels.
 */
double bench_peak_tflops(const char *level, int64_t threads);

/*
 * GB/s, read plus written, of as many threads in a copy of 1 GiB. Each thread copies a part that the same
 * thread touched first. The best of some tries, a second or two in all. NAN where memory is short.
 */
double bench_peak_copy_gbs(int64_t threads);

#endif
