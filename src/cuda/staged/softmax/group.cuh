/* Stage 2, softmax: reductions over the threads that share a row. A row has LANES threads, a power
 * of two, in each thread block of the cluster. */
#ifndef TESSERA_CUDA_SOFTMAX_GROUP_CUH
#define TESSERA_CUDA_SOFTMAX_GROUP_CUH

#include "device/barrier.cuh"
#include "device/cluster.cuh"
#include "staged/block_row.cuh"

#define SOFTMAX_THREADS 256
#define SOFTMAX_WARPS (SOFTMAX_THREADS / 32)

/* Shared memory of reductions over more than a warp. */
struct softmax_shared {
    float max_of_warp[SOFTMAX_WARPS], max_of_block;
    double sum_of_warp[SOFTMAX_WARPS], sum_of_block;
};

/* Named barriers: of each group of more than a warp, from this one on. */
enum { SOFTMAX_GROUP = 1 };

template <int LANES> DEVICE void softmax_wait(void) {
    named_barrier_sync(SOFTMAX_GROUP + (int)threadIdx.x / LANES, LANES);
}

/* Reductions over LANES lanes of a warp. */
template <int LANES> DEVICE float softmax_max_lanes(float x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    return x;
}
template <int LANES> DEVICE double softmax_sum_lanes(double x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, step);
    return x;
}

/* Maximum, and sum, over a row's threads. The two have memory of their own and alternate, so a
 * value has been read before the next one overwrites it. */
template <int LANES> DEVICE float softmax_max(struct softmax_shared &s, int blocks, float x) {
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

template <int LANES> DEVICE double softmax_sum(struct softmax_shared &s, int blocks, double x) {
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
