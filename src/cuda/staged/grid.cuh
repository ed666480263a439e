/* Launches of kernels of the stages, whose only argument is struct staged_params. */
#ifndef TESSERA_CUDA_STAGED_GRID_CUH
#define TESSERA_CUDA_STAGED_GRID_CUH

#include "host/staged.h"

#include <cuda_runtime.h>

/* Thread blocks in a launch at most; kernels loop over units by the grid's size. Far more than any
 * device holds at once, so that the hardware evens out units of different cost. */
#define GRID_MAX (1 << 16)

/* Launches a grid for `units` units, of which a thread block takes `per_block` at a time. `units`
 * may exceed the true number, which kernels know. */
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

/* An instance of a kernel: its tiles' size, in what the kernel's table counts, and bytes of shared
 * memory of a thread block. */
struct grid_instance {
    int64_t size;
    size_t shared;
    cudaError_t (*launch)(const struct staged_params *p, cudaStream_t stream);
};

/* Launches the first of n instances, ascending, of `size` at least, or the last. A smaller one is
 * taken where the device has too little shared memory. */
static inline cudaError_t grid_launch_instance(const struct grid_instance *instances, int n,
                                               int64_t size, const struct staged_params *p,
                                               cudaStream_t stream) {
    int i = 0;
    while (i < n - 1 && instances[i].size < size)
        i++;
    while (i > 0 && (int64_t)instances[i].shared > p->shared)
        i--;
    return instances[i].launch(p, stream);
}

#endif
