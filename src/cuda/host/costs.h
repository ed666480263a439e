/* Costs by hand: what bench/fit.sh does not measure, each number once. Seconds of an H200 whose multiprocessors are
 * all at work; docs/notes/planning.md says which timings they fit, and what each decides. */
#ifndef TESSERA_CUDA_COSTS_H
#define TESSERA_CUDA_COSTS_H

#define LAUNCH 5e-6
#define PRODUCT 6e-15   /* a multiply-add of 16 bits by mma.sync */
#define KEY_DIM 380e-15 /* a dim of a key, fetched for a tile */

/* ---- the forward, beside costs.def ---- */

#define COMBINE LAUNCH  /* combining parts, once */
#define PARTS_RATE 2e12 /* bytes of partial results, written or read in a second */
/* Nanoseconds of a multiprocessor for a score of softcap or ALiBi, and one that may be dropped: quotients of
 * docs/notes/hopper.md, "Score modifiers". */
#define MODIFIED_SCORE .06
#define DROPPED_SCORE .115

/* ---- the stages: by what computes a product ---- */

#define SCORE 550e-15     /* written or read between stages, many of a block at once */
#define SCORE_ALONE 2e-12 /* one by one; and its softmax */
#define STAGED_COST(product, one_score)                                                            \
    .launch = LAUNCH, .key_row_dim = product, .key_dim = KEY_DIM, .score = one_score
#define STAGED_mma STAGED_COST(PRODUCT, SCORE)
#define STAGED_f32 STAGED_COST(67.5e-15, SCORE)
#define STAGED_row STAGED_COST(0, SCORE_ALONE)
#define STAGED_gather STAGED_row
#define STAGED_softmax .launch = LAUNCH, .score = SCORE_ALONE
#define STAGED_modified .launch = LAUNCH, .score = 3 * SCORE_ALONE
/* Products of the backward alone (staged/product.cuh): estimates. */
#define STAGED_gradient STAGED_COST(4 * PRODUCT, SCORE_ALONE)

/* ---- decode: predictions from 576 dims (docs/notes/decode.md, "Where it stands"). A row of f32 costs as `products`
 * of 16 bits: 2 over f16, 4 over bf16 ---- */

#define DECODE_KEY_DIM 790e-15
#define DECODE_TIMES(times, products, dims)                                                        \
    .launch = LAUNCH, .item = times * dims * 50e-12, .key_row_dim = products * PRODUCT,            \
    .key_dim = times * DECODE_KEY_DIM
#define DECODE_d64(...) DECODE_TIMES(1, __VA_ARGS__)
#define DECODE_d128 DECODE_d64
#define DECODE_d256 DECODE_d64
#define DECODE_d576 DECODE_d64
#define DECODE_d576_sm90 DECODE_d64
#define DECODE_d576_r64(...) DECODE_TIMES(2, __VA_ARGS__)

/* ---- the backward: by type, for each product (docs/notes/backward.md) ---- */

#define GRADIENT_KEY_ROW_DIM_f32 45e-15
#define GRADIENT_16bit(times)                                                                      \
    .key_row_dim = times * PRODUCT, .key_dim = KEY_DIM / 2, .masked_key = SCORE_ALONE
#define GRADIENT_COST_bf16 GRADIENT_16bit(1)
#define GRADIENT_COST_f16 GRADIENT_16bit(1.5)
#define GRADIENT_COST_f32                                                                          \
    .key_row_dim = GRADIENT_KEY_ROW_DIM_f32, .key_dim = 2 * KEY_DIM, .masked_key = 2 * SCORE_ALONE
#define GRADIENT_ITEM 15e-9
#define DELTA_COST .launch = LAUNCH, .key_dim = KEY_DIM

/* ---- column sums: an estimate ---- */

#define COLUMN_SUMS_COST                                                                           \
    .item = GRADIENT_ITEM, .key_row_dim = GRADIENT_KEY_ROW_DIM_f32, .key_dim = KEY_DIM,            \
    .launch = LAUNCH

/* ---- the MLP: an estimate ---- */

#define MLP_COST .launch = LAUNCH, .item = GRADIENT_ITEM, .key_row_dim = PRODUCT

#endif
