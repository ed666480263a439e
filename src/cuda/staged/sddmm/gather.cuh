/*
 * Stage 1, SDDMM: scores = scale Q K^T on the listed tiles, -Inf where masked and past the last
 * key. f32 at every height of block rows; 16-bit types where a block row has at most 8 queries.
 *
 *   S^T [32 keys, 8 TILES queries] = K [32, d] Q [8 TILES, d]^T      a warp, mma.sync
 *
 * Loads from L2 are the limit: a key serves the few rows of one block row. So nothing is staged. A warp loads
 * keys from L2 into the registers that MMAs read, 16 bytes a lane, the next dims during these MMAs. Queries
 * come from L1. Keys are the 16 rows of an MMA and queries its 8 columns, so that 8 x 8 blocks fill it.
 *
 * A unit is a part of a block row by 8 TILES rows. One thread block computes it; its warps
 * alternate over the columns. A score depends on its own query and key only, so keys that no row
 * lists may be read: their scores are replaced by -Inf.
 */
#ifndef TESSERA_CUDA_SDDMM_CUH
#define TESSERA_CUDA_SDDMM_CUH

#include "device/architecture.cuh"
#include "device/blocks.cuh"
#include "device/fragment.cuh"
#include "device/words.cuh"
#include "staged/block_row.cuh"
#include "staged/grid.cuh"

#define SDDMM_THREADS 128
#define SDDMM_COLUMNS 32 /* columns of a warp */
#define SDDMM_UNITS                                                                                \
    2048 /* units that a launch aims at: several for each resident warp of a device */
#define SDDMM_SPAN_MAX 16
#define SDDMM_RUN 8 /* 16-bit types: most consecutive chunks of a thread block */
#define SDDMM_FEW 8 /* FEW: most warps of a multiprocessor, as many as its registers allow */

/* ---- units ---- */

/* log2 of the chunks of a unit. Many chunks keep queries in L1, and resident thread blocks sweep
 * the keys together; few keep the number of units high. */
static __host__ __device__ __forceinline__ int sddmm_span_log2(const struct staged_params &p) {
    int log2 = 0;
    while ((2 << log2) <= SDDMM_SPAN_MAX &&
           p.columns / CUDA_CHUNK + p.n_items > (int64_t)SDDMM_UNITS << (log2 + 1))
        log2++;
    return log2;
}

/* Places: items one after the other, each with at least one place for each span of chunks. */
DEVICE int64_t sddmm_place(const struct staged_params &p, int64_t item, int span_log2) {
    return item + (p.image.chunks[item] >> span_log2);
}

/* The item that holds a place, by all lanes of a warp (see warp_find). */
DEVICE int64_t sddmm_item(const struct staged_params &p, int64_t place, int span_log2) {
    int64_t low = 0, count = p.n_items;
    while (count > 1) {
        const int64_t step = (count + 31) / 32, at = warp_lane() * step;
        const unsigned below =
            __ballot_sync(WARP_ALL, at < count && sddmm_place(p, low + at, span_log2) <= place);
        const int64_t skipped = (__popc(below) - 1) * step;
        low += skipped;
        count = count - skipped < step ? count - skipped : step;
    }
    return low;
}

/* ---- work ranges of persistent thread blocks ---- */

/* Work of a thread block: M rows from `row` on, of `count` chunks in `rounds` runs. Every
 * `stride`-th run from run `first` on is taken, so that resident thread blocks sweep the keys
 * together. A run has `each` chunks, the first `longer` runs one more; `more` of those are this
 * block's. Keys have `panels` panels of 64 dims. */
struct sddmm_range {
    int64_t row, first, stride, longer;
    int each, rounds, more, count, panels;
};

/* Thread blocks with the same run, for different M rows, are neighbours. */
template <int M> DEVICE struct sddmm_range sddmm_range_of(const struct staged_params &p) {
    const uint32_t row_units = (uint32_t)((p.height + M - 1) / M);
    const int64_t chunks = p.image.chunks[p.n_items];
    struct sddmm_range range;
    range.row = (int64_t)(blockIdx.x % row_units) * M;
    range.first = blockIdx.x / row_units;
    range.stride = gridDim.x / row_units;
    const int64_t most = range.stride * SDDMM_RUN;
    range.rounds = (int)max((chunks + most - 1) / most, (int64_t)1);
    const int64_t runs = range.stride * range.rounds;
    range.each = (int)(chunks / runs);
    range.longer = chunks - runs * range.each;
    range.more = (int)((range.longer - range.first + range.stride - 1) / range.stride);
    range.count = range.rounds * range.each + range.more;
    range.panels = (p.d_qk + 63) / 64;
    return range;
}

/* ---- a warp's 32 columns ---- */

/* Addresses of a lane. With g = lane / 4, t = lane % 4, a lane loads pieces t, t + 4, ... of keys g
 * + 8 i and of queries g + 8 j. sum[i][j][e] is the score of key 16 i + g + 8 (e / 2) and query 8 j
 * + 2 t + e % 2. */
template <class T> struct sddmm_rows {
    const T *k[4];
    const T *q; /* query g, or the last */
    int64_t q_stride;
    int64_t q_left; /* queries after it */
    int32_t d;
};

template <class T>
DEVICE head_view<T> sddmm_q(const struct staged_params &p, const struct block_row &s) {
    return head_of<T>(p, p.q, s.b, s.h, p.d_qk);
}
template <class T>
DEVICE head_view<T> sddmm_k(const struct staged_params &p, const struct block_row &s) {
    return head_of<T>(p, p.k, s.b, head_kv_of(p, s), p.d_qk);
}

/* Queries times q_scale; 0 past the last dim, where `there` is false. */
DEVICE void sddmm_scale_q(struct words &w, float scale, bool exists, float) {
    scale = exists ? scale : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        w.x[i] = __float_as_uint(__uint_as_float(w.x[i]) * scale);
}
DEVICE void sddmm_scale_q(struct words &w, float scale, bool exists, __nv_bfloat16) {
    scale = exists ? scale : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float low = __uint_as_float(w.x[i] << 16) * scale;
        const float high = __uint_as_float(w.x[i] & 0xffff0000u) * scale;
        const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
        w.x[i] = *reinterpret_cast<const uint32_t *>(&both);
    }
}
/* f16: scaled afterwards. Sums of f16 cannot overflow, and small elements would lose bits. */
DEVICE void sddmm_scale_q(struct words &w, float, bool exists, __half) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        w.x[i] = exists ? w.x[i] : 0;
}
DEVICE float sddmm_scale(const struct staged_params &p, __half) {
    return p.q_scale * p.score_scale;
}
template <class T> DEVICE float sddmm_scale(const struct staged_params &p, T) {
    return p.score_scale;
}

/* sum += the MMAs of one piece of each key with the same piece of the queries. */
template <class T, int TILES, bool WHOLE>
DEVICE void sddmm_multiply(float (&sum)[2][TILES][4], const struct fragment<T, 4> (&a)[2][2],
                           const struct sddmm_rows<T> &rows, int32_t at, float q_scale) {
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        const T *row = rows.q + min((int64_t)(8 * j), rows.q_left) * rows.q_stride;
        struct words q = words_load<T, WHOLE>(row, rows.d, at, true);
        sddmm_scale_q(q, q_scale, at < rows.d, T());
        const struct fragment<T, 2> b[2] = {
            fragment_of({q.x[0], q.x[1]}, T()), fragment_of({q.x[2], q.x[3]}, T())
        };
        fragment_multiply<true>(sum[0][j], a[0], b);
        fragment_multiply<true>(sum[1][j], a[1], b);
    }
}

/* Loads the first AHEAD pieces of each key. */
template <class T, int AHEAD, bool WHOLE>
DEVICE void sddmm_begin(struct words (&k)[AHEAD][4], const struct sddmm_rows<T> &rows) {
    constexpr int N = words_elements<T>();
#pragma unroll
    for (int n = 0; n < AHEAD; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            k[n][i] =
                words_load<T, WHOLE>(rows.k[i], rows.d, (warp_lane() % 4 + 4 * n) * N, AHEAD == 1);
}

/* Computes the scores of 32 keys, whose first AHEAD pieces are in flight. */
template <class T, int TILES, int AHEAD, bool WHOLE>
DEVICE void sddmm_scores(float (&sum)[2][TILES][4], struct words (&k)[AHEAD][4],
                         const struct sddmm_rows<T> &rows, float q_scale) {
    constexpr int STEP = 4 * words_elements<T>();
#pragma unroll 1
    for (int32_t d = 0; d < rows.d; d += AHEAD * STEP) {
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int32_t at = d + n * STEP + warp_lane() % 4 * words_elements<T>();
            struct fragment<T, 4> a[2][2];
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int s = 0; s < 2; s++)
                    a[i][s] = fragment_of({k[n][2 * i].x[2 * s], k[n][2 * i + 1].x[2 * s],
                                           k[n][2 * i].x[2 * s + 1], k[n][2 * i + 1].x[2 * s + 1]},
                                          T());
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (d + (n + AHEAD) * STEP < rows.d)
                    k[n][i] =
                        words_load<T, WHOLE>(rows.k[i], rows.d, at + AHEAD * STEP, AHEAD == 1);
            sddmm_multiply<T, TILES, WHOLE>(sum, a, rows, at, q_scale);
        }
    }
}

/* Rows of the keys of columns x ... x + 31; another key's where there is none. */
template <class T>
DEVICE void sddmm_keys(struct sddmm_rows<T> &rows, const struct staged_params &p,
                       const struct block_row &s, const head_view<T> &k, uint32_t x, uint32_t end) {
    x += warp_lane();
    const int32_t key = x < end ? max(column_of(p, s, x).key, 0) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        rows.k[i] = row_of(k, __shfl_sync(WARP_ALL, key, warp_lane() / 4 + 8 * i)).data;
}

/* Stores scores from column x on, rows from `row` on. Answers whether this lane stored NaN. */
template <int TILES>
DEVICE bool sddmm_store(const float (&sum)[2][TILES][4], const struct staged_params &p,
                        const struct block_row &s, int64_t row, uint32_t x, uint32_t end,
                        float scale) {
    bool bad = false;
    row += warp_lane() % 4 * 2;
    x += warp_lane() / 4;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        if (x + 8 * c >= end)
            break;
        const struct column column = column_of(p, s, x + 8 * c);
        float *to = s.scores + row * s.width + x + 8 * c;
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int64_t r = row + 8 * j + e;
                if (r >= s.rows)
                    continue;
                const float score = column_lists(p, column.first, column.last, column.bit, r)
                                        ? sum[c / 2][j][c % 2 * 2 + e] * scale
                                        : -INFINITY;
                bad |= isnan(score);
                __stcs(&to[(8 * j + e) * s.width], score); /* keeps L2 for keys */
            }
    }
    return bad;
}

/* Recomputes scores that are NaN, one by one. Infinities cannot be split into parts
 * (device/fragment.cuh), and their MMA with zeros past the last dim gives NaN. Each lane checks the
 * scores that it stored. */
template <class T, int TILES>
DEVICE void sddmm_recompute_nan(const struct staged_params &p, const struct block_row &s,
                                int64_t row, uint32_t x, uint32_t end) {
    const int g = warp_lane() / 4, t = warp_lane() % 4;
#pragma unroll 1
    for (int c = 0; c < 4 * 2 * TILES; c++) {
        const int64_t r = row + c / 8 * 8 + 2 * t + c % 2, column = x + g + 8 * (c / 2 % 4);
        if (r >= s.rows || column >= end)
            continue;
        float *to = s.scores + r * s.width + column;
        if (!isnan(*to))
            continue;
        const row_view<T> query = row_of(sddmm_q<T>(p, s), s.first + r);
        const row_view<T> key = row_of(sddmm_k<T>(p, s), column_of(p, s, column).key);
        double sum = 0;
#pragma unroll 1
        for (int32_t d = 0; d < query.d; d++)
            sum += (double)to_f32(query.data[d]) * to_f32(key.data[d]);
        *to = (float)(sum * p.q_scale * p.score_scale);
    }
}

/* ---- the kernel ---- */

/* FEW: all warps of the launch are resident at once. Loads in sequence then bound the time, so a
 * warp has more of them in flight, as registers allow. */
template <class T, int TILES, bool WHOLE, bool FEW>
static __global__ void
__launch_bounds__(SDDMM_THREADS, FEW || (TILES == 4 && !WHOLE) || ARCHITECTURE_AFTER ? 2 : 3)
    sddmm_gather(const __grid_constant__ struct staged_params p) {
    constexpr int ROWS = 8 * TILES, AHEAD = FEW && ARCHITECTURE_FITTED ? 4 : TILES == 1 ? 2 : 1;
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32;
    __shared__ struct block_row block_rows[SDDMM_THREADS / 32];
    struct block_row &s = block_rows[warp];
    const int64_t row_units = (p.height + ROWS - 1) / ROWS;
    const int64_t place = blocks_unit() / row_units;
    const int64_t row = (blocks_unit() - place * row_units) * ROWS;
    const int span_log2 = sddmm_span_log2(p);
    if (place >= sddmm_place(p, p.n_items, span_log2))
        return;
    const int64_t item = sddmm_item(p, place, span_log2);
    const int64_t span = place - sddmm_place(p, item, span_log2);
    block_row_to_shared(s, block_row_of(p, item));
    if (row >= s.rows)
        return;
    /* A block row is narrower than 2^32. */
    const uint32_t end = (uint32_t)min(((span + 1) * CUDA_CHUNK) << span_log2, s.width);
    uint32_t x = (uint32_t)((span * CUDA_CHUNK) << span_log2) + SDDMM_COLUMNS * warp;
    if (x >= end)
        return;
    const int64_t query = min(row + lane / 4, s.rows - 1);
    struct sddmm_rows<T> rows;
    rows.d = p.d_qk;
    rows.q = row_of(sddmm_q<T>(p, s), s.first + query).data;
    rows.q_stride = p.q.stride[2];
    rows.q_left = s.rows - 1 - query;
    const head_view<T> k = sddmm_k<T>(p, s);
    struct words ahead[AHEAD][4];
    sddmm_keys(rows, p, s, k, x, end);
    sddmm_begin<T, AHEAD, WHOLE>(ahead, rows);
    while (x < end) {
        const uint32_t at = x;
        float sum[2][TILES][4] = {};
        sddmm_scores<T, TILES, AHEAD, WHOLE>(sum, ahead, rows, p.q_scale);
        x += SDDMM_COLUMNS * (blockDim.x / 32);
        if (x < end) {
            sddmm_keys(rows, p, s, k, x, end);
            sddmm_begin<T, AHEAD, WHOLE>(ahead, rows);
        }
        if (sddmm_store<TILES>(sum, p, s, row, at, end, sddmm_scale(p, T())))
            sddmm_recompute_nan<T, TILES>(p, s, row, at, end);
        __syncwarp(); /* MMAs need all lanes converged */
    }
}

/* ---- launching ---- */

template <class T, int TILES>
static cudaError_t sddmm_gather_launch_tiles(const struct staged_params *p, cudaStream_t stream) {
    const int64_t row_units = (p->height + 8 * TILES - 1) / (8 * TILES);
    const int64_t places =
        p->n_items + ((p->columns / CUDA_CHUNK + p->n_items) >> sddmm_span_log2(*p));
    const int64_t width = p->columns / p->n_items; /* columns of a mean block row */
    const int warps = width <= SDDMM_COLUMNS ? 1 : width <= 2 * SDDMM_COLUMNS ? 2 : 4;
    const bool few = p->n_items * row_units * warps <= SDDMM_FEW * p->multiprocessors;
    return blocks_launch(!words_whole<T>(p->alignment, p->d_qk)
                             ? sddmm_gather<T, TILES, false, false>
                         : few ? sddmm_gather<T, TILES, true, (TILES < 4)>
                               : sddmm_gather<T, TILES, true, false>,
                         places * row_units, 32 * warps, p, stream);
}

/* The tiles that a block row fills (docs/notes/staged.md, "Tiles and clusters"). Higher block rows of
 * 16-bit types are mma.cuh's, but where this kernel is forced. */
template <class T>
static cudaError_t sddmm_gather_launch(const struct staged_params *p, cudaStream_t stream) {
    if constexpr (sizeof(T) == 4) {
        static const struct grid_instance instances[] = {
            {8, 0, sddmm_gather_launch_tiles<T, 1>},
            {16, 0, sddmm_gather_launch_tiles<T, 2>},
            {INT64_MAX, 0, sddmm_gather_launch_tiles<T, 4>},
        };
        return grid_launch_instance(instances, sizeof instances / sizeof *instances, p->height, p,
                                    stream);
    }
    return sddmm_gather_launch_tiles<T, 1>(p, stream);
}

#endif
