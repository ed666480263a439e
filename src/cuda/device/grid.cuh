/* Launching a kernel whose one argument is struct staged_params, over units of work. */
#ifndef TESSERA_CUDA_GRID_CUH
#define TESSERA_CUDA_GRID_CUH

#include "host/staged.h"

#include <cuda_runtime.h>

/* Blocks of a launch at most: kernels step through their units by the grid's size. Far more than
 * any device holds at once, so that the hardware evens out units of different cost. */
#define GRID_MAX (1 << 16)

/* Enough blocks for `units`, each doing `per_block` at a time. units may be more than there are:
 * kernels know the true number. */
static inline cudaError_t grid_launch(void (*kernel)(const struct staged_params), int64_t units,
                                      int per_block, int threads, const struct staged_params *p,
                                      cudaStream_t stream) {
    int64_t blocks = (units + per_block - 1) / per_block;
    if (blocks == 0)
        return cudaSuccess;
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)kernel, dim3(blocks < GRID_MAX ? blocks : GRID_MAX),
                            dim3(threads), arguments, 0, stream);
}

/* A kernel for block rows of up to `height` queries, by blocks of `shared` bytes. */
struct grid_tile {
    int64_t height;
    size_t shared;
    cudaError_t (*launch)(const struct staged_params *p, cudaStream_t stream);
};

/* Launches the first of n tiles that is high enough, or the last; a lower one where the device's
 * blocks have less shared memory than that takes. */
static inline cudaError_t grid_launch_tile(const struct grid_tile *tiles, int n,
                                           const struct staged_params *p, cudaStream_t stream) {
    int i = 0;
    while (i < n - 1 && tiles[i].height < p->height)
        i++;
    while (i > 0 && (int64_t)tiles[i].shared > p->shared)
        i--;
    return tiles[i].launch(p, stream);
}

/* A block for each unit, with `shared` bytes of dynamic shared memory. More units than a grid has
 * blocks, 2^31, would take more values than any memory. */
static inline cudaError_t grid_launch_units(void (*kernel)(const struct staged_params), int64_t units,
                                            int threads, size_t shared, const struct staged_params *p,
                                            cudaStream_t stream) {
    if (units == 0)
        return cudaSuccess;
    if (units > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    cudaError_t code = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (code != cudaSuccess)
        return code;
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)kernel, dim3((unsigned)units), dim3(threads), arguments,
                            shared, stream);
}

#endif
