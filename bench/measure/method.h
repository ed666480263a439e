/* The way in which a case is measured, and how measuring ends. */
#ifndef BENCH_METHOD_H
#define BENCH_METHOD_H

#include <stdbool.h>

#include "measure/timing.h"

enum { BENCH_DONE = 0, BENCH_FAILED = 1, BENCH_BAD = 2 };

/* The way in which a case is measured. */
struct bench_method {
    double seconds;
    double noise; /* 0: not bounded */
    enum bench_timing timing;
    bool stages, layer;
    unsigned baselines; /* bit i: bench_baseline_word(i) */
};

#endif
