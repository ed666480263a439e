/*
 * The CPU's passes of the backward, driven by hand: delta, dK and dV over transposed lists, dQ over lists,
 * and the oracle's gradients of the same. A pass is found in the table, at the level that TESSERA_ISA
 * names.
 */
#ifndef TESTS_GRADIENT_PASSES_H
#define TESTS_GRADIENT_PASSES_H

#include "plan/attention.h"
#include "lab/oracle/oracle.h"
#include "support/support.h"

/* Zeros are defaults: one batch, one head, f32, blocks of 8, tiles of 64, no parts, dense. */
struct setting {
    const char *spec;
    int64_t batch, heads_q, heads_kv, lists; /* lists: heads of the pattern */
    int64_t n_q, n_kv, d_qk, d_v, block_q, block_kv;
    tess_type type, out;                     /* types of inputs, of gradients */
    int o_f32, rest, apart, by_delta, d_lse; /* apart: rows of tensors are not next to each other */
    double scale, softcap;
    int alibi, sink, positions;
    int32_t dropped;
    int32_t tile_rows, tile_keys;
    int64_t tile_heads, part_keys;
    double size, size_k; /* factors of Q and K; 0: 1 */
    int poison;          /* NaN in whatever nobody lists */
};

enum { THREADS = 8, SLACK = 3 };

struct tensor {
    tess_tensor view;
    size_t bytes;
};

struct run {
    struct setting s;
    struct problem problem;
    tess_pattern *pattern, *transposed;
    struct lists rows_lists, keys_lists;
    struct schedule rows, keys;
    struct strips strips;
    int joint; /* run_passes: dQ comes of the pass over keys, by strips; not at first */
    int64_t *list_of;
    struct tensor q, k, v, o, lse, rest, d_o, d_lse, delta, d_q, d_k, d_v;
    float *alibi, *sink, *d_alibi, *d_sink, *stats;
    int32_t *positions;
    uint64_t seed;
    struct lab_scoring scoring;
    struct lab_oracle oracle;
    struct lab_gradients expected;
};

enum { ALL = TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V };

/* Makes tensors, lists, schedules and what the oracle has; run_free. */
void run_make(struct run *r, const struct setting *setting);
void run_free(struct run *r);

/* Whether the kernel over keys writes dQ as well, of such a problem. */
int run_may_join(const struct run *r);

/* Runs all passes; gradients that are not in `wanted` are left out. */
void run_passes(struct run *r, int32_t threads, int wanted);

/* All elements of a row. */
void row_set(const struct tensor *t, int64_t b, int64_t h, int64_t n, double x);

#endif
