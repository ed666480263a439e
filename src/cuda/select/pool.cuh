/*
 * Pooled blocks: a CTA takes a block, whose rows are read once (LSE: twice, from L2). Threads are groups of rows by
 * pieces of 16 bytes; each has several rows on their way:
 *
 *     thread        0 ... columns - 1     the next                ...
 *     rows          0, groups ...         1, groups + 1 ...       ...
 *     dims          a piece each          the same pieces         ...
 *
 * Groups' numbers meet in shared memory, where a thread joins those of a dim in the order of the groups.
 */
#ifndef TESSERA_CUDA_POOL_CUH
#define TESSERA_CUDA_POOL_CUH

#include "host/pool.h"
#include "device/convert.cuh"

#include <cuda_runtime.h>

#define POOL_THREADS 128
#define POOL_CTAS 8           /* at least on a multiprocessor: 128 KB on their way */
#define POOL_BLOCKS (1 << 20) /* CTAs of a grid at most */
#define POOL_AHEAD 8          /* rows that a thread has on their way */
#define POOL_AHEAD_LSE 2      /* rows from L2, where exponentials take registers */

/* VECTOR elements of a row. */
template <class T, int VECTOR> struct pool_piece { alignas(sizeof(T) * VECTOR) T x[VECTOR]; };

/* Numbers of a CTA: a dim's of each group, then those that are joined. */
template <int VECTOR> struct pool_shared {
    alignas(16) float group[2][POOL_THREADS * VECTOR];
    alignas(16) float joined[POOL_THREADS * VECTOR];
};

/* A block's rows, and the dims that a CTA has at a time. */
template <class T> struct pool_block {
    const T *rows;  /* row 0 of the head, at this thread's first dim */
    int64_t stride; /* elements between rows */
    int32_t first, end;
    int32_t columns; /* pieces */
    bool inside;     /* this thread's dims exist */
};

DEVICE void pool_store(const struct pool_params &p, int64_t at, float x) {
    if (p.type == TESS_F32)
        static_cast<float *>(p.pooled.data)[at] = x;
    else if (p.type == TESS_F16)
        from_f32(static_cast<__half *>(p.pooled.data) + at, x);
    else
        from_f32(static_cast<__nv_bfloat16 *>(p.pooled.data) + at, x);
}

/* Calls add(e, x) for element e of each of this thread's rows, in their order, with AHEAD rows on their way. */
template <int VECTOR, int AHEAD, class T, class ADD>
DEVICE void pool_rows(const struct pool_block<T> &block, ADD add) {
    using piece = struct pool_piece<T, VECTOR>;
    const int32_t step = POOL_THREADS / block.columns;
    const int64_t ahead = step * block.stride;
    int32_t row = block.first + (int32_t)threadIdx.x / block.columns;
    const T *from = block.rows + row * block.stride;
    row = block.inside ? row : block.end;
#pragma unroll 1
    for (; row + (AHEAD - 1) * step < block.end; row += AHEAD * step) {
        piece x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++, from += ahead)
            x[i] = *reinterpret_cast<const piece *>(from);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                add(e, to_f32(x[i].x[e]));
    }
#pragma unroll 1
    for (; row < block.end; row += step, from += ahead) {
        const piece x = *reinterpret_cast<const piece *>(from);
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            add(e, to_f32(x.x[e]));
    }
}

/* Hands this thread's numbers to the group's place. */
template <int VECTOR>
DEVICE void pool_hand(struct pool_shared<VECTOR> *s, int which, const float (&x)[VECTOR]) {
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        s->group[which][threadIdx.x * VECTOR + e] = x[e];
}

/* Calls join(a, b) for the groups' numbers of dim i of the CTA's, the first with `from` for a: the last answer. */
template <int VECTOR, class JOIN>
DEVICE float pool_join(const struct pool_shared<VECTOR> *s, int which, int i, int width, float from,
                       JOIN join) {
#pragma unroll 8
    for (int at = i; at < POOL_THREADS * VECTOR; at += width)
        from = join(from, s->group[which][at]);
    return from;
}

/* The pooled dims of a block from the CTA's first one on, to element `to` of what is pooled. */
template <int VECTOR, class T>
DEVICE void pool_mean(const struct pool_params &p, const struct pool_block<T> &block,
                      struct pool_shared<VECTOR> *s, int64_t to, int32_t dims) {
    const int width = block.columns * VECTOR;
    float sum[VECTOR] = {};
    pool_rows<VECTOR, POOL_AHEAD>(block, [&](int e, float x) { sum[e] += x; });
    pool_hand(s, 0, sum);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < min(width, dims); i += POOL_THREADS)
        pool_store(p, to + i, pool_join(s, 0, i, width, 0.0f, [](float a, float b) {
                                  return a + b;
                              }) / (float)(block.end - block.first));
}

template <int VECTOR, class T>
DEVICE void pool_bounds(const struct pool_params &p, const struct pool_block<T> &block,
                        struct pool_shared<VECTOR> *s, int64_t to, int32_t dims) {
    const int width = block.columns * VECTOR;
    float least[VECTOR], most[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        least[e] = most[e] = NAN;
    pool_rows<VECTOR, POOL_AHEAD>(
        block, [&](int e, float x) { least[e] = fminf(least[e], x), most[e] = fmaxf(most[e], x); });
    pool_hand(s, 0, least), pool_hand(s, 1, most);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < min(width, dims); i += POOL_THREADS) {
        pool_store(p, to + i, pool_join(s, 0, i, width, NAN, fminf));
        pool_store(p, to + p.d + i, pool_join(s, 1, i, width, NAN, fmaxf));
    }
}

template <int VECTOR, class T>
DEVICE void pool_lse(const struct pool_params &p, const struct pool_block<T> &block,
                     struct pool_shared<VECTOR> *s, int64_t to, int32_t dims) {
    const int width = block.columns * VECTOR;
    const int own = (int)threadIdx.x % block.columns * VECTOR;
    float most[VECTOR], sum[VECTOR] = {};
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        most[e] = NAN;
    pool_rows<VECTOR, POOL_AHEAD>(block, [&](int e, float x) { most[e] = fmaxf(most[e], x); });
    pool_hand(s, 0, most);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < width; i += POOL_THREADS)
        s->joined[i] = pool_join(s, 0, i, width, NAN, fmaxf);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        most[e] = s->joined[own + e];
    pool_rows<VECTOR, POOL_AHEAD_LSE>(block, [&](int e, float x) {
        sum[e] += isinf(most[e]) ? (isnan(x) ? x : 0.0f) : expf(x - most[e]);
    });
    pool_hand(s, 1, sum);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < min(width, dims); i += POOL_THREADS) {
        const float largest = s->joined[i];
        const float all = pool_join(s, 1, i, width, 0.0f, [](float a, float b) { return a + b; });
        pool_store(p, to + i, largest + (isinf(largest) ? all : logf(all)));
    }
}

/* x / y, by 32 bits where they hold x. */
DEVICE int64_t pool_divide(int64_t x, int32_t y) {
    return x >> 32 ? x / y : (int64_t)((uint32_t)x / (uint32_t)y);
}

template <class T, int VECTOR>
static __global__ void __launch_bounds__(POOL_THREADS, POOL_CTAS)
    pool_blocks(const __grid_constant__ struct pool_params p) {
    __shared__ struct pool_shared<VECTOR> shared;
    struct pool_block<T> block;
    block.columns = p.columns, block.stride = p.x.stride[2];
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < p.count; i += gridDim.x) {
        const int64_t head = pool_divide(i, p.blocks), b = pool_divide(head, p.heads);
        const int32_t number = (int32_t)(i - head * p.blocks);
        const int64_t h = head - b * p.heads;
        const int32_t length = (int32_t)pool_length(p.lengths, b, p.n);
        block.first = number * p.block, block.end = min(block.first + p.block, length);
        if (block.end <= block.first || block.end <= (p.begins ? p.begins[b] : 0))
            continue;
        const T *const rows =
            static_cast<const T *>(p.x.data) + b * p.x.stride[0] + h * p.x.stride[1];
        const int64_t to =
            b * p.pooled.stride[0] + h * p.pooled.stride[1] + number * p.pooled.stride[2];
#pragma unroll 1
        for (int32_t dim = 0; dim < p.d; dim += block.columns * VECTOR) {
            const int32_t own = dim + (int32_t)threadIdx.x % block.columns * VECTOR;
            block.inside = own < p.d, block.rows = rows + (block.inside ? own : 0);
            if (p.mode == TESS_POOL_MEAN)
                pool_mean<VECTOR>(p, block, &shared, to + dim, p.d - dim);
            else if (p.mode == TESS_POOL_MIN_MAX)
                pool_bounds<VECTOR>(p, block, &shared, to + dim, p.d - dim);
            else
                pool_lse<VECTOR>(p, block, &shared, to + dim, p.d - dim);
            __syncthreads(); /* all have read what the next block or dims overwrite */
        }
    }
}

template <class T>
static cudaError_t pool_launch_type(const struct pool_params *given, cudaStream_t stream) {
    constexpr int VECTOR = 16 / (int)sizeof(T);
    const void *const kernel =
        given->vector ? (const void *)pool_blocks<T, VECTOR> : (const void *)pool_blocks<T, 1>;
    const int32_t vector = given->vector ? VECTOR : 1;
    struct pool_params p = *given;
    void *arguments[] = {&p};
    for (p.columns = 1; p.columns < POOL_THREADS && p.columns * vector < p.d;)
        p.columns *= 2;
    return cudaLaunchKernel(kernel, dim3((unsigned)fill_least(p.count, POOL_BLOCKS)),
                            dim3(POOL_THREADS), arguments, 0, stream);
}

static inline cudaError_t pool_launch(const struct pool_params *p, tess_type type,
                                      cudaStream_t stream) {
    return type == TESS_F32   ? pool_launch_type<float>(p, stream)
           : type == TESS_F16 ? pool_launch_type<__half>(p, stream)
                              : pool_launch_type<__nv_bfloat16>(p, stream);
}

#endif
