/*
 * Pooled blocks: a CTA takes a block. Its threads are groups of rows by pieces of 16 bytes, whose sums or bounds are
 * joined in the order of the groups:
 *
 *     thread        0 ... COLUMNS - 1     the next                ...
 *     rows          0, GROUPS ...         1, GROUPS + 1 ...       ...
 *     dims          a piece each          the same pieces         ...
 */
#ifndef TESSERA_CUDA_POOL_CUH
#define TESSERA_CUDA_POOL_CUH

#include "host/pool.h"
#include "device/convert.cuh"

#include <cuda_runtime.h>

#define POOL_THREADS 128
#define POOL_BLOCKS (1 << 20) /* CTAs of a grid at most */
#define POOL_AHEAD 8          /* rows that a thread has on their way */

/* VECTOR elements of a row. */
template <class T, int VECTOR> struct pool_piece { alignas(sizeof(T) * VECTOR) T x[VECTOR]; };

/* Sums, or least and largest. */
template <int VECTOR> struct pool_state { float a[VECTOR], b[VECTOR]; };

DEVICE void pool_store(const struct pool_params &p, int64_t at, float x) {
    if (p.type == TESS_F32)
        static_cast<float *>(p.pooled.data)[at] = x;
    else if (p.type == TESS_F16)
        from_f32(static_cast<__half *>(p.pooled.data) + at, x);
    else
        from_f32(static_cast<__nv_bfloat16 *>(p.pooled.data) + at, x);
}

/* Adds a row's element, or bounds it. most: of LSE, the largest of all rows. */
DEVICE void pool_add(tess_pool_mode mode, float &a, float &b, float x, float most) {
    if (mode == TESS_POOL_MEAN)
        a += x;
    else if (mode == TESS_POOL_MIN_MAX)
        a = fminf(a, x), b = fmaxf(b, x);
    else
        a += isinf(most) ? (isnan(x) ? x : 0.0f) : expf(x - most);
}

/* A state that changes none. */
template <int VECTOR> DEVICE void pool_clear(struct pool_state<VECTOR> &s, tess_pool_mode mode) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        s.a[i] = mode == TESS_POOL_MIN_MAX ? NAN : 0;
        s.b[i] = s.a[i];
    }
}

/* Rows first, first + step ... below `end`, from element `dim` on. */
template <class T, int VECTOR>
DEVICE void pool_rows(struct pool_state<VECTOR> &s, const T *head, int64_t stride, int32_t first,
                      int32_t end, int32_t step, tess_pool_mode mode, const float (&most)[VECTOR]) {
    using piece = struct pool_piece<T, VECTOR>;
#pragma unroll 1
    for (int32_t row = first; row < end; row += POOL_AHEAD * step) {
        piece x[POOL_AHEAD];
#pragma unroll
        for (int i = 0; i < POOL_AHEAD; i++)
            if (row + i * step < end)
                x[i] = *reinterpret_cast<const piece *>(head + (row + i * step) * stride);
#pragma unroll
        for (int i = 0; i < POOL_AHEAD; i++)
            if (row + i * step < end)
#pragma unroll
                for (int e = 0; e < VECTOR; e++)
                    pool_add(mode, s.a[e], s.b[e], to_f32(x[i].x[e]), most[e]);
    }
}

/* Joins the groups' states in their order; all threads of a column get it. */
template <int VECTOR>
DEVICE void pool_join(struct pool_state<VECTOR> &s, int columns, tess_pool_mode mode) {
    __shared__ float shared[2][POOL_THREADS][VECTOR];
    __syncthreads(); /* all have read what was there */
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        shared[0][threadIdx.x][e] = s.a[e], shared[1][threadIdx.x][e] = s.b[e];
    __syncthreads();
    pool_clear(s, mode);
    for (int other = (int)threadIdx.x % columns; other < POOL_THREADS; other += columns)
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            if (mode == TESS_POOL_MIN_MAX)
                s.a[e] = fminf(s.a[e], shared[0][other][e]),
                s.b[e] = fmaxf(s.b[e], shared[1][other][e]);
            else
                s.a[e] += shared[0][other][e];
}

/* Dims from `dim` on, of which this thread has VECTOR; rows first ... end - 1. */
template <class T, int VECTOR>
DEVICE struct pool_state<VECTOR> pool_dims(const struct pool_params &p, const T *head,
                                           int64_t stride, int32_t first, int32_t end, int columns,
                                           bool inside) {
    const int32_t group = (int32_t)threadIdx.x / columns, step = POOL_THREADS / columns;
    const int32_t begin = inside ? first + group : end;
    struct pool_state<VECTOR> s;
    float most[VECTOR] = {};
    if (p.mode == TESS_POOL_LSE) {
        pool_clear(s, TESS_POOL_MIN_MAX);
        pool_rows(s, head, stride, begin, end, step, TESS_POOL_MIN_MAX, most);
        pool_join(s, columns, TESS_POOL_MIN_MAX);
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            most[e] = s.b[e];
    }
    pool_clear(s, p.mode);
    pool_rows(s, head, stride, begin, end, step, p.mode, most);
    pool_join(s, columns, p.mode);
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        if (p.mode == TESS_POOL_MEAN)
            s.a[e] /= (float)(end - first);
        else if (p.mode == TESS_POOL_LSE)
            s.a[e] = most[e] + (isinf(most[e]) ? s.a[e] : logf(s.a[e]));
    return s;
}

template <class T, int VECTOR>
static __global__ void __launch_bounds__(POOL_THREADS)
    pool_blocks(const __grid_constant__ struct pool_params p) {
    const int32_t pieces = (p.d + VECTOR - 1) / VECTOR;
    int columns = 1;
    while (columns < pieces && columns < POOL_THREADS)
        columns *= 2;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < p.count; i += gridDim.x) {
        const int32_t block = (int32_t)(i % p.blocks), first = block * p.block;
        const int64_t b = i / p.blocks / p.heads, h = i / p.blocks % p.heads;
        const int32_t length = (int32_t)pool_length(p.lengths, b, p.n);
        const int32_t end = min(first + p.block, length);
        if (end <= first || end <= (p.begins ? p.begins[b] : 0))
            continue;
        const T *const head =
            static_cast<const T *>(p.x.data) + b * p.x.stride[0] + h * p.x.stride[1];
        const int64_t to =
            b * p.pooled.stride[0] + h * p.pooled.stride[1] + block * p.pooled.stride[2];
#pragma unroll 1
        for (int32_t at = 0; at < pieces; at += columns) {
            const int32_t dim = (at + (int32_t)threadIdx.x % columns) * VECTOR;
            const bool inside = dim < p.d;
            const struct pool_state<VECTOR> s = pool_dims<T, VECTOR>(
                p, head + (inside ? dim : 0), p.x.stride[2], first, end, columns, inside);
            if ((int)threadIdx.x >= columns || !inside)
                continue;
#pragma unroll
            for (int e = 0; e < VECTOR; e++) {
                pool_store(p, to + dim + e, s.a[e]);
                if (p.mode == TESS_POOL_MIN_MAX)
                    pool_store(p, to + p.d + dim + e, s.b[e]);
            }
        }
    }
}

template <class T>
static cudaError_t pool_launch_type(const struct pool_params *p, cudaStream_t stream) {
    constexpr int VECTOR = 16 / (int)sizeof(T);
    const void *const kernel =
        p->vector ? (const void *)pool_blocks<T, VECTOR> : (const void *)pool_blocks<T, 1>;
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel(kernel,
                            dim3((unsigned)(p->count < POOL_BLOCKS ? p->count : POOL_BLOCKS)),
                            dim3(POOL_THREADS), arguments, 0, stream);
}

static inline cudaError_t pool_launch(const struct pool_params *p, tess_type type,
                                      cudaStream_t stream) {
    return type == TESS_F32   ? pool_launch_type<float>(p, stream)
           : type == TESS_F16 ? pool_launch_type<__half>(p, stream)
                              : pool_launch_type<__nv_bfloat16>(p, stream);
}

#endif
