/*
 * Stage 1 for 16-bit types on tensor cores: sddmm.cuh's tile, where a block row has enough queries
 * to fill one. A block of 4 warps computes M rows; each warp takes 32 columns of the chunk.
 */
#ifndef TESSERA_CUDA_SDDMM_MMA_CUH
#define TESSERA_CUDA_SDDMM_MMA_CUH

#include "device/mma.cuh"
#include "panel16.cuh"
#include "sddmm.cuh"

#define SDDMM_MMA_K 64 /* dims that pass through shared memory at a time */
#define SDDMM_MMA_THREADS 128
#define SDDMM_MMA_TILES (CUDA_CHUNK / 4 / 8) /* 8-column tiles of a warp */

template <class T, int M> struct sddmm_mma_shared {
    T q[M][SDDMM_MMA_K + 8];
    T k[CUDA_CHUNK][SDDMM_MMA_K + 8];
    struct sddmm_columns columns;
};

/* What is applied to q as it is loaded, exactly, and what to the sums: f16 sums cannot leave the
 * range, and small f16 elements would lose bits. */
static __device__ __forceinline__ float sddmm_mma_q_scale(const struct cuda_params &, __half) {
    return 1.0f;
}
static __device__ __forceinline__ float sddmm_mma_q_scale(const struct cuda_params &p,
                                                          __nv_bfloat16) {
    return p.q_scale;
}
static __device__ __forceinline__ float sddmm_mma_score_scale(const struct cuda_params &p,
                                                              __half) {
    return p.q_scale * p.score_scale;
}
static __device__ __forceinline__ float sddmm_mma_score_scale(const struct cuda_params &p,
                                                              __nv_bfloat16) {
    return p.score_scale;
}

template <class T, int M>
static __device__ __forceinline__ void sddmm_mma_load(struct sddmm_mma_shared<T, M> &s,
                                                      const struct cuda_params &p,
                                                      const struct sddmm_unit &unit,
                                                      const head_view<T> &q,
                                                      const head_view<T> &k, int32_t d) {
    constexpr int PER_ROW = SDDMM_MMA_K / 8;
    const float scale = sddmm_mma_q_scale(p, T());
    const bool aligned = panel16_aligned(p, k);
    panel16_gather<T, CUDA_CHUNK, SDDMM_MMA_K, SDDMM_MMA_THREADS>(s.k, k, s.columns.key, d,
                                                                  aligned);
    const int at = (int)threadIdx.x % PER_ROW * 8;
#pragma unroll 2
    for (int row = (int)threadIdx.x / PER_ROW; row < M; row += SDDMM_MMA_THREADS / PER_ROW) {
        eight<T> x = {};
        if (unit.row + row < unit.strip.rows && d + at < q.d) {
            const row_view<T> from = row_of(q, unit.strip.first + unit.row + row);
            x = aligned ? *reinterpret_cast<const eight<T> *>(from.data + d + at)
                        : row_load8(from, d + at);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            from_f32(&x.x[i], to_f32(x.x[i]) * scale);
        *reinterpret_cast<eight<T> *>(&s.q[row][at]) = x;
    }
    copy_wait();
}

template <class T, int M>
static __device__ __forceinline__ void
sddmm_mma_multiply(float (&sum)[M / 16][SDDMM_MMA_TILES][4],
                   const struct sddmm_mma_shared<T, M> &s, int column) {
#pragma unroll
    for (int k = 0; k < SDDMM_MMA_K; k += 16) {
        uint32_t b[SDDMM_MMA_TILES][2];
#pragma unroll
        for (int j = 0; j < SDDMM_MMA_TILES; j++)
            mma_load_b(b[j], &s.k[column + 8 * j][k], SDDMM_MMA_K + 8);
#pragma unroll
        for (int i = 0; i < M / 16; i++) {
            uint32_t a[4];
            mma_load_a(a, &s.q[16 * i][k], SDDMM_MMA_K + 8);
#pragma unroll
            for (int j = 0; j < SDDMM_MMA_TILES; j++)
                mma_add(sum[i][j], a, b[j], T());
        }
    }
}

/* Two scores side by side; `pairs`: such places are aligned to two floats. */
static __device__ __forceinline__ void sddmm_mma_store_two(float *to, float x, float y,
                                                           int64_t left, bool pairs) {
    if (pairs) {
        *reinterpret_cast<float2 *>(to) = {x, y};
        return;
    }
    to[0] = x;
    if (left > 1)
        to[1] = y;
}

/* A warp's sums, in columns column ... of the chunk. */
template <int M>
static __device__ __forceinline__ void
sddmm_mma_store(const float (&sum)[M / 16][SDDMM_MMA_TILES][4], const struct sddmm_columns &columns,
                const struct cuda_params &p, const struct sddmm_unit &unit, int column,
                float scale) {
    const struct strip &s = unit.strip;
    /* Then every row of every strip begins at a pair, and has whole ones. */
    const bool pairs = p.block_kv % 2 == 0 && (uintptr_t)p.values % sizeof(float2) == 0;
    const int64_t row = unit.row + warp_lane() / 4;
#pragma unroll
    for (int j = 0; j < SDDMM_MMA_TILES; j++) {
        const int c = column + 8 * j + warp_lane() % 4 * 2;
        const int64_t left = s.width - unit.column - c;
        if (left <= 0)
            break;
        float *to = s.values + row * s.width + unit.column + c;
#pragma unroll
        for (int i = 0; i < M / 8; i++, to += 8 * s.width) {
            if (row + 8 * i >= s.rows)
                break;
            const float x = sum[i / 2][j][i % 2 * 2] * scale;
            const float y = sum[i / 2][j][i % 2 * 2 + 1] * scale;
            sddmm_mma_store_two(
                to, sddmm_listed(p, columns, c, row + 8 * i) ? x : -INFINITY,
                sddmm_listed(p, columns, c + 1, row + 8 * i) ? y : -INFINITY, left, pairs);
        }
    }
}

template <class T, int M>
static __global__ void __launch_bounds__(SDDMM_MMA_THREADS, M < 64 ? 4 : 3)
    sddmm_mma(const __grid_constant__ struct cuda_params p) {
    __shared__ __align__(16) struct sddmm_mma_shared<T, M> s;
    const int64_t row_units = (p.height + M - 1) / M;
    const int64_t units = p.image.chunks[p.n_items] * row_units;
    const int column = (int)threadIdx.x / 32 * 8 * SDDMM_MMA_TILES;
    const float scale = sddmm_mma_score_scale(p, T());
    for (int64_t number = blockIdx.x; number < units; number += gridDim.x) {
        const struct sddmm_unit unit = sddmm_unit_of(p, number, row_units, M);
        if (unit.row >= unit.strip.rows)
            continue;
        const head_view<T> q = head_of<T>(p, p.q, unit.strip.b, unit.strip.h, p.d_qk);
        const head_view<T> k =
            head_of<T>(p, p.k, unit.strip.b, unit.strip.h / p.heads_per_kv, p.d_qk);
        float sum[M / 16][SDDMM_MMA_TILES][4] = {};
        sddmm_columns_load(s.columns, p, unit);
        for (int32_t d = 0; d < p.d_qk; d += SDDMM_MMA_K) {
            __syncthreads();
            sddmm_mma_load<T, M>(s, p, unit, q, k, d);
            __syncthreads();
            sddmm_mma_multiply<T, M>(sum, s, column);
        }
        sddmm_mma_store<M>(sum, s.columns, p, unit, column, scale);
        __syncthreads(); /* before the next unit's columns */
    }
}

template <class T, int M>
static cudaError_t sddmm_mma_launch_tile(const struct cuda_params *p, cudaStream_t stream) {
    return grid_launch(sddmm_mma<T, M>, (p->height + M - 1) / M * sddmm_chunks(p), 1,
                       SDDMM_MMA_THREADS, p, stream);
}

template <class T>
static cudaError_t sddmm_mma_launch(const struct cuda_params *p, cudaStream_t stream) {
    if (p->height <= 8)
        return sddmm_launch_low<T>(p, stream);
    if (p->height <= 16)
        return sddmm_mma_launch_tile<T, 16>(p, stream);
    if (p->height <= 32)
        return sddmm_mma_launch_tile<T, 32>(p, stream);
    return sddmm_mma_launch_tile<T, 64>(p, stream);
}

#endif
