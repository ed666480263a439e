/*
 * The MLP on lists: operands of its two kernels, and what a caller may not ask of it.
 *
 *     UP      for each query tile, h of the columns that it lists, less cached ones where a delta is computed: to
 *             `values`. The cache, if any, gets h.
 *     DOWN    values times the same rows of W2, and the epilogue: bias_out, or a base
 *
 * Both walk the lists of UP: query tiles of one block row each, whose runs are all full. Neither has splits: an item
 * is a tile. DOWN's kernel has no heights of its own (struct kernel, rows), and its part of the image is UP's.
 */
#ifndef TESSERA_MLP_H
#define TESSERA_MLP_H

#include "plan/attention.h"

/* Columns by which a row of values is rounded up. */
#define MLP_COLUMNS 128

/*
 * Values of tile T of batch b stand at block b * tiles + T of `values`: tile_rows rows of value_stride elements of
 * the problem's type. Row r's p-th is that of the p-th column of the tile's list; a backend may order a block
 * otherwise. UP writes zeros from the last column on as far as its DOWN reads, up to a multiple of MLP_COLUMNS at
 * most. Rows past the tile's end are any.
 */
struct mlp_operands {
    struct attention_operands forward; /* x as q, W1 as k, W2 as v, o, base_o and beta */
    struct view bias, bias_out;        /* [n_kv] and [d_v], of type or f32; data NULL: none */
    struct view activations; /* [batch][n_kv][n_q] by stride[0] and stride[2]; data NULL: none */
    void *values;            /* in the workspace */
    int64_t value_stride;    /* elements of a row of values, a multiple of MLP_COLUMNS */
    int ranges;              /* runs of filled lists are ranges, not blocks */
};

/* Operands of an MLP begin with attention's: its kernels find x, W1 and W2 by attention_of as well. */
static inline const struct mlp_operands *mlp_of(const struct kernel_args *args) {
    return (const struct mlp_operands *)args->operands;
}

/* Whether a run computes a delta: what it adds to the base is of h less its cache, and has no bias_out. */
static inline int mlp_is_delta(const struct mlp_operands *given) {
    return given->activations.data && given->forward.base_o.data;
}

/* NULL, or what is wrong with an MLP's problem; with `activation` of another operation. */
const char *mlp_wrong(const tess_problem *problem);

/* Whether a pattern lists whole columns for the rows of a block; else an error. */
tess_status mlp_check_pattern(const struct bcsr *m, const char *function, tess_error *error);
tess_status mlp_check_shape(const struct fill_shape *shape, const char *function,
                            tess_error *error);

#endif
