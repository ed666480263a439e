/* Launches with one thread block for each unit of work, where a loop over units would cost
 * registers. */
#ifndef TESSERA_CUDA_BLOCKS_CUH
#define TESSERA_CUDA_BLOCKS_CUH

#include "device/inline.cuh"

#include <cuda_runtime.h>

#include <stdint.h>

#define BLOCKS_ACROSS (1 << 30)

/* The unit of this thread block. The number may be past the last unit. */
DEVICE int64_t blocks_unit(void) {
    return (int64_t)blockIdx.y * BLOCKS_ACROSS + blockIdx.x;
}

template <class params>
static inline cudaError_t blocks_launch(void (*kernel)(const params), int64_t units, int threads,
                                        const params *p, cudaStream_t stream) {
    if (units == 0)
        return cudaSuccess;
    const dim3 grid(units < BLOCKS_ACROSS ? units : BLOCKS_ACROSS,
                    (units + BLOCKS_ACROSS - 1) / BLOCKS_ACROSS);
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)kernel, grid, dim3(threads), arguments, 0, stream);
}

#endif
