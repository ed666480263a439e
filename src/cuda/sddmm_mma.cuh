/*
 * Stage 1 for 16-bit types on tensor cores, where a block row has enough queries to fill a tile.
 *
 * A block takes M rows of a run of chunks of CUDA_CHUNK columns each, as far as they are of one
 * strip. Chunks pass through a ring of panels of 64 dims of their keys; the queries' panels stay
 * where they fit, else they pass with them. A step is one panel:
 *
 *   sum[M, CUDA_CHUNK] += q[M, 64] k[CUDA_CHUNK, 64]^T      keys gathered SDDMM_MMA_AHEAD steps ago
 *
 * The limit is writing the scores: 4 bytes each, for 2 d_qk operations. So they leave as 16 bytes a
 * lane where the strip's rows are aligned to that, else by way of shared memory as whole rows; that
 * way go chunks, too, of which some row does not list some column, to be masked.
 */
#ifndef TESSERA_CUDA_SDDMM_MMA_CUH
#define TESSERA_CUDA_SDDMM_MMA_CUH

#include "panel16.cuh"
#include "sddmm.cuh"

#define SDDMM_MMA_STAGES 3
#define SDDMM_MMA_AHEAD (SDDMM_MMA_STAGES - 1)
#define SDDMM_MMA_RESIDENT 2 /* panels of queries that stay in shared memory */
#define SDDMM_MMA_RUN 16     /* chunks of a run at most */
#define SDDMM_MMA_BLOCKS 4096 /* runs are shorter where there would be fewer blocks */

/* How the warps of a block share M x CUDA_CHUNK. */
template <int M> struct sddmm_mma_shape {
    static constexpr int ROWS = M < 32 ? M : 32; /* of a warp */
    static constexpr int WARPS_M = M / ROWS;
    static constexpr int WARPS_N = M < 64 ? 4 : 2;
    static constexpr int COLUMNS = CUDA_CHUNK / WARPS_N;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int BLOCKS = M > 64 ? 2 : M > 32 ? 3 : 4; /* of a multiprocessor */
    /* A warp's sums: 16 x 8 tiles. */
    typedef float sums[ROWS / 16][COLUMNS / 8][4];
};

/* A run within one strip; in shared memory, which spares registers. */
template <class T> struct sddmm_mma_run {
    struct strip strip;
    int64_t row;   /* first row */
    int64_t begin; /* first column */
    int chunks;
    int panels; /* of d_qk dims */
    head_view<T> q, k;
    bool aligned; /* rows of q and k */
};

template <class T, int M> struct sddmm_mma_shared {
    T k[SDDMM_MMA_STAGES][CUDA_CHUNK * PANEL16_WIDTH];
    struct sddmm_mma_run<T> run;
    int32_t key[2][PANEL16_KEYS];           /* in the order of panel16_place */
    uint32_t partial[2][PANEL16_KEYS / 32]; /* bit c: not all rows list column c of these 32 */
    alignas(128) T q[SDDMM_MMA_STAGES][M * PANEL16_WIDTH]; /* as many as sddmm_mma_queries says */
};

/* Panels of queries in shared memory: those that stay, or one for each stage. */
static __host__ __device__ __forceinline__ int sddmm_mma_queries(int panels) {
    return panels <= SDDMM_MMA_RESIDENT ? panels : SDDMM_MMA_STAGES;
}

/* What is applied to an operand that holds queries, as sddmm_scale_q does to words. */
static __device__ __forceinline__ void sddmm_mma_scale(uint32_t (&)[4], const struct cuda_params &,
                                                       __half) {
}
static __device__ __forceinline__ void sddmm_mma_scale(uint32_t (&a)[4],
                                                       const struct cuda_params &p,
                                                       __nv_bfloat16) {
    const __nv_bfloat162 scale = __float2bfloat162_rn(p.q_scale);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 two = *reinterpret_cast<__nv_bfloat162 *>(&a[i]);
        two = __hmul2(two, scale);
        a[i] = *reinterpret_cast<uint32_t *>(&two);
    }
}
/* Chunks first ... end - 1 of a strip. */
template <class T>
static __device__ __forceinline__ struct sddmm_mma_run<T>
sddmm_mma_run_of(const struct cuda_params &p, const struct strip &strip, int64_t row,
                 int64_t first, int64_t end) {
    struct sddmm_mma_run<T> run;
    run.strip = strip;
    run.row = row;
    run.begin = first * CUDA_CHUNK;
    run.chunks = (int)(end - first);
    run.panels = (p.d_qk + PANEL16_WIDTH - 1) / PANEL16_WIDTH;
    run.q = head_of<T>(p, p.q, strip.b, strip.h, p.d_qk);
    run.k = head_of<T>(p, p.k, strip.b, strip.h / p.heads_per_kv, p.d_qk);
    run.aligned = words_whole<T>(p.alignment, p.d_qk);
    return run;
}

/* Window `number` of the run's keys: columns PANEL16_KEYS at a time. */
template <class T, int M>
static __device__ __forceinline__ void sddmm_mma_look_up(struct sddmm_mma_shared<T, M> &s,
                                                         const struct cuda_params &p,
                                                         int number) {
    const struct sddmm_mma_run<T> &run = s.run;
    const int64_t from = run.begin + (int64_t)number * PANEL16_KEYS;
    const int64_t last_row = min(run.row + M, run.strip.rows) - 1;
    const int columns = min(PANEL16_KEYS, run.chunks * CUDA_CHUNK - number * PANEL16_KEYS);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < columns; i += sddmm_mma_shape<M>::THREADS) {
        struct column c = {-1, 0, INT32_MAX, -1};
        if (from + i < run.strip.width)
            c = column_of(p, run.strip, from + i);
        const bool whole = c.first <= run.row && last_row <= c.last && c.bit < 0;
        const uint32_t partial = __ballot_sync(WARP_ALL, !whole);
        s.key[number & 1][panel16_place(i)] = c.key;
        if (warp_lane() == 0)
            s.partial[number & 1][i / 32] = partial;
    }
}

/* A step of a run, whose panels are of one chunk after another. */
struct sddmm_mma_step {
    int chunk, panel, stage;
};

static __device__ __forceinline__ void sddmm_mma_advance(struct sddmm_mma_step &at, int panels) {
    at.stage = at.stage + 1 == SDDMM_MMA_STAGES ? 0 : at.stage + 1;
    at.panel++;
    if (at.panel == panels) {
        at.panel = 0;
        at.chunk++;
    }
}

/* Where a step's queries stand. */
static __device__ __forceinline__ int sddmm_mma_query_panel(const struct sddmm_mma_step &at,
                                                            int panels) {
    return panels <= SDDMM_MMA_RESIDENT ? at.panel : at.stage;
}

/* Starts to fetch what a step multiplies, and moves on. One batch of copies. */
template <class T, int M>
static __device__ __forceinline__ void sddmm_mma_fetch(struct sddmm_mma_shared<T, M> &s,
                                                       const struct cuda_params &p,
                                                       struct sddmm_mma_step &at) {
    constexpr int THREADS = sddmm_mma_shape<M>::THREADS, WINDOW = PANEL16_KEYS / CUDA_CHUNK;
    const struct sddmm_mma_run<T> &run = s.run;
    const int window = at.chunk / WINDOW, d = at.panel * PANEL16_WIDTH;
    if (at.chunk < run.chunks) {
        if (at.chunk % WINDOW == 0 && at.panel == 0 && at.chunk + WINDOW < run.chunks)
            sddmm_mma_look_up(s, p, window + 1);
        panel16_gather<T, CUDA_CHUNK, 1, THREADS>(
            s.k[at.stage], run.k, s.key[window & 1] + at.chunk % WINDOW * CUDA_CHUNK, d,
            run.aligned);
        if (at.chunk == 0 || run.panels > SDDMM_MMA_RESIDENT)
            panel16_rows<T, M, THREADS>(s.q[sddmm_mma_query_panel(at, run.panels)], run.q,
                                        run.strip.first + run.row, run.strip.rows - run.row, d,
                                        run.aligned);
    }
    copy_batch();
    sddmm_mma_advance(at, run.panels);
}

/* sum += q k^T: a warp's rows and columns of one panel. */
template <class T, int M>
static __device__ __forceinline__ void
sddmm_mma_multiply(typename sddmm_mma_shape<M>::sums &sum, const T *q, const T *k, int row,
                   int column, const struct cuda_params &p) {
    constexpr int TILES_M = sddmm_mma_shape<M>::ROWS / 16;
    constexpr int TILES_N = sddmm_mma_shape<M>::COLUMNS / 8;
    const int lane = warp_lane();
    const uint32_t at_q = panel16_at(shared_address(q), row + lane % 16, lane / 16);
    const uint32_t at_k =
        panel16_at(shared_address(k), column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll 2 /* all four at once spill */
    for (int d = 0; d < PANEL16_WIDTH / 16; d++) {
        uint32_t a[TILES_M][4];
#pragma unroll
        for (int i = 0; i < TILES_M; i++) {
            mma_load(a[i], (at_q ^ d << 5) + i * 16 * PANEL16_STRIDE);
            sddmm_mma_scale(a[i], p, T());
        }
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2) {
            uint32_t b[4]; /* of two tiles */
            mma_load(b, (at_k ^ d << 5) + j * 8 * PANEL16_STRIDE);
#pragma unroll
            for (int i = 0; i < TILES_M; i++) {
                mma_add(sum[i][j], a[i], b, T());
                mma_add(sum[i][j + 1], a[i], b + 2, T());
            }
        }
    }
}

/* Columns 16j + 4t ... + 3 of a warp's row 8i + g. */
template <int M>
static __device__ __forceinline__ float4
sddmm_mma_four(const typename sddmm_mma_shape<M>::sums &sum, int i, int j) {
    const float *two = sum[i / 2][2 * j] + i % 2 * 2, *next = sum[i / 2][2 * j + 1] + i % 2 * 2;
    return {two[0], two[1], next[0], next[1]};
}

/* A warp's scores to the strip, whose rows are aligned to 16 bytes. */
template <int M>
static __device__ __forceinline__ void
sddmm_mma_store(const typename sddmm_mma_shape<M>::sums &sum, const struct strip &s, int64_t row,
                int64_t column) {
    constexpr int ROWS = sddmm_mma_shape<M>::ROWS, COLUMNS = sddmm_mma_shape<M>::COLUMNS;
    const int lane = warp_lane_here();
    row += lane / 4;
    column += lane % 4 * 4;
    float *to = s.values + row * s.width + column;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++, to += 8 * s.width) {
        if (row + 8 * i >= s.rows)
            break;
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++)
            if (column + 16 * j < s.width)
                __stcs(reinterpret_cast<float4 *>(to + 16 * j), sddmm_mma_four<M>(sum, i, j));
    }
}

/* Column c of 8 rows in `space`; the first of them is row `first`, column `column` of the strip. */
template <int COLUMNS>
static __device__ __forceinline__ void sddmm_mma_store_column(const float *space,
                                                              const struct strip &s, int64_t first,
                                                              int64_t column, int c) {
    const int rows = column + c < s.width ? (int)min(s.rows - first, (int64_t)8) : 0;
    float *to = s.values + first * s.width + column + c;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        if (r >= rows)
            break;
        __stcs(to, space[panel_f32_at<COLUMNS>(r, c)]);
        to += s.width;
    }
}

/* The same, -Inf where a row does not list the column. */
template <int COLUMNS>
static __device__ __forceinline__ void
sddmm_mma_store_listed(const float *space, const struct cuda_params &p, const struct strip &s,
                       int64_t first, int64_t column, int c) {
    if (column + c >= s.width)
        return;
    const struct column listed = column_of(p, s, column + c);
#pragma unroll 1
    for (int r = 0; r < 8 && first + r < s.rows; r++)
        s.values[(first + r) * s.width + column + c] =
            column_lists(p, listed.first, listed.last, listed.bit, first + r)
                ? space[panel_f32_at<COLUMNS>(r, c)]
                : -INFINITY;
}

/* A warp's scores by way of its part of `space`, 8 rows at a time: for rows aligned to 4 bytes, and
 * where the chunk is `partial`. */
template <int M>
static __device__ __forceinline__ void
sddmm_mma_store_rows(const typename sddmm_mma_shape<M>::sums &sum, float *space,
                     const struct cuda_params &p, const struct strip &s, int64_t row,
                     int64_t column, bool partial) {
    constexpr int ROWS = sddmm_mma_shape<M>::ROWS, COLUMNS = sddmm_mma_shape<M>::COLUMNS;
    const int lane = warp_lane_here();
    space += threadIdx.x / 32 * 8 * COLUMNS;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++)
            *reinterpret_cast<float4 *>(
                &space[panel_f32_at<COLUMNS>(lane / 4, 16 * j + lane % 4 * 4)]) =
                sddmm_mma_four<M>(sum, i, j);
        __syncwarp();
        const int64_t first = row + 8 * i;
#pragma unroll 1
        for (int c = lane; c < COLUMNS; c += 32)
            if (partial)
                sddmm_mma_store_listed<COLUMNS>(space, p, s, first, column, c);
            else
                sddmm_mma_store_column<COLUMNS>(space, s, first, column, c);
        __syncwarp();
    }
}

/* A chunk's sums, scaled and masked, to the strip. `space` is the panel that was multiplied last.
 */
template <class T, int M>
static __device__ __forceinline__ void
sddmm_mma_finish(typename sddmm_mma_shape<M>::sums &sum, const struct sddmm_mma_shared<T, M> &s,
                 float *space, const struct cuda_params &p, int chunk, int row, int column) {
    typedef sddmm_mma_shape<M> shape;
    const struct sddmm_mma_run<T> &run = s.run;
    const float scale = sddmm_scale(p, T());
#pragma unroll
    for (int i = 0; i < shape::ROWS / 16; i++)
#pragma unroll
        for (int j = 0; j < shape::COLUMNS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][j][e] *= scale;
    const int64_t first_row = run.row + row;
    const int64_t first_column = run.begin + (int64_t)chunk * CUDA_CHUNK + column;
    const int at = chunk * CUDA_CHUNK;
    const uint32_t *words = &s.partial[at / PANEL16_KEYS & 1][at % PANEL16_KEYS / 32];
    const bool partial = (words[0] | words[1] | words[2] | words[3]) != 0;
    if (!partial && strip_aligned(run.strip)) {
        sddmm_mma_store<M>(sum, run.strip, first_row, first_column);
    } else {
        __syncthreads(); /* all warps have multiplied the panel */
        sddmm_mma_store_rows<M>(sum, space, p, run.strip, first_row, first_column, partial);
    }
}

template <class T, int M>
static __device__ __forceinline__ void sddmm_mma_compute(struct sddmm_mma_shared<T, M> &s,
                                                         const struct cuda_params &p) {
    typedef sddmm_mma_shape<M> shape;
    const int warp = (int)threadIdx.x / 32;
    const int row = warp / shape::WARPS_N * shape::ROWS;
    const int column = warp % shape::WARPS_N * shape::COLUMNS;
    const int panels = s.run.panels, chunks = s.run.chunks;
    sddmm_mma_look_up(s, p, 0);
    __syncthreads();
    struct sddmm_mma_step next = {0, 0, 0}, at = {0, 0, 0};
    for (int i = 0; i < SDDMM_MMA_AHEAD; i++)
        sddmm_mma_fetch(s, p, next);
    while (at.chunk < chunks) {
        typename shape::sums sum = {};
        const int chunk = at.chunk;
        int stage;
        do {
            copy_wait<SDDMM_MMA_AHEAD - 1>();
            __syncthreads();
            sddmm_mma_fetch(s, p, next);
            stage = at.stage;
            sddmm_mma_multiply<T, M>(sum, s.q[sddmm_mma_query_panel(at, panels)], s.k[stage], row,
                                     column, p);
            sddmm_mma_advance(at, panels);
        } while (at.panel > 0);
        sddmm_mma_finish<T, M>(sum, s, reinterpret_cast<float *>(s.k[stage]), p, chunk, row,
                               column);
    }
    __syncthreads(); /* before the next run's keys and panels */
}

/* Chunks of a run, by the chunks of all strips and the tiles of a block row. */
static __host__ __device__ __forceinline__ int64_t sddmm_mma_run_chunks(const struct cuda_params &p,
                                                                        int64_t row_units) {
    const int64_t chunks = p.columns / CUDA_CHUNK * row_units / SDDMM_MMA_BLOCKS;
    return chunks < 1 ? 1 : chunks > SDDMM_MMA_RUN ? SDDMM_MMA_RUN : chunks;
}

/* Units that share keys stand together. */
template <class T, int M>
static __global__ void
__launch_bounds__(sddmm_mma_shape<M>::THREADS, sddmm_mma_shape<M>::BLOCKS)
    sddmm_mma(const __grid_constant__ struct cuda_params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct sddmm_mma_shared<T, M> &s = *reinterpret_cast<struct sddmm_mma_shared<T, M> *>(memory);
    const int64_t row_units = (p.height + M - 1) / M, each = sddmm_mma_run_chunks(p, row_units);
    const int64_t chunks = p.image.chunks[p.n_items];
    int64_t chunk = blockIdx.x / row_units * each;
    const int64_t row = blockIdx.x % row_units * M, end = min(chunk + each, chunks);
    while (chunk < end) {
        const int64_t item = warp_find(p.image.chunks, p.n_items, chunk);
        const int64_t begin = p.image.chunks[item], next = min(end, p.image.chunks[item + 1]);
        const struct strip strip = strip_of(p, item);
        if (threadIdx.x == 0)
            s.run = sddmm_mma_run_of<T>(p, strip, row, chunk - begin, next - begin);
        __syncthreads();
        if (row < strip.rows)
            sddmm_mma_compute<T, M>(s, p);
        chunk = next;
    }
}

/* ---- launching ---- */

template <class T, int M>
static cudaError_t sddmm_mma_launch_tile(const struct cuda_params *p, cudaStream_t stream) {
    const int64_t row_units = (p->height + M - 1) / M, each = sddmm_mma_run_chunks(*p, row_units);
    const int panels = (p->d_qk + PANEL16_WIDTH - 1) / PANEL16_WIDTH;
    const size_t shared = sizeof(struct sddmm_mma_shared<T, M>) -
                          (size_t)(SDDMM_MMA_STAGES - sddmm_mma_queries(panels)) * M *
                              PANEL16_WIDTH * sizeof(T);
    return grid_launch_units(sddmm_mma<T, M>, (sddmm_chunks(p) + each - 1) / each * row_units,
                              sddmm_mma_shape<M>::THREADS, shared, p, stream);
}

/* A tile as high as the block row. On an H200 (b=1,h=16,n=16384,d=128,dtype=bf16, a tenth of the
 * blocks) tiles of 128, 64, 32 and 16 rows take 0.67, 0.80, 1.17 and 1.92 ms for the same number of
 * scores, each at blocks of its own size: keys are gathered once for all of a tile's rows. */
template <class T>
static cudaError_t sddmm_mma_launch(const struct cuda_params *p, cudaStream_t stream) {
    static const struct grid_tile tiles[] = {
        {8, 0, sddmm_launch_low<T>},
        {16, sizeof(struct sddmm_mma_shared<T, 16>), sddmm_mma_launch_tile<T, 16>},
        {32, sizeof(struct sddmm_mma_shared<T, 32>), sddmm_mma_launch_tile<T, 32>},
        {64, sizeof(struct sddmm_mma_shared<T, 64>), sddmm_mma_launch_tile<T, 64>},
        {128, sizeof(struct sddmm_mma_shared<T, 128>), sddmm_mma_launch_tile<T, 128>},
    };
    return grid_launch_tile(tiles, sizeof tiles / sizeof *tiles, p, stream);
}

#endif
