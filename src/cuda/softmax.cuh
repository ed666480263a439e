/*
 * Stage 2: softmax of every row of the values, in place. A row is contiguous, whatever the block:
 * a group of threads, one warp or a whole block, holds its beginning in registers and reads the
 * rest again. Nothing stands in for -Inf: where the maximum is -Inf, 0 is subtracted, and all
 * weights are exactly 0. Each thread sums what it holds in f32, and sums go on in double.
 */
#ifndef TESSERA_CUDA_SOFTMAX_CUH
#define TESSERA_CUDA_SOFTMAX_CUH

#include "device/grid.cuh"
#include "strip.cuh"

#define SOFTMAX_BLOCK 256
#define SOFTMAX_HELD 32 /* elements of a row that a thread holds */
#define SOFTMAX_LOG2_E 1.4426950408889634f

/* The mean row that a warp takes: what it can hold. */
#define SOFTMAX_WARP_WIDTH (32 * SOFTMAX_HELD)

template <int THREADS> static __device__ __forceinline__ float softmax_max(float x) {
    x = warp_max(x);
    if (THREADS > 32) {
        __shared__ float of_warp[SOFTMAX_BLOCK / 32];
        __syncthreads();
        if (warp_lane() == 0)
            of_warp[threadIdx.x / 32] = x;
        __syncthreads();
        for (int i = 0; i < THREADS / 32; i++)
            x = fmaxf(x, of_warp[i]);
    }
    return x;
}

template <int THREADS> static __device__ __forceinline__ double softmax_sum(double x) {
    x = warp_sum(x);
    if (THREADS > 32) {
        __shared__ double of_warp[SOFTMAX_BLOCK / 32];
        __syncthreads();
        if (warp_lane() == 0)
            of_warp[threadIdx.x / 32] = x;
        __syncthreads();
        x = 0;
        for (int i = 0; i < THREADS / 32; i++)
            x += of_warp[i];
    }
    return x;
}

static __device__ __forceinline__ float softmax_weight(float x, float base) {
    return exp2f((x - base) * SOFTMAX_LOG2_E);
}

/* One row, by THREADS threads; x is this thread's first element, and the row's length from it on is
 * `left` (0 or less: it has none). Answers the row's lse. */
template <int THREADS>
static __device__ __forceinline__ float softmax_of_row(float *x, int64_t left) {
    constexpr int64_t HELD = (int64_t)SOFTMAX_HELD * THREADS;
    float held[SOFTMAX_HELD], top = -INFINITY;
#pragma unroll
    for (int i = 0; i < SOFTMAX_HELD; i++)
        held[i] = i * THREADS < left ? x[i * THREADS] : -INFINITY;
#pragma unroll
    for (int i = 0; i < SOFTMAX_HELD; i++)
        top = fmaxf(top, held[i]);
#pragma unroll 8
    for (int64_t i = HELD; i < left; i += THREADS)
        top = fmaxf(top, x[i]);
    top = softmax_max<THREADS>(top);
    const float base = top == -INFINITY ? 0.0f : top;

    float part = 0;
#pragma unroll
    for (int i = 0; i < SOFTMAX_HELD; i++) {
        held[i] = softmax_weight(held[i], base);
        part += held[i];
    }
    double sum = part;
#pragma unroll 8
    for (int64_t i = HELD; i < left; i += THREADS)
        sum += softmax_weight(x[i], base);
    sum = softmax_sum<THREADS>(sum);

    /* Zeros stay zero even where the factor is NaN. */
    const float factor = sum == 0 ? 0.0f : (float)(1 / sum);
#pragma unroll
    for (int i = 0; i < SOFTMAX_HELD; i++)
        if (i * THREADS < left)
            x[i * THREADS] = held[i] == 0 ? 0.0f : held[i] * factor;
#pragma unroll 8
    for (int64_t i = HELD; i < left; i += THREADS) {
        const float weight = softmax_weight(x[i], base);
        x[i] = weight == 0 ? 0.0f : weight * factor;
    }
    return sum == 0 ? -INFINITY : (float)(top + log(sum));
}

template <int THREADS>
static __global__ void __launch_bounds__(SOFTMAX_BLOCK)
    softmax_rows(const __grid_constant__ struct cuda_params p) {
    constexpr int GROUPS = SOFTMAX_BLOCK / THREADS;
    const int thread = (int)threadIdx.x % THREADS;
    const int64_t units = p.n_items * p.height, step = (int64_t)gridDim.x * GROUPS;
    for (int64_t number = (int64_t)blockIdx.x * GROUPS + threadIdx.x / THREADS; number < units;
         number += step) {
        const int64_t item = number / p.height, row = number - item * p.height;
        const struct strip s = strip_of(p, item);
        if (row >= s.rows)
            continue;
        const float lse =
            softmax_of_row<THREADS>(s.values + row * s.width + thread, s.width - thread);
        if (thread == 0 && p.lse.data)
            static_cast<float *>(p.lse.data)[s.b * p.lse.stride[0] + s.h * p.lse.stride[1] +
                                             (s.first + row) * p.lse.stride[2]] = lse;
    }
}

static inline cudaError_t softmax_launch(const struct cuda_params *p, cudaStream_t stream) {
    const int64_t units = p->n_items * p->height;
    if (p->columns / p->n_items <= SOFTMAX_WARP_WIDTH)
        return grid_launch(softmax_rows<32>, units, SOFTMAX_BLOCK / 32, SOFTMAX_BLOCK, p, stream);
    return grid_launch(softmax_rows<SOFTMAX_BLOCK>, units, 1, SOFTMAX_BLOCK, p, stream);
}

#endif
