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

#include "device/architecture.cuh"
#include "device/copy.cuh"
#include "device/mma.cuh"
#include "staged/block_row.cuh"

/* Whether tiles of 64 rows and more are multiplied by warpgroups, which read operands from the
 * panels as they stand. What a launch has to know does not depend on it. */
#define PANEL16_WGMMA ARCHITECTURE_WGMMA

#define PANEL16_WIDTH 64   /* elements of a row */
#define PANEL16_STRIDE 128 /* bytes of a row */
#define PANEL16_KEYS 256   /* columns of a strip whose keys are looked up at a time */

/* Where in its 16 column c stands: 4t + 2h + e at 8h + 2t + e. */
static __device__ __forceinline__ int panel16_place(int c) {
    return (c & ~14) | (c & 2) << 2 | (c & 12) >> 1;
}

/* The address of piece `piece` of row `row` of a panel, which is aligned to 128 bytes. For pieces
 * 2j further, where they differ in those bits alone, it differs in bits j << 5; multiples of 8 rows
 * further it is PANEL16_STRIDE bytes more for each. */
static __device__ __forceinline__ uint32_t panel16_at(uint32_t panel, int row, int piece) {
    return panel + row * PANEL16_STRIDE + ((piece ^ (row & 7)) << 4);
}

/* Where a panel is, for a product's descriptor: in a cluster, addresses name the block, too, which
 * descriptors have no room for. */
static __device__ __forceinline__ uint32_t panel16_wgmma_address(const void *panel) {
    return shared_address(panel) & 0x3ffff;
}

/* What this thread has written to panels may be read by warpgroups' products, after a barrier. */
static __device__ __forceinline__ void panel16_proxy_fence(void) {
    if (PANEL16_WGMMA)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Floats in shared memory, rows of WIDTH (32 or 64): where column c of row r stands, so that two
 * rows, read 16 floats each at one column, meet all banks. For columns 16j further, where they
 * differ in those bits alone, it differs in bits j << 4. */
template <int WIDTH> static __device__ __forceinline__ int panel_f32_at(int row, int c) {
    return row * WIDTH + (c ^ (row & 1) << 4);
}

/* Elements d ... d + 7 of a row (-1: none) of the head one by one, 0 where there is no element. */
template <class T>
static __device__ __forceinline__ void panel16_put(uint32_t to, const head_view<T> &head,
                                                   int64_t row, int32_t d) {
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

/* Dims d ... d + 64 PANELS - 1 of rows key[0 ... ROWS - 1] (-1: none) of the head to PANELS panels
 * beside each other, by THREADS threads; 0 where there is no element. Done after cp_async_wait. */
template <class T, int ROWS, int PANELS, int THREADS>
static __device__ __forceinline__ void panel16_gather(T *panels, const head_view<T> &head,
                                                      const int32_t *key, int32_t d, bool aligned) {
    constexpr int STEP = THREADS / 8;
    const int piece = (int)threadIdx.x % 8, begin = (int)threadIdx.x / 8;
    const uint32_t to = panel16_at(shared_address(panels), begin, piece);
    d += 8 * piece;
    key += begin;
    if (aligned) {
        /* In registers before the first copy, which nothing in memory is kept through. */
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

/* Dims d ... d + 63 of rows first ... first + ROWS - 1 of the head, as far as i < rows; what stands
 * for others is undefined. */
template <class T, int ROWS, int THREADS>
static __device__ __forceinline__ void panel16_rows(T *panel, const head_view<T> &head,
                                                    int64_t first, int64_t rows, int32_t d,
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
