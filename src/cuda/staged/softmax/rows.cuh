/*
 * Stage 2: softmax of every row of the scores, in place. A row is consecutive floats, whatever the
 * block.
 *
 * Memory is the limit. A row is loaded once, held in registers and stored once by a group of threads. A group
 * is part of a warp, some warps of a thread block, or all thread blocks of a cluster. The registers of groups
 * are the loads in flight. A group has the threads that the mean row needs and an eighth more. Resident groups
 * alternate over the rows. The tail of a wider row is loaded twice.
 *
 * Rows of about the same width that share sectors with their neighbours are taken in memory order.
 * Others are taken longest first, as items are ordered (docs/notes/staged.md, "Softmax").
 *
 * Groups run in step, and memory idles while they compute, so the instructions of a row count too.
 * A row is whole pieces of 16 bytes, and its edges: at most 3 elements before and 3 after them.
 *
 * Where the maximum is -Inf, 0 is subtracted and P is exactly 0. A thread sums what it holds in
 * f32; further sums are in double.
 */
#ifndef TESSERA_CUDA_SOFTMAX_CUH
#define TESSERA_CUDA_SOFTMAX_CUH

#include "staged/grid.cuh"
#include "staged/softmax/group.cuh"
#include "staged/softmax/place.cuh"

#define SOFTMAX_TAIL 2 /* pieces in flight in the tail of a row */

/* Elements that a group holds at least; no row has more than all blocks of keys. */
static __host__ __device__ __forceinline__ int64_t softmax_width(const struct staged_params &p) {
    const int64_t mean = p.columns / p.n_items, wide = mean + mean / 8;
    const int64_t most = (p.n_kv + p.block_kv - 1) / p.block_kv * p.block_kv;
    return wide < most ? wide : most;
}

/* ---- rows ---- */

/* A row, as a thread sees it. A row has at most 2^31 elements: all keys, rounded up to whole
 * blocks. */
template <int LANES> struct softmax_row {
    static constexpr int EDGES = (6 + LANES - 1) / LANES;
    float *data;     /* first whole piece */
    int pieces;      /* whole pieces */
    int first;       /* this thread's first piece; the next is LANES further on */
    int left;        /* pieces of this thread block from `first` on */
    int edge[EDGES]; /* edge elements, relative to `data`; INT32_MAX: none */
    float *lse;      /* NULL: not wanted, or another thread's */
};

template <int HELD, int LANES>
DEVICE struct softmax_row<LANES> softmax_row_of(const struct softmax_place &at, int lane, int rank,
                                                int blocks, const struct staged_params &p) {
    const int64_t query = at.block_row * p.block_q + at.r;
    const bool exists = at.item < p.n_items && query < p.n_q;
    const int width = exists ? at.tiles * (int)p.block_kv : 0;
    float *begin = p.scores + at.scores + (exists ? (int64_t)at.r * width : 0);
    const int head = min((int)(-(uintptr_t)begin / sizeof(float) % 4), width);
    struct softmax_row<LANES> row;
    row.data = begin + head;
    row.pieces = (width - head) / 4;
    const int each =
        blocks == 1 ? row.pieces : min((row.pieces + blocks - 1) / blocks, HELD *LANES);
    row.first = rank * each + lane;
    row.left = min(row.pieces - rank * each, each) - lane;
#pragma unroll
    for (int i = 0; i < row.EDGES; i++) {
        const int e = lane + i * LANES, after = 4 * row.pieces + e - 3;
        row.edge[i] = INT32_MAX;
        if (rank == 0 && e < head)
            row.edge[i] = e - head;
        if (rank == 0 && e >= 3 && after < width - head)
            row.edge[i] = after;
    }
    row.lse = nullptr;
    if (exists && rank == 0 && lane == 0 && p.lse.data)
        row.lse = softmax_lse_at(p, at.batch_head, query);
    return row;
}

/* ---- the tail, which a group does not hold: pieces `from`, `from` + step, ... of a row ---- */

DEVICE void
softmax_load_tail(float4 (&x)[SOFTMAX_TAIL], const float *data, int from, int step, int pieces) {
#pragma unroll
    for (int i = 0; i < SOFTMAX_TAIL; i++) {
        x[i] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (from + i * step < pieces)
            x[i] = reinterpret_cast<const float4 *>(data)[from + i * step];
    }
}

/* Maximum of `top` and the tail; *sum: the sum of exp(x - maximum) over the tail. */
DEVICE float softmax_tail(const float *data, int from, int step, int pieces, float top,
                          double *sum) {
    double total = 0;
#pragma unroll 1
    for (int at = from; at < pieces; at += SOFTMAX_TAIL * step) {
        float4 x[SOFTMAX_TAIL];
        float higher = top, part = 0;
        softmax_load_tail(x, data, at, step, pieces);
#pragma unroll
        for (int i = 0; i < SOFTMAX_TAIL; i++)
            higher = fmaxf(higher, softmax_max4(x[i]));
        if (higher > top)
            total *= softmax_exp(top, higher);
        top = higher;
#pragma unroll
        for (int i = 0; i < SOFTMAX_TAIL; i++)
            part += softmax_sum4(softmax_exp4(x[i], softmax_base(top)));
        total += part;
    }
    *sum = total;
    return top;
}

/* Stores P of the tail: exp(x - base) times `factor`. */
DEVICE void softmax_store_tail(float *data, int from, int step, int pieces, float base,
                               float factor) {
#pragma unroll 1
    for (int at = from; at < pieces; at += SOFTMAX_TAIL * step) {
        float4 x[SOFTMAX_TAIL];
        softmax_load_tail(x, data, at, step, pieces);
#pragma unroll
        for (int i = 0; i < SOFTMAX_TAIL; i++) {
            float4 w = softmax_exp4(x[i], base);
            w = isnan(factor)
                    ? float4{softmax_nan(w.x), softmax_nan(w.y), softmax_nan(w.z), softmax_nan(w.w)}
                    : softmax_scaled4(w, factor);
            if (at + i * step < pieces)
                reinterpret_cast<float4 *>(data)[at + i * step] = w;
        }
    }
}

/* ---- a row by a group ---- */

template <int HELD, int LANES> struct softmax_held {
    float4 piece[HELD];
    float edge[softmax_row<LANES>::EDGES];
};

/* Pieces that a thread does not have are -Inf, whose P is 0. */
template <int HELD, int LANES>
DEVICE void softmax_load(struct softmax_held<HELD, LANES> &to,
                         const struct softmax_row<LANES> &row) {
    const float4 *from = reinterpret_cast<const float4 *>(row.data) + row.first;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        to.piece[i] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (i * LANES < row.left)
            to.piece[i] = from[i * LANES];
    }
#pragma unroll
    for (int i = 0; i < row.EDGES; i++)
        to.edge[i] = row.edge[i] == INT32_MAX ? -INFINITY : row.data[row.edge[i]];
}

template <int HELD, int LANES>
DEVICE float softmax_max_held(const struct softmax_held<HELD, LANES> &held) {
    float top = held.edge[0];
#pragma unroll
    for (int i = 1; i < softmax_row<LANES>::EDGES; i++)
        top = fmaxf(top, held.edge[i]);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        top = fmaxf(top, softmax_max4(held.piece[i]));
    return top;
}

/* Replaces what is held by exp(x - base); answers the sum. */
template <int HELD, int LANES>
DEVICE float softmax_exponentiate(struct softmax_held<HELD, LANES> &held, float base) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < softmax_row<LANES>::EDGES; i++) {
        held.edge[i] = softmax_exp(held.edge[i], base);
        sum += held.edge[i];
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        held.piece[i] = softmax_exp4(held.piece[i], base);
        sum += softmax_sum4(held.piece[i]);
    }
    return sum;
}

/* NaN for elements other than 0, where the factor is NaN. Answers the factor that remains. */
template <int HELD, int LANES>
DEVICE float softmax_apply_nan(struct softmax_held<HELD, LANES> &held, float factor) {
    if (!isnan(factor))
        return factor;
#pragma unroll
    for (int i = 0; i < softmax_row<LANES>::EDGES; i++)
        held.edge[i] = softmax_nan(held.edge[i]);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        float4 &x = held.piece[i];
        x = {softmax_nan(x.x), softmax_nan(x.y), softmax_nan(x.z), softmax_nan(x.w)};
    }
    return 1;
}

template <int HELD, int LANES>
DEVICE void softmax_store(const struct softmax_held<HELD, LANES> &held,
                          const struct softmax_row<LANES> &row, float factor) {
    float4 *to = reinterpret_cast<float4 *>(row.data) + row.first;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (i * LANES < row.left)
            to[i * LANES] = softmax_scaled4(held.piece[i], factor);
#pragma unroll
    for (int i = 0; i < row.EDGES; i++)
        if (row.edge[i] != INT32_MAX)
            row.data[row.edge[i]] = held.edge[i] * factor;
}

/* Thread blocks of a multiprocessor; `blocks` on sm_90. One fewer on architectures where threads
 * that hold little take more registers. */
static __host__ __device__ constexpr int softmax_blocks(int held, int blocks, bool fitted) {
    return blocks - (held == 4 && !fitted);
}

/* All groups run the same rounds: they reduce by whole warps, or by cluster. */
template <int HELD, int LANES, int BLOCKS>
static __global__ void __launch_bounds__(SOFTMAX_THREADS,
                                         softmax_blocks(HELD, BLOCKS, ARCHITECTURE_FITTED))
    softmax_rows(const __grid_constant__ struct staged_params p) {
    constexpr int OF_BLOCK = SOFTMAX_THREADS / LANES;
    constexpr bool CLUSTERS = LANES == SOFTMAX_THREADS;
    __shared__ struct softmax_shared shared;
    const int blocks = CLUSTERS ? cluster_size() : 1, rank = CLUSTERS ? cluster_rank() : 0;
    const int lane = (int)threadIdx.x % LANES;
    const int64_t groups = gridDim.x / blocks * OF_BLOCK;
    const int64_t first = blockIdx.x / blocks * OF_BLOCK + threadIdx.x / LANES;
    const int times = (int)((p.n_items * p.height + groups - 1) / groups);
    const struct softmax_stride stride = {(int32_t)(groups / p.height),
                                          (int32_t)(groups % p.height)};
    struct softmax_place place = {first / p.height, (int32_t)(first % p.height)};
    softmax_look_up(place, p);
#pragma unroll 1
    for (int i = 0; i < times; i++) {
        const struct softmax_row<LANES> row =
            softmax_row_of<HELD, LANES>(place, lane, rank, blocks, p);
        const int held_of_all = blocks * HELD * LANES, from = held_of_all + rank * LANES + lane;
        struct softmax_held<HELD, LANES> held;
        double sum = 0;
        softmax_load(held, row);
        softmax_advance(place, stride, p);
        float mine = softmax_max_held(held);
        if (row.pieces > held_of_all)
            mine = softmax_tail(row.data, from, blocks * LANES, row.pieces, mine, &sum);
        const float top = softmax_max<LANES>(shared, blocks, mine), base = softmax_base(top);
        if (sum != 0)
            sum *= softmax_exp(mine, base);
        sum = softmax_sum<LANES>(shared, blocks, sum + softmax_exponentiate(held, base));
        const float factor = sum == 0 ? 0.0f : (float)(1 / sum);
        softmax_store(held, row, softmax_apply_nan(held, factor));
        if (row.pieces > held_of_all)
            softmax_store_tail(row.data, from, blocks * LANES, row.pieces, base, factor);
        if (row.lse) /* last: a logarithm takes registers */
            *row.lse = softmax_lse(top, sum);
    }
    if (blocks > 1)
        cluster_wait(); /* until the other CTAs have read this one's sum */
}

/* ---- launching ---- */

/* CLUSTER: thread blocks of a group. */
template <int HELD, int LANES, int BLOCKS, int CLUSTER>
static cudaError_t softmax_rows_launch_held(const struct staged_params *p, cudaStream_t stream) {
    const int64_t of_block = SOFTMAX_THREADS / LANES, rows = p->n_items * p->height;
    const int64_t wanted = (rows + of_block - 1) / of_block;
    const int64_t held = (int64_t)p->multiprocessors *
                         softmax_blocks(HELD, BLOCKS, p->architecture == ARCHITECTURE_OF_FIT);
    return CLUSTER > 1
               ? cluster_launch_held<0>(softmax_rows<HELD, LANES, BLOCKS>, wanted, CLUSTER,
                                        SOFTMAX_THREADS, p, stream)
               : cluster_launch<0>(softmax_rows<HELD, LANES, BLOCKS>, wanted < held ? wanted : held,
                                   1, SOFTMAX_THREADS, p, stream);
}

/* Kernels by row width: the fewest threads that hold a row, each with the fewest pieces. The widest rows
 * take several thread blocks where devices have clusters. */
#define SOFTMAX_HOLDS(held, lanes, blocks, cluster)                                                \
    { 4 * (held) * (lanes) * (cluster), 0, softmax_rows_launch_held<held, lanes, blocks, cluster> }
#define SOFTMAX_CLUSTERS 3 /* the last instances, of several thread blocks */
static inline cudaError_t softmax_rows_launch(const struct staged_params *p, cudaStream_t stream) {
    static const struct grid_instance instances[] = {
        SOFTMAX_HOLDS(4, 2, 3, 1),    SOFTMAX_HOLDS(6, 2, 3, 1),    SOFTMAX_HOLDS(4, 4, 4, 1),
        SOFTMAX_HOLDS(4, 8, 4, 1),    SOFTMAX_HOLDS(4, 16, 4, 1),   SOFTMAX_HOLDS(4, 32, 4, 1),
        SOFTMAX_HOLDS(8, 32, 3, 1),   SOFTMAX_HOLDS(16, 32, 2, 1),  SOFTMAX_HOLDS(16, 64, 2, 1),
        SOFTMAX_HOLDS(16, 128, 2, 1), SOFTMAX_HOLDS(16, 256, 2, 1), SOFTMAX_HOLDS(16, 256, 2, 2),
        SOFTMAX_HOLDS(16, 256, 2, 4), SOFTMAX_HOLDS(16, 256, 2, 8),
    };
    if (p->n_items == 0)
        return cudaSuccess;
    const int all = sizeof instances / sizeof *instances;
    const int n = p->architecture >= CLUSTER_ARCHITECTURE ? all : all - SOFTMAX_CLUSTERS;
    return grid_launch_instance(instances, n, softmax_width(*p), p, stream);
}

#endif
