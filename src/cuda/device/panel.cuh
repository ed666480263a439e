/*
 * C [M, N] += A [M, K] B [K, N] in f32 by multiply-adds. A and B are panels in shared memory,
 * stored k-major: a[k][row], b[k][column]; C is in registers. A thread block has warps_m x warps_n
 * warps. A thread has 8 consecutive rows, read as two float4 broadcasts, and every 32nd column of
 * its warp's.
 */
#ifndef TESSERA_CUDA_PANEL_CUH
#define TESSERA_CUDA_PANEL_CUH

#define PANEL_K 32   /* depth K of a panel */
#define PANEL_ROWS 8 /* rows of a thread */

static __host__ __device__ constexpr int panel_warps_m(int m) {
    return m / PANEL_ROWS;
}
static __host__ __device__ constexpr int panel_warps_n(int m, int n) {
    return n / 32 < 8 / panel_warps_m(m) ? n / 32 : 8 / panel_warps_m(m);
}
static __host__ __device__ constexpr int panel_threads(int m, int n) {
    return 32 * panel_warps_m(m) * panel_warps_n(m, n);
}
/* Columns of a thread. */
static __host__ __device__ constexpr int panel_columns(int m, int n) {
    return n / (32 * panel_warps_n(m, n));
}

/* A thread's first row and column. */
template <int M, int N> static __device__ __forceinline__ int panel_row(void) {
    return (int)threadIdx.x / 32 / panel_warps_n(M, N) * PANEL_ROWS;
}
template <int M, int N> static __device__ __forceinline__ int panel_column(void) {
    return (int)threadIdx.x / 32 % panel_warps_n(M, N) * 32 * panel_columns(M, N) +
           (int)threadIdx.x % 32;
}

/* sum += A B. Consecutive k are A_STRIDE (a multiple of 4) and B_STRIDE floats apart; a and b point
 * at the thread's first row and column. */
template <int COLUMNS, int A_STRIDE, int B_STRIDE>
static __device__ __forceinline__ void panel_multiply(float (&sum)[PANEL_ROWS][COLUMNS],
                                                      const float *a, const float *b) {
#pragma unroll 8
    for (int k = 0; k < PANEL_K; k++) {
        const float4 low = *reinterpret_cast<const float4 *>(a + k * A_STRIDE);
        const float4 high = *reinterpret_cast<const float4 *>(a + k * A_STRIDE + 4);
        const float x[PANEL_ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const float y = b[k * B_STRIDE + 32 * j];
#pragma unroll
            for (int i = 0; i < PANEL_ROWS; i++)
                sum[i][j] = fmaf(x[i], y, sum[i][j]);
        }
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void panel_add(float (&sum)[PANEL_ROWS][COLUMNS],
                                                 const float (&part)[PANEL_ROWS][COLUMNS]) {
#pragma unroll
    for (int i = 0; i < PANEL_ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            sum[i][j] += part[i][j];
}

#endif
