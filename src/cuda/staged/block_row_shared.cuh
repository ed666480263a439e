/* A block row's description in shared memory. */
#ifndef TESSERA_CUDA_BLOCK_ROW_SHARED_CUH
#define TESSERA_CUDA_BLOCK_ROW_SHARED_CUH

#include "staged/block_row.cuh"

/* Stores a warp's block row to shared memory, where registers are scarce. */
static __device__ __forceinline__ void block_row_to_shared(struct block_row &shared,
                                                           const struct block_row &s) {
    __syncwarp();
    if (warp_lane() == 0)
        shared = s;
    __syncwarp();
}

#endif
