/* Sparse attention on the CPU by products of whole blocks, each a call of OpenBLAS: what a library
 * of dense products makes of block lists. f32. */
#ifndef BENCH_BLOCKS_H
#define BENCH_BLOCKS_H

#include "baselines/openblas.h"
#include "lab/case/case.h"

struct bench_blocks {
    struct bench_openblas openblas;
    const struct lab_case *c;
    const tess_arguments *at; /* q, k, v and o on the CPU */
    tess_lists lists;
    float *strips;      /* a block row's scores for each thread */
    int64_t strip, row; /* floats of a strip, and of its rows */
    int threads;
};

/* Answers NULL, or why not; needs its free in either case. */
const char *bench_blocks_make(struct bench_blocks *b, const struct lab_case *c,
                              const tess_pattern *pattern, const tess_arguments *at);
void bench_blocks_free(struct bench_blocks *b);

/* A struct bench_blocks as work to be timed. */
const char *bench_blocks_run(void *blocks, tess_stream stream);

#endif
