/* Stage 3, SpMM, for 16-bit types: clusters that share keys, and the epilogue. `shape` gives ROWS
 * and DIMS of a warp, as 16 x 8 tiles of `sums`. THREADS compute; PANELS: bytes of a thread block's
 * panels. */
#ifndef TESSERA_CUDA_SPMM_MMA_EPILOGUE_CUH
#define TESSERA_CUDA_SPMM_MMA_EPILOGUE_CUH

#include "device/cluster.cuh"
#include "staged/panel_16bit.cuh"
#include "staged/spmm/scale.cuh"

/* Stores two neighbouring outputs. */
template <class T>
DEVICE void spmm_mma_store_two(T *to, int32_t left, bool pairs, float x, float y) {
    if (pairs && left > 1) {
        *reinterpret_cast<uint32_t *>(to) = mma_pack(x, y, T());
        return;
    }
    if (left > 0)
        from_f32(to, x);
    if (left > 1)
        from_f32(to + 1, y);
}

/* Stores a warp's outputs from row `row` and dim `dim` on. */
template <class T, class shape>
DEVICE void spmm_mma_store(const typename shape::sums &sum, const uint32_t *any,
                           const struct block_row &s, const head_view<T> &o, int64_t row,
                           int32_t dim, const struct staged_params &p) {
    const int lane = warp_lane();
    const float unscale = spmm_unscale(p, T()), mean_below = p.modify.mean_below;
#pragma unroll
    for (int i = 0; i < shape::ROWS / 8; i++) {
        uint32_t probs = any[i];
        probs |= __shfl_xor_sync(WARP_ALL, probs, 1);
        probs |= __shfl_xor_sync(WARP_ALL, probs, 2);
        const int64_t at = row + 8 * i + lane / 4;
        if (at >= s.rows)
            continue;
        T *out = o.data + (s.first + at) * o.stride;
#pragma unroll
        for (int j = 0; j < shape::DIMS / 8; j++) {
            const int32_t d = dim + 8 * j + lane % 4 * 2;
            const float *two = sum[i / 2][j] + i % 2 * 2;
            spmm_mma_store_two(out + d, o.d - d, o.vector,
                               probs ? mean_in_range(two[0] * unscale, mean_below, T()) : 0.0f,
                               probs ? mean_in_range(two[1] * unscale, mean_below, T()) : 0.0f);
        }
    }
}

/* Adds the sums of all CTAs of the cluster to the first, through `space`, the memory of this CTA's
 * panels. Answers whether this is the first. */
template <class shape>
DEVICE bool spmm_mma_combine(typename shape::sums &sum, uint32_t *any, float *space) {
    constexpr int SUMS = shape::ROWS / 16 * shape::DIMS / 8 * 4, BITS = shape::ROWS / 8;
    static_assert((SUMS + BITS) * shape::THREADS * (int)sizeof(float) <= shape::PANELS,
                  "a block's sums have room where its panels have been");
    const int rank = cluster_rank();
    float *from = &sum[0][0][0];
    space += threadIdx.x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        if (rank > 0)
            space[i * shape::THREADS] = from[i];
#pragma unroll
    for (int i = 0; i < BITS; i++)
        if (rank > 0)
            space[(SUMS + i) * shape::THREADS] = __uint_as_float(any[i]);
    cluster_wait();
#pragma unroll 1
    for (int other = 1; rank == 0 && other < cluster_size(); other++) {
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            from[i] += cluster_load(&space[i * shape::THREADS], other);
#pragma unroll
        for (int i = 0; i < BITS; i++)
            any[i] |= __float_as_uint(cluster_load(&space[(SUMS + i) * shape::THREADS], other));
    }
    cluster_wait();
    return rank == 0;
}

#endif
