/* Stage 1, SDDMM, for 16-bit types: the epilogue, which stores a warp's scores. */
#ifndef TESSERA_CUDA_SDDMM_MMA_EPILOGUE_CUH
#define TESSERA_CUDA_SDDMM_MMA_EPILOGUE_CUH

#include "staged/sddmm/mma_common.cuh"

/* Columns 16j + 4t ... + 3 of row 8i + g of a warp's scores. */
template <int M, bool LONG>
DEVICE float4 sddmm_mma_four(const typename sddmm_mma_shape<M, LONG>::sums &sum, int i, int j) {
    const float *two = sum[i / 2][2 * j] + i % 2 * 2, *next = sum[i / 2][2 * j + 1] + i % 2 * 2;
    return {two[0], two[1], next[0], next[1]};
}

/* Stores a warp's scores to a block row whose rows are aligned to 16 bytes. */
template <int M, bool LONG>
DEVICE void sddmm_mma_store(const typename sddmm_mma_shape<M, LONG>::sums &sum,
                            const struct block_row &s, int64_t row, int64_t column) {
    constexpr int ROWS = sddmm_mma_shape<M, LONG>::ROWS;
    constexpr int COLUMNS = sddmm_mma_shape<M, LONG>::COLUMNS;
    const int lane = warp_lane_here();
    row += lane / 4;
    column += lane % 4 * 4;
    float *to = s.scores + row * s.width + column;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++, to += 8 * s.width) {
        if (row + 8 * i >= s.rows)
            break;
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++)
            if (column + 16 * j < s.width)
                __stcs(reinterpret_cast<float4 *>(to + 16 * j), sddmm_mma_four<M, LONG>(sum, i, j));
    }
}

/* Stores column c of 8 rows in `space`, which begin at row `first` and column `column`. */
template <int COLUMNS>
DEVICE void sddmm_mma_store_column(const float *space, const struct block_row &s, int64_t first,
                                   int64_t column, int c) {
    const int rows = column + c < s.width ? (int)min(s.rows - first, (int64_t)8) : 0;
    float *to = s.scores + first * s.width + column + c;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        if (r >= rows)
            break;
        __stcs(to, space[panel_f32_at<COLUMNS>(r, c)]);
        to += s.width;
    }
}

/* sddmm_mma_store_column, with -Inf where a row does not list the column. */
template <int COLUMNS>
DEVICE void sddmm_mma_store_listed(const float *space, const struct staged_params &p,
                                   const struct block_row &s, int64_t first, int64_t column,
                                   int c) {
    if (column + c >= s.width)
        return;
    const struct column listed = column_of(p, s, column + c);
#pragma unroll 1
    for (int r = 0; r < 8 && first + r < s.rows; r++)
        s.scores[(first + r) * s.width + column + c] =
            column_lists(p, listed.first, listed.last, listed.bit, first + r)
                ? space[panel_f32_at<COLUMNS>(r, c)]
                : -INFINITY;
}

/* Stores a warp's scores through its part of `space`, 8 rows at a time: rows aligned to 4 bytes, and chunks
 * with masks (`partial`). */
template <int M, bool LONG>
DEVICE void sddmm_mma_store_rows(const typename sddmm_mma_shape<M, LONG>::sums &sum, float *space,
                                 const struct staged_params &p, const struct block_row &s,
                                 int64_t row, int64_t column, bool partial) {
    typedef sddmm_mma_shape<M, LONG> shape;
    constexpr int WIDTH = shape::COLUMNS < 64 ? shape::COLUMNS : 64, TIMES = shape::COLUMNS / WIDTH;
    const int lane = warp_lane_here();
    space += threadIdx.x / 32 * 8 * WIDTH;
#pragma unroll
    for (int i = 0; i < shape::ROWS / 8 * TIMES; i++) {
        const int64_t first_row = row + i / TIMES * 8, first = column + i % TIMES * WIDTH;
#pragma unroll
        for (int j = 0; j < WIDTH / 16; j++)
            *reinterpret_cast<float4 *>(
                &space[panel_f32_at<WIDTH>(lane / 4, 16 * j + lane % 4 * 4)]) =
                sddmm_mma_four<M, LONG>(sum, i / TIMES, i % TIMES * (WIDTH / 16) + j);
        __syncwarp();
#pragma unroll 1
        for (int c = lane; c < WIDTH; c += 32)
            if (partial)
                sddmm_mma_store_listed<WIDTH>(space, p, s, first_row, first, c);
            else
                sddmm_mma_store_column<WIDTH>(space, s, first_row, first, c);
        __syncwarp();
    }
}

#endif
