/* Stage 1 for 16-bit types: what a block is given and what it keeps in shared memory. */
#ifndef TESSERA_CUDA_SDDMM_MMA_SHARE_CUH
#define TESSERA_CUDA_SDDMM_MMA_SHARE_CUH

#include "mma_units.cuh"
#include "panel16.cuh"

#define SDDMM_MMA_STAGES 3
#define SDDMM_MMA_AHEAD (SDDMM_MMA_STAGES - 1)
#define SDDMM_MMA_RESIDENT 2 /* panels of queries that stay for a strip; of LONG sums */
#define SDDMM_MMA_RUN 8      /* chunks that a block takes in a row at most */
#define SDDMM_MMA_KNOWN 4    /* chunks whose keys are known at a time: one computed, two under way
                              * where they are of one panel, one looked up */

/* How the warps of a block share M x CUDA_CHUNK. */
template <int M, bool LONG> struct sddmm_mma_shape {
    static constexpr bool GROUPS = PANEL16_GROUPS && M >= 64;
    static constexpr int ROWS = M < 32 || GROUPS ? 16 : 32; /* of a warp */
    static constexpr int WARPS_M = M / ROWS;
    static constexpr int WARPS_N = M < 64 ? 4 : GROUPS ? 1 : 2;
    static constexpr int COLUMNS = CUDA_CHUNK / WARPS_N;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int BLOCKS = (M > 64 ? 2 : 3) - (LONG && M > 32); /* of a multiprocessor */
    /* A warp's sums: 16 x 8 tiles. */
    typedef float sums[ROWS / 16][COLUMNS / 8][4];
};

/* A chunk of a strip. */
template <class T> struct sddmm_mma_chunk {
    struct strip strip;
    int64_t item;
    int64_t column; /* first of the strip's */
    head_view<T> q, k;
    int queries; /* place of its first panel of queries in the ring of them */
    bool fresh;  /* its queries are to be fetched */
    uint32_t partial[CUDA_CHUNK / 32]; /* bit c: not all rows list column c of these 32 */
    int32_t key[CUDA_CHUNK];           /* in the order of panel16_place */
};

template <class T, int M> struct sddmm_mma_shared {
    T k[SDDMM_MMA_STAGES][CUDA_CHUNK * PANEL16_WIDTH];
    T q[SDDMM_MMA_STAGES][M * PANEL16_WIDTH];
    struct sddmm_mma_chunk<T> chunk[SDDMM_MMA_KNOWN];
};

/* ---- which chunks ---- */

/* What a block computes: M rows from `row` on of `count` chunks, by runs of which it takes every
 * `stride`-th from number `first` on: blocks that run at one time sweep the keys together. Runs are
 * of `each` chunks, the first `longer` of them of one more; of the block's own the first `own`. */
struct sddmm_mma_share {
    int64_t row, first, stride, longer;
    int each, own, count, panels;
};

/* Blocks that units of M rows share stand together. */
template <int M>
static __device__ __forceinline__ struct sddmm_mma_share
sddmm_mma_share_of(const struct cuda_params &p) {
    const uint32_t row_units = (uint32_t)((p.height + M - 1) / M);
    const int64_t chunks = p.image.chunks[p.n_items];
    struct sddmm_mma_share share;
    share.row = (int64_t)(blockIdx.x % row_units) * M;
    share.first = blockIdx.x / row_units;
    share.stride = gridDim.x / row_units;
    const int64_t most = share.stride * SDDMM_MMA_RUN;
    const int64_t rounds = max((chunks + most - 1) / most, (int64_t)1);
    const int64_t runs = share.stride * rounds;
    share.each = (int)(chunks / runs);
    share.longer = chunks - runs * share.each;
    share.own = (int)((share.longer - share.first + share.stride - 1) / share.stride);
    share.count = (int)rounds * share.each + share.own;
    share.panels = (p.d_qk + PANEL16_WIDTH - 1) / PANEL16_WIDTH;
    return share;
}

/* The first chunk of the run that begins with the block's chunk `number`, -1 where none does. */
static __device__ __forceinline__ int64_t sddmm_mma_run(const struct sddmm_mma_share &share,
                                                        int number) {
    const int in_longer = share.own * (share.each + 1);
    const bool longer = number < in_longer;
    const int past = longer ? number : number - in_longer, each = share.each + longer;
    if (past % each != 0)
        return -1;
    const int64_t run = share.first + (past / each + (longer ? 0 : share.own)) * share.stride;
    return run * share.each + min(run, share.longer);
}

/* The strip and the first column of chunk `number` of the block's, which may follow the one that is
 * `before` it. */
template <class T>
static __device__ __forceinline__ void
sddmm_mma_find(struct strip &strip, int64_t &item, int64_t &column,
               const struct sddmm_mma_chunk<T> &before, const struct cuda_params &p,
               const struct sddmm_mma_share &share, int number) {
    const int64_t chunk = sddmm_mma_run(share, number);
    if (chunk >= 0) {
        item = warp_find(p.image.chunks, p.n_items, chunk);
        column = (chunk - p.image.chunks[item]) * CUDA_CHUNK;
        strip = strip_of(p, item);
        return;
    }
    strip = before.strip;
    item = before.item;
    column = before.column + CUDA_CHUNK;
    if (column < strip.width)
        return;
    column = 0;
    do
        strip = strip_of(p, ++item);
    while (strip.width == 0);
}

/* Chunk `number` of the block's and its keys, by all threads. A barrier stands between this and
 * what uses it, the next look-up among them. */
template <class T, int M, bool LONG>
static __device__ __forceinline__ void sddmm_mma_look_up(struct sddmm_mma_shared<T, M> &s,
                                                         const struct cuda_params &p,
                                                         const struct sddmm_mma_share &share,
                                                         int number) {
    constexpr int KNOWN = SDDMM_MMA_KNOWN;
    struct sddmm_mma_chunk<T> &to = s.chunk[number % KNOWN];
    const struct sddmm_mma_chunk<T> &before = s.chunk[(number + KNOWN - 1) % KNOWN];
    struct strip strip;
    int64_t item, column;
    sddmm_mma_find(strip, item, column, before, p, share, number);
    const int i = (int)threadIdx.x;
    if (i == 0) {
        const bool fresh = LONG || number == 0 || item != before.item;
        const int place = number == 0 ? 0 : before.queries + (fresh ? share.panels : 0);
        to.strip = strip;
        to.item = item;
        to.column = column;
        to.q = head_of<T>(p, p.q, strip.b, strip.h, p.d_qk);
        to.k = head_of<T>(p, p.k, strip.b, strip.h / p.heads_per_kv, p.d_qk);
        to.queries = place % SDDMM_MMA_STAGES;
        to.fresh = fresh;
    }
    if (i >= CUDA_CHUNK)
        return;
    const int64_t last_row = min(share.row + M, strip.rows) - 1;
    struct column c = {-1, 0, INT32_MAX, -1};
    if (column + i < strip.width)
        c = column_of(p, strip, column + i);
    const bool whole = c.first <= share.row && last_row <= c.last && c.bit < 0;
    const uint32_t partial = __ballot_sync(WARP_ALL, !whole);
    to.key[panel16_place(i)] = c.key;
    if (warp_lane() == 0)
        to.partial[i / 32] = partial;
}

#endif
