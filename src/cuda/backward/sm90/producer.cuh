/* The fused backward on Hopper: the producer warps. Each walks the CTA's pieces by itself, as far ahead as its ring
 * allows. */
#ifndef TESSERA_CUDA_GRADIENT_SM90_PRODUCER_CUH
#define TESSERA_CUDA_GRADIENT_SM90_PRODUCER_CUH

#include "backward/sm90/config.cuh"

/* Copies rows first ... first + rows - 1 of a head to a tile's panels, zeros past `end` and past d dims, for tensors
 * that TMA cannot address. By one warp, which then has written them as TMA would. */
template <class T, int PANELS>
DEVICE void gradient_copy_rows(uint32_t to, uint32_t panel, const struct rows_view &view,
                               int32_t batch, int32_t head, int32_t first, int rows, int32_t end,
                               int32_t d) {
    const char *from = attention_head<T>(view, batch, head);
#pragma unroll 1
    for (int at = warp_lane(); at < rows * PANELS * 8; at += 32) {
        const int piece = at % 8, part = at / 8 % PANELS, row = at / 8 / PANELS;
        const int32_t dim = 64 * part + 8 * piece;
        const bool wanted = first + row < end && dim < d;
        const int64_t element = wanted ? (first + row) * view.stride[2] + dim : 0;
        cp_async_16(to + (uint32_t)part * panel + (uint32_t)row * 128 + swizzle_piece(row, piece),
                    from + element * (int)sizeof(T), wanted);
    }
    cp_async_wait_all();
    proxy_fence();
    __syncwarp();
}

/* Pieces of a CTA. */
struct gradient_pieces {
    const struct granule_item *first;
    int32_t n;
};

/* Rows of the streamed side. */
template <class shape> DEVICE int32_t gradient_y_rows(const struct gradient_params &p) {
    return shape::OVER_KEYS ? p.n_q : p.n_kv;
}

/* First rows of granules g + lane of a piece; past its end: a row that is past the tensor's. */
template <class shape>
DEVICE int32_t gradient_load_granules(const struct gradient_params &p,
                                      const struct granule_item &item, int32_t g) {
    const int32_t at = g + warp_lane();
    return at < item.count ? __ldg(p.image.keys + item.first + at) : gradient_y_rows<shape>(p);
}

/* each(item, g, rows, step) for all steps of the CTA's pieces: g is the step's first granule, `rows` the first row of
 * granule g / 32 * 32 + lane. */
template <class shape, class work>
DEVICE void gradient_each_step(const struct gradient_params &p, const struct gradient_pieces &all,
                               const work &each) {
    uint32_t step = 0;
#pragma unroll 1
    for (int32_t i = 0; i < all.n; i++) {
        const struct granule_item &item = all.first[i]; /* in L1: registers are short */
        int32_t rows = 0;
#pragma unroll 1
        for (int32_t g = 0; g < item.count; g++, step++) {
            if (g % 32 == 0)
                rows = gradient_load_granules<shape>(p, item, g);
            each(item, g, rows, step);
        }
    }
}

/* ---- Y ---- */

template <class shape>
DEVICE void gradient_produce_y(uint32_t shared, const struct gradient_params &p,
                               const struct gradient_maps &maps,
                               const struct gradient_pieces &all) {
    using T = typename shape::T;
    gradient_each_step<shape>(
        p, all, [&](const struct granule_item &item, int32_t g, int32_t rows, uint32_t step) {
            const uint32_t full = ring_barrier<shape::STAGES>(shared + shape::Y_FULL, step);
            const uint32_t to =
                shared + shape::Y + ring_stage<shape::STAGES>(step) * (2 * shape::Y_TILE);
            const int32_t head = gradient_y_head<shape>(item), batch = item.batch;
            barrier_wait(ring_barrier<shape::STAGES>(shared + shape::Y_EMPTY, step),
                         ring_parity<shape::STAGES>(step) ^ 1);
            const int32_t first = __shfl_sync(WARP_ALL, rows, g % 32);
            if (!maps.tma_y)
                for (int side = 0; side < 2; side++)
                    gradient_copy_rows<T, shape::PANELS>(
                        to + side * shape::Y_TILE, shape::Y_PANEL, p.y[side], batch, head, first,
                        GRADIENT_PLACES, gradient_y_rows<shape>(p), p.d[side]);
            if (warp_lane() == 0 && maps.tma_y) {
                barrier_arrive_expect_tx(full, 2 * shape::Y_TILE);
#pragma unroll
                for (int i = 0; i < 2 * shape::PANELS; i++)
                    tma_load(to + i * shape::Y_PANEL, &maps.y[i / shape::PANELS], full,
                             64 * (i % shape::PANELS), first, head, batch, TMA_EVICT_LAST);
            } else if (warp_lane() == 0) {
                barrier_arrive(full);
            }
            __syncwarp();
        });
}

/* ---- X ---- */

/* Publishes items, and loads their rows. Those without keys need none. */
template <class shape>
DEVICE void gradient_produce_x(char *memory, uint32_t shared, const struct gradient_params &p,
                               const struct gradient_maps &maps,
                               const struct gradient_pieces &all) {
    using T = typename shape::T;
    const uint32_t full = shared + shape::X_FULL;
    const int32_t n = shape::OVER_KEYS ? p.n_kv : p.n_q;
    uint32_t job = 0;
#pragma unroll 1
    for (int32_t i = 0; i < all.n; i++) {
        const struct granule_item &item = all.first[i];
        const bool some = item.count > 0;
        if (shape::OVER_KEYS && !(item.parts & GRANULE_FIRST))
            continue;
        barrier_wait(shared + shape::X_EMPTY, (job & 1) ^ 1);
        if (warp_lane() < (int)sizeof item / 4)
            reinterpret_cast<int32_t *>(&gradient_item<shape>(memory, job))[warp_lane()] =
                __ldg(reinterpret_cast<const int32_t *>(&item) + warp_lane());
        __syncwarp();
        if (some && !maps.tma_x)
            for (int side = 0; side < 2; side++)
                gradient_copy_rows<T, shape::PANELS>(
                    shared + shape::X + side * shape::X_TILE, shape::X_PANEL, p.x[side], item.batch,
                    gradient_x_head<shape>(item), item.row, shape::ROWS, n, p.d[side]);
        if (warp_lane() == 0) {
            if (!some || !maps.tma_x) {
                barrier_arrive(full);
            } else {
                barrier_arrive_expect_tx(full, 2 * shape::X_TILE);
                for (int side = 0; side < 2; side++)
#pragma unroll
                    for (int part = 0; part < shape::PANELS; part++)
                        tma_load(shared + shape::X + side * shape::X_TILE + part * shape::X_PANEL,
                                 &maps.x[side], full, 64 * part, item.row,
                                 gradient_x_head<shape>(item), item.batch, TMA_EVICT_FIRST);
            }
        }
        __syncwarp();
        job++;
    }
    barrier_wait(shared + shape::X_EMPTY, (job & 1) ^ 1);
    if (warp_lane() == 0) {
        gradient_item<shape>(memory, job).rows = 0;
        barrier_arrive(full);
    }
}

/* ---- what is known of steps ---- */

/* This lane's bits of a group's places, in accumulator-fragment layout, for both rows. */
DEVICE uint32_t gradient_place_bits(uint64_t places) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int j = 0; j < 8; j++)
        bits |= (uint32_t)(places >> (8 * j + warp_lane() % 4 * 2) & 3) * 5u << 4 * j;
    return bits;
}

/* Zeroes rows `dead` of a group in a stage's tensors, once they are there: 0 times Inf or NaN is NaN. */
template <class shape> DEVICE void gradient_zero_rows(uint32_t at, uint64_t dead, int tensors = 2) {
    for (; dead; dead &= dead - 1) {
        const uint32_t row = at + (uint32_t)(__ffsll((long long)dead) - 1) * 128;
        for (int piece = warp_lane(); piece < tensors * shape::PANELS * 8; piece += 32)
            shared_store_16(row + (uint32_t)(piece / 8 * shape::Y_PANEL + piece % 8 * 16),
                            {0, 0, 0, 0});
    }
}

/* Queries of a group: base and delta to the step, and the empty ones. */
template <class shape>
DEVICE uint64_t gradient_load_queries(typename shape::known &known, const struct gradient_params &p,
                                      int64_t head, int32_t first) {
    uint64_t empty = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = 32 * half + warp_lane();
        const bool inside = first + at < p.n_q;
        const int64_t query = head * p.n_q + (inside ? first + at : 0);
        const float base = inside ? __ldg(p.stats.base + query) : INFINITY;
        known.base[at] = base;
        known.delta[at] = inside ? __ldg(p.stats.delta + query) : 0;
        if constexpr (shape::MODIFIED)
            known.left[at] = inside ? __ldg(p.stats.left + query) : 0;
        empty |= (uint64_t)__ballot_sync(WARP_ALL, inside && base == INFINITY) << 32 * half;
    }
    return empty;
}

/* Records of a group's slices, lane s that of slice s; and its places without a key. */
struct gradient_group {
    uint32_t record;
    uint64_t absent;
};
template <int SLICES>
DEVICE struct gradient_group gradient_group_of(const struct gradient_params &p,
                                               const struct granule_item &item, int32_t g,
                                               int32_t n, int32_t first) {
    struct gradient_group group = {MASK_ALL, 0};
    if (g < item.whole)
        return group;
    const int64_t at = item.mask + g - item.whole;
    if (warp_lane() < SLICES)
        group.record = __ldg(p.image.records + warp_lane() * p.image.n_groups + at) & ~MASK_SHORT;
    const uint64_t keys = g < item.count ? __ldg(p.image.group_keys + at) : 0;
    const int32_t rows = n - first; /* rows past the tensor's end are zeros */
    if (keys)
        group.absent = ~keys & (rows < 64 ? (UINT64_C(1) << rows) - 1 : ~UINT64_C(0));
    return group;
}

/* Facts of a step, granule g of its piece: queries, words, rows that count for nothing. Answers whether some pair is not
 * listed. */
template <class shape>
DEVICE bool gradient_know_step(typename shape::known &known, uint32_t shared, uint32_t step,
                               const struct gradient_params &p, const struct granule_item &item,
                               int32_t g, int32_t first) {
    constexpr int SLICES = shape::ROWS / GRANULE_SLICE;
    const struct gradient_group group =
        gradient_group_of<SLICES>(p, item, g, gradient_y_rows<shape>(p), first);
    uint64_t dead = group.absent;
    if constexpr (shape::OVER_KEYS)
        dead |= gradient_load_queries<shape>(known, p, (int64_t)item.batch * p.heads_q + item.head,
                                             first);
    if (!__any_sync(WARP_ALL, group.record != MASK_ALL) && !dead)
        return false;
    const uint32_t kept = dead ? ~gradient_place_bits(dead) : ~0u;
#pragma unroll 2
    for (int slice = 0; slice < SLICES; slice++) {
        const uint32_t record = __shfl_sync(WARP_ALL, group.record, slice);
        known.words[slice][warp_lane()] =
            __ldg(p.image.mask_bits + (record << MASK_WORDS_BITS) + warp_lane()) & kept;
    }
    if (dead) {
        const uint32_t stage = ring_stage<shape::STAGES>(step);
        barrier_wait(shared + shape::Y_FULL + 8 * stage, ring_parity<shape::STAGES>(step));
        gradient_zero_rows<shape>(shared + shape::Y + stage * (2 * shape::Y_TILE), dead);
        proxy_fence();
    }
    return true;
}

template <class shape>
DEVICE void gradient_produce_known(char *memory, uint32_t shared, const struct gradient_params &p,
                                   const struct gradient_pieces &all) {
    gradient_each_step<shape>(
        p, all, [&](const struct granule_item &item, int32_t g, int32_t rows, uint32_t step) {
            typename shape::known &known = gradient_known_of<shape>(memory, step);
            const bool last =
                g + 1 == item.count && (!shape::OVER_KEYS || (item.parts & GRANULE_LAST));
            barrier_wait(ring_barrier<shape::STAGES>(shared + shape::Y_EMPTY, step),
                         ring_parity<shape::STAGES>(step) ^ 1);
            const int32_t first = __shfl_sync(WARP_ALL, rows, g % 32);
            const bool cut = gradient_know_step<shape>(known, shared, step, p, item, g, first);
            if (warp_lane() == 0) {
                known.is = (last ? GRADIENT_END : 0) | (cut ? GRADIENT_CUT : 0);
                if (shape::MODIFIED)
                    known.first = first, known.head = item.head;
                if (shape::SPILLS)
                    known.unit =
                        __ldg(p.spill.unit_of + (int64_t)item.batch * p.heads_q + item.head) +
                        (int32_t)(item.first + g) * shape::CONSUMERS;
            }
            __syncwarp();
            if (warp_lane() == 0)
                barrier_arrive(ring_barrier<shape::STAGES>(shared + shape::KNOWN, step));
        });
}

#endif
