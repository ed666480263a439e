/* One measurement: a case on one backend and pipeline, timed. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "lab/guard.h"

/* What all measurements of a case share. */
struct bench_setting {
    struct lab_case c;
    tess_pattern *pattern;
    struct lab_tensor q, k, v, o, lse;
};

/* Answers 0, or -1 with the reason; bench_setting_free in either case. */
int bench_setting_make(struct bench_setting *s, const struct lab_case *c, char why[LAB_WHY]);
void bench_setting_free(struct bench_setting *s);

struct bench_result {
    struct lab_case c; /* backend and pipeline filled in */
    char kernel[200];  /* staged: the three, joined by '+' */
    char device[128];
    double ms, ms_min, ms_max; /* median, fastest, slowest of the runs */
    double plan_ms, upload_ms; /* CUDA: upload_ms fills the image */
    int64_t runs, pairs;
    double tflops; /* 2 (d_qk + d_v) pairs over the median */
};

struct bench_manner {
    double seconds;
    int hot; /* CUDA: the L2 cache is left as the run before it did */
};

/* At least 5 runs and about `seconds` of them, after one that warms up; on CUDA timed by events and
 * without anything in the L2 cache unless `hot`. Answers 0, or -1 with the
 * reason, or 1 with the reason when the kernel that the case names does not do this. */
int bench_measure(struct bench_result *result, const struct bench_setting *s, tess_backend backend,
                  tess_pipeline pipeline, const struct bench_manner *manner, char why[LAB_WHY]);

#endif
