/* Stage 1, SDDMM, for 16-bit types: work of a thread block, its shared memory, looking up
 * chunks. */
#ifndef TESSERA_CUDA_SDDMM_MMA_COMMON_CUH
#define TESSERA_CUDA_SDDMM_MMA_COMMON_CUH

#include "staged/panel_16bit.cuh"
#include "staged/sddmm/gather.cuh"

#define SDDMM_MMA_STAGES 3
#define SDDMM_MMA_AHEAD (SDDMM_MMA_STAGES - 1)
#define SDDMM_MMA_RESIDENT 2 /* panels of Q that stay for a block row; panels of a LONG sum */
#define SDDMM_MMA_KNOWN                                                                            \
    4 /* chunks whose keys are known: one computed, two in flight
                              * where chunks have one panel, one looked up */

/* Shares of a thread block's warps in S [M, CUDA_CHUNK]. */
template <int M, bool LONG> struct sddmm_mma_shape {
    static constexpr bool WGMMA = PANEL16_WGMMA && M >= 64;
    static constexpr int ROWS = M < 32 || WGMMA ? 16 : 32; /* rows of a warp */
    static constexpr int WARPS_M = M / ROWS;
    static constexpr int WARPS_N = M < 64 ? 4 : WGMMA ? 1 : 2;
    static constexpr int COLUMNS = CUDA_CHUNK / WARPS_N;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int BLOCKS =
        (M > 64 ? 2 : 3) - (LONG && M > 32); /* CTAs of a multiprocessor */
    /* A warp's accumulators: 16 x 8 tiles. */
    typedef float sums[ROWS / 16][COLUMNS / 8][4];
};

/* The common part of all chunks of a block row. */
template <class T> struct sddmm_mma_place {
    struct block_row block_row;
    int64_t item;
    head_view<T> q, k;
};

/* A chunk of a block row. */
template <class T> struct sddmm_mma_chunk {
    struct sddmm_mma_place<T> source;
    int64_t column;                    /* first column in the block row */
    int run, left;                     /* number of its run, and chunks of the run after it */
    int queries;                       /* place of its first panel of Q in the ring */
    bool fresh;                        /* its Q is to be fetched */
    uint32_t partial[CUDA_CHUNK / 32]; /* bit c: not all rows list column c of these 32 */
    int32_t key[CUDA_CHUNK];           /* in the order of panel16_place */
};

template <class T, int M> struct sddmm_mma_shared {
    T k[SDDMM_MMA_STAGES][CUDA_CHUNK * PANEL16_WIDTH];
    T q[SDDMM_MMA_STAGES][M * PANEL16_WIDTH];
    struct sddmm_mma_chunk<T> chunk[SDDMM_MMA_KNOWN];
};

/* ---- looking up ---- */

/* The look-up of a thread's column, in flight: its block column is being loaded. */
struct sddmm_mma_column {
    int chunk;     /* -1: no look-up */
    int32_t block; /* -1: there is no such column */
    struct column_place at;
    int rows; /* rows of the unit in the block row */
};

/* Finds the chunk after `before`, where that ends its block row or its run: by all threads. */
template <class T>
DEVICE void sddmm_mma_find(struct sddmm_mma_chunk<T> &to, struct block_row &block_row,
                           int64_t &column, const struct sddmm_mma_chunk<T> &before,
                           const struct staged_params &p, const struct sddmm_range &range,
                           int number, bool always) {
    int run = number == 0 ? 0 : before.run, left = number == 0 ? 0 : before.left - 1;
    int64_t item;
    if (number > 0 && left >= 0) {
        item = before.source.item;
        column = 0;
        do
            block_row = block_row_of(p, ++item);
        while (block_row.width == 0);
    } else {
        run += number > 0;
        const int64_t of_all = range.first + run * range.stride;
        const int64_t chunk = of_all * range.each + min(of_all, range.longer);
        left = range.each + (of_all < range.longer) - 1;
        item = warp_find(p.image.chunks, p.n_items, chunk);
        column = (chunk - p.image.chunks[item]) * CUDA_CHUNK;
        block_row = block_row_of(p, item);
    }
    if (threadIdx.x > 0)
        return;
    const bool fresh = always || number == 0 || item != before.source.item;
    const int place = number == 0 ? 0 : before.queries + (fresh ? range.panels : 0);
    to.source.block_row = block_row;
    to.source.item = item;
    to.source.q = head_of<T>(p, p.q, block_row.b, block_row.h, p.d_qk);
    to.source.k = head_of<T>(p, p.k, block_row.b, head_kv_of(p, block_row), p.d_qk);
    to.column = column;
    to.run = run;
    to.left = left;
    to.queries = place % SDDMM_MMA_STAGES;
    to.fresh = fresh;
}

/* Begins the look-up of chunk `number` and its keys, by all threads; sddmm_mma_know completes it.
 * Most chunks are in the block row of the chunk before: a short path, since all warps wait for
 * it. */
template <class T, int M, bool LONG>
DEVICE struct sddmm_mma_column sddmm_mma_look_up(struct sddmm_mma_shared<T, M> &s,
                                                 const struct staged_params &p,
                                                 const struct sddmm_range &range, int number) {
    constexpr int KNOWN = SDDMM_MMA_KNOWN, WORDS = sizeof(struct sddmm_mma_place<T>) / 4;
    static_assert(WORDS <= 32, "a warp copies a place");
    struct sddmm_mma_chunk<T> &to = s.chunk[number % KNOWN];
    const struct sddmm_mma_chunk<T> &before = s.chunk[(number + KNOWN - 1) % KNOWN];
    const int i = (int)threadIdx.x;
    struct block_row block_row;
    int64_t column = before.column + CUDA_CHUNK;
    if (number > 0 && before.left > 0 && column < before.source.block_row.width) {
        block_row.entry = before.source.block_row.entry;
        block_row.width = before.source.block_row.width;
        block_row.rows = before.source.block_row.rows;
        if (i < WORDS)
            reinterpret_cast<uint32_t *>(&to.source)[i] =
                reinterpret_cast<const uint32_t *>(&before.source)[i];
        if (i == 32) {
            to.column = column;
            to.run = before.run;
            to.left = before.left - 1;
            to.queries = (before.queries + (LONG ? range.panels : 0)) % SDDMM_MMA_STAGES;
            to.fresh = LONG;
        }
    } else {
        sddmm_mma_find(to, block_row, column, before, p, range, number, LONG);
    }
    struct sddmm_mma_column mine = {number, -1};
    mine.rows = (int)min(block_row.rows - range.row, (int64_t)M);
    mine.at = column_place_of(p, block_row.entry, column + i);
    if (i < CUDA_CHUNK && column + i < block_row.width)
        mine.block = p.image.col_idx[mine.at.entry];
    return mine;
}

/* Completes a look-up. The chunk may be used after a barrier, and the next look-up may begin. */
template <class T, int M>
DEVICE void sddmm_mma_know(struct sddmm_mma_shared<T, M> &s, const struct staged_params &p,
                           const struct sddmm_range &range, const struct sddmm_mma_column &mine) {
    const int i = (int)threadIdx.x;
    if (mine.chunk < 0 || i >= CUDA_CHUNK)
        return;
    struct sddmm_mma_chunk<T> &to = s.chunk[mine.chunk % SDDMM_MMA_KNOWN];
    struct column c = {-1, 0, INT32_MAX, -1};
    if (mine.block >= 0)
        c = column_at(p, mine.at, mine.block);
    const bool whole = c.first <= range.row && range.row + mine.rows - 1 <= c.last && c.bit < 0;
    const uint32_t partial = __ballot_sync(WARP_ALL, !whole);
    to.key[panel16_place(i)] = c.key;
    if (warp_lane() == 0)
        to.partial[i / 32] = partial;
}

#endif
