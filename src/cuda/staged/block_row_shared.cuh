/* A strip in shared memory. */
#ifndef TESSERA_CUDA_BLOCK_ROW_SHARED_CUH
#define TESSERA_CUDA_BLOCK_ROW_SHARED_CUH

#include "staged/block_row.cuh"

/* A warp's strip where registers are scarce: in shared memory. */
static __device__ __forceinline__ void block_row_to_shared(struct block_row &shared,
                                                           const struct block_row &s) {
    __syncwarp();
    if (warp_lane() == 0)
        shared = s;
    __syncwarp();
}

#endif
