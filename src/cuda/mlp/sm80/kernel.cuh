/*
 * The MLP's products by mma.sync, for every GPU from sm_80. A CTA computes 64 rows of a tile times 128 columns, in
 * steps of 64 that are copied by cp.async while the step before is multiplied:
 *
 *   UP     A [64 rows, 64] of x, rows as stored       B [128 listed columns, 64] of W1, likewise
 *   DOWN   A [64 places, 64 rows] of the values       B [64 places, 128] of W2, in two panels
 *
 * All panels have rows of 128 bytes in the 128-byte swizzle. UP reads them by ldmatrix, DOWN by ldmatrix with .trans.
 * Four warps have 32 rows and 64 columns each.
 */
#ifndef TESSERA_CUDA_MLP_SM80_KERNEL_CUH
#define TESSERA_CUDA_MLP_SM80_KERNEL_CUH

#include "device/copy.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/swizzle.cuh"
#include "device/warp.cuh"
#include "mlp/tile.cuh"
#include "work/launch.cuh"

#define MLP_SM80_ROWS 64
#define MLP_SM80_WIDTH 128
#define MLP_SM80_STEP 64
#define MLP_SM80_THREADS 128
#define MLP_SM80_PANEL 8192                   /* bytes of 64 rows of 128 bytes */
#define MLP_SM80_STAGE (3 * MLP_SM80_PANEL)   /* A, then B */
#define MLP_SM80_COLUMNS (2 * MLP_SM80_STAGE) /* columns of a part of h, behind two stages */
#define MLP_SM80_SHARED (MLP_SM80_COLUMNS + 4 * MLP_SM80_WIDTH)

/* A CTA's part of a tile: rows from `row` on, and columns from `begin` on. */
struct mlp_sm80_part {
    struct mlp_tile tile;
    int32_t row, begin;
};

/* ---- copies: eight threads a row of 128 bytes, sixteen rows at a time ---- */

template <class T, bool DOWN>
DEVICE void mlp_sm80_load(uint32_t stage, const struct mlp_params &p,
                          const struct mlp_sm80_part &part, const int32_t *columns, int32_t k) {
    const struct attention_params &run = p.lists.run;
    const struct mlp_tile &tile = part.tile;
    const int first = (int)threadIdx.x / 8, piece = (int)threadIdx.x % 8;
    const uint32_t to = stage + first * 128 + swizzle_piece(first, piece);
    const bool inside = k + 8 * piece < run.d_qk;
    const T *const w1 = reinterpret_cast<const T *>(attention_head<T>(run.k, tile.batch, 0)) + k;
    const T *const w2 = reinterpret_cast<const T *>(attention_head<T>(run.v, tile.batch, 0));
#pragma unroll 1 /* registers */
    for (int i = 0; i < 4; i++) {
        const int at = first + 16 * i;
        const int32_t f = DOWN ? mlp_column(p, tile.first, k + at, tile.places) : 0;
        const bool is = DOWN ? f >= 0 : inside && part.row + at < tile.rows;
        const T *const a =
            DOWN ? mlp_value<T>(p, tile.T, k + at) + part.row + 8 * piece
                 : view_row<T>(run.q, tile.batch, 0, tile.row + part.row + at) + k + 8 * piece;
        cp_async_16_l2_128(to + i * 2048, a, is);
#pragma unroll
        for (int panel = 0; DOWN && panel < 2; panel++) {
            const int32_t n = part.begin + 64 * panel + 8 * piece;
            cp_async_16_l2_128(to + (1 + panel) * MLP_SM80_PANEL + i * 2048,
                               w2 + max(f, 0) * run.v.stride[2] + n, f >= 0 && n < run.d_v);
        }
    }
    if (!DOWN)
#pragma unroll 2
        for (int i = 0; i < 8; i++) {
            const int32_t f = columns[first + 16 * i];
            cp_async_16_l2_128(to + MLP_SM80_PANEL + i * 2048,
                               w1 + max(f, 0) * run.k.stride[2] + 8 * piece, inside && f >= 0);
        }
    cp_async_commit();
}

/* ---- products ---- */

DEVICE uint32_t mlp_sm80_at(uint32_t panel, int row, int piece) {
    return panel + (uint32_t)(row * 128) + swizzle_piece(row, piece);
}

/* c[i][j] += products of a step: rows 32 (warp % 2) + 16 i ..., columns 64 (warp / 2) + 8 j ... */
template <class T, bool DOWN> DEVICE void mlp_sm80_multiply(float (&c)[2][8][4], uint32_t stage) {
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32;
    const int m = warp % 2 * 32, low = lane % 8, a_bit = lane / 8 % 2, b_bit = lane / 16;
    const uint32_t to_b = stage + MLP_SM80_PANEL + warp / 2 * MLP_SM80_PANEL;
#pragma unroll
    for (int k = 0; k < MLP_SM80_STEP; k += 16) {
        uint32_t a[2][4], b[4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (DOWN)
                ldmatrix_transposed(a[i],
                                    mlp_sm80_at(stage, k + b_bit * 8 + low, m / 8 + 2 * i + a_bit));
            else
                ldmatrix(a[i], mlp_sm80_at(stage, m + 16 * i + lane % 16, k / 8 + b_bit));
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            if (DOWN)
                ldmatrix_transposed(b, mlp_sm80_at(to_b, k + a_bit * 8 + low, j + b_bit));
            else
                ldmatrix(b, mlp_sm80_at(to_b, 8 * j + b_bit * 8 + low, k / 8 + a_bit));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_sync(c[i][j], a[i], b, T());
                mma_sync(c[i][j + 1], a[i], b + 2, T());
            }
        }
    }
}

/* ---- epilogues ---- */

/* UP: by way of panels whose rows are columns of h, 64 elements each. */
template <class T>
DEVICE void mlp_sm80_up(const float (&c)[2][8][4], char *memory, uint32_t shared,
                        const struct mlp_params &p, const struct mlp_sm80_part &part,
                        const int32_t *columns) {
    const struct mlp_tile &tile = part.tile;
    const struct mlp_activation activation = mlp_activation_of(p.activation);
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int column = warp / 2 * 64 + 8 * j + lane % 4 * 2;
            const int row = warp % 2 * 32 + 16 * i + lane / 4;
            float h[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t f = columns[column + e % 2];
                h[e] = c[i][j][e] + (f >= 0 && p.bias.data ? mlp_bias_at(p.bias, f, T()) : 0);
            }
            mlp_activate(h, activation);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = column + e % 2, r = row + e / 2 * 8;
                T *const to = reinterpret_cast<T *>(memory + mlp_sm80_at(0, at, r / 8));
                from_f32(to + r % 8, h[e]);
            }
        }
    __syncthreads();
    const int piece = (int)threadIdx.x % 8, row = part.row + 8 * piece, left = tile.rows - row;
#pragma unroll 1
    for (int at = (int)threadIdx.x / 8; at < MLP_SM80_WIDTH; at += 16) {
        const int32_t f = columns[at], place = part.begin + at;
        uint4 h = shared_load_16(mlp_sm80_at(shared, at, piece));
        if (f >= 0 && p.activations.data && left > 0) {
            T *const cached = mlp_cached<T>(p, tile.batch, f, tile.row + row);
            const uint4 old = p.delta ? mlp_load_8(cached, left) : uint4{0, 0, 0, 0};
            mlp_store_8(cached, h, left);
            if (p.delta)
                h = mlp_less(h, old, T());
        }
        if (f < 0) /* DOWN's last step is whole */
            h = {0, 0, 0, 0};
        if (place < p.value_stride)
            *reinterpret_cast<uint4 *>(mlp_value<T>(p, tile.T, place) + row) = h;
    }
}

template <class T>
DEVICE void mlp_sm80_down(const float (&c)[2][8][4], const struct mlp_params &p,
                          const struct mlp_sm80_part &part) {
    const struct attention_params &run = p.lists.run;
    const struct mlp_tile &tile = part.tile;
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32;
    const bool based = run.base.o.data != NULL, biased = p.bias_out.data && !p.delta;
    const float own = based ? run.base.beta : 1;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int32_t n = part.begin + warp / 2 * 64 + 8 * j + lane % 4 * 2;
        if (n >= run.d_v)
            break;
        float2 bias = {0, 0};
        if (biased)
            bias = {mlp_bias_at(p.bias_out, n, T()), mlp_bias_at(p.bias_out, n + 1, T())};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t row = part.row + warp % 2 * 32 + 8 * i + lane / 4;
            const float *const sum = c[i / 2][j] + i % 2 * 2;
            if (row >= tile.rows)
                continue;
            float2 base = {0, 0};
            if (based)
                base = mma_unpack(*reinterpret_cast<const uint32_t *>(
                                      view_row<T>(run.base.o, tile.batch, 0, tile.row + row) + n),
                                  T());
            *reinterpret_cast<uint32_t *>(view_row<T>(run.o, tile.batch, 0, tile.row + row) + n) =
                mma_pack(fmaf(own, sum[0] + bias.x, base.x), fmaf(own, sum[1] + bias.y, base.y),
                         T());
        }
    }
}

/* ---- the kernel ---- */

template <class T, bool DOWN>
DEVICE void mlp_sm80_part_run(char *memory, uint32_t shared, const struct mlp_params &p,
                              const struct mlp_sm80_part &part, int32_t *columns) {
    const int32_t depth = DOWN ? part.tile.places : p.lists.run.d_qk;
    float c[2][8][4] = {};
    __syncthreads();
    if (!DOWN)
        columns[threadIdx.x] =
            mlp_column(p, part.tile.first, part.begin + (int)threadIdx.x, part.tile.places);
    __syncthreads();
    if (depth > 0)
        mlp_sm80_load<T, DOWN>(shared, p, part, columns, 0);
#pragma unroll 1
    for (int32_t k = 0; k < depth; k += MLP_SM80_STEP) {
        const uint32_t stage = (uint32_t)(k / MLP_SM80_STEP % 2) * MLP_SM80_STAGE;
        cp_async_wait_all();
        __syncthreads();
        if (k + MLP_SM80_STEP < depth)
            mlp_sm80_load<T, DOWN>(shared + (MLP_SM80_STAGE - stage), p, part, columns,
                                   k + MLP_SM80_STEP);
        mlp_sm80_multiply<T, DOWN>(c, shared + stage);
    }
    __syncthreads();
    if (DOWN)
        mlp_sm80_down<T>(c, p, part);
    else
        mlp_sm80_up<T>(c, memory, shared, p, part, columns);
}

template <class T, bool DOWN>
static __global__ void __launch_bounds__(MLP_SM80_THREADS, 2)
    mlp_sm80(const __grid_constant__ struct mlp_params p) {
    extern __shared__ __align__(1024) char memory[];
    int32_t *const columns = reinterpret_cast<int32_t *>(memory + MLP_SM80_COLUMNS);
    early_wait();
    early_next();
    const int32_t tiles = mlp_tiles(p), chunks = (p.lists.run.tile_rows + 63) / MLP_SM80_ROWS;
    const uint32_t shared = shared_address(memory);
#pragma unroll 1
    for (int32_t i = (int32_t)blockIdx.y; i < tiles * chunks; i += (int32_t)gridDim.y) {
        struct mlp_sm80_part part = {mlp_tile_of(p, i / chunks), i % chunks * MLP_SM80_ROWS, 0};
        const int32_t end = DOWN ? p.lists.run.d_v : part.tile.places;
        if (part.row >= part.tile.rows)
            continue;
#pragma unroll 1
        for (part.begin = (int32_t)blockIdx.x * MLP_SM80_WIDTH; part.begin < end;
             part.begin += (int32_t)gridDim.x * MLP_SM80_WIDTH)
            mlp_sm80_part_run<T, DOWN>(memory, shared, p, part, columns);
    }
    if (DOWN && blockIdx.y == 0 && p.filled && filled_foreign(p.lists))
        filled_store_nan(p.lists, (int)threadIdx.x, MLP_SM80_THREADS);
}

template <class T, bool DOWN>
static cudaError_t mlp_sm80_launch(const struct mlp_params *p, cudaStream_t stream) {
    const struct attention_params *run = &p->lists.run;
    const int64_t tiles = p->filled ? p->lists.image.units : run->n_items;
    const int64_t chunks = tiles * ((run->tile_rows + 63) / MLP_SM80_ROWS);
    const int64_t wide =
        ((DOWN ? run->d_v : p->value_stride) + MLP_SM80_WIDTH - 1) / MLP_SM80_WIDTH;
    const void *kernel = (const void *)mlp_sm80<T, DOWN>;
    void *arguments[] = {(void *)p};
    if (tiles == 0 || wide == 0)
        return cudaSuccess;
    const cudaError_t code = launch_shared<MLP_SM80_SHARED>(kernel);
    return code ? code
                : launch_early(kernel,
                               dim3((unsigned)wide, (unsigned)(chunks < 65535 ? chunks : 65535)),
                               MLP_SM80_THREADS, MLP_SM80_SHARED, arguments, stream);
}

/* Bytes of shared memory of a CTA. */
static inline int64_t mlp_sm80_shared(int32_t rows) {
    (void)rows;
    return MLP_SM80_SHARED;
}

#endif
