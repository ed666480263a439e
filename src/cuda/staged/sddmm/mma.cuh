/*
 * Stage 1, SDDMM, for 16-bit types with mma.sync or WGMMA, where block rows have enough queries to
 * fill a tile. Persistent thread blocks: each computes M rows of runs of chunks of CUDA_CHUNK
 * columns, across block rows. Panels of 64 dims of a chunk's keys pass through a ring. The panels
 * of Q stay for a block row where they are few, else they pass through a ring too. A step is one
 * panel:
 *
 *   S [M, CUDA_CHUNK] += Q [M, 64] K [CUDA_CHUNK, 64]^T    K gathered SDDMM_MMA_AHEAD steps earlier
 *
 * Storing the scores is the limit: 4 bytes each, for 2 d_qk operations. Scores leave as 16 bytes a
 * lane where the block row is aligned to that. Else they pass through shared memory and leave as
 * whole rows, as do chunks with masks.
 *
 * Tensor cores truncate when they add. Where sums over many dims cancel, truncation exceeds the
 * error that an lse may have. Heads of more than 128 dims (LONG) are therefore summed 128 dims at a
 * time.
 */
#ifndef TESSERA_CUDA_SDDMM_MMA_CUH
#define TESSERA_CUDA_SDDMM_MMA_CUH

#include "device/cluster.cuh"
#include "staged/sddmm/mma_epilogue.cuh"
#include "device/sm90/wgmma.cuh"

/* Scales 8 elements of queries; as sddmm_scale_q does. */
DEVICE void sddmm_mma_scale(uint32_t (&)[4], const struct staged_params &, __half) {
}
DEVICE void sddmm_mma_scale(uint32_t (&a)[4], const struct staged_params &p, __nv_bfloat16) {
    const __nv_bfloat162 scale = __float2bfloat162_rn(p.q_scale);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 two = *reinterpret_cast<__nv_bfloat162 *>(&a[i]);
        two = __hmul2(two, scale);
        a[i] = *reinterpret_cast<uint32_t *>(&two);
    }
}

/* ---- steps ---- */

/* A step of a thread block: a panel of one of its chunks. */
struct sddmm_mma_step {
    int chunk, panel, stage;
};

DEVICE void sddmm_mma_advance(struct sddmm_mma_step &at, int panels) {
    at.stage = at.stage + 1 == SDDMM_MMA_STAGES ? 0 : at.stage + 1;
    at.panel++;
    if (at.panel == panels) {
        at.panel = 0;
        at.chunk++;
    }
}

/* Place of a step's panel of Q in its ring. At most SDDMM_MMA_RESIDENT panels stay for a block row.
 * A panel is fetched to a place that was last used at least two steps before. */
template <class T>
DEVICE int sddmm_mma_query_panel(const struct sddmm_mma_chunk<T> &chunk,
                                 const struct sddmm_mma_step &at) {
    return (chunk.queries + at.panel) % SDDMM_MMA_STAGES;
}

/* Fetches the panels of a step, begins the look-up of the next chunk, and advances. One cp.async
 * group. */
template <class T, int M, bool LONG>
DEVICE struct sddmm_mma_column
sddmm_mma_fetch(struct sddmm_mma_shared<T, M> &s, const struct staged_params &p,
                const struct sddmm_range &range, struct sddmm_mma_step &at) {
    constexpr int THREADS = sddmm_mma_shape<M, LONG>::THREADS;
    const int32_t d = at.panel * PANEL16_WIDTH;
    struct sddmm_mma_column mine = {-1};
    if (at.chunk < range.count) {
        const struct sddmm_mma_chunk<T> &chunk = s.chunk[at.chunk % SDDMM_MMA_KNOWN];
        const bool aligned = words_whole<T>(p.alignment, p.d_qk);
        panel16_gather<T, CUDA_CHUNK, 1, THREADS>(s.k[at.stage], chunk.source.k, chunk.key, d,
                                                  aligned);
        if (chunk.fresh)
            panel16_rows<T, M, THREADS>(s.q[sddmm_mma_query_panel(chunk, at)], chunk.source.q,
                                        chunk.source.block_row.first + range.row,
                                        chunk.source.block_row.rows - range.row, d, aligned);
        if (at.panel == 0 && at.chunk + 1 < range.count)
            mine = sddmm_mma_look_up<T, M, LONG>(s, p, range, at.chunk + 1);
    }
    cp_async_commit();
    sddmm_mma_advance(at, range.panels);
    return mine;
}

/* S += Q K^T over one panel, for a warp's rows and columns (mma.sync). */
template <class T, int M, bool LONG>
DEVICE void sddmm_mma_multiply(typename sddmm_mma_shape<M, LONG>::sums &sum, const T *q, const T *k,
                               int row, int column) {
    constexpr int TILES_M = sddmm_mma_shape<M, LONG>::ROWS / 16;
    constexpr int TILES_N = sddmm_mma_shape<M, LONG>::COLUMNS / 8;
    const int lane = warp_lane();
    const uint32_t at_q = panel16_at(shared_address(q), row + lane % 16, lane / 16);
    const uint32_t at_k =
        panel16_at(shared_address(k), column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll 2 /* unrolling all four spills */
    for (int d = 0; d < PANEL16_WIDTH / 16; d++) {
        uint32_t a[TILES_M][4];
#pragma unroll
        for (int i = 0; i < TILES_M; i++)
            ldmatrix(a[i], (at_q ^ d << 5) + i * 16 * PANEL16_STRIDE);
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2) {
            uint32_t b[4]; /* B of two MMAs */
            ldmatrix(b, (at_k ^ d << 5) + j * 8 * PANEL16_STRIDE);
#pragma unroll
            for (int i = 0; i < TILES_M; i++) {
                mma_sync(sum[i][j], a[i], b, T());
                mma_sync(sum[i][j + 1], a[i], b + 2, T());
            }
        }
    }
}

/* Scales the part of a panel of Q that this thread fetched; the panel has `rows` rows. */
template <class T, int M, int THREADS>
DEVICE void sddmm_mma_scale_panel(T *panel, const struct staged_params &p, int64_t rows) {
    if (p.q_scale == 1)
        return;
#pragma unroll 1
    for (int i = (int)threadIdx.x / 8; i < M && i < rows; i += THREADS / 8) {
        const uint32_t at = panel16_at(shared_address(panel), i, (int)threadIdx.x % 8);
        uint4 &piece = *static_cast<uint4 *>(__cvta_shared_to_generic(at));
        uint32_t x[4] = {piece.x, piece.y, piece.z, piece.w};
        sddmm_mma_scale(x, p, T());
        piece = {x[0], x[1], x[2], x[3]};
    }
}

/* Issues the same with WGMMA, for the 64 rows of this warp's warpgroup. */
template <class T>
DEVICE void sddmm_mma_begin(float (&sum)[CUDA_CHUNK / 2], const T *q, const T *k, int row) {
    const uint32_t at_q = panel16_wgmma_address(q) + row / 64 * 64 * PANEL16_STRIDE;
    const uint32_t at_k = panel16_wgmma_address(k);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < PANEL16_WIDTH; d += 16)
        wgmma_ss(sum, wgmma_k_major(at_q + 2 * d), wgmma_k_major(at_k + 2 * d), 1, T());
    wgmma_commit();
}

template <int M, bool LONG>
DEVICE void sddmm_mma_fold(typename sddmm_mma_shape<M, LONG>::sums &sum,
                           typename sddmm_mma_shape<M, LONG>::sums &part) {
#pragma unroll
    for (int i = 0; i < sddmm_mma_shape<M, LONG>::ROWS / 16; i++)
#pragma unroll
        for (int j = 0; j < sddmm_mma_shape<M, LONG>::COLUMNS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sum[i][j][e] += part[i][j][e];
                part[i][j][e] = 0;
            }
}

/* Stores a chunk's scores, scaled and masked. `space`: the panel that was multiplied last. */
template <class T, int M, bool LONG>
DEVICE void sddmm_mma_finish(typename sddmm_mma_shape<M, LONG>::sums &sum,
                             const struct sddmm_mma_chunk<T> &chunk, float *space,
                             const struct staged_params &p, int64_t row, int column) {
    typedef sddmm_mma_shape<M, LONG> shape;
    const float scale = sddmm_scale(p, T());
#pragma unroll
    for (int i = 0; i < shape::ROWS / 16; i++)
#pragma unroll
        for (int j = 0; j < shape::COLUMNS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][j][e] *= scale;
    const uint32_t *words = chunk.partial;
    const bool partial = (words[0] | words[1] | words[2] | words[3]) != 0;
    const struct block_row &block_row = chunk.source.block_row;
    if (!partial && block_row_aligned(block_row)) {
        sddmm_mma_store<M, LONG>(sum, block_row, row, chunk.column + column);
    } else {
        __syncthreads(); /* all warps have finished with the panel */
        sddmm_mma_store_rows<M, LONG>(sum, space, p, block_row, row, chunk.column + column,
                                      partial);
    }
}

template <class T, int M, bool LONG>
static __global__ void __launch_bounds__(sddmm_mma_shape<M, LONG>::THREADS,
                                         sddmm_mma_shape<M, LONG>::BLOCKS)
    sddmm_mma(const __grid_constant__ struct staged_params p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    typedef sddmm_mma_shape<M, LONG> shape;
    struct sddmm_mma_shared<T, M> &s = *reinterpret_cast<struct sddmm_mma_shared<T, M> *>(memory);
    const struct sddmm_range range = sddmm_range_of<M>(p);
    const int warp = (int)threadIdx.x / 32;
    const int row = warp / shape::WARPS_N * shape::ROWS;
    const int column = warp % shape::WARPS_N * shape::COLUMNS;
    if (range.count == 0)
        return;
    sddmm_mma_know(s, p, range, sddmm_mma_look_up<T, M, LONG>(s, p, range, 0));
    struct sddmm_mma_step next = {0, 0, 0}, at = {0, 0, 0};
    for (int i = 0; i < SDDMM_MMA_AHEAD; i++) {
        __syncthreads();
        sddmm_mma_know(s, p, range, sddmm_mma_fetch<T, M, LONG>(s, p, range, next));
    }
    while (at.chunk < range.count) {
        const struct sddmm_mma_chunk<T> &chunk = s.chunk[at.chunk % SDDMM_MMA_KNOWN];
        typename shape::sums sum = {}, part = {};
        int stage;
        do {
            cp_async_wait<SDDMM_MMA_AHEAD - 1>();
            T *q = s.q[sddmm_mma_query_panel(chunk, at)];
            if (chunk.fresh)
                sddmm_mma_scale_panel<T, M, shape::THREADS>(
                    q, p, chunk.source.block_row.rows - range.row);
            if constexpr (shape::WGMMA)
                panel16_proxy_fence();
            __syncthreads();
            stage = at.stage;
            if constexpr (shape::WGMMA) {
                float(&flat)[CUDA_CHUNK / 2] =
                    reinterpret_cast<float(&)[CUDA_CHUNK / 2]>(LONG ? part : sum);
                sddmm_mma_begin<T>(flat, q, s.k[stage], row);
                const struct sddmm_mma_column mine = sddmm_mma_fetch<T, M, LONG>(s, p, range, next);
                wgmma_wait<0>();
                wgmma_fence_operand(flat);
                sddmm_mma_know(s, p, range, mine);
            } else {
                const struct sddmm_mma_column mine = sddmm_mma_fetch<T, M, LONG>(s, p, range, next);
                sddmm_mma_multiply<T, M, LONG>(LONG ? part : sum, q, s.k[stage], row, column);
                sddmm_mma_know(s, p, range, mine);
            }
            sddmm_mma_advance(at, range.panels);
            if (LONG && at.panel % SDDMM_MMA_RESIDENT == 0)
                sddmm_mma_fold<M, LONG>(sum, part);
        } while (at.panel > 0);
        sddmm_mma_finish<T, M, LONG>(sum, chunk, reinterpret_cast<float *>(s.k[stage]), p,
                                     range.row + row, column);
    }
}

/* ---- launching ---- */

template <class T, int M, bool LONG>
static cudaError_t sddmm_mma_launch_heads(const struct staged_params *p, cudaStream_t stream) {
    const int64_t row_units = (p->height + M - 1) / M, chunks = chunks_at_most(*p);
    const int64_t held = p->multiprocessors * sddmm_mma_shape<M, LONG>::BLOCKS / row_units;
    const int64_t across = held < 1 ? 1 : held < chunks ? held : chunks;
    return cluster_launch<(int)sizeof(struct sddmm_mma_shared<T, M>)>(
        sddmm_mma<T, M, LONG>, across * row_units, 1, sddmm_mma_shape<M, LONG>::THREADS, p, stream);
}

template <class T, int M>
static cudaError_t sddmm_mma_launch_tile(const struct staged_params *p, cudaStream_t stream) {
    return p->d_qk <= SDDMM_MMA_RESIDENT * PANEL16_WIDTH
               ? sddmm_mma_launch_heads<T, M, false>(p, stream)
               : sddmm_mma_launch_heads<T, M, true>(p, stream);
}

/* A tile as high as the block row. Keys are gathered once for all rows of a tile
 * (docs/notes/staged.md, "Tiles and clusters"). */
template <class T>
static cudaError_t sddmm_mma_launch(const struct staged_params *p, cudaStream_t stream) {
    static const struct grid_instance instances[] = {
        {16, sizeof(struct sddmm_mma_shared<T, 16>), sddmm_mma_launch_tile<T, 16>},
        {32, sizeof(struct sddmm_mma_shared<T, 32>), sddmm_mma_launch_tile<T, 32>},
        {64, sizeof(struct sddmm_mma_shared<T, 64>), sddmm_mma_launch_tile<T, 64>},
        {128, sizeof(struct sddmm_mma_shared<T, 128>), sddmm_mma_launch_tile<T, 128>},
    };
    return grid_launch_instance(instances, sizeof instances / sizeof *instances, p->height, p,
                                stream);
}

#endif
