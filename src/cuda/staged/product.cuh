/*
 * Products of scores and rows of a tensor, in both directions, for the staged backward:
 *
 *   dQ of a block row           out [M, DIMS] = Σ scores [M, STEP]   x [STEP, DIMS]    x: keys
 *   dK, dV of a block column    out [M, DIMS] = Σ scores [STEP, M]^T x [STEP, DIMS]    x: queries
 *
 * Gradients of scores have any size and sign, and the weights of a key may all be far below what f16
 * holds. So operands are TF32: x of 16-bit types is exact in it, scores are rounded once; f32 takes
 * three products for one (device/fragment.cuh). Sums of PRODUCT_STEPS steps leave the tensor cores and are
 * added up in f32. Over keys, sums run on over the query heads that read a K/V head, in their order.
 *
 * A thread block takes M rows and DIMS dims of one tile. A step passes through shared memory, as f32:
 *
 *   places [STEP] ─► scores [STEP, M] ─► x [STEP, DIMS] ─► mma.sync
 *
 * Rows of x whose scores are 0 are not loaded, whatever they hold: no row of the unit lists them, or they are empty
 * queries.
 */
#ifndef TESSERA_CUDA_STAGED_PRODUCT_CUH
#define TESSERA_CUDA_STAGED_PRODUCT_CUH

#include "device/blocks.cuh"
#include "device/fragment.cuh"
#include "staged/grid.cuh"
#include "staged/block_row.cuh"

#define BLOCK_COLUMN DEVICE
#include "staged/block_column.h"

#define PRODUCT_THREADS 128
#define PRODUCT_BLOCKS 3 /* thread blocks of a multiprocessor */
#define PRODUCT_STEP 32  /* rows of x */
#define PRODUCT_DIMS 64
#define PRODUCT_STEPS 4 /* steps that tensor cores sum */

/* Shares of a thread block's warps in [M, DIMS], and places of elements in shared memory: fragments are read
 * without bank conflicts. */
template <int M, bool OVER_KEYS> struct product_shape {
    static constexpr int ROWS = M < 32 ? M : 32; /* rows of a warp */
    static constexpr int WARPS_M = M / ROWS, WARPS_N = PRODUCT_THREADS / 32 / WARPS_M;
    static constexpr int DIMS = PRODUCT_DIMS / WARPS_N;
    static constexpr int PITCH = PRODUCT_DIMS + 8;
    static constexpr int SCORES = OVER_KEYS ? PRODUCT_STEP * (M + 8) : M * (PRODUCT_STEP + 4);
    typedef float sums[ROWS / 16][DIMS / 8][4];
};
template <int M, bool OVER_KEYS> DEVICE int product_score_at(int k, int m) {
    return OVER_KEYS ? k * (M + 8) + m : m * (PRODUCT_STEP + 4) + k;
}

/* Row k of a step: its scores, those of neighbouring rows of the output `across` apart; and which row of
 * x it is, -1: none. */
struct product_place {
    const float *scores;
    int64_t row;
};

template <int M, bool OVER_KEYS> struct product_shared {
    struct product_place place[PRODUCT_STEP];
    float score[product_shape<M, OVER_KEYS>::SCORES];
    float4 x[PRODUCT_STEP * product_shape<M, OVER_KEYS>::PITCH / 4];
};

/* Sums of a thread: of the steps that tensor cores are at, and of all before. Bits of scores that rows g
 * and g + 8 of each 16 met. */
template <int M, bool OVER_KEYS> struct product_sums {
    typename product_shape<M, OVER_KEYS>::sums part, all;
    uint32_t met[product_shape<M, OVER_KEYS>::ROWS / 8];
    int steps;
};

/* A unit: rows row ... row + rows - 1 of a tile, dims from `dim` on. */
struct product_unit {
    int32_t b, h; /* h: over keys a K/V head */
    int64_t tile; /* over keys: block column; else a block row's number among the items */
    int64_t row;
    int32_t dim;
    bool exists;
};

template <int M, bool OVER_KEYS>
static __host__ __device__ __forceinline__ int64_t
product_row_units(const struct staged_params &p) {
    const int64_t keys = p.block_kv < p.n_kv ? p.block_kv : p.n_kv;
    return ((OVER_KEYS ? keys : p.height) + M - 1) / M;
}
static __host__ __device__ __forceinline__ int64_t product_slices(const struct staged_params &p) {
    return (p.d_v + PRODUCT_DIMS - 1) / PRODUCT_DIMS;
}
template <bool OVER_KEYS>
static __host__ __device__ __forceinline__ int64_t product_tiles(const struct staged_params &p) {
    return OVER_KEYS ? p.batch * p.heads_kv * p.cols : p.n_items;
}

/* ---- a step ---- */

DEVICE float product_operand(float score, float) {
    return score;
}
template <class T> DEVICE float product_operand(float score, T) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(score));
    return __uint_as_float(rounded);
}

template <class T, int M, bool OVER_KEYS>
DEVICE void product_load_scores(struct product_shared<M, OVER_KEYS> &shared, int rows,
                                int64_t across) {
#pragma unroll 8 /* registers */
    for (int i = 0; i < PRODUCT_STEP * M / PRODUCT_THREADS; i++) {
        const int at = i * PRODUCT_THREADS + (int)threadIdx.x;
        const int k = OVER_KEYS ? at / M : at % PRODUCT_STEP;
        const int m = OVER_KEYS ? at % M : at / PRODUCT_STEP;
        const struct product_place &place = shared.place[k];
        const float score = m < rows && place.row >= 0 ? place.scores[m * across] : 0;
        shared.score[product_score_at<M, OVER_KEYS>(k, m)] = product_operand(score, T());
    }
}

/* Sixteen threads a row, which first look whether it is wanted. */
template <class T, int M, bool OVER_KEYS>
DEVICE void product_load_rows(struct product_shared<M, OVER_KEYS> &shared, const head_view<T> &x,
                              int32_t dim) {
    constexpr int LANES = PRODUCT_DIMS / 4, AT_ONCE = PRODUCT_THREADS / LANES;
    const int lane = (int)threadIdx.x % LANES, first = (int)threadIdx.x / LANES;
    float4 four[PRODUCT_STEP / AT_ONCE];
#pragma unroll
    for (int i = 0; i < PRODUCT_STEP / AT_ONCE; i++) {
        const int k = first + i * AT_ONCE;
        uint32_t bits = 0;
#pragma unroll
        for (int m = lane; m < M; m += LANES)
            bits |= __float_as_uint(shared.score[product_score_at<M, OVER_KEYS>(k, m)]);
        const unsigned some = __ballot_sync(WARP_ALL, bits << 1 != 0) >> (warp_lane() & LANES);
        four[i] = {0, 0, 0, 0};
        if (some & 0xffff)
            four[i] = row_load4(row_of(x, shared.place[k].row), dim + 4 * lane);
    }
#pragma unroll
    for (int i = 0; i < PRODUCT_STEP / AT_ONCE; i++)
        shared.x[(first + i * AT_ONCE) * (product_shape<M, OVER_KEYS>::PITCH / 4) + lane] = four[i];
}

/* sum += A B of 8 rows of x. */
DEVICE void product_mma(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], float) {
    const struct fragment<float, 4> of_a[1] = { fragment_of(a, 0.0f) };
    const struct fragment<float, 2> of_b[1] = { fragment_of(b, 0.0f) };
    fragment_multiply<false>(sum, of_a, of_b);
}
template <class T>
DEVICE void product_mma(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], T) {
    fragment_mma_tf32(sum, a, b);
}

template <int M, bool OVER_KEYS> DEVICE void product_fold(struct product_sums<M, OVER_KEYS> &sums) {
    typedef product_shape<M, OVER_KEYS> shape;
#pragma unroll
    for (int i = 0; i < shape::ROWS / 16; i++)
#pragma unroll
        for (int j = 0; j < shape::DIMS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sums.all[i][j][e] += sums.part[i][j][e];
                sums.part[i][j][e] = 0;
            }
}

/* A warp's part of a step: rows from `row` on, dims from `dim` on. */
template <class T, int M, bool OVER_KEYS>
DEVICE void product_multiply(struct product_sums<M, OVER_KEYS> &sums,
                             const struct product_shared<M, OVER_KEYS> &shared, int row, int dim) {
    typedef product_shape<M, OVER_KEYS> shape;
    const float *x = &shared.x[0].x;
    const int g = warp_lane() / 4, t = warp_lane() % 4;
#pragma unroll(sizeof(T) == 4 ? 1 : 2)
    for (int k = 0; k < PRODUCT_STEP; k += 8) {
        uint32_t a[shape::ROWS / 16][4];
#pragma unroll
        for (int i = 0; i < shape::ROWS / 16; i++)
#pragma unroll
            for (int w = 0; w < 4; w++) {
                a[i][w] = __float_as_uint(shared.score[product_score_at<M, OVER_KEYS>(
                    k + t + w / 2 * 4, row + 16 * i + g + w % 2 * 8)]);
                sums.met[2 * i + w % 2] |= a[i][w];
            }
#pragma unroll
        for (int j = 0; j < shape::DIMS / 8; j++) {
            uint32_t b[2];
#pragma unroll
            for (int w = 0; w < 2; w++)
                b[w] = __float_as_uint(x[(k + t + 4 * w) * shape::PITCH + dim + 8 * j + g]);
#pragma unroll
            for (int i = 0; i < shape::ROWS / 16; i++)
                product_mma(sums.part[i][j], a[i], b, T());
        }
    }
    if (++sums.steps % PRODUCT_STEPS == 0)
        product_fold(sums);
}

/* ---- a list ---- */

/* Terms of a unit's sum: the columns of a block row, or the queries of a block column in one head. */
template <bool OVER_KEYS> struct product_list {
    struct block_row block_row;
    int64_t head, list, column; /* over keys */
    int64_t row;                /* first of the unit, within its tile */
    int64_t count;
};

template <bool OVER_KEYS>
DEVICE struct product_place product_place_at(const struct staged_params &p,
                                             const struct product_list<OVER_KEYS> &swept,
                                             int64_t k) {
    if (k >= swept.count)
        return {nullptr, -1};
    if (!OVER_KEYS)
        return {swept.block_row.scores + swept.row * swept.block_row.width + k,
                column_of(p, swept.block_row, k).key};
    const struct block_column_query q =
        block_column_query_at(&p, swept.head, swept.list, swept.column, k);
    return {p.scores + q.scores + swept.row, q.query};
}

/* Adds a list's products. Places of the next step are looked up while this one is multiplied: by then
 * all threads have read its own. */
template <class T, int M, bool OVER_KEYS>
DEVICE void
product_sweep(struct product_sums<M, OVER_KEYS> &sums, struct product_shared<M, OVER_KEYS> &shared,
              const struct staged_params &p, const struct product_list<OVER_KEYS> &swept,
              const head_view<T> &x, int32_t dim, int rows) {
    typedef product_shape<M, OVER_KEYS> shape;
    const int64_t across = OVER_KEYS ? 1 : swept.block_row.width;
    const int warp = (int)threadIdx.x / 32;
    const int row = warp / shape::WARPS_N * shape::ROWS,
              first = warp % shape::WARPS_N * shape::DIMS;
    if (warp == 0)
        shared.place[warp_lane()] = product_place_at(p, swept, warp_lane());
#pragma unroll 1
    for (int64_t k = 0; k < swept.count; k += PRODUCT_STEP) {
        __syncthreads(); /* places are there; the step before has been multiplied */
        product_load_scores<T>(shared, rows, across);
        __syncthreads();
        product_load_rows(shared, x, dim);
        __syncthreads();
        if (warp == 0)
            shared.place[warp_lane()] = product_place_at(p, swept, k + PRODUCT_STEP + warp_lane());
        __syncwarp();
        product_multiply<T>(sums, shared, row, first);
    }
}

/* ---- results ---- */

template <class Out>
DEVICE void product_store_two(Out *to, int32_t left, bool pairs, float x, float y) {
    struct alignas(2 * sizeof(Out)) {
        Out x, y;
    } two;
    from_f32(&two.x, x);
    from_f32(&two.y, y);
    if (pairs && left > 1) {
        *reinterpret_cast<decltype(two) *>(to) = two;
        return;
    }
    if (left > 0)
        to[0] = two.x;
    if (left > 1)
        to[1] = two.y;
}

/* Stores a warp's rows. One that met no score but 0 is 0, whatever the others' x held. */
template <class Out, int M, bool OVER_KEYS>
DEVICE void product_store(const struct product_sums<M, OVER_KEYS> &sums,
                          const struct staged_params &p, const struct product_unit &unit,
                          int64_t first, int rows) {
    typedef product_shape<M, OVER_KEYS> shape;
    const int warp = (int)threadIdx.x / 32;
    const int row = warp / shape::WARPS_N * shape::ROWS + warp_lane() / 4;
    const int dim = warp % shape::WARPS_N * shape::DIMS + warp_lane() % 4 * 2;
    const bool pairs = p.alignment >= 2 * (int)sizeof(Out);
#pragma unroll
    for (int i = 0; i < shape::ROWS / 8; i++) {
        uint32_t met = sums.met[i];
        met |= __shfl_xor_sync(WARP_ALL, met, 1);
        met |= __shfl_xor_sync(WARP_ALL, met, 2);
        if (row + 8 * i >= rows)
            continue;
        const bool empty = met << 1 == 0;
        Out *to = static_cast<Out *>(p.o.data) + unit.b * p.o.stride[0] + unit.h * p.o.stride[1] +
                  (first + row + 8 * i) * p.o.stride[2];
#pragma unroll
        for (int j = 0; j < shape::DIMS / 8; j++) {
            const int32_t d = unit.dim + dim + 8 * j;
            const float *two = &sums.all[i / 2][j][i % 2 * 2];
            product_store_two(to + d, p.d_v - d, pairs, empty ? 0 : two[0], empty ? 0 : two[1]);
        }
    }
}

/* ---- the kernel ---- */

template <int M, bool OVER_KEYS>
DEVICE struct product_unit product_unit_of(const struct staged_params &p) {
    const int64_t slices = product_slices(p), row_units = product_row_units<M, OVER_KEYS>(p);
    const int64_t at = blocks_unit() / slices, tile = at / row_units;
    struct product_unit unit = {0,
                                0,
                                tile,
                                at % row_units * M,
                                (int32_t)(blocks_unit() % slices) * PRODUCT_DIMS,
                                tile < product_tiles<OVER_KEYS>(p)};
    if (OVER_KEYS) {
        const int64_t head = tile / p.cols;
        unit.tile = tile % p.cols;
        unit.b = (int32_t)(head / p.heads_kv);
        unit.h = (int32_t)(head % p.heads_kv);
    }
    return unit;
}

template <class T, int M>
DEVICE void product_row(struct product_sums<M, false> &sums,
                        struct product_shared<M, false> &shared, const struct staged_params &p,
                        struct product_unit &unit, int64_t *first, int *rows) {
    struct product_list<false> swept = {
        block_row_of(p, unit.tile), 0, 0, 0, unit.row, 0
    };
    swept.count = swept.block_row.width;
    unit.b = swept.block_row.b;
    unit.h = swept.block_row.h;
    *first = swept.block_row.first + unit.row;
    *rows = (int)min((int64_t)M, swept.block_row.rows - unit.row);
    const head_view<T> x = head_of<T>(p, p.v, unit.b, head_kv_of(p, swept.block_row), p.d_v);
    if (*rows > 0)
        product_sweep<T>(sums, shared, p, swept, x, unit.dim, *rows);
}

template <class T, int M>
DEVICE void product_column(struct product_sums<M, true> &sums,
                           struct product_shared<M, true> &shared, const struct staged_params &p,
                           const struct product_unit &unit, int64_t *first, int *rows) {
    const int64_t begin = unit.tile * p.block_kv;
    *first = begin + unit.row;
    *rows = (int)min((int64_t)M, min(p.block_kv - unit.row, p.n_kv - *first));
#pragma unroll 1
    for (int32_t i = 0; i<p.heads_per_kv && * rows> 0; i++) {
        const int32_t h = unit.h * p.heads_per_kv + i;
        struct product_list<true> swept = {};
        swept.head = (int64_t)unit.b * p.heads_q + h;
        swept.list = p.image.list_of[swept.head];
        swept.column = unit.tile;
        swept.row = unit.row;
        swept.count = block_column_queries(&p, swept.list, swept.column);
        const head_view<T> x = head_of<T>(p, p.v, unit.b, h, p.d_v);
        product_sweep<T>(sums, shared, p, swept, x, unit.dim, *rows);
    }
}

template <class T, int M, bool OVER_KEYS>
static __global__ void __launch_bounds__(PRODUCT_THREADS, PRODUCT_BLOCKS)
    product(const __grid_constant__ struct staged_params p) {
    __shared__ struct product_shared<M, OVER_KEYS> shared;
    struct product_unit unit = product_unit_of<M, OVER_KEYS>(p);
    struct product_sums<M, OVER_KEYS> sums = {};
    int64_t first; /* row of the output */
    int rows;
    if (!unit.exists)
        return;
    if constexpr (OVER_KEYS)
        product_column<T>(sums, shared, p, unit, &first, &rows);
    else
        product_row<T>(sums, shared, p, unit, &first, &rows);
    product_fold(sums);
    if (sizeof(T) == 4 || p.wide)
        product_store<float>(sums, p, unit, first, rows);
    else
        product_store<T>(sums, p, unit, first, rows);
}

/* ---- launching ---- */

template <class T, int M, bool OVER_KEYS>
static cudaError_t product_launch_tiles(const struct staged_params *p, cudaStream_t stream) {
    return blocks_launch(product<T, M, OVER_KEYS>,
                         product_tiles<OVER_KEYS>(*p) * product_row_units<M, OVER_KEYS>(*p) *
                             product_slices(*p),
                         PRODUCT_THREADS, p, stream);
}

/* Tiles of 16 or 64 rows, as blocks fill them. */
template <class T, bool OVER_KEYS>
static cudaError_t product_launch(const struct staged_params *p, cudaStream_t stream) {
    return (OVER_KEYS ? p->block_kv : p->height) > 16
               ? product_launch_tiles<T, 64, OVER_KEYS>(p, stream)
               : product_launch_tiles<T, 16, OVER_KEYS>(p, stream);
}

#endif
