/* Kernels that have a warp for each row of all block rows. */
#ifndef TESSERA_CUDA_BLOCK_ROW_WARP_CUH
#define TESSERA_CUDA_BLOCK_ROW_WARP_CUH

#include "device/blocks.cuh"
#include "staged/block_row.cuh"

#define BLOCK_ROW_WARPS 8 /* warps of a thread block */

/* This warp's row: number r of block row s. False where it has none. */
DEVICE bool block_row_of_warp(struct block_row *s, int64_t *r, const struct staged_params &p) {
    const int64_t unit = blocks_unit() * BLOCK_ROW_WARPS + threadIdx.x / 32;
    const int64_t item = unit / p.height;
    *r = unit % p.height;
    if (item >= p.n_items)
        return false;
    *s = block_row_of(p, item);
    return *r < s->rows;
}

static inline cudaError_t block_row_warps_launch(void (*kernel)(const struct staged_params),
                                                 const struct staged_params *p,
                                                 cudaStream_t stream) {
    const int64_t rows = p->n_items * p->height;
    return blocks_launch(kernel, (rows + BLOCK_ROW_WARPS - 1) / BLOCK_ROW_WARPS,
                         32 * BLOCK_ROW_WARPS, p, stream);
}

#endif
