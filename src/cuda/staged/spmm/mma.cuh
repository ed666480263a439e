/*
 * Stage 3, SpMM, for 16-bit types with mma.sync or WGMMA, where block rows have enough queries to
 * fill a tile. A thread block takes M rows of one block row and N dims. Where that makes too few
 * thread blocks, those of a cluster share the keys, and the first adds up their sums in order. P in
 * f32 and gathered V pass through a ring, SPMM_MMA_KEYS keys a step. P is rounded to the storage
 * type on its way into operands; for f16, scaled up by a power of two first (scale.cuh). A step is
 *
 *   part [M, N] += P [M, 64] V [64, N]      and every CUDA_CHUNK keys   sum += part, part = 0
 *
 * Loading P is the limit: 4 bytes each, for 2 d_v operations. A key that no row of the tile lists
 * is not loaded, whatever it holds. A row whose P is all 0 is 0, even where 0 * NaN was added up.
 */
#ifndef TESSERA_CUDA_SPMM_MMA_CUH
#define TESSERA_CUDA_SPMM_MMA_CUH

#include "staged/panel_16bit.cuh"
#include "device/sm90/wgmma.cuh"
#include "staged/spmm/gather.cuh"
#include "staged/spmm/mma_epilogue.cuh"

#define SPMM_MMA_KEYS 64   /* keys of a step */
#define SPMM_MMA_CLUSTER 4 /* CTAs that share a block row's keys at most */

/* Shares of a thread block's warps in O [M, N]. */
template <int M, int N> struct spmm_mma_shape {
    static constexpr bool WGMMA = PANEL16_WGMMA && M >= 64;
    static constexpr int ROWS = M >= 64 && !WGMMA ? 32 : 16; /* rows of a warp */
    static constexpr int WARPS_M = M / ROWS;
    static constexpr int WARPS_N = WGMMA ? 1 : M > 16 ? 2 : 4;
    static constexpr int DIMS = N / WARPS_N;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int STAGES = M > 64 ? 4 : 3;
    static constexpr int BLOCKS = M > 64 ? 1 : 2; /* CTAs of a multiprocessor */
    static constexpr int PANELS = STAGES * SPMM_MMA_KEYS * (4 * M + 2 * N); /* bytes */
    /* A warp's accumulators: 16 x 8 tiles. */
    typedef float sums[ROWS / 16][DIMS / 8][4];
};

/* Rows, dims and columns of a thread block; in shared memory, to spare registers. */
template <class T> struct spmm_mma_unit {
    struct block_row block_row;
    int64_t row;           /* first row */
    int32_t dim;           /* first dim */
    int64_t column, width; /* first column in the block row, and their number */
    head_view<T> v;
    bool aligned_v, aligned_p;
};

template <class T, int M, int N> struct spmm_mma_shared {
    float prob[spmm_mma_shape<M, N>::STAGES][M * SPMM_MMA_KEYS];
    T v[spmm_mma_shape<M, N>::STAGES][SPMM_MMA_KEYS * N]; /* panels of 64 dims */
    struct spmm_mma_unit<T> unit;
    int32_t key[2][PANEL16_KEYS]; /* -1: not read; in the order of panel16_place */
};

template <class T>
DEVICE struct spmm_mma_unit<T> spmm_mma_unit_of(const struct staged_params &p,
                                                const struct block_row &block_row, int64_t row,
                                                int32_t dim) {
    struct spmm_mma_unit<T> unit;
    unit.block_row = block_row;
    unit.row = row;
    unit.dim = dim;
    const int64_t chunks = (block_row.width + CUDA_CHUNK - 1) / CUDA_CHUNK;
    const int rank = cluster_rank(), blocks = cluster_size();
    unit.column = chunks * rank / blocks * CUDA_CHUNK;
    unit.width = min(chunks * (rank + 1) / blocks * CUDA_CHUNK, block_row.width) - unit.column;
    unit.v = head_of<T>(p, p.v, block_row.b, head_kv_of(p, block_row), p.d_v);
    unit.aligned_v = words_whole<T>(p.alignment, p.d_v);
    unit.aligned_p = block_row_aligned(block_row);
    return unit;
}

/* Looks up window `number` of the unit's keys: PANEL16_KEYS columns. */
template <class T, int M, int N>
DEVICE void spmm_mma_look_up(struct spmm_mma_shared<T, M, N> &s, const struct staged_params &p,
                             int64_t number) {
    const struct spmm_mma_unit<T> &unit = s.unit;
    constexpr int THREADS = spmm_mma_shape<M, N>::THREADS, EACH = PANEL16_KEYS / THREADS;
    static_assert(PANEL16_KEYS % THREADS == 0, "threads share a window evenly");
    const int64_t from = number * PANEL16_KEYS + threadIdx.x;
    const int64_t rows = min((int64_t)M, unit.block_row.rows - unit.row);
    struct column_place at[EACH];
    int32_t block[EACH]; /* in flight together */
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        at[n] = column_place_of(p, unit.block_row.entry, unit.column + from + n * THREADS);
        block[n] = from + n * THREADS < unit.width ? p.image.col_idx[at[n].entry] : -1;
    }
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        int32_t key = -1;
        if (block[n] >= 0) {
            const struct column c = column_at(p, at[n], block[n]);
            if (column_lists_any(p, c, unit.row, rows))
                key = c.key;
        }
        s.key[number & 1][panel16_place((int)threadIdx.x + n * THREADS)] = key;
    }
}

/* Copies P of SPMM_MMA_KEYS columns from the unit's column x on, PIECE floats at a time; 0 past the
 * unit's end. Rows that do not exist are undefined. */
template <class T, int M, int N, int PIECE>
DEVICE void spmm_mma_fetch_pieces(float *to, const struct spmm_mma_unit<T> &unit, int64_t x) {
    constexpr int PIECES = SPMM_MMA_KEYS / PIECE, STEP = spmm_mma_shape<M, N>::THREADS / PIECES;
    const int row = (int)threadIdx.x / PIECES, column = (int)threadIdx.x % PIECES * PIECE;
    const int64_t width = unit.block_row.width, left = unit.block_row.rows - unit.row - row;
    const bool wanted = x + column < unit.width;
    const float *from = unit.block_row.scores;
    if (wanted)
        from += (unit.row + row) * width + unit.column + x + column;
    const uint32_t at = shared_address(to + panel_f32_at<SPMM_MMA_KEYS>(row, column));
#pragma unroll
    for (int i = 0; i < M / STEP; i++) {
        const uint32_t place = at + i * STEP * SPMM_MMA_KEYS * (int)sizeof(float);
        if (i * STEP < left && PIECE == 4)
            cp_async_16(place, from, wanted);
        if (i * STEP < left && PIECE == 1)
            cp_async_4(place, from, wanted);
        from += wanted ? STEP * width : 0;
    }
}

/* Fetches P, and V, of a step, if there is one. */
template <class T, int M, int N>
DEVICE void spmm_mma_fetch_p(struct spmm_mma_shared<T, M, N> &s, int64_t step, int stage) {
    const struct spmm_mma_unit<T> &unit = s.unit;
    const int64_t x = step * SPMM_MMA_KEYS;
    if (x >= unit.width)
        return;
    if (unit.aligned_p)
        spmm_mma_fetch_pieces<T, M, N, 4>(s.prob[stage], unit, x);
    else
        spmm_mma_fetch_pieces<T, M, N, 1>(s.prob[stage], unit, x);
}
template <class T, int M, int N>
DEVICE void spmm_mma_fetch_v(struct spmm_mma_shared<T, M, N> &s, const struct staged_params &p,
                             int64_t step, int stage) {
    constexpr int WINDOW = PANEL16_KEYS / SPMM_MMA_KEYS;
    const struct spmm_mma_unit<T> &unit = s.unit;
    const int64_t x = step * SPMM_MMA_KEYS;
    if (x >= unit.width)
        return;
    const int at = (int)(step % WINDOW), window = (int)(step / WINDOW & 1);
    if (at == 0 && x + PANEL16_KEYS < unit.width)
        spmm_mma_look_up(s, p, step / WINDOW + 1);
    panel16_gather<T, SPMM_MMA_KEYS, N / PANEL16_WIDTH, spmm_mma_shape<M, N>::THREADS>(
        s.v[stage], unit.v, s.key[window] + at * SPMM_MMA_KEYS, unit.dim, unit.aligned_v);
}

/* P of 16 keys as an A operand: the row at `from`, and the row 8 further. any[0], any[1]: OR of the
 * two rows' bits. */
template <class T>
DEVICE void spmm_mma_operand(uint32_t (&to)[4], uint32_t *any, const float *from, float scale, T) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 x = *reinterpret_cast<const float4 *>(from + 8 * i * SPMM_MMA_KEYS);
        to[i] = mma_pack(x.x * scale, x.y * scale, T());
        to[i + 2] = mma_pack(x.z * scale, x.w * scale, T());
        any[i] |= to[i] | to[i + 2];
    }
}

/* part += P V for a warp's rows and dims (mma.sync). any[i]: OR of the bits of P of row 8i + g. */
template <class T, int M, int N>
DEVICE void spmm_mma_multiply(typename spmm_mma_shape<M, N>::sums &part, uint32_t *any,
                              const float *prob, const T *v, int row, int dim, float scale) {
    typedef spmm_mma_shape<M, N> shape;
    const int lane = warp_lane_here();
    const int at_p = panel_f32_at<SPMM_MMA_KEYS>(row + lane / 4, lane % 4 * 4);
    const uint32_t at_v =
        panel16_at(shared_address(v) + dim / PANEL16_WIDTH * SPMM_MMA_KEYS * PANEL16_STRIDE,
                   lane % 16, dim % PANEL16_WIDTH / 8 + lane / 16);
#pragma unroll
    for (int k = 0; k < SPMM_MMA_KEYS; k += 16) {
        uint32_t a[shape::ROWS / 16][4];
#pragma unroll
        for (int i = 0; i < shape::ROWS / 16; i++)
            spmm_mma_operand(a[i], any + 2 * i, prob + (at_p ^ k) + 16 * i * SPMM_MMA_KEYS, scale,
                             T());
#pragma unroll
        for (int j = 0; j < shape::DIMS / 8; j += 2) {
            uint32_t b[4]; /* B of two MMAs */
            ldmatrix_transposed(b, (at_v ^ j << 4) + k * PANEL16_STRIDE);
#pragma unroll
            for (int i = 0; i < shape::ROWS / 16; i++) {
                mma_sync(part[i][j], a[i], b, T());
                mma_sync(part[i][j + 1], a[i], b + 2, T());
            }
        }
    }
}

/* WGMMA likewise: begin issues, end waits. */
template <class T, int M, int N>
DEVICE void spmm_mma_begin(typename spmm_mma_shape<M, N>::sums &part, uint32_t *any,
                           const float *prob, const T *v, int row, float scale) {
    float(&flat)[N / 2] = reinterpret_cast<float(&)[N / 2]>(part);
    const int lane = warp_lane_here();
    const int at_p = panel_f32_at<SPMM_MMA_KEYS>(row + lane / 4, lane % 4 * 4);
    uint32_t a[SPMM_MMA_KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < SPMM_MMA_KEYS; k += 16) {
        spmm_mma_operand(a[k / 16], any, prob + (at_p ^ k), scale, T());
        wgmma_fence();
        wgmma_rs(flat, a[k / 16],
                 wgmma_mn_major(panel16_wgmma_address(v) + k * PANEL16_STRIDE,
                                SPMM_MMA_KEYS * PANEL16_STRIDE),
                 1, T());
    }
    wgmma_commit();
}
template <int M, int N> DEVICE void spmm_mma_end(typename spmm_mma_shape<M, N>::sums &part) {
    wgmma_wait<0>();
    wgmma_fence_operand(reinterpret_cast<float(&)[N / 2]>(part));
}

template <class T, int M, int N>
DEVICE void spmm_mma_compute(struct spmm_mma_shared<T, M, N> &s, const struct staged_params &p) {
    const struct spmm_mma_unit<T> &unit = s.unit;
    typedef spmm_mma_shape<M, N> shape;
    constexpr int AHEAD = shape::STAGES - 1;
    const float scale = spmm_scale(p, T());
    const int warp = (int)threadIdx.x / 32;
    const int row = warp / shape::WARPS_N * shape::ROWS, dim = warp % shape::WARPS_N * shape::DIMS;
    const int64_t steps = (unit.width + SPMM_MMA_KEYS - 1) / SPMM_MMA_KEYS;
    for (int step = 0; step < AHEAD; step++)
        spmm_mma_fetch_p(s, step, step);
    spmm_mma_look_up(s, p, 0);
    __syncthreads();
    for (int step = 0; step < AHEAD; step++) {
        spmm_mma_fetch_v(s, p, step, step);
        cp_async_commit();
    }
    typename shape::sums sum = {};
    uint32_t any[shape::ROWS / 8] = {};
    int stage = 0;
    for (int64_t step = 0; step < steps;) {
        typename shape::sums part = {};
        do {
            cp_async_wait<AHEAD - 1>();
            if constexpr (shape::WGMMA)
                panel16_proxy_fence();
            __syncthreads();
            if constexpr (shape::WGMMA)
                spmm_mma_begin<T, M, N>(part, any, s.prob[stage], s.v[stage], row, scale);
            const int free = stage == 0 ? AHEAD : stage - 1;
            spmm_mma_fetch_p(s, step + AHEAD, free);
            spmm_mma_fetch_v(s, p, step + AHEAD, free);
            cp_async_commit();
            if constexpr (shape::WGMMA)
                spmm_mma_end<M, N>(part);
            else
                spmm_mma_multiply<T, M, N>(part, any, s.prob[stage], s.v[stage], row, dim, scale);
            stage = stage == AHEAD ? 0 : stage + 1;
        } while (++step < steps && step % (CUDA_CHUNK / SPMM_MMA_KEYS) != 0);
#pragma unroll
        for (int i = 0; i < shape::ROWS / 16; i++)
#pragma unroll
            for (int j = 0; j < shape::DIMS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[i][j][e] += part[i][j][e];
    }
    if (cluster_size() > 1 && !spmm_mma_combine<shape>(sum, any, &s.prob[0][0]))
        return;
    const head_view<T> o = head_of<T>(p, p.o, unit.block_row.b, unit.block_row.h, p.d_v);
    spmm_mma_store<T, shape>(sum, any, unit.block_row, o, unit.row + row, unit.dim + dim, p);
}

/* Units of one row of tiles are neighbours; a cluster has one unit. */
template <class T, int M, int N>
static __global__ void __launch_bounds__(spmm_mma_shape<M, N>::THREADS,
                                         spmm_mma_shape<M, N>::BLOCKS)
    spmm_mma(const __grid_constant__ struct staged_params p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    struct spmm_mma_shared<T, M, N> &s =
        *reinterpret_cast<struct spmm_mma_shared<T, M, N> *>(memory);
    const int64_t row_units = (p.height + M - 1) / M, dim_units = (p.d_v + N - 1) / N;
    const uint32_t number = blockIdx.x / cluster_size();
    const int64_t of_rows = number / dim_units, item = of_rows / row_units;
    const int64_t row = (of_rows - item * row_units) * M;
    const struct block_row block_row = block_row_of(p, item);
    if (row >= block_row.rows)
        return;
    if (threadIdx.x == 0)
        s.unit = spmm_mma_unit_of<T>(p, block_row, row, (int32_t)(number % dim_units) * N);
    __syncthreads();
    spmm_mma_compute<T, M, N>(s, p);
}

/* ---- launching ---- */

/* CTAs that share the keys of a unit, where units are too few for a device of `blocks` CTAs a multiprocessor
 * (docs/notes/staged.md, "Tiles and clusters"). */
static inline int spmm_mma_cluster(const struct staged_params *p, int64_t units, int blocks) {
    const int64_t held = (int64_t)p->multiprocessors * blocks, chunks = p->columns / CUDA_CHUNK;
    const int most = p->architecture >= CLUSTER_ARCHITECTURE ? SPMM_MMA_CLUSTER : 1;
    int cluster = 1;
    while (cluster < most && 2 * cluster * units < 3 * held && chunks >= 4 * cluster * p->n_items)
        cluster *= 2;
    return cluster;
}

template <class T, int M, int N>
static cudaError_t spmm_mma_launch_tile(const struct staged_params *p, cudaStream_t stream) {
    const int64_t units = p->n_items * ((p->height + M - 1) / M) * ((p->d_v + N - 1) / N);
    const int cluster = spmm_mma_cluster(p, units, spmm_mma_shape<M, N>::BLOCKS);
    return cluster_launch<(int)sizeof(struct spmm_mma_shared<T, M, N>)>(
        spmm_mma<T, M, N>, units * cluster, cluster, spmm_mma_shape<M, N>::THREADS, p, stream);
}

/* A tile as high as the block row. V is gathered once for all rows of a tile
 * (docs/notes/staged.md, "Tiles and clusters"). */
template <class T, int N>
static cudaError_t spmm_mma_launch_tiles(const struct staged_params *p, cudaStream_t stream) {
    static const struct grid_instance instances[] = {
        {16, sizeof(struct spmm_mma_shared<T, 16, N>), spmm_mma_launch_tile<T, 16, N>},
        {32, sizeof(struct spmm_mma_shared<T, 32, N>), spmm_mma_launch_tile<T, 32, N>},
        {64, sizeof(struct spmm_mma_shared<T, 64, N>), spmm_mma_launch_tile<T, 64, N>},
        {128, sizeof(struct spmm_mma_shared<T, 128, N>), spmm_mma_launch_tile<T, 128, N>},
    };
    return grid_launch_instance(instances, sizeof instances / sizeof *instances, p->height, p,
                                stream);
}

template <class T>
static cudaError_t spmm_mma_launch(const struct staged_params *p, cudaStream_t stream) {
    return p->d_v <= 64 ? spmm_mma_launch_tiles<T, 64>(p, stream)
                        : spmm_mma_launch_tiles<T, 128>(p, stream);
}

#endif
