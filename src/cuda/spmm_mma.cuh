/*
 * Stage 3 for 16-bit types on tensor cores: spmm.cuh's tile, where a block row has enough queries
 * to fill one. A block of 4 warps computes M rows of N dims; each warp takes a quarter of the dims.
 * Weights are rounded to the storage type; f16 has no room for small ones, so they are scaled up by
 * a power of two: they are 1 at most.
 */
#ifndef TESSERA_CUDA_SPMM_MMA_CUH
#define TESSERA_CUDA_SPMM_MMA_CUH

#include "device/mma.cuh"
#include "panel16.cuh"
#include "spmm.cuh"

#define SPMM_MMA_K 64 /* keys that pass through shared memory at a time */
#define SPMM_MMA_THREADS 128

template <class T, int M, int N> struct spmm_mma_shared {
    T weight[M][SPMM_MMA_K + 8];
    T v[SPMM_MMA_K][N + 8];
    int32_t key[CUDA_CHUNK];
};

static __device__ __forceinline__ constexpr float spmm_mma_scale(__half) {
    return 4096.0f;
}
static __device__ __forceinline__ constexpr float spmm_mma_scale(__nv_bfloat16) {
    return 1.0f;
}

/* Weights and values of SPMM_MMA_K keys, from column x of the strip and number `from` of the chunk.
 */
template <class T, int M, int N>
static __device__ __forceinline__ void
spmm_mma_load(struct spmm_mma_shared<T, M, N> &s, const struct cuda_params &p,
              const struct spmm_unit &unit, const head_view<T> &v, int64_t x, int from) {
    panel16_gather<T, SPMM_MMA_K, N, SPMM_MMA_THREADS>(s.v, v, &s.key[from], unit.dim,
                                                      panel16_aligned(p, v));
    const int column = (int)threadIdx.x % SPMM_MMA_K;
    const bool read = s.key[from + column] >= 0;
    const int64_t left = unit.strip.rows - unit.row;
    const float *weights = unit.strip.values + unit.row * unit.strip.width + x + column;
#pragma unroll 8
    for (int row = (int)threadIdx.x / SPMM_MMA_K; row < M; row += SPMM_MMA_THREADS / SPMM_MMA_K) {
        const float weight = read && row < left ? weights[row * unit.strip.width] : 0.0f;
        from_f32(&s.weight[row][column], weight * spmm_mma_scale(T()));
    }
    copy_wait();
}

template <class T, int M, int N>
static __device__ __forceinline__ void
spmm_mma_multiply(float (&sum)[M / 16][N / 32][4], const struct spmm_mma_shared<T, M, N> &s,
                  int dim) {
    const int lane = warp_lane();
#pragma unroll
    for (int k = 0; k < SPMM_MMA_K; k += 16) {
        uint32_t b[N / 64][4]; /* of two tiles each */
#pragma unroll
        for (int j = 0; j < N / 64; j++)
            mma_load_transposed(b[j], &s.v[k + lane % 16][dim + 16 * j + lane / 16 * 8]);
#pragma unroll
        for (int i = 0; i < M / 16; i++) {
            uint32_t a[4];
            mma_load_a(a, &s.weight[16 * i][k], SPMM_MMA_K + 8);
#pragma unroll
            for (int j = 0; j < N / 32; j++)
                mma_add(sum[i][j], a, &b[j / 2][j % 2 * 2], T());
        }
    }
}

/* Two outputs side by side. */
template <class T>
static __device__ __forceinline__ void spmm_mma_store_two(const struct spmm_unit &unit,
                                                          const head_view<T> &o, int64_t row,
                                                          int32_t dim, float x, float y) {
    if (row >= unit.strip.rows)
        return;
    T *to = o.data + (unit.strip.first + row) * o.stride + dim;
    struct alignas(2 * sizeof(T)) two {
        T x, y;
    } out;
    from_f32(&out.x, x);
    from_f32(&out.y, y);
    if (o.vector && dim + 1 < o.d) {
        *reinterpret_cast<two *>(to) = out;
        return;
    }
    if (dim < o.d)
        to[0] = out.x;
    if (dim + 1 < o.d)
        to[1] = out.y;
}

template <class T, int M, int N>
static __global__ void __launch_bounds__(SPMM_MMA_THREADS, M < 64 ? 4 : 3)
    spmm_mma(const __grid_constant__ struct cuda_params p) {
    __shared__ __align__(16) struct spmm_mma_shared<T, M, N> s;
    const int64_t row_units = (p.height + M - 1) / M, dim_units = (p.d_v + N - 1) / N;
    const int64_t units = p.n_items * row_units * dim_units;
    const int dim = (int)threadIdx.x / 32 * (N / 4);
    for (int64_t number = blockIdx.x; number < units; number += gridDim.x) {
        const struct spmm_unit unit = spmm_unit_of(p, number, row_units, M, dim_units, N);
        const struct strip &strip = unit.strip;
        if (unit.row >= strip.rows)
            continue;
        const head_view<T> v = head_of<T>(p, p.v, strip.b, strip.h / p.heads_per_kv, p.d_v);
        const head_view<T> o = head_of<T>(p, p.o, strip.b, strip.h, p.d_v);
        float sum[M / 16][N / 32][4] = {};
        for (int64_t x = 0; x < strip.width; x += CUDA_CHUNK) {
            float part[M / 16][N / 32][4] = {};
            __syncthreads();
            spmm_keys(s.key, p, unit, x, M);
            for (int from = 0; from < CUDA_CHUNK && x + from < strip.width; from += SPMM_MMA_K) {
                __syncthreads();
                spmm_mma_load<T, M, N>(s, p, unit, v, x + from, from);
                __syncthreads();
                spmm_mma_multiply<T, M, N>(part, s, dim);
            }
#pragma unroll
            for (int i = 0; i < M / 16; i++)
#pragma unroll
                for (int j = 0; j < N / 32; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[i][j][e] += part[i][j][e];
        }
        constexpr float scale = 1 / spmm_mma_scale(T());
        const int64_t row = unit.row + warp_lane() / 4;
#pragma unroll
        for (int i = 0; i < M / 16; i++)
#pragma unroll
            for (int j = 0; j < N / 32; j++) {
                const int32_t at = unit.dim + dim + 8 * j + warp_lane() % 4 * 2;
                const float (&y)[4] = sum[i][j];
                spmm_mma_store_two(unit, o, row + 16 * i, at, y[0] * scale, y[1] * scale);
                spmm_mma_store_two(unit, o, row + 16 * i + 8, at, y[2] * scale, y[3] * scale);
            }
    }
}

template <class T, int M, int N>
static cudaError_t spmm_mma_launch_tile(const struct cuda_params *p, cudaStream_t stream) {
    const int64_t units = p->n_items * ((p->height + M - 1) / M) * ((p->d_v + N - 1) / N);
    return grid_launch(spmm_mma<T, M, N>, units, 1, SPMM_MMA_THREADS, p, stream);
}

template <class T, int N>
static cudaError_t spmm_mma_launch_tiles(const struct cuda_params *p, cudaStream_t stream) {
    if (p->height <= 16)
        return spmm_mma_launch_tile<T, 16, N>(p, stream);
    if (p->height <= 32)
        return spmm_mma_launch_tile<T, 32, N>(p, stream);
    return spmm_mma_launch_tile<T, 64, N>(p, stream);
}

template <class T>
static cudaError_t spmm_mma_launch(const struct cuda_params *p, cudaStream_t stream) {
    if (p->height <= 8)
        return spmm_launch_low<T>(p, stream);
    return p->d_v <= 64 ? spmm_mma_launch_tiles<T, 64>(p, stream)
                        : spmm_mma_launch_tiles<T, 128>(p, stream);
}

#endif
