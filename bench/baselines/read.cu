// Reading what lies in the L2 cache, as fast as it goes: the rate that gathered keys cannot beat.
#include "baselines/read.h"

#include <cuda_runtime.h>

enum { THREADS = 512, UNROLL = 4 };

// `passes` times over all words by all blocks together, each pass begun elsewhere.
static __global__ void __launch_bounds__(THREADS)
    read_cached(const uint4 *words, size_t count, int passes, unsigned *never) {
    const size_t step = (size_t)gridDim.x * THREADS * UNROLL;
    unsigned seen = 0;
    for (int pass = 0; pass < passes; pass++) {
        const size_t block = (blockIdx.x + (size_t)pass * 37) % gridDim.x;
        for (size_t i = block * THREADS * UNROLL + threadIdx.x; i < count; i += step) {
            uint4 x[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                x[u] = __ldcg(words + i + u * THREADS);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                seen |= x[u].x | x[u].y | x[u].z | x[u].w;
        }
    }
    if (seen) // all words are 0
        *never = seen;
}

const char *bench_read_cached(void *zeros, size_t size, int passes, tess_stream stream) {
    int device = 0, multiprocessors = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess) {
        // whole steps of a block: what is left over is not read
        size_t count = size / (16 * THREADS * UNROLL) * (THREADS * UNROLL);
        void *arguments[] = {&zeros, &count, &passes, &zeros};
        code = cudaLaunchKernel((const void *)read_cached, dim3(4 * (unsigned)multiprocessors),
                                dim3(THREADS), arguments, 0, stream);
    }
    if (code == cudaSuccess)
        return nullptr;
    cudaGetLastError();
    return cudaGetErrorString(code);
}
