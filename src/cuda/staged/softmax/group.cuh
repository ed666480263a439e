/* Stage 2: what the threads that share a row tell each other. LANES of a block share it, a power of
 * two, and as many of each other block of the cluster. */
#ifndef TESSERA_CUDA_SOFTMAX_GROUP_CUH
#define TESSERA_CUDA_SOFTMAX_GROUP_CUH

#include "device/cluster.cuh"
#include "staged/block_row.cuh"

#define SOFTMAX_THREADS 256
#define SOFTMAX_WARPS (SOFTMAX_THREADS / 32)

/* What groups of more than a warp exchange by, and clusters. */
struct softmax_shared {
    float max_of_warp[SOFTMAX_WARPS], max_of_block;
    double sum_of_warp[SOFTMAX_WARPS], sum_of_block;
};

/* For groups of more than a warp: all threads of this block's. Barrier 0 is __syncthreads', which
 * other groups may have reached. */
template <int LANES> static __device__ __forceinline__ void softmax_wait(void) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.x / LANES), "n"(LANES) : "memory");
}

/* Among LANES of a warp. */
template <int LANES> static __device__ __forceinline__ float softmax_max_lanes(float x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    return x;
}
template <int LANES> static __device__ __forceinline__ double softmax_sum_lanes(double x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, step);
    return x;
}

/* What is written for one exchange has been read when the next but one begins: there are two in
 * turn, of maxima and of sums. */
template <int LANES>
static __device__ __forceinline__ float softmax_max(struct softmax_shared &s, int blocks, float x) {
    x = softmax_max_lanes<(LANES < 32 ? LANES : 32)>(x);
    if (LANES <= 32)
        return x;
    const int first = (int)threadIdx.x / LANES * (LANES / 32);
    s.max_of_warp[threadIdx.x / 32] = x;
    softmax_wait<LANES>();
#pragma unroll
    for (int i = 0; i < LANES / 32; i++)
        x = fmaxf(x, s.max_of_warp[first + i]);
    if (blocks == 1)
        return x;
    s.max_of_block = x;
    cluster_wait();
    for (int i = 0; i < blocks; i++)
        x = fmaxf(x, cluster_load(&s.max_of_block, i));
    return x;
}

template <int LANES>
static __device__ __forceinline__ double softmax_sum(struct softmax_shared &s, int blocks,
                                                     double x) {
    x = softmax_sum_lanes<(LANES < 32 ? LANES : 32)>(x);
    if (LANES <= 32)
        return x;
    const int first = (int)threadIdx.x / LANES * (LANES / 32);
    s.sum_of_warp[threadIdx.x / 32] = x;
    softmax_wait<LANES>();
    x = 0;
#pragma unroll
    for (int i = 0; i < LANES / 32; i++)
        x += s.sum_of_warp[first + i];
    if (blocks == 1)
        return x;
    s.sum_of_block = x;
    cluster_wait();
    x = 0;
    for (int i = 0; i < blocks; i++)
        x += cluster_load(&s.sum_of_block, i);
    return x;
}

#endif
