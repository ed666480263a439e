/* What a CPU's multipliers can do: the limit that kernels of a level are set beside. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <stdint.h>

/*
 * TFLOP/s that `threads` threads together (0: all that OpenMP offers) reach in a loop of nothing but
 * the level's multiply-add on registers: the best of some tries, a few milliseconds in all. NAN for
 * a level without such a loop here. A level's name ends the names of its kernels.
 */
double bench_peak_tflops(const char *level, int64_t threads);

#endif
