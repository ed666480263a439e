/* Launch parameters of kernels of the stages: a plan's image in device memory, plain numbers. */
#ifndef TESSERA_CUDA_LAUNCH_H
#define TESSERA_CUDA_LAUNCH_H

#include "host/image.h"
#include "host/modify.h"
#include "host/rows.h"
#include "host/staged_image.h"

/* Multiplier and shift that give x / number for x of 32 bits: a division is some 20 dependent instructions.
 * Granlund and Montgomery, "Division by Invariant Integers using Multiplication". */
struct cuda_divisor {
    uint32_t factor, halve, shift;
};

struct staged_params {
    struct staged_image image;
    struct rows_view q, k, v, o, lse;
    float *scores;
    int64_t n_items; /* block rows of all heads */
    int64_t n_bands, n_bitmasks;
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    struct cuda_divisor by_block_kv, by_heads_q, by_heads_per_kv;
    int64_t rows;    /* block rows */
    int64_t height;  /* queries of a block row at most: block_q, or n_q where that is less */
    int64_t columns; /* columns of all block rows together */
    int64_t batch;
    int32_t heads_q;
    int32_t heads_per_kv; /* query heads of one key/value head */
    int32_t d_qk, d_v;
    int32_t alignment;                     /* bytes, of rows of q, k, v and o */
    int64_t shared;                        /* bytes of shared memory of a block at most */
    int32_t multiprocessors, architecture; /* the target's */
    /* The scale is their product. q_scale is a power of two (cuda_scale_power). */
    float q_scale, score_scale;
    int32_t weight_power; /* power of two by which SpMM scales weights of f16 before rounding */
    struct modify_params modify;
    int32_t block_row_chunks; /* chunks of CUDA_CHUNK columns of a mean block row, at least 1 */
    int32_t in_order; /* rows are taken as their scores stand: they share sectors with neighbours */
    int64_t widest;   /* columns of the widest block row */
    /* Backward: */
    struct query_stats stats;
    float *gradients; /* laid out as scores; NULL: not wanted */
    double *slopes;   /* [batch * heads_q][n_q]: shares of d_alibi; NULL: not wanted */
    float *d_alibi;   /* [heads_q] */
    float scale;
    int32_t wide; /* o is f32, whatever the problem's type */
    int32_t heads_kv;
    int64_t cols; /* block columns of the transposed tiles */
};

/* ---- what variants of a stage take: planning refuses by it, launches have tiles by it ---- */

/* Facts of a kernel of the stages beside its row of the table (host/table.c). */
struct staged_kernel {
    const tess_type *type; /* NULL: any */
    /* NULL, or why it does not take these heads and block rows. p->n_items 0: block rows are not
     * known. */
    const char *(*refuses)(const struct problem *problem, const struct staged_params *p);
};

#define CUDA_FORWARD(...)
#define CUDA_DECODE(...)
#define CUDA_BACKWARD(...)
#define CUDA_DELTA(...)
#define CUDA_SUMS(...)
#define CUDA_MLP_UP(...)
#define CUDA_MLP_DOWN(...)
#define CUDA_STAGED(types, stem, variant, ...)                                                     \
    const char *stem##_##variant##_refuses(const struct problem *problem,                          \
                                           const struct staged_params *p);
#include "instances.def"
#undef CUDA_FORWARD
#undef CUDA_DECODE
#undef CUDA_BACKWARD
#undef CUDA_DELTA
#undef CUDA_SUMS
#undef CUDA_MLP_UP
#undef CUDA_MLP_DOWN
#undef CUDA_STAGED

/* Parameters that planning knows: sizes, and the shape of block rows. */
struct staged_params staged_sizes(const struct problem *problem, const tess_target *target);

#define CLUSTER_ARCHITECTURE 90 /* the first that has clusters */

#define STAGED_GATHER_ROWS 8  /* rows of a tile without staging: higher block rows fill others */
#define SDDMM_NARROW_WIDTH 32 /* columns of the widest block row at most */
#define SPMM_SHORT_WIDTH 64   /* columns of a mean block row at most ... */
#define SPMM_SHORT_DIMS 256   /* ... and dims of a head at least: half of the threads suffice */

/*
 * Power of two, one that bf16 has, of the scale's part that is folded into Q. 0, or for scales below 2^-8
 * enough to keep sums in range whose scaled size is in range. No more, since a product with Q may be subnormal:
 * its error is 2^-150 at most in f32 and 2^-134 in bf16. A score feels that as d * 2^-30 and d * 2^-14 where K
 * is as large as numbers are. Sums of f16 are always in range.
 */
int cuda_scale_power(double scale, tess_type type);

/* Answers to the table for the stages (staged.c). */
size_t staged_workspace(const struct kernel_args *args);
size_t staged_image_size(const struct kernel_args *args);
size_t staged_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                          char *image);
struct staged_params staged_params_of(const struct kernel_args *args);
/* Parameters before a run, of an image anywhere: without operands. */
struct staged_params staged_params_planned(const struct kernel_args *args, void *image);

#endif
