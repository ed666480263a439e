/* Costs by hand: what bench/fit.sh does not measure, each number once. Of an H200 whose multiprocessors are all at
 * work; docs/notes/planning.md says which timings they fit. */
#ifndef TESSERA_CUDA_COSTS_H
#define TESSERA_CUDA_COSTS_H

/* ---- the stages: by what computes a product; `launches` of STAGED_LAUNCH seconds ---- */

#define STAGED_LAUNCH 5e-6
#define STAGED_COST(launches, ...) .launch = launches * STAGED_LAUNCH, __VA_ARGS__
#define STAGED_mma(launches)                                                                       \
    STAGED_COST(launches, .key_row_dim = 6.2e-15, .key_dim = 306e-15, .score = 515e-15)
#define STAGED_row(launches) STAGED_COST(launches, .key_dim = 430e-15, .score = 1e-12)
#define STAGED_gather(launches) STAGED_COST(launches, .key_dim = 380e-15, .score = 1.71e-12)
#define STAGED_f32(launches)                                                                       \
    STAGED_COST(launches, .key_row_dim = 67.5e-15, .key_dim = 322e-15, .score = 830e-15)
#define STAGED_softmax(launches) STAGED_COST(launches, .score = 2.1e-12)
#define STAGED_modified(launches) STAGED_COST(launches, .score = 6e-12)
/* Products of the backward alone: estimates. A step of them (staged/product.cuh) takes some 2 us, which tiles of
 * 16 rows wait for; launches hold the steps of one tile. */
#define STAGED_gradient(launches)                                                                  \
    STAGED_COST(launches, .key_row_dim = 20e-15, .key_dim = 1.3e-12, .score = 2e-12)

/* ---- decode: by dims; a row of f32 costs as `products` of 16 bits: 2 over f16, 4 over bf16 ----
 * Predictions, but for 576 dims, which fit docs/notes/decode.md, "Where it stands" (not those of sm90). */

#define DECODE_LAUNCH 8e-6
#define DECODE_KEY_DIM 550e-15
#define DECODE_HEAD(products, seconds)                                                             \
    .item = seconds, .key_row_dim = products * 2e-15, .key_dim = DECODE_KEY_DIM
#define DECODE_d64(products) DECODE_HEAD(products, 6e-9)
#define DECODE_d128(products) DECODE_HEAD(products, 8e-9)
#define DECODE_d256(products) DECODE_HEAD(products, 11e-9)
#define DECODE_d576(products) .item = 29e-9, .key_dim = 790e-15
#define DECODE_d576_sm90(products) .item = 24e-9, .key_dim = 850e-15
#define DECODE_d576_r64(products) .item = 50e-9, .key_dim = 1.75e-12

/* ---- the backward: by type and dims, the forward's for each product; masks of up to 128 dims fit blocks of 8x8
 * (docs/notes/backward.md) ---- */

#define GRADIENT_LAUNCH 12e-6
#define GRADIENT_ITEM 15e-9
#define GRADIENT_16bit_d64(times)                                                                  \
    .key_row_dim = times * 6e-15, .key_dim = 180e-15, .masked_key = 1.8e-12
#define GRADIENT_16bit_d128(times)                                                                 \
    .key_row_dim = times * 4.6e-15, .key_dim = 210e-15, .masked_key = 1.8e-12
#define GRADIENT_16bit_d256(times)                                                                 \
    .key_row_dim = times * 7.5e-15, .key_dim = 300e-15, .masked_key = 450e-15
#define GRADIENT_COST_bf16(dims) GRADIENT_16bit_##dims(1)
#define GRADIENT_COST_f16(dims) GRADIENT_16bit_##dims(1.5)
#define GRADIENT_3xtf32(seconds) .key_row_dim = seconds, .key_dim = 700e-15, .masked_key = 4.5e-12
#define ROW_DIM_3XTF32 42e-15
#define GRADIENT_f32_d64 GRADIENT_3xtf32(ROW_DIM_3XTF32)
#define GRADIENT_f32_d128 GRADIENT_3xtf32(45e-15)
#define GRADIENT_f32_d256 GRADIENT_3xtf32(60e-15)
#define GRADIENT_COST_f32(dims) GRADIENT_f32_##dims
#define DELTA_COST .item = 20e-12, .key_dim = 1e-12, .launch = DECODE_LAUNCH

/* ---- column sums: an estimate ---- */

#define COLUMN_SUMS_COST                                                                           \
    .item = GRADIENT_ITEM, .key_row_dim = ROW_DIM_3XTF32, .key_dim = DECODE_KEY_DIM,               \
    .launch = GRADIENT_LAUNCH

/* ---- the MLP: an estimate ---- */

#define MLP_COST .item = 20e-9, .key_row_dim = 4e-15, .launch = 5e-6

#endif
