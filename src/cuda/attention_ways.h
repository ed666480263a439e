/*
 * What fused kernels of each way (instances.def) tell the plan: functions and constants by the
 * way's name. kernels_cuda.c, which includes this, makes their rows of the table of it.
 */
#ifndef TESSERA_CUDA_ATTENTION_WAYS_H
#define TESSERA_CUDA_ATTENTION_WAYS_H

#include "attention.h"

/* Blocks of tensor-core kernels stay for several items, which are dealt among them; the others have
 * a block for each. */
static int32_t blocks_of_all(const tess_target *target, int32_t blocks, int64_t shared) {
    /* A multiprocessor has a little more than one block can ask for, and keeps 1 KB of each. */
    const int64_t fit = (target->shared_memory_per_block + 1024) / (shared + 1024);
    const int64_t each = fit < 1 || fit > blocks ? blocks : fit;
    const int64_t all = target->multiprocessors * each;
    return all < 1 << 20 ? (int32_t)all : 1 << 20;
}
/* What kernels of one way refuse beside that. */
static const char *sm90_refuses(const struct problem *problem, const tess_target *target) {
    if (target->architecture != 90)
        return "the target's architecture is not 90 (compute capability 9.0)";
    if (problem->alignment < 16 || problem->d_qk % 8 || problem->d_v % 8)
        return "it copies 16 bytes at a time: rows have to be aligned to that";
    if (!(problem->scale >= 0x1p-8 && problem->scale <= 0x1p8))
        return "its scale is not within 2^-8 ... 2^8";
    return NULL;
}
static const char *sm90_tiles_refuse(const struct problem *problem, const tess_target *target) {
    const int64_t rows = problem->tile_rows;
    return rows && rows != 32 && rows != 64 && rows != 128
               ? "its query tiles have 32, 64 or 128 rows"
               : sm90_refuses(problem, target);
}
static const char *sm90_r192_refuses(const struct problem *problem, const tess_target *target) {
    return problem->tile_rows && problem->tile_rows != 192 ? "its query tiles have 192 rows"
                                                           : sm90_refuses(problem, target);
}
static const char *low_refuses(const struct problem *problem) {
    return problem->tile_rows && problem->tile_rows != 8 ? "its query tiles have 8 rows" : NULL;
}
static const char *low_16_refuses(const struct problem *problem) {
    const int64_t rows = problem->tile_rows;
    return rows && rows != 8 && rows != 16 ? "its query tiles have 8 or 16 rows" : NULL;
}
static const char *sm90_v128_refuses(const struct problem *problem, const tess_target *target) {
    return problem->d_v > 128 ? "its values have at most 128 dims"
                              : sm90_tiles_refuse(problem, target);
}
#define REFUSES_sm90(problem, target) sm90_tiles_refuse(problem, target)
#define REFUSES_sm90_v128(problem, target) sm90_v128_refuses(problem, target)
#define REFUSES_sm90_r192(problem, target) sm90_r192_refuses(problem, target)
#define REFUSES_mma(problem, target) NULL
#define REFUSES_mma_f32(problem, target) NULL
#define REFUSES_low(problem, target) low_refuses(problem)
#define REFUSES_low_16(problem, target) low_16_refuses(problem)
#define REFUSES_fma(problem, target) NULL

/* Hopper's are the fastest but for the thinnest of patterns. */
#define WEIGHED_sm90 1
#define WEIGHED_sm90_v128 1
#define WEIGHED_sm90_r192 1
#define WEIGHED_mma 0
#define WEIGHED_mma_f32 0
#define WEIGHED_low 1
#define WEIGHED_low_16 1
#define WEIGHED_fma 0

/* Dims that a key has, of K and V together, by two. */
#define PADDED_sm90(head) head
#define PADDED_sm90_v128(head) (((head) + 128) / 2)
#define PADDED_sm90_r192(head) head
#define PADDED_mma(head) head
#define PADDED_mma_f32(head) head
#define PADDED_low(head) head
#define PADDED_low_16(head) head
#define PADDED_fma(head) 0

#define WORKERS_sm90(head, shared) blocks_of_all(target, 1, shared)
#define WORKERS_sm90_v128(head, shared) WORKERS_sm90(head, shared)
#define WORKERS_sm90_r192(head, shared) WORKERS_sm90(head, shared)
#define WORKERS_mma(head, shared) blocks_of_all(target, ATTENTION_BLOCKS(head, rows), shared)
#define WORKERS_mma_f32(head, shared)                                                              \
    blocks_of_all(target, ATTENTION_BLOCKS_F32(head, rows), shared)
#define WORKERS_low(head, shared) blocks_of_all(target, ATTENTION_BLOCKS_LOW(head, rows), shared)
#define WORKERS_low_16(head, shared) WORKERS_low(head, shared)
#define WORKERS_fma(head, shared) 1
/* Of tall tiles of 64 dims as thin lists have them: of others few granules have masks. */
#define STEP_sm90(head, rows) 0, 0
#define STEP_sm90_v128(head, rows) 0, 0
#define STEP_sm90_r192(head, rows) 0, 0
#define STEP_mma(head, rows) ATTENTION_STEP(head, rows), ATTENTION_WARP(head, rows, 1)
#define STEP_mma_f32(head, rows) ATTENTION_STEP_F32(rows), ATTENTION_WARP_F32(head, rows)
#define STEP_low(head, rows) 0, 0
#define STEP_low_16(head, rows) 0, 0
#define STEP_fma(head, rows) 0, 0
#define HALVES_sm90 1
#define HALVES_sm90_v128 1
#define HALVES_sm90_r192 1
#define HALVES_mma 0
#define HALVES_mma_f32 0
#define HALVES_low 0
#define HALVES_low_16 0
#define HALVES_fma 0
/* As sm90_shape's HALVED. */
#define TURNS_sm90(head) ((head) <= 128)
#define TURNS_sm90_v128(head) 1
#define TURNS_sm90_r192(head) 0
#define TURNS_mma(head) 0
#define TURNS_mma_f32(head) 0
#define TURNS_low(head) 0
#define TURNS_low_16(head) 0
#define TURNS_fma(head) 0
#define GRANULE_sm90 GRANULE_MAX
#define GRANULE_sm90_v128 GRANULE_MAX
#define GRANULE_sm90_r192 GRANULE_MAX
#define GRANULE_mma ATTENTION_GRANULE
#define GRANULE_mma_f32 ATTENTION_GRANULE_F32
#define GRANULE_low ATTENTION_GRANULE_F32
#define GRANULE_low_16 ATTENTION_GRANULE_F32
#define GRANULE_fma GRANULE_MAX

/* Rows of a query tile of fused kernels; and those that heads are stacked to (kernels.h). */
#define ROWS_sm90 sm90_rows
#define ROWS_sm90_v128 sm90_rows
#define ROWS_sm90_r192 sm90_r192_rows
#define ROWS_mma mma_rows
#define ROWS_mma_f32 mma_f32_rows
#define ROWS_low low_rows
#define ROWS_low_16 low_16_rows
#define ROWS_fma fma_rows
#define STACKED_sm90 128
#define STACKED_sm90_v128 128
#define STACKED_sm90_r192 0
#define STACKED_mma 0
#define STACKED_mma_f32 0
#define STACKED_low 0
#define STACKED_low_16 0
#define STACKED_fma 0
static const int32_t sm90_rows[] = {32, 64, 128, 0}, sm90_r192_rows[] = {192, 0};
static const int32_t mma_rows[] = {8, 16, 32, 64, 128, 0}, mma_f32_rows[] = {16, 32, 64, 128, 0};
static const int32_t low_rows[] = {8, 0}, low_16_rows[] = {8, 16, 0},
                     fma_rows[] = {8, 16, 32, 64, 0};

#endif
