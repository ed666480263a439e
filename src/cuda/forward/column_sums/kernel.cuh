/*
 * Column sums: of each key that a group of queries lists, the sum over the group of exp(score - reference). A CTA
 * takes steps of 64 keys of a query tile, which is a whole group. Each warp has 16 keys of the step and all rows of
 * the tile, 64 at a time, so that no sum leaves its warp:
 *
 *   S^T [64 keys, 64 rows] = K [64, d] Q [64, d]^T     mma.sync, or FMAs of f32; panels of 64 dims
 *   sum [64 keys]         += terms, over rows          four lanes share a key's rows
 *
 * Tensor cores truncate as they add, so panels are added up in f32. Another launch has written zeros, unless all keys
 * are listed: of lists that a fill writes nobody knows which columns are left.
 */
#ifndef TESSERA_CUDA_COLUMN_SUMS_KERNEL_CUH
#define TESSERA_CUDA_COLUMN_SUMS_KERNEL_CUH

#include "device/copy.cuh"
#include "device/mma.cuh"
#include "forward/column_sums/places.cuh"
#include "work/slots.cuh"
#include "work/views.cuh"

#define SUMS_WARPS 4
#define SUMS_THREADS (32 * SUMS_WARPS)
#define SUMS_DIMS 64         /* dims of a panel */
#define SUMS_ROWS 64         /* rows of a panel of Q */
#define SUMS_TERM_MOST 100.f /* log2 of the largest term */
#define SUMS_CTAS 4096       /* CTAs from which on no step is given to another */

/* Shared memory. Rows of panels are 16 bytes apart beside their dims: ldmatrix meets no bank twice. */
template <class T> struct sums_shared {
    static constexpr int ROW = SUMS_DIMS + 16 / (int)sizeof(T);
    T k[SUMS_KEYS][ROW], q[SUMS_ROWS][ROW];
    struct sums_places places;
    float base[COLUMN_SUMS_ROWS]; /* reference of a row, base 2; +Inf: the row adds nothing */
};

/* ---- panels ---- */

/* Loads dims d ... of rows row[i] (rows NULL: row + i) of a head; -1, or from `end` on: zeros. */
template <class T>
DEVICE void sums_load(T (*panel)[sums_shared<T>::ROW], const char *head, int64_t stride,
                      const int32_t *rows, int32_t row, int32_t end, int32_t d,
                      const struct column_sums_params &p, float scale) {
    constexpr int EACH = 16 / (int)sizeof(T), PIECES = SUMS_DIMS / EACH;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < SUMS_KEYS * PIECES; i += SUMS_THREADS) {
        const int at = i / PIECES, dim = d + i % PIECES * EACH;
        const int32_t from = rows ? rows[at] : row + at < end ? row + at : -1;
        const int32_t left = (p.lists.run.d_qk - dim) * (int32_t)sizeof(T);
        const bool is = from >= 0 && left > 0;
        const char *const piece = head + (is ? from * stride + dim * (int64_t)sizeof(T) : 0);
        const uint32_t to = shared_address(&panel[at][dim - d]);
        if (p.copied)
            cp_async_16(to, piece, is);
        else
            shared_store_16(to, is ? attention_load_16<T>(piece, left < 16 ? left : 16, scale)
                                   : uint4{0, 0, 0, 0});
    }
}

/* c[j][e] += products of a panel: key 16 warp + g + 8 (e / 2), row 8 j + 2 t + e % 2. */
template <class T>
DEVICE void sums_multiply(float (&c)[SUMS_ROWS / 8][4], const sums_shared<T> &s) {
    const int lane = warp_lane(), key = (int)threadIdx.x / 32 * 16;
#pragma unroll
    for (int d = 0; d < SUMS_DIMS; d += 16) {
        uint32_t a[4], b[4];
        ldmatrix(a, shared_address(&s.k[key + lane % 16][d + lane / 16 * 8]));
#pragma unroll
        for (int j = 0; j < SUMS_ROWS / 8; j += 2) {
            ldmatrix(b,
                     shared_address(&s.q[8 * j + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]));
            mma_sync(c[j], a, b, T());
            mma_sync(c[j + 1], a, b + 2, T());
        }
    }
}
DEVICE void sums_multiply(float (&c)[SUMS_ROWS / 8][4], const sums_shared<float> &s) {
    const int g = warp_lane() / 4, t = warp_lane() % 4, key = (int)threadIdx.x / 32 * 16 + g;
#pragma unroll 2
    for (int d = 0; d < SUMS_DIMS; d += 4) {
        const float4 k[2] = {*reinterpret_cast<const float4 *>(&s.k[key][d]),
                             *reinterpret_cast<const float4 *>(&s.k[key + 8][d])};
#pragma unroll
        for (int j = 0; j < SUMS_ROWS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float4 q = *reinterpret_cast<const float4 *>(&s.q[8 * j + 2 * t + e % 2][d]);
                const float4 x = k[e / 2];
                c[j][e] += (x.x * q.x + x.y * q.y) + (x.z * q.z + x.w * q.w);
            }
    }
}

/* ---- terms ---- */

/* A row's term for a key with this product. */
DEVICE float sums_term(const struct column_sums_params &p, const struct sums_tile &tile,
                       float product, int32_t key, int32_t row, float base) {
    const struct modify_params &m = p.lists.run.modify;
    float x = product * p.lists.run.score_scale;
    if (m.cap != 0)
        x = m.cap * modify_tanh<true>(x / m.cap);
    if (m.alibi) {
        const int32_t place = modify_place(m, key, p.lists.run.n_kv);
        const uint32_t distance =
            (uint32_t)place + m.first_key - (uint32_t)tile.position - (uint32_t)(tile.row + row);
        x += m.alibi[tile.head] * m.unit * (float)(int32_t)distance;
    }
    x -= base;
    return attention_exp2(x > SUMS_TERM_MOST ? SUMS_TERM_MOST : x); /* NaN stays */
}

/* Adds the terms of rows row ... row + 63 to the sums of this lane's two keys. */
template <class T>
DEVICE void sums_add(float (&sum)[2], const float (&c)[SUMS_ROWS / 8][4],
                     const struct column_sums_params &p, const struct sums_tile &tile,
                     const sums_shared<T> &s, int32_t row) {
    const int key = (int)threadIdx.x / 32 * 16 + warp_lane() / 4, t = warp_lane() % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t listed = s.places.words[key + 8 * h][row / 64];
        const int32_t number = s.places.key[key + 8 * h];
#pragma unroll
        for (int j = 0; j < SUMS_ROWS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int r = 8 * j + 2 * t + e;
                const float base = s.base[row + r];
                if (listed >> r & 1 && base != INFINITY)
                    sum[h] += sums_term(p, tile, c[j][2 * h + e], number, row + r, base);
            }
    }
}

/* ---- tiles ---- */

DEVICE void sums_store(const struct column_sums_params &p, const struct sums_tile &tile,
                       int32_t key, float x) {
    const int64_t at = tile.batch * p.lists.run.column_sums.stride[0] + tile.head * p.lists.run.column_sums.stride[1] +
                       tile.row / p.lists.run.tile_rows * p.lists.run.column_sums.stride[2] + key;
    if (p.lists.run.sum_type == TESS_F32)
        static_cast<float *>(p.lists.run.column_sums.data)[at] = x;
    else
        from_f32(static_cast<__nv_bfloat16 *>(p.lists.run.column_sums.data) + at, x);
}

template <class T>
DEVICE void sums_load_base(sums_shared<T> &s, const struct column_sums_params &p,
                           const struct sums_tile &tile) {
    const float *const from = static_cast<const float *>(p.lists.run.reference.data) +
                              tile.batch * p.lists.run.reference.stride[0] +
                              tile.head * p.lists.run.reference.stride[1];
#pragma unroll 1
    for (int r = (int)threadIdx.x; r < COLUMN_SUMS_ROWS; r += SUMS_THREADS) {
        const float x = r < tile.rows ? from[(tile.row + r) * p.lists.run.reference.stride[2]] : -INFINITY;
        s.base[r] = x == -INFINITY ? INFINITY : x * (float)LOG2_E;
    }
}

/* A step: 64 places of a tile from `at` on. */
template <class T>
DEVICE void sums_step(sums_shared<T> &s, const struct column_sums_params &p,
                      const struct sums_tile &tile, int32_t at) {
    const struct attention_params &run = p.lists.run;
    const char *const q = attention_head<T>(run.q, tile.batch, tile.head);
    const char *const k = attention_head<T>(run.k, tile.batch, tile.head_kv);
    const int key = (int)threadIdx.x / 32 * 16 + warp_lane() / 4;
    float sum[2] = {0, 0};
    __syncthreads();
    if (threadIdx.x < SUMS_KEYS)
        sums_place(s.places, p, tile, at, (int)threadIdx.x);
#pragma unroll 1
    for (int32_t row = 0; row < tile.rows; row += SUMS_ROWS) {
        float total[SUMS_ROWS / 8][4] = {};
#pragma unroll 1
        for (int32_t d = 0; d < run.d_qk; d += SUMS_DIMS) {
            float part[SUMS_ROWS / 8][4] = {};
            __syncthreads();
            sums_load<T>(s.k, k, run.k.stride[2] * (int64_t)sizeof(T), s.places.key, 0, 0, d, p, 1);
            sums_load<T>(s.q, q, run.q.stride[2] * (int64_t)sizeof(T), NULL, tile.row + row,
                         tile.row + tile.rows, d, p, run.q_scale);
            cp_async_wait_all();
            __syncthreads();
            sums_multiply(part, s);
#pragma unroll
            for (int j = 0; j < SUMS_ROWS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    total[j][e] += part[j][e];
        }
        sums_add(sum, total, p, tile, s, row);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(WARP_ALL, sum[h], 1);
        sum[h] += __shfl_xor_sync(WARP_ALL, sum[h], 2);
        if (warp_lane() % 4 == 0 && s.places.key[key + 8 * h] >= 0)
            sums_store(p, tile, s.places.key[key + 8 * h], sum[h]);
    }
}

template <class T>
static __global__ void __launch_bounds__(SUMS_THREADS)
    column_sums(const __grid_constant__ struct column_sums_params p) {
    __shared__ __align__(16) sums_shared<T> s;
    const int64_t tiles = sums_tiles(p);
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        const struct sums_tile tile = sums_tile_of(p, i);
        __syncthreads();
        sums_load_base(s, p, tile);
#pragma unroll 1
        for (int32_t at = (int32_t)blockIdx.y * SUMS_KEYS; at < tile.places;
             at += (int32_t)gridDim.y * SUMS_KEYS)
            sums_step(s, p, tile, at);
    }
}

/* Writes zeros; NaN where a foreign image would be walked. */
static __global__ void __launch_bounds__(256)
    column_sums_clear(const __grid_constant__ struct column_sums_params p) {
    const struct attention_params &run = p.lists.run;
    const float x = p.filled && filled_foreign(p.lists) ? NAN : 0;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < (int64_t)run.batch * run.heads_q * p.groups; i += gridDim.x) {
        const int64_t head = i / p.groups;
        struct sums_tile tile = {};
        tile.batch = (int32_t)(head / run.heads_q), tile.head = (int32_t)(head % run.heads_q);
        tile.row = (int32_t)(i % p.groups) * run.tile_rows;
        for (int32_t key = (int32_t)threadIdx.x; key < run.n_kv; key += 256)
            sums_store(p, tile, key, x);
    }
}

template <class T>
static cudaError_t column_sums_launch_of(const struct column_sums_params *p, cudaStream_t stream) {
    const struct attention_params *const run = &p->lists.run;
    const int64_t groups = (int64_t)run->batch * run->heads_q * p->groups;
    const int64_t tiles = p->filled ? p->lists.image.units : run->n_items;
    const int64_t steps = (run->n_kv + SUMS_KEYS - 1) / SUMS_KEYS;
    const int64_t shares = tiles < SUMS_CTAS && tiles ? SUMS_CTAS / tiles : 1;
    void *arguments[] = {(void *)p};
    cudaError_t code = cudaSuccess;
    if (!p->dense)
        code = cudaLaunchKernel((const void *)column_sums_clear, dim3(attention_blocks(groups)),
                                dim3(256), arguments, 0, stream);
    if (code || tiles == 0)
        return code;
    return cudaLaunchKernel(
        (const void *)column_sums<T>,
        dim3(attention_blocks(tiles), (unsigned)(shares < steps ? shares : steps)),
        dim3(SUMS_THREADS), arguments, 0, stream);
}

static inline cudaError_t column_sums_launch(const struct column_sums_params *p,
                                             cudaStream_t stream) {
    return p->type == TESS_F32   ? column_sums_launch_of<float>(p, stream)
           : p->type == TESS_F16 ? column_sums_launch_of<__half>(p, stream)
                                 : column_sums_launch_of<__nv_bfloat16>(p, stream);
}

#endif
