/* Dense attention in three steps with the N x N scores in memory: what sparse attention is said to
 * be faster than. */
#ifndef BENCH_DENSE_H
#define BENCH_DENSE_H

#include "baselines/gemm.h"
#include "lab/case/case.h"

struct bench_dense_kind {
    const char *word, *kernel; /* --baseline WORD; the row's kernel */
    tess_backend backend;
    int f32_only;
    bench_gemm_function *gemm;
    const char *(*softmax)(const struct bench_softmax *s, tess_stream stream);
};

/* The kinds, numbered from 0; NULL past the last. */
const struct bench_dense_kind *bench_dense_kind(int number);

/* NULL when a kind does a case, else why not. */
const char *bench_dense_refuses(const struct bench_dense_kind *kind, const struct lab_case *c);

/* The scores, their softmax, and its product with V. */
enum { BENCH_DENSE_STEPS = 3, BENCH_DENSE_ALL = (1 << BENCH_DENSE_STEPS) - 1 };

struct bench_dense {
    const struct bench_dense_kind *kind;
    const struct lab_case *c;
    const tess_arguments *at; /* q, k, v and o on the kind's backend */
    float *scores;            /* [at_once][n][nkv] */
    int64_t at_once;          /* heads whose scores are in memory together */
    int steps;                /* steps that bench_dense_run takes: bit i for step i */
};

/* Answers NULL, or why not; needs its free in either case. */
const char *bench_dense_make(struct bench_dense *d, const struct bench_dense_kind *kind,
                             const struct lab_case *c, const tess_arguments *at);
void bench_dense_free(struct bench_dense *d);

/* A struct bench_dense as work to be timed. */
const char *bench_dense_run(void *dense, tess_stream stream);

#endif
