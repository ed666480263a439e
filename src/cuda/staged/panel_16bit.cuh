/*
 * Shared parts of the tensor-core stages of 16-bit types: panels in shared memory, rows gathered
 * from a tensor, the order of keys in panels.
 *
 * A panel's row is 64 elements, 128 bytes, in the 128-byte swizzle: 8 neighbouring rows, read at
 * one piece of 16 bytes, touch all banks.
 *
 * Lane t of four loads or stores 4 consecutive columns of every 16 of scores, as 16 bytes. An MMA operand gives
 * a lane two pairs instead, 8 columns apart. Keys are therefore permuted in panels; their order is free as long
 * as both operands agree:
 *
 *   panel place    0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
 *   column         0  1  4  5  8  9 12 13  2  3  6  7 10 11 14 15
 */
#ifndef TESSERA_CUDA_PANEL16_CUH
#define TESSERA_CUDA_PANEL16_CUH

#include "device/architecture.cuh"
#include "device/copy.cuh"
#include "device/mma.cuh"
#include "staged/block_row.cuh"

/* Whether tiles of 64 rows and more use WGMMA, with operands from the panels. Launch parameters do
 * not depend on it. */
#define PANEL16_WGMMA ARCHITECTURE_WGMMA

#define PANEL16_WIDTH 64   /* elements of a row */
#define PANEL16_STRIDE 128 /* bytes of a row */
#define PANEL16_KEYS 256   /* columns of a block row whose keys are looked up at a time */

/* Panel place of column c, within its 16: column 4t + 2h + e is at 8h + 2t + e. */
DEVICE int panel16_place(int c) {
    return (c & ~14) | (c & 2) << 2 | (c & 12) >> 1;
}

/* Address of piece `piece` of row `row`; panels are aligned to 128 bytes. Adding 2j to the piece
 * number, where no bit carries, flips bits j << 5. Adding 8 to the row adds 8 PANEL16_STRIDE
 * bytes. */
DEVICE uint32_t panel16_at(uint32_t panel, int row, int piece) {
    return panel + row * PANEL16_STRIDE + ((piece ^ (row & 7)) << 4);
}

/* A panel's address for WGMMA descriptors, without the bits that name the CTA in a cluster. */
DEVICE uint32_t panel16_wgmma_address(const void *panel) {
    return shared_address(panel) & 0x3ffff;
}

/* Proxy fence: panels that this thread wrote may be read by WGMMA, after a barrier. */
DEVICE void panel16_proxy_fence(void) {
    if (PANEL16_WGMMA)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Index of column c of row r in a panel of floats, rows of WIDTH (32 or 64). Two rows, read 16
 * floats each at one column, touch all banks. Adding 16j to the column, where no bit carries, flips
 * bits j << 4. */
template <int WIDTH> DEVICE int panel_f32_at(int row, int c) {
    return row * WIDTH + (c ^ (row & 1) << 4);
}

/* Stores elements d ... d + 7 of a row one by one; zeros where there is no element. Row -1:
 * none. */
template <class T>
DEVICE void panel16_put(uint32_t to, const head_view<T> &head, int64_t row, int32_t d) {
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
    *static_cast<eight *>(__cvta_shared_to_generic(to)) = out;
}

/* Gathers rows key[0 ... ROWS - 1] (-1: none), dims d ... d + 64 PANELS - 1, into PANELS panels
 * side by side, by THREADS threads. Zeros where there is no element. Complete after
 * cp_async_wait. */
template <class T, int ROWS, int PANELS, int THREADS>
DEVICE void panel16_gather(T *panels, const head_view<T> &head, const int32_t *key, int32_t d,
                           bool aligned) {
    constexpr int STEP = THREADS / 8;
    const int piece = (int)threadIdx.x % 8, begin = (int)threadIdx.x / 8;
    const uint32_t to = panel16_at(shared_address(panels), begin, piece);
    d += 8 * piece;
    key += begin;
    if (aligned) {
        /* in registers before the first copy: the asm's memory clobber would force reloads */
        const head_view<T> all = head;
        int32_t row[ROWS / STEP];
#pragma unroll
        for (int i = 0; i < ROWS / STEP; i++)
            row[i] = key[i * STEP];
#pragma unroll
        for (int i = 0; i < ROWS / STEP; i++) {
            const T *from = all.data + max(row[i], 0) * all.stride + d;
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                const bool inside = d + panel * PANEL16_WIDTH < all.d;
                cp_async_16(to + (panel * ROWS + i * STEP) * PANEL16_STRIDE,
                            inside ? from + panel * PANEL16_WIDTH : all.data,
                            inside && row[i] >= 0);
            }
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < ROWS * PANELS / STEP; i++)
        panel16_put(to + i * STEP * PANEL16_STRIDE, head, key[i * STEP % ROWS],
                    d + i * STEP / ROWS * PANEL16_WIDTH);
}

/* Copies rows first ... first + ROWS - 1, dims d ... d + 63, as far as they are less than `rows`.
 * Other places of the panel are undefined. */
template <class T, int ROWS, int THREADS>
DEVICE void panel16_rows(T *panel, const head_view<T> &head, int64_t first, int64_t rows, int32_t d,
                         bool aligned) {
    constexpr int STEP = THREADS / 8;
    const int piece = (int)threadIdx.x % 8;
    const uint32_t to = shared_address(panel);
    d += 8 * piece;
    for (int i = (int)threadIdx.x / 8; i < ROWS && i < rows; i += STEP) {
        if (aligned)
            cp_async_16(panel16_at(to, i, piece),
                        head.data + (d < head.d ? (first + i) * head.stride + d : 0), d < head.d);
        else
            panel16_put(panel16_at(to, i, piece), head, first + i, d);
    }
}

#endif
