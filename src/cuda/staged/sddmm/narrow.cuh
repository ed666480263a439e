/*
 * Stage 1, SDDMM, where block rows have one query and few keys. A warp computes one row, 32 columns at a time;
 * or two rows of 16 columns, where one wave would not hold all rows.
 *
 * Loads from L2 are the limit, and loads in sequence: block row, block columns, keys. Where one
 * wave holds all rows, those of a multiprocessor are neighbours, in one thread block of up to 32
 * warps. Rows of a head of few tokens have keys in common, which L1 then loads once.
 *
 * H200, 8 heads, f32, 16 keys for each query, warm replays, us:
 *
 *   d, N          64, 1024   512, 256   512, 512   512, 1024
 *   this kernel        7.6        8.7       13.5        28.9
 *   row.cuh            8.4       11.1       20.4        38.1
 *
 * Look-ups of fewer steps later took this kernel to 6.4; and 8.0, 12.1 and 22.6. Twice as many rows
 * for a thread block and half of their columns let L1 serve more keys, and were no faster. Times
 * were 6.7 against 6.6; and 8.0, 12.9 and 22.2 against 8.2, 12.4 and 22.9.
 */
#ifndef TESSERA_CUDA_SDDMM_NARROW_CUH
#define TESSERA_CUDA_SDDMM_NARROW_CUH

#include "staged/sddmm/row.cuh"

#define SDDMM_NARROW_WARPS 32 /* warps of a multiprocessor */
#define SDDMM_NARROW_FEW 16   /* FEW: the same, each with more registers */
#define SDDMM_NARROW_LEAST 4  /* warps of a thread block at least */

/* Rows that a warp computes together. */
static __host__ __device__ __forceinline__ int sddmm_narrow_rows(const struct staged_params &p) {
    return p.widest <= 16 && p.n_items > (int64_t)SDDMM_NARROW_WARPS * p.multiprocessors ? 2 : 1;
}

/* FEW: all rows are resident at once, with registers for more loads in flight. */
template <class T, bool FEW>
static __global__ void __launch_bounds__(32 * (FEW ? SDDMM_NARROW_FEW : SDDMM_NARROW_WARPS), 1)
    sddmm_narrow(const __grid_constant__ struct staged_params p) {
    constexpr int AHEAD = !FEW ? 1 : ARCHITECTURE_AFTER ? 2 : 4;
    const int rows = sddmm_narrow_rows(p), lanes = 32 / rows, lane = warp_lane();
    const int64_t first = (blocks_unit() * (blockDim.x / 32) + threadIdx.x / 32) * rows;
    if (first >= p.n_items)
        return;
    const int64_t item = first + lane / lanes; /* the lane's row, which may be past the last */
    const struct block_row s = block_row_of(p, min(item, p.n_items - 1));
    const head_view<T> k = head_of<T>(p, p.k, s.b, head_kv_of(p, s), p.d_qk);
    const T *q = row_of(head_of<T>(p, p.q, s.b, s.h, p.d_qk), s.first).data;
    const uint32_t width = item < p.n_items ? (uint32_t)s.width : 0;
    for (uint32_t x = lane % lanes; __any_sync(WARP_ALL, x < width); x += lanes) {
        const int32_t key = sddmm_row_key(p, s, x, width);
        /* Places without a key read another key; its score is not stored. */
        const T *row = k.data + max(key, 0) * k.stride;
        const unsigned listed = __ballot_sync(WARP_ALL, key >= 0);
        float score = 0;
#pragma unroll 1
        for (int from = 0; from < 32; from += 16)
            if (listed >> from & 0xffff)
                score = sddmm_row_scores<T, true, AHEAD>(warp_pointer(q, from), row, k.d, from,
                                                         p.q_scale, score);
        if (x < width)
            s.scores[x] = key < 0 ? -INFINITY : score * p.score_scale;
    }
}

template <class T>
static cudaError_t sddmm_narrow_launch(const struct staged_params *p, cudaStream_t stream) {
    const bool few = p->d_qk > SDDMM_ROW_DIMS &&
                     p->n_items <= (int64_t)SDDMM_NARROW_FEW * p->multiprocessors / 2;
    const int rows = sddmm_narrow_rows(*p), most = few ? SDDMM_NARROW_FEW : SDDMM_NARROW_WARPS;
    const int64_t units = (p->n_items + rows - 1) / rows;
    const int64_t share = (units + p->multiprocessors - 1) / p->multiprocessors;
    /* Small thread blocks even out more than one wave better. */
    const bool wave = share >= SDDMM_NARROW_LEAST && share <= most;
    const int64_t warps = wave ? share : SDDMM_NARROW_LEAST;
    return blocks_launch(few ? sddmm_narrow<T, true> : sddmm_narrow<T, false>,
                         (units + warps - 1) / warps, 32 * (int)warps, p, stream);
}

#endif
