/*
 * Stage 3, SpMM, in f32 by multiply-adds, where block rows have few keys and heads many dims. A
 * thread block computes SPMM_SHORT_ROWS rows of a block row, 4 dims a thread.
 *
 * Tensor cores (gather.cuh) would cost some 1300 instructions a warp for 32 dims of 16 rows and 16 keys.
 * Splitting operands, combining sums of warps and finding the unit serve one or two MMAs. Here a thread holds
 * its dims of all rows. Keys and P pass through shared memory, SPMM_SHORT_KEYS at a time. V is loaded once,
 * SPMM_SHORT_AHEAD keys in flight.
 *
 * Sums over CUDA_CHUNK keys start from zero before they are added to the sums in shared memory,
 * which keeps wide block rows accurate.
 */
#ifndef TESSERA_CUDA_SPMM_SHORT_CUH
#define TESSERA_CUDA_SPMM_SHORT_CUH

#include "device/architecture.cuh"
#include "device/cluster.cuh"
#include "staged/grid.cuh"
#include "staged/spmm/row.cuh"
#include "staged/block_row.cuh"

#define SPMM_SHORT_THREADS 128
#define SPMM_SHORT_BLOCKS 4 /* thread blocks of a multiprocessor */
#define SPMM_SHORT_ROWS 16
#define SPMM_SHORT_KEYS 32
#define SPMM_SHORT_AHEAD 8

struct spmm_short_shared {
    struct block_row block_row[SPMM_SHORT_THREADS / 32]; /* each warp's */
    int32_t key[SPMM_SHORT_KEYS];                        /* -1: not read */
    /* Four rows of a key are loaded at a time; the 4 extra floats put keys 16 bytes apart in the
     * banks. */
    float prob[SPMM_SHORT_KEYS][SPMM_SHORT_ROWS + 4];
    float sum[4 * SPMM_SHORT_ROWS][SPMM_SHORT_THREADS]; /* sums of whole chunks */
};

/* A thread's 4 dims of all rows. */
struct spmm_short_sum {
    float x[SPMM_SHORT_ROWS][4];
};

/* ---- a few keys ---- */

/* Loads keys, and P of rows from `row` on, of columns x ... x + SPMM_SHORT_KEYS - 1; 0 past the
 * block row. */
DEVICE void spmm_short_fetch(struct spmm_short_shared &shared, const struct staged_params &p,
                             const struct block_row &s, int row, uint32_t x) {
    const int rows = (int)min(s.rows - row, (int64_t)SPMM_SHORT_ROWS), lane = warp_lane();
    const bool exists = x + lane < (uint32_t)s.width;
    int32_t key = -1;
    if (threadIdx.x < SPMM_SHORT_KEYS) {
        if (exists) {
            const struct column c = column_of(p, s, x + lane);
            key = column_lists_any(p, c, row, rows) ? c.key : -1;
        }
        shared.key[lane] = key;
    }
    const float *from = s.scores + row * s.width + x + lane;
#pragma unroll
    for (int at = (int)threadIdx.x / 32; at < SPMM_SHORT_ROWS; at += SPMM_SHORT_THREADS / 32)
        shared.prob[lane][at] = exists && at < rows ? from[at * s.width] : 0.0f;
}

/* part += P V of the first `count` keys in shared memory. */
template <bool WHOLE>
DEVICE void spmm_short_add(struct spmm_short_sum &part, const struct spmm_short_shared &shared,
                           const head_view<float> &v, int count, int32_t dim) {
#pragma unroll 1
    for (int from = 0; from < count; from += SPMM_SHORT_AHEAD) {
        struct words y[SPMM_SHORT_AHEAD];
#pragma unroll
        for (int n = 0; n < SPMM_SHORT_AHEAD; n++) {
            const int32_t key = shared.key[from + n];
            y[n] = {};
            if (key >= 0)
                y[n] = words_load<float, WHOLE>(v.data + key * v.stride, v.d, dim, true);
        }
#pragma unroll
        for (int n = 0; n < SPMM_SHORT_AHEAD; n++)
#pragma unroll
            for (int r = 0; r < SPMM_SHORT_ROWS; r += 4) {
                const float4 w = *reinterpret_cast<const float4 *>(&shared.prob[from + n][r]);
                const float of_row[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        part.x[r + i][e] =
                            fmaf(of_row[i], __uint_as_float(y[n].x[e]), part.x[r + i][e]);
            }
    }
}

/* Adds a chunk's sums to those of whole chunks, each thread its own. */
DEVICE void spmm_short_flush(struct spmm_short_shared &shared, struct spmm_short_sum &part,
                             bool first) {
    float *from = &part.x[0][0];
#pragma unroll
    for (int i = 0; i < 4 * SPMM_SHORT_ROWS; i++) {
        float &sum = shared.sum[i][threadIdx.x];
        sum = first ? from[i] : sum + from[i];
    }
    part = {};
}

/* Bit r: row r has an element of P other than 0 in shared memory. By all lanes of a warp. */
DEVICE unsigned spmm_short_nonzero(const struct spmm_short_shared &shared) {
    const int r = warp_lane() % SPMM_SHORT_ROWS;
    bool any = false;
#pragma unroll
    for (int k = warp_lane() / SPMM_SHORT_ROWS; k < SPMM_SHORT_KEYS; k += 32 / SPMM_SHORT_ROWS)
        any |= shared.prob[k][r] != 0;
    const unsigned bits = __ballot_sync(WARP_ALL, any);
    return (bits | bits >> SPMM_SHORT_ROWS) & ((1u << SPMM_SHORT_ROWS) - 1);
}

/* ---- the kernel ---- */

/* Units of rows of a block row; thread blocks side by side that share its dims. */
static __host__ __device__ __forceinline__ uint32_t
spmm_short_row_units(const struct staged_params &p) {
    return (uint32_t)((p.height + SPMM_SHORT_ROWS - 1) / SPMM_SHORT_ROWS);
}
static __host__ __device__ __forceinline__ uint32_t
spmm_short_slices(const struct staged_params &p) {
    return ((uint32_t)p.d_v + 4 * SPMM_SHORT_THREADS - 1) / (4 * SPMM_SHORT_THREADS);
}

template <bool WHOLE>
static __global__ void __launch_bounds__(SPMM_SHORT_THREADS, SPMM_SHORT_BLOCKS - ARCHITECTURE_AFTER)
    spmm_short(const __grid_constant__ struct staged_params p) {
    __shared__ __align__(16) struct spmm_short_shared shared;
    const uint32_t row_units = spmm_short_row_units(p), slices = spmm_short_slices(p);
    const uint32_t unit = blockIdx.x / slices, item = unit / row_units;
    const uint32_t slice = blockIdx.x - unit * slices;
    const int row = (int)(unit - item * row_units) * SPMM_SHORT_ROWS;
    const int32_t dim = (int32_t)(slice * SPMM_SHORT_THREADS + threadIdx.x) * 4;
    struct block_row &s = shared.block_row[threadIdx.x / 32];
    block_row_to_shared(s, block_row_of(p, item));
    if (row >= s.rows)
        return;
    const head_view<float> v = head_of<float>(p, p.v, s.b, head_kv_of(p, s), p.d_v);
    struct spmm_short_sum part = {};
    const uint32_t width = (uint32_t)s.width; /* a block row is narrower than 2^32 */
    unsigned nonzero = 0;
    for (uint32_t x = 0; x < width; x += SPMM_SHORT_KEYS) {
        if (x > 0 && x % CUDA_CHUNK == 0)
            spmm_short_flush(shared, part, x == CUDA_CHUNK);
        __syncthreads(); /* the keys before have been used */
        spmm_short_fetch(shared, p, s, row, x);
        __syncthreads();
        nonzero |= spmm_short_nonzero(shared);
        spmm_short_add<WHOLE>(part, shared, v, (int)min(width - x, (uint32_t)SPMM_SHORT_KEYS), dim);
    }
    if (width > CUDA_CHUNK)
        spmm_short_flush(shared, part, false);
    const head_view<float> o = head_of<float>(p, p.o, s.b, s.h, p.d_v);
#pragma unroll
    for (int r = 0; r < SPMM_SHORT_ROWS; r++) {
        if (row + r >= s.rows)
            break;
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[e] = width > CUDA_CHUNK ? shared.sum[4 * r + e][threadIdx.x] : part.x[r][e];
            x[e] = nonzero >> r & 1 ? x[e] : 0.0f; /* even where 0 * NaN was added up */
        }
        spmm_store(o.data + (s.first + row + r) * o.stride + dim, x, p.d_v - dim, WHOLE,
                   p.modify.mean_below);
    }
}

/* ---- launching ---- */

template <class T>
static cudaError_t spmm_short_launch(const struct staged_params *p, cudaStream_t stream) {
    static_assert(sizeof(T) == 4, "it computes f32 only");
    const bool whole = words_whole<T>(p->alignment, p->d_v);
    return cluster_launch<0>(whole ? spmm_short<true> : spmm_short<false>,
                             p->n_items * spmm_short_row_units(*p) * spmm_short_slices(*p), 1,
                             SPMM_SHORT_THREADS, p, stream);
}

#endif
