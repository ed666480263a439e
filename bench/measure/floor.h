/* Limits of a device, measured once a run, or a CPU beside a case: the limits that times are set
 * beside. */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#include "tessera.h"

/* NAN: not known. */
struct bench_limits {
    int measured;
    double copy_gbs;         /* GB/s read plus written by a copy in the device's memory */
    double cache_gbs;        /* GB/s read from the L2 cache; of a CPU INFINITY */
    double matmul_tflops[3]; /* by tess_type: of cuBLAS; of a CPU its peak */
    int64_t kept;            /* bytes that may lie in a cache from run to run */
};

/* Work of a plan, over all heads. */
struct bench_amounts {
    int64_t pairs;
    int64_t tiles;  /* tiles of the pattern's lists */
    int64_t scores; /* staged: BCSR scores between the stages */
    int64_t keys;   /* fused: gathered, each once for each query tile that lists it */
    int64_t bytes;  /* fused: of inputs that are listed and of outputs, by tess_plan_info */
};

/* Measures the current CUDA device unless that was done. Answers NULL, or why not; a library that
 * is not here leaves its rates unknown. */
const char *bench_limits_measure(struct bench_limits *limits);

/* Bytes that cross memory in a stage: each input read once and each output written once. */
double bench_floor_bytes(const tess_problem *problem, tess_stage stage,
                         const struct bench_amounts *amounts);

/*
 * The least milliseconds that a stage of a plan can take, the largest of: useful FLOPs over the matrix
 * rate of the type; bytes over the copy rate, where there are more bytes than the limits' `kept`; and for
 * TESS_STAGE_ATTENTION the keys that query tiles gather over the rate of the L2 cache. NAN when a rate is
 * not known.
 */
double bench_floor_ms(const struct bench_limits *limits, const tess_problem *problem,
                      tess_stage stage, const struct bench_amounts *amounts);

#endif
