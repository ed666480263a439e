/*
 * Stage 1, SDDMM, where block rows have one query, whose keys no other row shares. A warp computes
 * CUDA_CHUNK columns of a row; 8 lanes take a key, 16 bytes a lane. Rows of few keys: narrow.cuh.
 *
 * Loads from L2 are the limit; for rows of few keys, the loads that precede those of the keys. So
 * there are as many warps as registers allow, and what is likely is loaded before it is known
 * (docs/notes/staged.md, "Small problems").
 */
#ifndef TESSERA_CUDA_SDDMM_ROW_CUH
#define TESSERA_CUDA_SDDMM_ROW_CUH

#include "device/architecture.cuh"
#include "device/blocks.cuh"
#include "device/words.cuh"
#include "staged/block_row.cuh"

#define SDDMM_ROW_WARPS 4
#define SDDMM_ROW_BLOCKS 8 /* thread blocks of a multiprocessor */
#define SDDMM_ROW_FEW 4    /* FEW: the same, each with more registers */
#define SDDMM_ROW_DIMS 128 /* beyond, a key takes several loads in sequence */

/* ---- chunks ---- */

/* log2 of the parts that a chunk is cut into. In wide rows of many dims, a warp would otherwise
 * load a chunk's keys for longer than all other warps take. */
static __host__ __device__ __forceinline__ int sddmm_row_parts_log2(const struct staged_params &p) {
    if (p.d_qk <= SDDMM_ROW_DIMS) /* first: a division costs where rows are short */
        return 0;
    const int64_t mean = p.columns / p.n_items;
    return mean <= 16 ? 0 : mean <= 48 ? 1 : 2;
}

/* Units of the launch, one for each warp: at least one for each part of a chunk. */
static inline int64_t sddmm_row_units(const struct staged_params &p) {
    return chunks_at_most(p) << sddmm_row_parts_log2(p);
}

/* A chunk: its item, -1: none; its first column. */
struct sddmm_row_chunk {
    int64_t item;
    uint32_t column; /* a block row is narrower than 2^32 */
    struct block_row_place at;
};

/* Finds chunk `number`. Where block rows have about the same width, its item is near number /
 * block_row_chunks. The warp searches there first, while that block row is loaded, then
 * everywhere. */
DEVICE struct sddmm_row_chunk sddmm_row_find(const struct staged_params &p, int64_t number) {
    const int64_t share =
        (uint32_t)number / (uint32_t)p.block_row_chunks; /* a guess: any will do */
    const int64_t low = max(min(share - 16, p.n_items - 31), (int64_t)0);
    const int64_t begin = p.image.chunks[min(low + warp_lane(), p.n_items)];
    const int64_t chunks = p.image.chunks[p.n_items];
    struct sddmm_row_chunk to = {
        -1, 0, block_row_place_at(p.image.block_rows + min(share, p.n_items - 1))};
    if (number >= chunks)
        return to;
    const unsigned before = __ballot_sync(WARP_ALL, begin <= number);
    const bool near = before && before != WARP_ALL;
    const int last = max(__popc(before) - 1, 0);
    to.item = near ? low + last : warp_find(p.image.chunks, p.n_items, number);
    const int64_t first = near ? __shfl_sync(WARP_ALL, begin, last) : p.image.chunks[to.item];
    to.column = (uint32_t)((number - first) * CUDA_CHUNK);
    if (to.item != share)
        to.at = block_row_place_at(p.image.block_rows + to.item);
    return to;
}

/* ---- scores ---- */

/* Sums of four numbers over each 8 lanes: lanes 2 j, 2 j + 1 of the 8 get sum j. */
DEVICE float sddmm_row_total(const float (&sum)[4]) {
    const bool second = warp_lane() & 4, odd = warp_lane() & 2;
    float even_sum = second ? sum[2] : sum[0], odd_sum = second ? sum[3] : sum[1];
    even_sum += __shfl_xor_sync(WARP_ALL, second ? sum[0] : sum[2], 4);
    odd_sum += __shfl_xor_sync(WARP_ALL, second ? sum[1] : sum[3], 4);
    float total = odd ? odd_sum : even_sum;
    total += __shfl_xor_sync(WARP_ALL, odd ? even_sum : odd_sum, 2);
    return total + __shfl_xor_sync(WARP_ALL, total, 1);
}

/* Scores of 16 keys. Lane from + i has the address of key i and gets its score; other lanes keep
 * theirs. AHEAD pieces of each key are in flight at a time. */
template <class T, bool WHOLE, int AHEAD>
DEVICE float sddmm_row_scores(const T *q, const T *key_row, int32_t dims, int from, float q_scale,
                              float score) {
    constexpr int N = words_elements<T>();
    const int lane = warp_lane();
    const T *row[4];
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++)
        row[j] = warp_pointer(key_row, from + 4 * j + lane / 8);
#pragma unroll 1
    for (int32_t d = lane % 8 * N; d - lane % 8 * N < dims; d += AHEAD * 8 * N) {
        struct words x[AHEAD], y[AHEAD][4];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (n > 0 && d - lane % 8 * N + n * 8 * N >= dims)
                break;
            x[n] = words_load<T, WHOLE>(q, dims, d + n * 8 * N, true);
#pragma unroll
            for (int j = 0; j < 4; j++)
                y[n][j] = words_load<T, WHOLE>(row[j], dims, d + n * 8 * N, true);
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (d + n * 8 * N < dims)
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const float of_q = words_element(x[n], e, T()) * q_scale;
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        sum[j] = fmaf(of_q, words_element(y[n][j], e, T()), sum[j]);
                }
    }
    const int i = lane - from;
    const float mine = __shfl_sync(WARP_ALL, sddmm_row_total(sum), i % 4 * 8 + i / 4 * 2);
    return i >= 0 && i < 16 ? mine : score;
}

/* The key of column x of a block row of one row; -1 where the row does not list it, or x >= end. */
DEVICE int32_t sddmm_row_key(const struct staged_params &p, const struct block_row &s, uint32_t x,
                             uint32_t end) {
    if (x >= end)
        return -1;
    const struct column c = column_of(p, s, x);
    return column_lists(p, c.first, c.last, c.bit, 0) ? c.key : -1;
}

/* FEW: all warps of the launch are resident at once. Loads in sequence then bound the time, so a
 * warp has more of them in flight. */
template <class T, bool WHOLE, bool FEW>
static __global__ void __launch_bounds__(32 * SDDMM_ROW_WARPS,
                                         WHOLE && !FEW ? SDDMM_ROW_BLOCKS : SDDMM_ROW_FEW)
    sddmm_row(const __grid_constant__ struct staged_params p) {
    constexpr int AHEAD = !FEW ? 1 : ARCHITECTURE_AFTER ? 2 : 4;
    const int log2 = sddmm_row_parts_log2(p), part_width = CUDA_CHUNK >> log2;
    const int64_t number = blocks_unit() * SDDMM_ROW_WARPS + threadIdx.x / 32;
    struct sddmm_row_chunk chunk = sddmm_row_find(p, number >> log2);
    if (chunk.item < 0)
        return;
    chunk.column += (uint32_t)(number & ((1 << log2) - 1)) * part_width;
    const struct block_row s = block_row_at(p, chunk.at);
    const head_view<T> k = head_of<T>(p, p.k, s.b, head_kv_of(p, s), p.d_qk);
    const T *q = row_of(head_of<T>(p, p.q, s.b, s.h, p.d_qk), s.first).data;
    const uint32_t end = (uint32_t)min((int64_t)chunk.column + part_width, s.width);
    for (uint32_t from = chunk.column; from < end; from += 32) {
        const uint32_t x = from + warp_lane();
        const int32_t key = sddmm_row_key(p, s, x, end);
        /* Places without a key read another key; its score is not stored. */
        const T *row = k.data + max(key, 0) * k.stride;
        float score = sddmm_row_scores<T, WHOLE, AHEAD>(q, row, k.d, 0, p.q_scale, 0.0f);
        if (from + 16 < end)
            score = sddmm_row_scores<T, WHOLE, AHEAD>(q, row, k.d, 16, p.q_scale, score);
        if (x < end)
            s.scores[x] = key < 0 ? -INFINITY : score * p.score_scale;
    }
}

template <class T>
static cudaError_t sddmm_row_launch(const struct staged_params *p, cudaStream_t stream) {
    if (p->n_items == 0)
        return cudaSuccess;
    const int64_t blocks = (sddmm_row_units(*p) + SDDMM_ROW_WARPS - 1) / SDDMM_ROW_WARPS;
    const bool few =
        p->d_qk > SDDMM_ROW_DIMS && blocks <= (int64_t)SDDMM_ROW_FEW * p->multiprocessors;
    return blocks_launch(!words_whole<T>(p->alignment, p->d_qk) ? sddmm_row<T, false, false>
                         : few                                  ? sddmm_row<T, true, true>
                                                                : sddmm_row<T, true, false>,
                         blocks, 32 * SDDMM_ROW_WARPS, p, stream);
}

#endif
