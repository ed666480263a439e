/* A strip in shared memory. */
#ifndef TESSERA_CUDA_STRIP_SHARE_CUH
#define TESSERA_CUDA_STRIP_SHARE_CUH

#include "staged/strip.cuh"

/* A warp's strip where registers are scarce: in shared memory. */
static __device__ __forceinline__ void strip_share(struct strip &shared, const struct strip &s) {
    __syncwarp();
    if (warp_lane() == 0)
        shared = s;
    __syncwarp();
}

#endif
