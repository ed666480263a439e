/*
 * What the tensor-core stages share: panels of 16-bit elements in shared memory, rows gathered from
 * a tensor, and the order of keys in them.
 *
 * A panel's row is 64 elements, 128 bytes. Its 16-byte pieces are permuted by the row's number, so
 * that 8 rows beside each other, read at one piece, meet all banks.
 *
 * Of every 16 columns of a strip a lane handles four in a row, which it reads or writes as 16
 * bytes. A product's operand gives it instead two pairs, 8 apart. So keys stand permuted in the
 * panels: the operand's order is free as long as both operands agree.
 */
#ifndef TESSERA_CUDA_PANEL16_CUH
#define TESSERA_CUDA_PANEL16_CUH

#include "device/copy.cuh"
#include "device/mma.cuh"
#include "strip.cuh"

#define PANEL16_WIDTH 64  /* elements of a row */
#define PANEL16_KEYS 1024 /* columns of a strip whose keys are looked up at a time */

/* Where in its 16 column c stands: 4t + 2h + e at 8h + 2t + e. */
static __device__ __forceinline__ int panel16_place(int c) {
    return (c & ~14) | (c & 2) << 2 | (c & 12) >> 1;
}

/* Piece `piece` of row `row`. */
template <class T>
static __device__ __forceinline__ T *panel16_at(T *panel, int row, int piece) {
    return panel + row * PANEL16_WIDTH + (piece ^ (row & 7)) * 8;
}

/* Floats in shared memory, rows of WIDTH (32 or 64): where column c of row r stands, so that two
 * rows, read 16 floats each at one column, meet all banks. */
template <int WIDTH> static __device__ __forceinline__ int panel_f32_at(int row, int c) {
    return row * WIDTH + (c ^ (row & 1) << 4);
}

/* Whether rows of the head are made of aligned pieces of 8 elements. */
template <class T>
static __device__ __forceinline__ bool panel16_aligned(const struct cuda_params &p,
                                                       const head_view<T> &head) {
    return p.alignment >= 16 && head.d % 8 == 0;
}

/* Elements d ... d + 7 of a row (-1: none) of the head one by one, 0 where there is no element. */
template <class T>
static __device__ __forceinline__ void panel16_put(T *to, const head_view<T> &head, int64_t row,
                                                   int32_t d) {
    struct alignas(16) eight {
        T x[8];
    } out;
    const T *from = head.data + row * head.stride + d;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (row >= 0 && d + i < head.d)
            out.x[i] = from[i];
        else
            from_f32(&out.x[i], 0.0f);
    }
    *reinterpret_cast<eight *>(to) = out;
}

/* Dims d ... d + 63 of ROWS rows of the head by THREADS threads: row key[i] (-1: none) or, where
 * key is NULL, first + i as far as i < rows. 0 where there is no element. Done after copy_wait. */
template <class T, int ROWS, int THREADS>
static __device__ __forceinline__ void panel16_fetch(T *panel, const head_view<T> &head,
                                                     const int32_t *key, int64_t first,
                                                     int64_t rows, int32_t d, bool aligned) {
    const int piece = (int)threadIdx.x % 8, begin = (int)threadIdx.x / 8;
    d += 8 * piece;
    if (aligned) {
        const T *data = head.data + (d < head.d ? d : 0);
#pragma unroll 2
        for (int i = begin; i < ROWS; i += THREADS / 8) {
            const int64_t row = key ? key[i] : i < rows ? first + i : -1;
            copy_16(panel16_at(panel, i, piece), data + (row < 0 ? 0 : row * head.stride),
                    row >= 0 && d < head.d);
        }
        return;
    }
#pragma unroll 1
    for (int i = begin; i < ROWS; i += THREADS / 8)
        panel16_put(panel16_at(panel, i, piece), head,
                    key ? key[i] : i < rows ? first + i : -1, d);
}

#endif
