/*
 * Stage 3, SpMM, where block rows have one query, whose keys no other row shares. A warp computes a
 * row, 16 bytes of dims a lane; with fewer dims, parts of the warp take turns at the keys. Sums
 * over CUDA_CHUNK keys start from zero before they are added, which keeps long rows accurate.
 *
 * Loads from L2 are the limit, so each part has SPMM_ROW_AHEAD keys in flight. All warps of a
 * thread block share a row of more than SPMM_ROW_ALONE keys, in turns, and are added up in order.
 * Such rows come first in the schedule, so a thread block's rows are far from each other. Each is a
 * long chain of loads, as of tokens that see all others, and no thread block should have several.
 */
#ifndef TESSERA_CUDA_SPMM_ROW_CUH
#define TESSERA_CUDA_SPMM_ROW_CUH

#include "device/blocks.cuh"
#include "device/words.cuh"
#include "staged/block_row.cuh"

#define SPMM_ROW_WARPS 4
#define SPMM_ROW_AHEAD 8
#define SPMM_ROW_ALONE 128

/* Dims of a warp. */
template <class T> static __host__ __device__ constexpr int spmm_row_dims(void) {
    return 32 * words_elements<T>();
}

template <class T> struct spmm_row_sum { float x[words_elements<T>()]; };

/* Sums of the warps that share a row; whether a warp's P has an element other than 0. */
template <class T> struct spmm_row_shared {
    float sum[SPMM_ROW_WARPS][words_elements<T>()][32];
    bool nonzero[SPMM_ROW_WARPS];
};

/* ---- keys ---- */

/* A lane's key of 32 columns, and its P. Key -1: not listed. */
struct spmm_row_key {
    int32_t key;
    float prob;
};

DEVICE struct spmm_row_key spmm_row_key_of(const struct staged_params &p, const struct block_row &s,
                                           uint32_t x) {
    struct spmm_row_key out = {-1, 0};
    x += warp_lane();
    if (x < (uint32_t)s.width) {
        const float prob = s.scores[x];
        const struct column c = column_of(p, s, x);
        if (column_lists(p, c.first, c.last, c.bit, 0))
            out = {c.key, prob};
    }
    return out;
}

/* Adds P V of every `parts`-th of `count` keys, from number `part` on, to the dims at `at`. Keys
 * that are not listed are not loaded. */
template <class T, bool WHOLE>
DEVICE void spmm_row_add(struct spmm_row_sum<T> &sum, const head_view<T> &v,
                         const struct spmm_row_key &held, int count, int part, int parts,
                         int32_t at) {
#pragma unroll 1
    for (int i = part; i - part < count; i += SPMM_ROW_AHEAD * parts) {
        struct words y[SPMM_ROW_AHEAD];
#pragma unroll
        for (int n = 0; n < SPMM_ROW_AHEAD; n++) {
            const int32_t key = __shfl_sync(WARP_ALL, held.key, i + n * parts);
            y[n] = {};
            if (key >= 0)
                y[n] = words_load<T, WHOLE>(v.data + key * v.stride, v.d, at, true);
        }
#pragma unroll
        for (int n = 0; n < SPMM_ROW_AHEAD; n++) {
            const float prob = __shfl_sync(WARP_ALL, held.prob, i + n * parts);
#pragma unroll
            for (int e = 0; e < words_elements<T>(); e++)
                sum.x[e] = fmaf(prob, words_element(y[n], e, T()), sum.x[e]);
        }
    }
}

/* P V of every `turns`-th 32 columns of a row, from 32 * turn on. Answers whether P has an element
 * other than 0. */
template <class T, bool WHOLE>
DEVICE bool spmm_row_sweep(struct spmm_row_sum<T> &sum, const struct staged_params &p,
                           const struct block_row &s, int32_t dim, int lanes, int turn, int turns) {
    const head_view<T> v = head_of<T>(p, p.v, s.b, head_kv_of(p, s), p.d_v);
    const int part = warp_lane() / lanes;
    const uint32_t width = (uint32_t)s.width,
                   step = 32 * turns; /* a block row is narrower than 2^32 */
    struct spmm_row_sum<T> chunk = {};
    bool nonzero = false;
    int turn_of = 0;
    struct spmm_row_key next = spmm_row_key_of(p, s, 32 * turn);
    for (uint32_t x = 32 * turn; x < width; x += step) {
        const struct spmm_row_key held = next;
        next = spmm_row_key_of(p, s, x + step);
        nonzero |= held.prob != 0;
        spmm_row_add<T, WHOLE>(chunk, v, held, (int)min(width - x, 32u), part, 32 / lanes, dim);
        if (++turn_of % (CUDA_CHUNK / 32) != 0 && x + step < width)
            continue;
#pragma unroll
        for (int e = 0; e < words_elements<T>(); e++)
            sum.x[e] += chunk.x[e];
        chunk = {};
    }
#pragma unroll
    for (int e = 0; e < words_elements<T>(); e++)
        for (int apart = 16; apart >= lanes; apart /= 2)
            sum.x[e] += __shfl_xor_sync(WARP_ALL, sum.x[e], apart);
    return __any_sync(WARP_ALL, nonzero);
}

/* ---- results ---- */

/* Stores N consecutive elements of a row of O, of which `left` exist. */
template <class T>
DEVICE void spmm_store(T *out, const float *x, int32_t left, bool whole, float mean_below) {
    constexpr int N = words_elements<T>();
    union {
        T element[N];
        uint4 all;
    } y;
#pragma unroll
    for (int i = 0; i < N; i++)
        from_f32(&y.element[i], mean_in_range(x[i], mean_below, T()));
    if (whole && left > 0)
        *reinterpret_cast<uint4 *>(out) = y.all;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (!whole && i < left)
            out[i] = y.element[i];
}

/* Stores a row of O. A row whose P is all 0 is 0, even where 0 * NaN was added up. */
template <class T, bool WHOLE>
DEVICE void spmm_row_store(struct spmm_row_sum<T> &sum, bool nonzero, const struct staged_params &p,
                           const struct block_row &s, int32_t dim, int lanes) {
    const head_view<T> o = head_of<T>(p, p.o, s.b, s.h, p.d_v);
    if (!nonzero)
        sum = {};
    if (warp_lane() < lanes)
        spmm_store(o.data + s.first * o.stride + dim, sum.x, p.d_v - dim, WHOLE,
                   p.modify.mean_below);
}

/* A row by all warps; warp `owner` stores it. */
template <class T, bool WHOLE>
DEVICE void spmm_row_together(struct spmm_row_shared<T> &shared, const struct staged_params &p,
                              const struct block_row &s, int32_t dim, int lanes, int owner) {
    const int warp = (int)threadIdx.x / 32, lane = warp_lane();
    struct spmm_row_sum<T> sum = {};
    bool nonzero = spmm_row_sweep<T, WHOLE>(sum, p, s, dim, lanes, warp, SPMM_ROW_WARPS);
    shared.nonzero[warp] = nonzero;
#pragma unroll
    for (int e = 0; e < words_elements<T>(); e++)
        shared.sum[warp][e][lane] = sum.x[e];
    __syncthreads();
    if (warp == owner) {
        sum = {};
        nonzero = false;
#pragma unroll
        for (int w = 0; w < SPMM_ROW_WARPS; w++) {
            nonzero |= shared.nonzero[w];
#pragma unroll
            for (int e = 0; e < words_elements<T>(); e++)
                sum.x[e] += shared.sum[w][e][lane];
        }
        spmm_row_store<T, WHOLE>(sum, nonzero, p, s, dim, lanes);
    }
    __syncthreads();
}

/* ---- the kernel ---- */

/* Thread blocks for all rows, SPMM_ROW_WARPS rows each. */
static __host__ __device__ __forceinline__ int64_t spmm_row_blocks(const struct staged_params &p) {
    return (p.n_items + SPMM_ROW_WARPS - 1) / SPMM_ROW_WARPS;
}

template <class T, bool WHOLE>
static __global__ void __launch_bounds__(32 * SPMM_ROW_WARPS, WHOLE && sizeof(T) == 4 ? 5 : 4)
    spmm_row(const __grid_constant__ struct staged_params p) {
    __shared__ struct spmm_row_shared<T> shared;
    constexpr int N = words_elements<T>();
    const int lanes = p.d_v > 16 * N ? 32 : p.d_v > 8 * N ? 16 : 8; /* lanes that share a key */
    const int64_t blocks = spmm_row_blocks(p);
    int64_t number = blocks_unit();
    int32_t dim = warp_lane() % lanes * N;
    for (; number >= blocks; number -= blocks)
        dim += spmm_row_dims<T>();
    if (dim - warp_lane() % lanes * N >= p.d_v)
        return;
    const int64_t of_lane = number + warp_lane() % SPMM_ROW_WARPS * blocks;
    const int64_t tiles = of_lane < p.n_items ? p.image.block_rows[of_lane].tiles : 0;
    const unsigned wide = __ballot_sync(WARP_ALL, tiles * p.block_kv > SPMM_ROW_ALONE);
    const int warp = (int)threadIdx.x / 32;
    const int64_t item = number + warp * blocks;
    if (item < p.n_items && !(wide >> warp & 1)) {
        const struct block_row s = block_row_of(p, item);
        struct spmm_row_sum<T> sum = {};
        const bool nonzero = spmm_row_sweep<T, WHOLE>(sum, p, s, dim, lanes, 0, 1);
        spmm_row_store<T, WHOLE>(sum, nonzero, p, s, dim, lanes);
    }
#pragma unroll 1
    for (int w = 0; w < SPMM_ROW_WARPS; w++)
        if (wide >> w & 1)
            spmm_row_together<T, WHOLE>(shared, p, block_row_of(p, number + w * blocks), dim, lanes,
                                        w);
}

template <class T>
static cudaError_t spmm_row_launch(const struct staged_params *p, cudaStream_t stream) {
    const int64_t slices = (p->d_v + spmm_row_dims<T>() - 1) / spmm_row_dims<T>();
    return blocks_launch(words_whole<T>(p->alignment, p->d_v) ? spmm_row<T, true>
                                                              : spmm_row<T, false>,
                         spmm_row_blocks(*p) * slices, 32 * SPMM_ROW_WARPS, p, stream);
}

#endif
