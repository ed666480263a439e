/* Decode on Hopper: the producer warpgroup, which gathers rows of K and V. Each of its warps has a
 * quarter of a step's rows, and needs no other warp. */
#ifndef TESSERA_CUDA_DECODE_SM90_PRODUCER_CUH
#define TESSERA_CUDA_DECODE_SM90_PRODUCER_CUH

#include "decode/sm90/fp8.cuh"
#include <utility>

/* Has `full` wait for this thread's copies; its warp arrives once more for the places. WGMMA sees copied bytes after a
 * proxy fence of who waits. */
DEVICE void decode_sm90_commit(uint32_t full) {
    barrier_arrive_cp_async(full);
    decode_sm90_arrive(full);
}

/* Copies 16 bytes of each panel of a row: the first ones of `first` panels from `row`, up to `all` from `on`, then
 * zeros. Unrolled by S. */
template <class shape, int... S>
DEVICE void decode_sm90_copy_row(uint32_t to, const char *row, int first, const char *on, int all,
                                 std::integer_sequence<int, S...>) {
    (cp_async_16_l2_128_at<S * shape::PANEL, S * 128>(to, S < first ? row : on, S < all), ...);
}

/* Panels of a row that have `bytes` at this lane's 16 bytes. */
DEVICE int decode_sm90_panels(int32_t bytes) {
    return (bytes + 112 - 16 * (warp_lane() % 8)) / 128;
}

/* Copies a warp's rows of a step to panels: four at a time, 128 bytes of each by an instruction. Lane
 * from + i holds where row i lies in its tensor, -1: nowhere. Zeros there, and past a row's end. Rows
 * go on in a second view, from the address `rest` on. */
template <class shape, int PANELS>
DEVICE void decode_sm90_copy(uint32_t to, const char *first, const char *rest,
                             const struct decode_stored &stored, int32_t shift, int32_t places,
                             int from) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
    const int own = decode_sm90_panels(stored.rows.size);
    const int all = decode_sm90_panels(stored.rows.size + stored.rest.size);
    to += threadIdx.x / 32 * shape::ROWS_WARP * 128;
#pragma unroll
    for (int i = 0; i < shape::ROWS_WARP; i += 4) {
        const int32_t place = __shfl_sync(WARP_ALL, places, from + i + sub);
        decode_sm90_copy_row<shape>(
            to + (uint32_t)((i + sub) * 128) + swizzle_piece(i + sub, piece),
            filled_row_at(first, stored.rows, shift, place) + 16 * piece, own,
            filled_row_at(rest - stored.rows.size, stored.rest, shift, place) + 16 * piece,
            place < 0 ? 0 : all, std::make_integer_sequence<int, PANELS>());
    }
}

/* Hands this warp's places of a step to warpgroup 1, and whether some row of a tile does not list some of
 * them. Lane from + i holds place i. */
template <class shape>
DEVICE void decode_sm90_hand_places(char *memory, uint32_t stage, const struct decode_place &place,
                                    int from, bool bits) {
    const int warp = (int)threadIdx.x / 32, i = warp_lane() - from;
    const bool mine = i >= 0 && i < shape::ROWS_WARP;
    struct decode_place *const places =
        reinterpret_cast<struct decode_place *>(memory + shape::PLACES) + stage * shape::KEYS;
    if (mine)
        places[warp * shape::ROWS_WARP + i] = place;
    const uint32_t partial =
        __ballot_sync(WARP_ALL, mine && (bits || place.first > 0 || place.last < shape::M - 1));
    if (warp_lane() == 0)
        reinterpret_cast<uint32_t *>(memory + shape::PARTIAL)[4 * stage + (uint32_t)warp] = partial;
}

/* The rows of an item; `step` counts those of all items. A warp looks up its places of BATCH steps at a
 * time, a lane each, while the rows of the BATCH before are copied. Codes of 8 bits are loaded a step ahead. */
template <class shape>
DEVICE void decode_sm90_produce(char *memory, uint32_t shared, const struct decode_params &p,
                                const struct work_item &w, uint32_t &step) {
    constexpr int BATCH = 32 / shape::ROWS_WARP;
    const struct decode_item item = decode_item_of(p, w);
    const struct decode_list list = decode_list_of(p, decode_ends_of(p, item.T));
    const char *const k = filled_head_rows(p.k.rows, item);
    const char *const v = filled_head_rows(p.v.rows, item);
    const int32_t steps = decode_sm90_steps<shape>(item);
    uint32_t at = item.begin + threadIdx.x % 32 / shape::ROWS_WARP * shape::KEYS +
                  threadIdx.x / 32 * shape::ROWS_WARP + threadIdx.x % shape::ROWS_WARP;
    struct decode_place place = decode_find(p, item, list, at), next = place;
    struct decode_sm90_codes<shape> codes;
    if (shape::STORED)
        decode_sm90_load_codes<shape>(codes, p, item, place.row, 0);
#pragma unroll 1
    for (int32_t i = 0; i < steps; i++, step++) {
        const uint32_t stage = step % shape::STAGES, parity = ring_parity<shape::STAGES>(step) ^ 1;
        const uint32_t to = shared + decode_sm90_rows<shape>(step);
        const int from = i % BATCH * shape::ROWS_WARP, then = (from + shape::ROWS_WARP) % 32;
        barrier_wait(ring_barrier<shape::STAGES>(shared + shape::K_EMPTY, step), parity);
        decode_sm90_hand_places<shape>(memory, stage, place, from, p.words != NULL);
        if (shape::STORED) {
            const uint32_t scales = shared + (uint32_t)decode_sm90_scales_at<shape>(step);
            decode_sm90_copy_beside<shape>(to, scales, p, item, place, from);
            decode_sm90_widen<shape>(to, p, codes);
        } else {
            decode_sm90_copy<shape, shape::K_PANELS>(to, k, filled_head_rows_here(p.k.rest, item),
                                                     p.k, p.shift, place.row, from);
        }
        decode_sm90_commit(ring_barrier<shape::STAGES>(shared + shape::K_FULL, step));
        if (!shape::V_IN_K) {
            barrier_wait(ring_barrier<shape::STAGES>(shared + shape::V_EMPTY, step), parity);
            decode_sm90_copy<shape, shape::V_PANELS>(to + shape::V, v, v, p.v, p.shift, place.row,
                                                     from);
            decode_sm90_commit(ring_barrier<shape::STAGES>(shared + shape::V_FULL, step));
        }
        if (from == 0) {
            at += BATCH * shape::KEYS;
            next = decode_find(p, item, list, at);
        }
        if (then == 0)
            place = next;
        if (shape::STORED)
            decode_sm90_load_codes<shape>(codes, p, item, place.row, then);
    }
}

#endif
