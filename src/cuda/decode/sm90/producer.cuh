/* Decode on Hopper: the producer warpgroup, which gathers rows of K and V. Each of its warps has 16 rows
 * of a step, and needs no other warp. */
#ifndef TESSERA_CUDA_DECODE_SM90_PRODUCER_CUH
#define TESSERA_CUDA_DECODE_SM90_PRODUCER_CUH

#include "decode/sm90/config.cuh"

/* Copies in flight, and the barrier to arrive at once they are complete; 0: none. */
struct decode_sm90_pending {
    uint32_t full;
};

/* Arrives for the copies in flight, unless they are among the last PENDING groups. The proxy fence makes
 * the copied bytes visible to WGMMA. */
template <int PENDING>
static __device__ __forceinline__ void decode_sm90_signal(struct decode_sm90_pending &pending) {
    if (!pending.full)
        return;
    cp_async_wait<PENDING>();
    proxy_fence();
    decode_sm90_arrive(pending.full);
    pending.full = 0;
}

/* Waits until a stage is free. Where that takes time, first arrives for the copies in flight. */
static __device__ __forceinline__ void decode_sm90_wait_empty(uint32_t barrier, uint32_t parity,
                                                              struct decode_sm90_pending &pending) {
    if (__all_sync(WARP_ALL, barrier_test_wait(barrier, parity)))
        return;
    decode_sm90_signal<0>(pending);
    barrier_wait(barrier, parity);
}

/* Copies 16 rows to panels: four at a time, 128 bytes of each by an instruction. Lane i holds the place of
 * row i in its tensor, -1: none. Zeros where there is none, and past a row's end. */
template <int PANELS, int PANEL>
static __device__ __forceinline__ void decode_sm90_copy(uint32_t to, const struct decode_rows &rows,
                                                        int32_t places) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
#pragma unroll 1
    for (int i = 0; i < 16; i += 4) {
        const int32_t row = __shfl_sync(WARP_ALL, places, i + sub);
        const char *const from = decode_row_at(rows, row) + 16 * piece;
        const uint32_t at = to + (uint32_t)((i + sub) * 128) + swizzle_piece(i + sub, piece);
#pragma unroll
        for (int s = 0; s < PANELS; s++)
            cp_async_16_l2_128(at + (uint32_t)(s * PANEL), from + 128 * s,
                               row >= 0 && 128 * s + 16 * piece < rows.bytes);
    }
    cp_async_commit();
}

/* Waits for the stage of step `step`, copies this warp's rows there, and arrives for those before. */
template <class shape, int PANELS>
static __device__ __forceinline__ void
decode_sm90_fetch(uint32_t to, uint32_t full, const struct decode_rows &rows, int32_t places,
                  struct decode_sm90_pending &pending) {
    const int warp = (int)threadIdx.x / 32;
    decode_sm90_copy<PANELS, shape::PANEL>(to + (uint32_t)(warp * shape::ROWS_WARP * 128), rows,
                                           places);
    decode_sm90_signal<1>(pending);
    pending.full = full;
}

/* Hands this warp's places to warpgroup 1, and whether some row of a tile does not list some of them. */
template <class shape>
static __device__ __forceinline__ void decode_sm90_hand_places(char *memory, uint32_t stage,
                                                               const struct decode_place &place) {
    const int warp = (int)threadIdx.x / 32, lane = warp_lane();
    struct decode_place *const places =
        reinterpret_cast<struct decode_place *>(memory + shape::PLACES) + stage * shape::KEYS;
    if (lane < shape::ROWS_WARP)
        places[warp * shape::ROWS_WARP + lane] = place;
    const uint32_t partial = __ballot_sync(
        WARP_ALL, lane < shape::ROWS_WARP && (place.first > 0 || place.last < shape::M - 1));
    if (lane == 0)
        reinterpret_cast<uint32_t *>(memory + shape::PARTIAL)[4 * stage + (uint32_t)warp] = partial;
}

/* The rows of an item; `step` counts those of all items. */
template <class shape>
static __device__ __forceinline__ void
decode_sm90_produce(char *memory, uint32_t shared, const struct decode_params &p,
                    const struct work_item &w, uint32_t &step,
                    struct decode_sm90_pending &pending) {
    using T = typename shape::T;
    const struct decode_item item = decode_item_of(p, w);
    const struct decode_list list = decode_list_of(p, item.T);
    const struct decode_rows k = decode_rows_k<T>(p, item), v = decode_rows_v<T>(p, item);
    const int32_t steps = decode_sm90_steps<shape>(item);
    /* Lanes 16 ... 31 find the same places again. */
    uint32_t at =
        item.begin + (threadIdx.x / 32 * shape::ROWS_WARP + threadIdx.x % shape::ROWS_WARP);
    struct decode_place next = decode_find(p, item, list, at);
#pragma unroll 1
    for (int32_t i = 0; i < steps; i++, step++) {
        const struct decode_place place = next;
        const uint32_t stage = step % shape::STAGES, parity = decode_sm90_phase<shape>(step) ^ 1;
        const uint32_t to = shared + stage * shape::STAGE;
        at += shape::KEYS;
        next = decode_find(p, item, list, at);
        decode_sm90_wait_empty(decode_sm90_at<shape>(shared + shape::K_EMPTY, step), parity,
                               pending);
        decode_sm90_hand_places<shape>(memory, stage, place);
        decode_sm90_fetch<shape, shape::K_PANELS>(
            to, decode_sm90_at<shape>(shared + shape::K_FULL, step), k, place.row, pending);
        if (shape::V_IN_K)
            continue;
        decode_sm90_wait_empty(decode_sm90_at<shape>(shared + shape::V_EMPTY, step), parity,
                               pending);
        decode_sm90_fetch<shape, shape::V_PANELS>(
            to + shape::V, decode_sm90_at<shape>(shared + shape::V_FULL, step), v, place.row,
            pending);
    }
}

#endif
