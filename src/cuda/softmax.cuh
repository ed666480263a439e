/*
 * Stage 2: softmax of every row of the values, in place. A row is contiguous, whatever the block.
 *
 * The limit is memory, so a row is read once, held in registers and written once: by `lanes`
 * threads, the fewest of a power of two that hold it, HELD times 16 bytes each. A block's groups of
 * that many threads take rows each by itself. Rows wider than a block holds have their rest read
 * twice.
 *
 * Nothing stands in for -Inf: where the maximum is -Inf, 0 is subtracted, and all weights are
 * exactly 0. Each thread sums what it holds in f32, and sums go on in double.
 */
#ifndef TESSERA_CUDA_SOFTMAX_CUH
#define TESSERA_CUDA_SOFTMAX_CUH

#include "device/grid.cuh"
#include "strip.cuh"

#define SOFTMAX_LANES 2  /* that hold a row at least: together they read a sector of memory */
#define SOFTMAX_ROUNDS 4 /* rows that a group takes */
#define SOFTMAX_LOG2_E 1.4426950408889634f

/* Threads of a block that hold a row of `width` elements, `held` pieces of four each. */
static __host__ __device__ __forceinline__ int softmax_lanes(int64_t width, int threads,
                                                             int held) {
    int lanes = SOFTMAX_LANES;
    while (lanes < threads && 4 * held * lanes < width)
        lanes *= 2;
    return lanes;
}

/* Threads that share a row: `lanes` of them, a power of two; `lane` is this one's number. Those of
 * more than a warp exchange by `of_warp`, which has a place for each of the block's warps. */
struct softmax_group {
    int lanes, lane;
    float *max_of_warp;
    double *sum_of_warp;
};

/* For groups of more than a warp: all threads of this one. Barrier 0 is __syncthreads', which other
 * groups may have reached. */
static __device__ __forceinline__ void softmax_wait(const struct softmax_group &g) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.x / g.lanes), "r"(g.lanes) : "memory");
}

static __device__ __forceinline__ float softmax_max(const struct softmax_group &g, float x) {
    for (int step = min(g.lanes, 32) / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    if (g.lanes > 32) {
        const int first = (int)threadIdx.x / g.lanes * (g.lanes / 32);
        g.max_of_warp[threadIdx.x / 32] = x;
        softmax_wait(g);
        for (int i = 0; i < g.lanes / 32; i++)
            x = fmaxf(x, g.max_of_warp[first + i]);
    }
    return x;
}

static __device__ __forceinline__ double softmax_sum(const struct softmax_group &g, double x) {
    for (int step = min(g.lanes, 32) / 2; step; step /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, step);
    if (g.lanes > 32) {
        const int first = (int)threadIdx.x / g.lanes * (g.lanes / 32);
        g.sum_of_warp[threadIdx.x / 32] = x;
        softmax_wait(g);
        x = 0;
        for (int i = 0; i < g.lanes / 32; i++)
            x += g.sum_of_warp[first + i];
    }
    return x;
}

/* What a thread sees of a row: elements begin ... end - 1 counted from `data`, its own first piece
 * of four, which is aligned to 16 bytes and where the row begins may lie 3 before it. */
struct softmax_row {
    float *data;
    int begin;
    int64_t end;
};

/* Four elements at x, of which the row has begin ... end - 1; -Inf for the others. */
static __device__ __forceinline__ float4 softmax_load(const float *x, int begin, int end) {
    if (begin <= 0 && end >= 4)
        return *reinterpret_cast<const float4 *>(x);
    float4 out;
    out.x = begin <= 0 && end > 0 ? x[0] : -INFINITY;
    out.y = begin <= 1 && end > 1 ? x[1] : -INFINITY;
    out.z = begin <= 2 && end > 2 ? x[2] : -INFINITY;
    out.w = begin <= 3 && end > 3 ? x[3] : -INFINITY;
    return out;
}

static __device__ __forceinline__ void softmax_store(float *x, int begin, int end,
                                                     const float4 &from) {
    if (begin <= 0 && end >= 4) {
        *reinterpret_cast<float4 *>(x) = from;
        return;
    }
    if (begin <= 0 && end > 0)
        x[0] = from.x;
    if (begin <= 1 && end > 1)
        x[1] = from.y;
    if (begin <= 2 && end > 2)
        x[2] = from.z;
    if (begin <= 3 && end > 3)
        x[3] = from.w;
}

static __device__ __forceinline__ float softmax_max4(const float4 &x) {
    return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
}

static __device__ __forceinline__ float softmax_weight(float x, float base) {
    return exp2f((x - base) * SOFTMAX_LOG2_E);
}
static __device__ __forceinline__ float4 softmax_weights(const float4 &x, float base) {
    return {softmax_weight(x.x, base), softmax_weight(x.y, base), softmax_weight(x.z, base),
            softmax_weight(x.w, base)};
}

/* Zeros stay zero even where the factor is NaN. */
static __device__ __forceinline__ float softmax_scaled(float x, float factor) {
    return x == 0 ? 0.0f : x * factor;
}
static __device__ __forceinline__ float4 softmax_scaled4(const float4 &x, float factor) {
    return {softmax_scaled(x.x, factor), softmax_scaled(x.y, factor),
            softmax_scaled(x.z, factor), softmax_scaled(x.w, factor)};
}

/* -Inf, the maximum of no elements or of none above it, is subtracted as 0. */
static __device__ __forceinline__ float softmax_base(float top) {
    return top == -INFINITY ? 0.0f : top;
}

/* The maximum of `top` and the pieces at `from`, every `step` elements, and into *sum the sum of
 * their weights under it. */
static __device__ __forceinline__ float softmax_rest(const struct softmax_row &row, int64_t from,
                                                     int step, float top, double *sum) {
    double total = 0;
#pragma unroll 1
    for (int64_t at = from; at < row.end; at += step) {
        const float4 x = softmax_load(row.data + at, 0, (int)min(row.end - at, (int64_t)4));
        const float higher = fmaxf(top, softmax_max4(x));
        if (higher > top)
            total *= softmax_weight(top, higher);
        top = higher;
        const float4 w = softmax_weights(x, softmax_base(top));
        total += w.x + w.y + w.z + w.w;
    }
    *sum = total;
    return top;
}

/* One row by one group. *lse gets the row's unless it is NULL. */
template <int HELD>
static __device__ __forceinline__ void softmax_of_row(const struct softmax_group &g,
                                                      const struct softmax_row &row, float *lse) {
    int step = 4 * g.lanes, end = (int)min(row.end, (int64_t)HELD * step);
    float4 held[HELD];
    float mine = -INFINITY;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        held[i] = softmax_load(row.data + i * step, row.begin - i * step, end - i * step);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        mine = fmaxf(mine, softmax_max4(held[i]));
    double sum = 0;
    if (row.end > HELD * step)
        mine = softmax_rest(row, HELD * step, step, mine, &sum);
    const float top = softmax_max(g, mine), base = softmax_base(top);

    float part = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        held[i] = softmax_weights(held[i], base);
        part += held[i].x + held[i].y + held[i].z + held[i].w;
    }
    if (sum != 0)
        sum *= softmax_weight(mine, base);
    sum = softmax_sum(g, sum + part);

    /* Addresses are worked out anew, else they are kept beside what is held. */
    asm volatile("" : "+r"(step), "+r"(end));
    const float factor = sum == 0 ? 0.0f : (float)(1 / sum);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        softmax_store(row.data + i * step, row.begin - i * step, end - i * step,
                      softmax_scaled4(held[i], factor));
#pragma unroll 1
    for (int64_t at = HELD * step; at < row.end; at += step) {
        const int left = (int)min(row.end - at, (int64_t)4);
        const float4 x = softmax_weights(softmax_load(row.data + at, 0, left), base);
        softmax_store(row.data + at, 0, left, softmax_scaled4(x, factor));
    }
    if (lse)
        *lse = sum == 0 ? -INFINITY : (float)(top + log(sum));
}

static __device__ __forceinline__ int64_t softmax_width(const struct cuda_params &p, int64_t item) {
    const struct work_item w = p.image.items[item];
    const int64_t *row = p.image.row_ptr + p.image.list_of[w.batch_head] * (p.rows + 1) + w.tile;
    return (row[1] - row[0]) * p.block_kv;
}

/* The elements that the widest row of items first ... last needs from the 16 bytes on in which it
 * begins; found by all threads of a block of THREADS. */
template <int THREADS>
static __device__ __forceinline__ int64_t softmax_widest(const struct cuda_params &p, int64_t first,
                                                         int64_t last) {
    __shared__ int64_t of_warp[THREADS / 32];
    int64_t width = 0;
    for (int64_t item = first + threadIdx.x; item <= last; item += THREADS) {
        const int64_t of_item = softmax_width(p, item);
        const bool aligned = of_item % 4 == 0 && (uintptr_t)p.values % 16 == 0;
        width = max(width, aligned ? of_item : of_item + 3);
    }
    for (int step = 16; step; step /= 2)
        width = max(width, __shfl_xor_sync(WARP_ALL, width, step));
    __syncthreads();
    of_warp[threadIdx.x / 32] = width;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        width = max(width, of_warp[i]);
    return width;
}

/* Rows of a block: SOFTMAX_ROUNDS for each group that the mean row asks for. */
static __host__ __device__ __forceinline__ int softmax_rows_each(const struct cuda_params &p,
                                                                 int threads, int held) {
    return threads / softmax_lanes(p.columns / p.n_items, threads, held) * SOFTMAX_ROUNDS;
}

template <int THREADS, int HELD, int BLOCKS>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    softmax_rows(const __grid_constant__ struct cuda_params p) {
    __shared__ float max_of_warp[THREADS / 32];
    __shared__ double sum_of_warp[THREADS / 32];
    const int64_t rows = p.n_items * p.height;
    const int each = softmax_rows_each(p, THREADS, HELD);
    for (int64_t begin = (int64_t)blockIdx.x * each; begin < rows;
         begin += (int64_t)gridDim.x * each) {
        const int count = (int)min((int64_t)each, rows - begin);
        const int lanes = softmax_lanes(
            softmax_widest<THREADS>(p, begin / p.height, (begin + count - 1) / p.height), THREADS,
            HELD);
        const struct softmax_group g = {lanes, (int)threadIdx.x % lanes, max_of_warp, sum_of_warp};
        /* A warp's groups go on together: they exchange by warp. */
        for (int i = 0; i < count; i += THREADS / lanes) {
            const int at = i + (int)threadIdx.x / lanes;
            const int64_t number = begin + min(at, count - 1);
            const int64_t item = number / p.height, row = number - item * p.height;
            const struct strip s = strip_of(p, item);
            const bool mine = at < count && row < s.rows;
            float *data = s.values + (mine ? row * s.width : 0), *lse = nullptr;
            if (mine && g.lane == 0 && p.lse.data)
                lse = static_cast<float *>(p.lse.data) + s.b * p.lse.stride[0] +
                      s.h * p.lse.stride[1] + (s.first + row) * p.lse.stride[2];
            const int before = (int)((uintptr_t)data % 16 / sizeof(float)) - 4 * g.lane;
            softmax_of_row<HELD>(g, {data - before, before, mine ? before + s.width : 0}, lse);
        }
    }
}

template <int THREADS, int HELD, int BLOCKS>
static cudaError_t softmax_launch_rows(const struct cuda_params *p, cudaStream_t stream) {
    const int each = softmax_rows_each(*p, THREADS, HELD);
    return grid_launch(softmax_rows<THREADS, HELD, BLOCKS>, p->n_items * p->height, each, THREADS,
                       p, stream);
}

/* By the mean row. What is held is what a multiprocessor has under way, so each thread holds as
 * much as registers allow: on an H200 (b=1,h=16,n=16384,pattern=random(0.1,1)) 16 pieces a thread
 * in place of 8 took softmax from 78 to 88 % of the copy bandwidth at blocks of 128, from 81 to
 * 89 % at 64. */
static inline cudaError_t softmax_launch(const struct cuda_params *p, cudaStream_t stream) {
    const int64_t width = p->columns / p->n_items;
    return width <= 16384 ? softmax_launch_rows<256, 16, 2>(p, stream)
                          : softmax_launch_rows<512, 16, 1>(p, stream);
}

#endif
