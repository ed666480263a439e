/*
 * Stage 2: softmax of every row of the values, in place. A row is contiguous, whatever the block.
 *
 * The limit is memory, so a row is read once, held in registers and written once, by a group of
 * threads: part of a warp, some warps of a block, or all blocks of a cluster. What is held is what
 * a multiprocessor has under way. Groups are of the size that the mean row needs and an eighth
 * more, as many as the device holds, and take rows in turn; of wider rows the rest is read twice.
 *
 * Nothing stands in for -Inf: where the maximum is -Inf, 0 is subtracted, and all weights are
 * exactly 0. Each thread sums what it holds in f32, and sums go on in double.
 */
#ifndef TESSERA_CUDA_SOFTMAX_CUH
#define TESSERA_CUDA_SOFTMAX_CUH

#include "device/cluster.cuh"
#include "strip.cuh"

#define SOFTMAX_THREADS 256
#define SOFTMAX_WARPS (SOFTMAX_THREADS / 32)
#define SOFTMAX_LANES 2  /* that hold a row at least: together they read a sector of memory */
#define SOFTMAX_HELD_MAX 16 /* pieces of four elements that a thread holds */
#define SOFTMAX_REST 2   /* pieces that are under way where a row is wider than its group holds */
#define SOFTMAX_LOG2_E 1.4426950408889634f

/* The elements that a group holds at least: no row has more than all blocks of keys. */
static __host__ __device__ __forceinline__ int64_t softmax_width(const struct cuda_params &p) {
    const int64_t mean = p.columns / p.n_items, wide = mean + mean / 8;
    const int64_t most = (p.n_kv + p.block_kv - 1) / p.block_kv * p.block_kv;
    return wide < most ? wide : most;
}

/* Threads that hold `width` elements, HELD pieces each: of one block at most. */
template <int HELD>
static __host__ __device__ __forceinline__ int softmax_lanes(int64_t width) {
    int lanes = SOFTMAX_LANES;
    while (lanes < SOFTMAX_THREADS && 4 * HELD * lanes < width)
        lanes *= 2;
    return lanes;
}

/* What groups of more than a warp exchange by, and clusters. */
struct softmax_shared {
    float max_of_warp[SOFTMAX_WARPS], max_of_block;
    double sum_of_warp[SOFTMAX_WARPS], sum_of_block;
};

/* Threads that share a row: `lanes` of a block, a power of two, and those of the others of the
 * cluster; `lane` is this one's number, counted over `all`. */
struct softmax_group {
    int lanes, blocks, lane, all;
    struct softmax_shared *shared;
};

/* For groups of more than a warp: all threads of this block's. Barrier 0 is __syncthreads', which
 * other groups may have reached. */
static __device__ __forceinline__ void softmax_wait(const struct softmax_group &g) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.x / g.lanes), "r"(g.lanes) : "memory");
}

/* What is written for one exchange has been read when the next but one begins: there are two in
 * turn, of maxima and of sums. */
static __device__ __forceinline__ float softmax_max(const struct softmax_group &g, float x) {
    for (int step = min(g.lanes, 32) / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    if (g.lanes <= 32)
        return x;
    const int first = (int)threadIdx.x / g.lanes * (g.lanes / 32);
    g.shared->max_of_warp[threadIdx.x / 32] = x;
    softmax_wait(g);
    for (int i = 0; i < g.lanes / 32; i++)
        x = fmaxf(x, g.shared->max_of_warp[first + i]);
    if (g.blocks == 1)
        return x;
    g.shared->max_of_block = x;
    cluster_wait();
    for (int i = 0; i < g.blocks; i++)
        x = fmaxf(x, cluster_load(&g.shared->max_of_block, i));
    return x;
}

static __device__ __forceinline__ double softmax_sum(const struct softmax_group &g, double x) {
    for (int step = min(g.lanes, 32) / 2; step; step /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, step);
    if (g.lanes <= 32)
        return x;
    const int first = (int)threadIdx.x / g.lanes * (g.lanes / 32);
    g.shared->sum_of_warp[threadIdx.x / 32] = x;
    softmax_wait(g);
    x = 0;
    for (int i = 0; i < g.lanes / 32; i++)
        x += g.shared->sum_of_warp[first + i];
    if (g.blocks == 1)
        return x;
    g.shared->sum_of_block = x;
    cluster_wait();
    x = 0;
    for (int i = 0; i < g.blocks; i++)
        x += cluster_load(&g.shared->sum_of_block, i);
    return x;
}

/* What a thread sees of a row: elements begin ... end - 1 counted from `data`, its own first piece
 * of four, which is aligned to 16 bytes and where the row begins may lie 3 before it. (A row has as
 * many elements as there are keys, rounded up to whole blocks: 2^31 at most.) */
struct softmax_row {
    float *data;
    int begin;
    int end;
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

/* Weights under 2^-126 are 0: no sum of a row, which has one of 1, would tell. */
static __device__ __forceinline__ float softmax_weight(float x, float base) {
    float weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"((x - base) * SOFTMAX_LOG2_E));
    return weight;
}
static __device__ __forceinline__ float4 softmax_weights(const float4 &x, float base) {
    return {softmax_weight(x.x, base), softmax_weight(x.y, base), softmax_weight(x.z, base),
            softmax_weight(x.w, base)};
}

/* Zeros stay zero even where the factor is NaN. */
static __device__ __forceinline__ float4 softmax_scaled4(const float4 &x, float factor) {
    if (!isnan(factor))
        return {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
    return {x.x == 0 ? 0.0f : NAN, x.y == 0 ? 0.0f : NAN, x.z == 0 ? 0.0f : NAN,
            x.w == 0 ? 0.0f : NAN};
}

/* -Inf, the maximum of no elements or of none above it, is subtracted as 0. */
static __device__ __forceinline__ float softmax_base(float top) {
    return top == -INFINITY ? 0.0f : top;
}

/* Pieces `from` ... of the row, every `step` elements, SOFTMAX_REST of them. */
static __device__ __forceinline__ void softmax_load_rest(float4 (&x)[SOFTMAX_REST],
                                                         const struct softmax_row &row,
                                                         int from, int step) {
#pragma unroll
    for (int i = 0; i < SOFTMAX_REST; i++) {
        const int left = row.end - from - i * step;
        x[i] = softmax_load(row.data + from + i * step, 0, min(left, 4));
    }
}

/* The maximum of `top` and the pieces from `from` on, and into *sum the sum of their weights under
 * it. */
static __device__ __forceinline__ float softmax_rest(const struct softmax_row &row, int64_t from,
                                                     int step, float top, double *sum) {
    double total = 0;
#pragma unroll 1
    for (unsigned at = from; at < (unsigned)row.end; at += SOFTMAX_REST * step) {
        float4 x[SOFTMAX_REST];
        float higher = top, part = 0;
        softmax_load_rest(x, row, at, step);
#pragma unroll
        for (int i = 0; i < SOFTMAX_REST; i++)
            higher = fmaxf(higher, softmax_max4(x[i]));
        if (higher > top)
            total *= softmax_weight(top, higher);
        top = higher;
#pragma unroll
        for (int i = 0; i < SOFTMAX_REST; i++) {
            const float4 w = softmax_weights(x[i], softmax_base(top));
            part += w.x + w.y + w.z + w.w;
        }
        total += part;
    }
    *sum = total;
    return top;
}

/* The same pieces once more: their weights, times `factor`. */
static __device__ __forceinline__ void softmax_store_rest(const struct softmax_row &row,
                                                          int from, int step, float base,
                                                          float factor) {
#pragma unroll 1
    for (unsigned at = from; at < (unsigned)row.end; at += SOFTMAX_REST * step) {
        float4 x[SOFTMAX_REST];
        softmax_load_rest(x, row, at, step);
#pragma unroll
        for (int i = 0; i < SOFTMAX_REST; i++)
            if (at + i * step < row.end)
                softmax_store(row.data + at + i * step, 0,
                              min(row.end - at - i * step, 4),
                              softmax_scaled4(softmax_weights(x[i], base), factor));
    }
}

/* One row by one group. *lse gets the row's unless it is NULL. */
template <int HELD>
static __device__ __forceinline__ void softmax_of_row(const struct softmax_group &g,
                                                      const struct softmax_row &row, float *lse) {
    int step = 4 * g.all, end = min(row.end, HELD * step);
    float4 held[HELD];
    float mine = -INFINITY, part = 0;
    double sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (i * step < end)
            held[i] = softmax_load(row.data + i * step, i == 0 ? row.begin : 0, end - i * step);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (i * step < end)
            mine = fmaxf(mine, softmax_max4(held[i]));
    if (row.end > HELD * step)
        mine = softmax_rest(row, HELD * step, step, mine, &sum);
    const float top = softmax_max(g, mine), base = softmax_base(top);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (i * step < end) {
            held[i] = softmax_weights(held[i], base);
            part += held[i].x + held[i].y + held[i].z + held[i].w;
        }
    if (sum != 0)
        sum *= softmax_weight(mine, base);
    sum = softmax_sum(g, sum + part);
    if (lse)
        *lse = sum == 0 ? -INFINITY : (float)(top + log(sum));
    /* Addresses are worked out anew, else they are kept beside what is held. */
    asm volatile("" : "+r"(step), "+r"(end));
    const float factor = sum == 0 ? 0.0f : (float)(1 / sum);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (i * step < end)
            softmax_store(row.data + i * step, i == 0 ? row.begin : 0, end - i * step,
                          softmax_scaled4(held[i], factor));
    if (row.end > HELD * step)
        softmax_store_rest(row, HELD * step, step, base, factor);
}

/* Row `number` of all, as this thread sees it; no elements where there is none. */
static __device__ __forceinline__ float *softmax_find(struct softmax_row &row,
                                                      const struct softmax_group &g,
                                                      const struct cuda_params &p,
                                                      int64_t number) {
    const int64_t item = min(number / p.height, p.n_items - 1), r = number - item * p.height;
    const struct strip s = strip_of(p, item);
    const bool there = r < s.rows;
    float *data = s.values + (there ? r * s.width : 0);
    const int before = (int)((uintptr_t)data % 16 / sizeof(float)) - 4 * g.lane;
    row = {data - before, before, there ? before + (int)s.width : 0};
    if (!there || g.lane > 0 || !p.lse.data)
        return nullptr;
    return static_cast<float *>(p.lse.data) + s.b * p.lse.stride[0] + s.h * p.lse.stride[1] +
           (s.first + r) * p.lse.stride[2];
}

/* All groups go on together: they exchange by warp, or by cluster. */
template <int HELD, int BLOCKS>
static __global__ void __launch_bounds__(SOFTMAX_THREADS, BLOCKS)
    softmax_rows(const __grid_constant__ struct cuda_params p) {
    __shared__ struct softmax_shared shared;
    struct softmax_group g;
    g.lanes = softmax_lanes<HELD>(softmax_width(p));
    g.blocks = HELD < SOFTMAX_HELD_MAX ? 1 : cluster_size();
    g.all = g.lanes * g.blocks;
    g.lane = (g.blocks == 1 ? 0 : cluster_rank() * g.lanes) + (int)threadIdx.x % g.lanes;
    g.shared = &shared;
    const int64_t of_block = SOFTMAX_THREADS / g.lanes, groups = gridDim.x / g.blocks * of_block;
    const int64_t first = blockIdx.x / g.blocks * of_block + threadIdx.x / g.lanes;
    const int64_t rows = p.n_items * p.height;
    for (int64_t begin = 0; begin < rows; begin += groups) {
        struct softmax_row row;
        float *lse = softmax_find(row, g, p, begin + first);
        softmax_of_row<HELD>(g, row, lse);
    }
    if (g.blocks > 1)
        cluster_wait(); /* until the others have read this one's sum */
}

template <int HELD, int BLOCKS>
static cudaError_t softmax_launch_held(const struct cuda_params *p, int cluster,
                                       cudaStream_t stream) {
    const int64_t lanes = (int64_t)softmax_lanes<HELD>(softmax_width(*p)) * cluster;
    const int64_t wanted =
        (p->n_items * p->height * lanes + SOFTMAX_THREADS - 1) / SOFTMAX_THREADS;
    const int64_t held = (int64_t)p->multiprocessors * BLOCKS;
    /* How many clusters a device holds at a time is not told: each has one row. */
    const int64_t blocks = wanted < held || cluster > 1 ? wanted : held;
    return cluster_launch(softmax_rows<HELD, BLOCKS>, (blocks + cluster - 1) / cluster * cluster,
                          cluster, SOFTMAX_THREADS, 0, p, stream);
}

/* A warp holds a row with as few pieces a thread as that takes; wider rows are of several warps, or
 * of several blocks where devices have clusters. On an H200 (n=16384,random(0.1,1), cold) it takes
 * 1.24 to 1.28 times the floor at all blocks of 1 to 128; with groups twice as wide as a row needs
 * it took 1.8 times. */
static inline cudaError_t softmax_launch(const struct cuda_params *p, cudaStream_t stream) {
    if (p->n_items == 0)
        return cudaSuccess;
    const int64_t width = softmax_width(*p), of_block = 4 * SOFTMAX_HELD_MAX * SOFTMAX_THREADS;
    const int most = p->architecture >= CLUSTER_ARCHITECTURE ? CLUSTER_MAX : 1;
    int cluster = 1;
    while (cluster < most && of_block * cluster < width)
        cluster *= 2;
    return width <= 4 * 4 * 32   ? softmax_launch_held<4, 4>(p, 1, stream)
           : width <= 4 * 8 * 32 ? softmax_launch_held<8, 3>(p, 1, stream)
                                 : softmax_launch_held<SOFTMAX_HELD_MAX, 2>(p, cluster, stream);
}

#endif
