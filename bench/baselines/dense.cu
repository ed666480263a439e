// The dense baselines' kernels: the tiled products of the published kernels that Tessera is measured
// against, and a softmax of rows that is as fast as memory, so that the baselines lose nothing to it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "baselines/gemm.h"

static const char *launched(cudaError_t code) {
    if (code == cudaSuccess)
        return nullptr;
    cudaGetLastError();
    return cudaGetErrorString(code);
}

// ---- tiled products ----

// C [rows, columns] in tiles of T x T, one thread an element. Each step takes S stripes of A
// [T rows, S T] and of B [S T, T columns] into shared memory; what lies outside counts as 0.
template <int T, int S, bool TRANSPOSED>
static __global__ void __launch_bounds__(T *T)
    dense_tile(const __grid_constant__ struct bench_gemm g) {
    constexpr int DEPTH = S * T;
    __shared__ float a_stripe[T][DEPTH];     // [row][k]
    __shared__ float b_stripe[DEPTH][T + 1]; // [k][column]
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t row = (int64_t)blockIdx.y * T + y, column = (int64_t)blockIdx.x * T + x;
    const int64_t first_column = (int64_t)blockIdx.x * T;
    const float *a = (const float *)g.a + blockIdx.z * g.next_a;
    const float *b = (const float *)g.b + blockIdx.z * g.next_b;
    float sum = 0;
    for (int64_t k0 = 0; k0 < g.depth; k0 += DEPTH) {
#pragma unroll
        for (int s = 0; s < S; s++) {
            const int64_t k = k0 + s * T + x;
            a_stripe[y][s * T + x] = row < g.rows && k < g.depth ? a[row * g.row_a + k] : 0;
            if (TRANSPOSED) { // along B's rows, which are columns of C
                const int64_t j = first_column + y;
                b_stripe[s * T + x][y] = j < g.columns && k < g.depth ? b[j * g.row_b + k] : 0;
            } else {
                const int64_t k_row = k0 + s * T + y;
                b_stripe[s * T + y][x] =
                    column < g.columns && k_row < g.depth ? b[k_row * g.row_b + column] : 0;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            sum += a_stripe[y][k] * b_stripe[k][x];
        __syncthreads();
    }
    if (row < g.rows && column < g.columns)
        ((float *)g.c)[blockIdx.z * g.next_c + row * g.row_c + column] = g.alpha * sum;
}

template <int T, int S, bool TRANSPOSED>
static const char *tile_launch(const struct bench_gemm *g, tess_stream stream) {
    const dim3 grid((unsigned)((g->columns + T - 1) / T), (unsigned)((g->rows + T - 1) / T),
                    (unsigned)g->count);
    void *arguments[] = {(void *)g};
    return launched(cudaLaunchKernel((const void *)dense_tile<T, S, TRANSPOSED>, grid, dim3(T, T),
                                     arguments, 0, stream));
}

// The fastest of T = 8, 16, 32 and S = 1, 2, 4 on an H200 with N = 8192, d = 768: 9.4 TFLOP/s for
// Q K', 8.3 for P V.
const char *bench_gemm_tiled(const struct bench_gemm *g, tess_stream stream) {
    return g->b_transposed ? tile_launch<32, 2, true>(g, stream)
                           : tile_launch<32, 1, false>(g, stream);
}

const char *bench_gemm_small_tiles(const struct bench_gemm *g, tess_stream stream) {
    return g->b_transposed ? tile_launch<8, 1, true>(g, stream)
                           : tile_launch<8, 1, false>(g, stream);
}

// ---- softmax ----

template <typename T> static __device__ T from_float(float x);
template <> __device__ float from_float<float>(float x) {
    return x;
}
template <> __device__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}
template <> __device__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

// The sum, or largest, of a value of each thread of the block.
template <int WARPS, bool LARGEST> static __device__ float block_reduce(float x) {
    __shared__ float of_warp[WARPS];
    for (int lane = 16; lane; lane /= 2) {
        const float y = __shfl_xor_sync(~0u, x, lane);
        x = LARGEST ? fmaxf(x, y) : x + y;
    }
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < WARPS; w++)
        x = LARGEST ? fmaxf(x, of_warp[w]) : x + of_warp[w];
    __syncthreads();
    return x;
}

// One block a row; each thread holds EACH of its elements, so that scores are read once and the
// weights can take their place.
template <typename T, int THREADS, int EACH>
static __global__ void __launch_bounds__(THREADS)
    dense_softmax(const __grid_constant__ struct bench_softmax s) {
    float *scores = s.scores + (int64_t)blockIdx.x * s.next;
    T *weights = (T *)scores;
    float x[EACH], top = -INFINITY, sum = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int64_t j = (int64_t)e * THREADS + threadIdx.x;
        x[e] = j < s.columns ? scores[j] : -INFINITY;
        top = fmaxf(top, x[e]);
    }
    top = block_reduce<THREADS / 32, true>(top);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        sum += x[e] = __expf(x[e] - top);
    sum = 1 / block_reduce<THREADS / 32, false>(sum);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int64_t j = (int64_t)e * THREADS + threadIdx.x;
        if (j < s.columns)
            weights[j] = from_float<T>(x[e] * sum);
    }
}

template <typename T>
static const char *softmax_launch(const struct bench_softmax *s, tess_stream stream) {
    static const struct {
        int64_t columns;
        const void *kernel;
        unsigned threads;
    } kernels[] = {
        {1024, (const void *)dense_softmax<T, 128, 8>, 128},
        {4096, (const void *)dense_softmax<T, 256, 16>, 256},
        {16384, (const void *)dense_softmax<T, 512, 32>, 512},
        {BENCH_SOFTMAX_COLUMNS, (const void *)dense_softmax<T, 1024, 32>, 1024},
    };
    void *arguments[] = {(void *)s};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (s->columns <= kernels[i].columns)
            return launched(cudaLaunchKernel(kernels[i].kernel, dim3((unsigned)s->rows),
                                             dim3(kernels[i].threads), arguments, 0, stream));
    return "too many keys";
}

const char *bench_softmax_device(const struct bench_softmax *s, tess_stream stream) {
    switch (s->type) {
    case TESS_F16:
        return softmax_launch<__half>(s, stream);
    case TESS_BF16:
        return softmax_launch<__nv_bfloat16>(s, stream);
    case TESS_F32:
        break;
    }
    return softmax_launch<float>(s, stream);
}
