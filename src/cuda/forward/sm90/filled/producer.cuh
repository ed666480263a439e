/* Fused attention on Hopper over filled lists: the producer's warps for Q, K and V. */
#ifndef TESSERA_CUDA_SM90_FILLED_PRODUCER_CUH
#define TESSERA_CUDA_SM90_FILLED_PRODUCER_CUH

#include "forward/sm90/filled/items.cuh"
#include "forward/sm90/producer.cuh"

/* Writes the granules of a step, which lanes g, g + 1 ... hold: by the lane that arrives at K's barrier. */
template <class shape>
DEVICE void sm90_filled_hand(char *memory, uint32_t step, const struct fill_granule &granule, int g,
                             int each) {
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        const int32_t key = sm90_of_lane(granule.key, g + i);
        const int32_t window = sm90_of_lane((int32_t)granule.window, g + i);
        if (warp_lane() == 0)
            sm90_filled_granule<shape>(memory, step, i) = {key, (uint32_t)window};
    }
}

/* Loads a step's tile of K or V, the granules of lanes g, g + 1 ... Two neighbouring granules of 64 keys are
 * one TMA tile copy for a panel. */
template <class shape, int PANELS>
DEVICE void sm90_filled_tma(uint32_t tile, const CUtensorMap *maps, uint32_t barrier,
                            const struct sm90_filled_place &place, int g, int bits, int32_t h) {
    const int32_t row = sm90_of_lane(place.row, g), page = sm90_of_lane(place.page, g);
    bool one = 1 << bits == GRANULE_MAX;
    if (shape::GRANULES > 1 && one) {
        one = sm90_of_lane(place.row, g + 1) - row == GRANULE_MAX &&
              sm90_of_lane(place.page, g + 1) == page;
        maps += one;
    }
    if (one)
        sm90_tma_tile<PANELS, shape::KEYS>(tile, maps, barrier, 0, row, h, page, TMA_EVICT_LAST);
    else
        sm90_tma_each_granule<shape, PANELS>(tile, maps, barrier, place.row, g, bits, h,
                                             place.page);
}

/* Loads by cp.async, where some granule has keys that no row lists: these are not read, and places without a
 * listed key get zeros. Four rows of d elements at a time. */
template <class shape, int PANELS, bool MASKS>
DEVICE void sm90_filled_cp_async(uint32_t tile, uint32_t barrier,
                                 const struct sm90_filled_place &place, int g, int bits,
                                 const struct rows_view &view, int32_t h, int32_t d) {
    const int piece = warp_lane() % 8;
    const char *const head =
        static_cast<const char *>(view.data) + 2 * h * view.stride[1] + 16 * piece;
#pragma unroll 1
    for (int i = warp_lane() / 8; i < shape::KEYS; i += 4) {
        const int group = g + (i >> bits), c = i & ((1 << bits) - 1);
        const int32_t row = __shfl_sync(WARP_ALL, place.row, group) + c;
        const int32_t page = __shfl_sync(WARP_ALL, place.page, group);
        const bool is = sm90_filled_has<MASKS>(place, group, c);
        const char *const from =
            head + (is ? 2 * (page * view.stride[0] + row * view.stride[2]) : 0);
        const uint32_t at = tile + (uint32_t)(i * 128) + swizzle_piece(i, piece);
#pragma unroll
        for (int s = 0; s < PANELS; s++)
            cp_async_16_l2_128(at + (uint32_t)(s * shape::PANEL), from + 128 * s,
                               is && 64 * s + 8 * piece < d);
    }
    cp_async_wait_all();
    proxy_fence();
    __syncwarp();
    if (warp_lane() == 0)
        barrier_arrive(barrier);
}

/* Publishes an item, and loads its Q. */
template <class shape>
DEVICE void sm90_filled_publish(char *memory, uint32_t shared, const struct decode_params &p,
                                const CUtensorMap *map_q, const struct sm90_filled_item &item,
                                uint32_t job) {
    const uint32_t slot = ring_stage<shape::Q_STAGES>(job);
    barrier_wait(shared + shape::Q_EMPTY + 8 * slot, ring_parity<shape::Q_STAGES>(job) ^ 1);
    if (warp_lane() == 0) /* the lane that arrives at Q's barrier */
        sm90_item<shape>(memory, job) = item;
    if (warp_lane() == 0 && p.words && item.begin + item.count > item.full)
        sm90_item<shape>(memory, job).first = sm90_filled_words(p, item);
    __syncwarp();
    sm90_tma_q<shape>(p.run, shared + shape::Q + slot * shape::Q_TILE, map_q,
                      shared + shape::Q_FULL + 8 * slot, item.row, item.head, item.batch, 0);
}

/* The producer loop: items, Q and K (IS_K), or V; of this CTA's items. All lanes know the item; each finds a
 * granule. */
template <class shape, bool IS_K, bool MASKS>
DEVICE void sm90_filled_produce(char *memory, uint32_t shared, const struct decode_params &p,
                                const CUtensorMap *map_q, const CUtensorMap *maps) {
    constexpr int PANELS = IS_K ? shape::QK_PANELS : shape::V_PANELS;
    constexpr int TILES = IS_K ? shape::K : shape::V, TILE = PANELS * shape::PANEL;
    constexpr int FULL = IS_K ? shape::K_FULL : shape::V_FULL;
    constexpr int EMPTY = IS_K ? shape::K_EMPTY : shape::V_EMPTY;
    const int bits = p.run.granule_bits, each = shape::KEYS >> bits; /* granules of a step */
    const struct rows_view &view = IS_K ? p.run.k : p.run.v;
    struct work_item w = sm90_filled_work(p, 0); /* not today's, maybe: it comes with the header */
    const int32_t end = sm90_filled_items(p);
    uint32_t step = 0, job = 0;
    if (warp_lane() < shape::GRANULES)
        tma_prefetch_map(maps + warp_lane());
    if (IS_K && warp_lane() == 2)
        tma_prefetch_map(map_q);
#pragma unroll 1
    for (int32_t i = 0; i < end; w = sm90_filled_work(p, min(++i, end - 1))) {
        struct sm90_filled_item item = sm90_filled_item_of(p, w);
        if (item.count == 0)
            continue;
        if (IS_K) {
            item.whole = sm90_filled_whole(p, item);
            sm90_filled_publish<shape>(memory, shared, p, map_q, item, job++);
        }
        const int32_t past = item.begin + item.count, h = view.stride[1] ? item.head_kv : 0;
#pragma unroll 1
        for (int32_t at = item.begin; at < past; at += 32) {
            struct sm90_filled_place place = {{0, 0}, 0, p.rows, 0};
            if (at + warp_lane() < past)
                place = sm90_filled_find<MASKS>(p, item, at + warp_lane(), view.stride[0] != 0);
            const uint32_t ragged = __ballot_sync(WARP_ALL, sm90_filled_ragged<MASKS>(place, bits));
#pragma unroll 1
            for (int32_t g = 0; g < min(past - at, 32); g += each, step++) {
                const uint32_t stage = ring_stage<shape::STAGES>(step);
                const uint32_t tile = shared + TILES + stage * TILE;
                const uint32_t full = shared + FULL + 8 * stage;
                barrier_wait(shared + EMPTY + 8 * stage, ring_parity<shape::STAGES>(step) ^ 1);
                if (IS_K)
                    sm90_filled_hand<shape>(memory, step, place.granule, g, each);
                if (ragged >> g & ((1u << each) - 1))
                    sm90_filled_cp_async<shape, PANELS, MASKS>(tile, full, place, g, bits, view, h,
                                                               IS_K ? p.run.d_qk : p.run.d_v);
                else
                    sm90_filled_tma<shape, PANELS>(tile, maps, full, place, g, bits, h);
            }
        }
    }
    if (IS_K) {
        sm90_publish_end<shape>(memory, shared, job, warp_lane() == 0);
        if (warp_lane() == 0)
            barrier_arrive(ring_barrier<shape::Q_STAGES>(shared + shape::Q_FULL, job));
    }
}

#endif
