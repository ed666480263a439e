/* Launch parameters of the MLP's two products, over lists of either kind. */
#ifndef TESSERA_CUDA_MLP_H
#define TESSERA_CUDA_MLP_H

#include "host/decode.h"
#include "plan/mlp.h"

/* A bias: of the problem's type or f32; data NULL: none. */
struct mlp_bias {
    const void *data;
    bool f32;
};

/*
 * Values of tile T stand at block T, value_stride columns of tile_rows rows: a column is contiguous, as it is in the
 * cache of activations. T counts items of packed lists, and units of filled ones.
 */
struct mlp_params {
    struct decode_params
        lists; /* filled lists; lists.run has x, W1 and W2 as q, k and v, and packed lists */
    struct mlp_bias bias, bias_out;
    struct rows_view
        activations; /* strides of a batch and of a column are the first and the last */
    void *values;
    int64_t value_stride;
    tess_activation activation;
    bool filled; /* lists were written by a fill */
    bool ranges; /* their runs are ranges, not blocks */
    bool dense;  /* all rows list all columns */
    bool delta;
};

size_t mlp_workspace(const struct kernel_args *args);
struct mlp_params mlp_params_of(const struct kernel_args *args);

/* NULL, or why kernels of a family refuse a problem. */
const char *mlp_refuses(const struct problem *problem, const tess_target *target);
const char *mlp_sm90_refuses(const struct problem *problem, const tess_target *target);

#endif
