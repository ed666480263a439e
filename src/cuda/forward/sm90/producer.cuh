/* Fused attention on Hopper: the producer warpgroup. Some warps fetch items, Q and K, others V;
 * neither waits for the other. Items without keys are not passed to consumers. */
#ifndef TESSERA_CUDA_SM90_PRODUCER_CUH
#define TESSERA_CUDA_SM90_PRODUCER_CUH

#include "forward/sm90/mask.cuh"
#include "forward/sm90/epilogue.cuh"

/* Publishes the end of work: an item with count 0. `writes`: true for one of the callers. */
template <class shape>
DEVICE void sm90_publish_end(char *memory, uint32_t shared, uint32_t job, bool writes) {
    const uint32_t slot = 8 * ring_stage<shape::Q_STAGES>(job);
    barrier_wait(shared + shape::Q_EMPTY + slot, ring_parity<shape::Q_STAGES>(job) ^ 1);
    if (writes)
        sm90_item<shape>(memory, job).count = 0;
}

/* ---- TMA path: one warp for each ring ----
 *
 * Plans are read before kernels in front of this one have ended, as none writes them. All that a
 * first copy needs is ready by then; only the copy itself waits. */

/* Loads a tile of ROWS consecutive rows from `first` on, and PANELS panels from panel `panel`
 * on. */
template <int PANELS, int ROWS>
DEVICE void sm90_tma_tile(uint32_t tile, const CUtensorMap *map, uint32_t barrier, int panel,
                          int32_t first, int32_t h, int32_t b, uint64_t policy) {
    if (warp_lane() == 0) {
        barrier_arrive_expect_tx(barrier, PANELS * ROWS * 128);
#pragma unroll
        for (int i = 0; i < PANELS; i++)
            tma_load(tile + i * (ROWS * 128), map, barrier, 64 * (panel + i), first, h, b, policy);
    }
    __syncwarp();
}

/* Loads a tile of two granules of ROWS / 2 rows each, at `first` and `second`. */
template <int PANELS, int ROWS>
DEVICE void sm90_tma_two_granules(uint32_t tile, const CUtensorMap *map, uint32_t barrier,
                                  int32_t first, int32_t second, int32_t h, int32_t b,
                                  uint64_t policy) {
    if (warp_lane() == 0) {
        barrier_arrive_expect_tx(barrier, PANELS * ROWS * 128);
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            const uint32_t panel = tile + i * (ROWS * 128);
            tma_load(panel, map, barrier, 64 * i, first, h, b, policy);
            tma_load(panel + ROWS * 64, map, barrier, 64 * i, second, h, b, policy);
        }
    }
    __syncwarp();
}

/* Loads a step's tile of K or V on the TMA path: one TMA tile copy for a panel where the two
 * granules are neighbours. */
template <class shape, int PANELS>
DEVICE void sm90_tma_kv(uint32_t tile, const CUtensorMap *maps, uint32_t barrier, int32_t keys,
                        int g, int32_t h, int32_t b) {
    const int32_t one = sm90_of_lane(keys, g);
    const int panel = sm90_rank<shape>() * PANELS;
    if (shape::GRANULES == 1) {
        sm90_tma_tile<PANELS, shape::KEYS>(tile, maps, barrier, panel, one, h, b, TMA_EVICT_LAST);
        return;
    }
    const int32_t two = sm90_of_lane(keys, g + 1);
    if (two - one == GRANULE_MAX)
        sm90_tma_tile<PANELS, shape::KEYS>(tile, maps + 1, barrier, panel, one, h, b,
                                           TMA_EVICT_LAST);
    else
        sm90_tma_two_granules<PANELS, shape::KEYS>(tile, maps, barrier, one, two, h, b,
                                                   TMA_EVICT_LAST);
}

/* Loads a step's tile of K or V, one TMA tile copy for each granule of 2^bits keys and panel. Lane
 * g + i issues those of granule i. */
template <class shape, int PANELS>
DEVICE void sm90_tma_each_granule(uint32_t tile, const CUtensorMap *map, uint32_t barrier,
                                  int32_t key, int g, int bits, int32_t h, int32_t b) {
    const int piece = warp_lane() - g, panel = sm90_rank<shape>() * PANELS;
    if (warp_lane() == 0)
        barrier_arrive_expect_tx(barrier, PANELS * shape::PANEL);
    __syncwarp();
    if (piece >= 0 && piece < shape::KEYS >> bits)
#pragma unroll
        for (int d = 0; d < PANELS; d++)
            tma_load(tile + (uint32_t)(d * shape::PANEL + (piece << bits) * 128), map, barrier,
                     64 * (panel + d), key, h, b, TMA_EVICT_LAST);
    __syncwarp();
}

/* Loads Q [ROWS, D_QK] of an item: rows from `row` on of `head` and of the heads packed with it.
 * Lane `lane` issues. */
template <class shape>
DEVICE void sm90_tma_q(const struct attention_params &p, uint32_t tile, const CUtensorMap *map,
                       uint32_t barrier, int32_t row, int32_t head, int32_t b, int lane) {
    if (warp_lane() == lane) {
        barrier_arrive_expect_tx(barrier,
                                 (uint32_t)(p.tile_heads * p.tile_rows) * 128 * shape::QK_PANELS);
#pragma unroll 1
        for (int s = 0; s < p.tile_heads; s++, tile += (uint32_t)p.tile_rows * 128)
#pragma unroll
            for (int i = 0; i < shape::QK_PANELS; i++)
                tma_load(tile + i * shape::Q_PANEL, map, barrier,
                         64 * (sm90_rank<shape>() * shape::QK_PANELS + i), row, head + s, b,
                         TMA_EVICT_FIRST);
    }
    __syncwarp();
}

/* First keys of granules g + lane of an item of `count` granules. Past the end: n_kv, for which TMA
 * fills zeros. */
DEVICE int32_t sm90_load_keys(const struct attention_params &p, int64_t first, int32_t g,
                              int32_t count) {
    return g + warp_lane() < count ? __ldg(p.image.keys + first + g + warp_lane()) : p.n_kv;
}

/* The producer loop of the TMA path: items, Q and K (IS_K), or V. */
template <class shape, bool IS_K>
DEVICE void sm90_produce_tma(char *memory, uint32_t shared, const struct attention_params &p,
                             const CUtensorMap *map_q, const CUtensorMap *maps, int64_t begin,
                             int64_t end) {
    constexpr int PANELS = IS_K ? shape::QK_PANELS : shape::V_PANELS;
    constexpr int TILES = IS_K ? shape::K : shape::V, TILE = PANELS * shape::PANEL;
    constexpr int FULL = IS_K ? shape::K_FULL : shape::V_FULL;
    constexpr int EMPTY = IS_K ? shape::K_EMPTY : shape::V_EMPTY;
    const int bits = p.granule_bits, each = shape::KEYS >> bits; /* granules of a step */
    uint32_t step = 0, job = 0;
    if (warp_lane() < 2)
        tma_prefetch_map(maps + warp_lane());
    if (IS_K && warp_lane() == 2)
        tma_prefetch_map(map_q);
#pragma unroll 1
    for (int64_t window = begin; window < end; window += 32) {
        const struct granule_item items = sm90_load_items(p, window, end);
        uint32_t left = __ballot_sync(WARP_ALL, items.count > 0);
        int lane = max(__ffs((int)left) - 1, 0);
        int32_t keys =
            sm90_load_keys(p, sm90_of_lane(items.first, lane), 0, sm90_of_lane(items.count, lane));
#pragma unroll 1
        while (left) {
            const int lanes = lane;
            const int32_t count = sm90_of_lane(items.count, lane);
            const int32_t b = sm90_of_lane(items.batch, lane);
            const int32_t h = sm90_of_lane(items.head_kv, lane);
            if (IS_K) {
                const uint32_t slot = ring_stage<shape::Q_STAGES>(job);
                const uint32_t tile = shared + shape::Q + slot * shape::Q_TILE;
                const uint32_t full = shared + shape::Q_FULL + 8 * slot;
                const int32_t row = sm90_of_lane(items.row, lane);
                const int32_t head = sm90_of_lane(items.head, lane);
                barrier_wait(shared + shape::Q_EMPTY + 8 * slot,
                             ring_parity<shape::Q_STAGES>(job) ^ 1);
                if (warp_lane() == lane) /* the lane that arrives at Q's barrier */
                    sm90_item<shape>(memory, job) = items;
                __syncwarp();
                if (job == 0)
                    early_wait();
                sm90_tma_q<shape>(p, tile, map_q, full, row, head, b, lane);
                job++;
            }
            /* The next 32 keys, of this item or of the next one, are loaded meanwhile. */
            left &= left - 1;
            lane = left ? __ffs((int)left) - 1 : lane;
#pragma unroll 1
            for (int32_t chunk = 0; chunk < count; chunk += 32) {
                const int source = chunk + 32 < count ? lanes : lane;
                const int32_t after = sm90_load_keys(p, sm90_of_lane(items.first, source),
                                                     source == lanes ? chunk + 32 : 0,
                                                     sm90_of_lane(items.count, source));
                const int32_t granules = min(count - chunk, 32);
#pragma unroll 1
                for (int32_t g = 0; g < granules; g += each, step++) {
                    const uint32_t stage = ring_stage<shape::STAGES>(step);
                    const uint32_t empty = shared + EMPTY + 8 * stage;
                    const uint32_t parity = ring_parity<shape::STAGES>(step) ^ 1;
                    barrier_wait(empty, parity);
                    if (!IS_K && step == 0) /* K comes behind Q, which has waited */
                        early_wait();
                    if (bits == 6)
                        sm90_tma_kv<shape, PANELS>(shared + TILES + stage * TILE, maps,
                                                   shared + FULL + 8 * stage, keys, g, h, b);
                    else
                        sm90_tma_each_granule<shape, PANELS>(shared + TILES + stage * TILE, maps,
                                                             shared + FULL + 8 * stage, keys, g,
                                                             bits, h, b);
                }
                keys = after;
            }
        }
    }
    if (IS_K) {
        sm90_publish_end<shape>(memory, shared, job, warp_lane() == 0);
        if (warp_lane() == 0)
            barrier_arrive(ring_barrier<shape::Q_STAGES>(shared + shape::Q_FULL, job));
    }
}

/* ---- CP_ASYNC path: two warps for each tile, half of the rows each ---- */

/* A copy in flight, and the full barrier to arrive at once it is complete. */
struct sm90_pending_copy {
    uint32_t full;
    bool open;
};

/* Arrives for the copy in flight, unless it is among the last PENDING groups. The proxy fence makes
 * the copied bytes visible to WGMMA. */
template <int PENDING> DEVICE void sm90_signal_copy(struct sm90_pending_copy &pending) {
    if (!pending.open)
        return;
    cp_async_wait<PENDING>();
    proxy_fence();
    barrier_arrive(pending.full);
    pending.open = false;
}

/* Waits until a stage is free. Where that takes time, first arrives for the copy in flight. */
DEVICE void sm90_wait_signalling(uint32_t barrier, uint32_t parity,
                                 struct sm90_pending_copy &pending) {
    if (__all_sync(WARP_ALL, barrier_test_wait(barrier, parity)))
        return;
    sm90_signal_copy<0>(pending);
    barrier_wait(barrier, parity);
}

/* Copies 32 N rows to panels that are PANEL bytes apart. Lane l holds in key[i] the row of place
 * 32 i + l; -1: zeros. PLAIN: all rows and all columns exist, and rows are less than 2^32 bytes
 * apart. */
template <int PANELS, int PANEL, bool PLAIN, int N>
DEVICE void sm90_cp_async_rows(uint32_t to, const char *from, int64_t step, int32_t bytes,
                               const int32_t (&key)[N]) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
    from += 16 * piece;
    to += (uint32_t)(sub * 128) + swizzle_piece(sub, piece);
    asm("" : "+l"(from)); /* one sum: else each row would add both terms */
#pragma unroll
    for (int i = 0; i < 32 * N; i += 4) {
        const int32_t k = __shfl_sync(WARP_ALL, key[i / 32], (i + sub) % 32);
        const char *row = PLAIN ? from + (uint64_t)(uint32_t)k * (uint32_t)step
                                : from + (int64_t)max(k, 0) * step;
        const uint32_t at = (to ^ (uint32_t)(i % 8 * 16)) + (uint32_t)(i * 128);
#pragma unroll
        for (int s = 0; s < PANELS; s++)
            cp_async_16_l2_128(at + (uint32_t)(s * PANEL), row + 128 * s,
                               PLAIN || (k >= 0 && (8 * s + piece) * 16 < bytes));
    }
}

/* Source of copies: rows of one head, from the first dim of this CTA on. */
struct sm90_rows {
    const char *from;
    int64_t step;  /* bytes from row to row */
    int32_t bytes; /* bytes of a row, <= 0 where the row ends before this CTA's dims */
};

/* Rows of a head of d dims, of which a CTA has `mine`. */
template <class T, class shape>
DEVICE struct sm90_rows sm90_rows_of(const struct rows_view &view, int32_t batch, int32_t head,
                                     int32_t d, int32_t mine) {
    const int32_t first = sm90_rank<shape>() * mine;
    return {attention_head<T>(view, batch, head) + first * (int32_t)sizeof(T),
            view.stride[2] * (int64_t)sizeof(T), (d - first) * (int32_t)sizeof(T)};
}

/* Copies this warp's rows of a tile. */
template <int PANELS, int PANEL, int N>
DEVICE void sm90_cp_async_tile(uint32_t to, const struct sm90_rows &rows, const int32_t (&key)[N]) {
    const bool plain = rows.bytes >= 128 * PANELS && (uint64_t)rows.step <= UINT32_MAX;
    if (__all_sync(WARP_ALL, plain && (key[0] | key[N - 1]) >= 0))
        sm90_cp_async_rows<PANELS, PANEL, true>(to, rows.from, rows.step, rows.bytes, key);
    else
        sm90_cp_async_rows<PANELS, PANEL, false>(to, rows.from, rows.step, rows.bytes, key);
}

/* An item, one word a lane: loaded while the item before is copied. */
DEVICE bool sm90_has_word(void) {
    return warp_lane() < (int)sizeof(struct granule_item) / 4;
}
DEVICE int32_t sm90_record(const struct attention_params &p, int64_t i, int64_t end) {
    return i < end && sm90_has_word()
               ? __ldg(reinterpret_cast<const int32_t *>(p.image.items + i) + warp_lane())
               : 0;
}
#define SM90_ITEM_WORD(record, field)                                                              \
    sm90_of_lane(record, (int)(offsetof(struct granule_item, field) / 4))
#define SM90_ITEM_LONG(record, field)                                                              \
    ((int64_t)sm90_of_lane(record, (int)(offsetof(struct granule_item, field) / 4) + 1) << 32 |    \
     (uint32_t)SM90_ITEM_WORD(record, field))

/* Writes an item to shared memory. */
template <class shape> DEVICE void sm90_publish(char *memory, uint32_t job, int32_t record) {
    if (sm90_has_word())
        reinterpret_cast<int32_t *>(&sm90_item<shape>(memory, job))[warp_lane()] = record;
}

/* Keys of an item. */
struct sm90_list {
    int64_t first, group; /* its first granule; its first group, as if all had records */
    int32_t count, whole; /* granules; groups without a record */
};
DEVICE struct sm90_list sm90_list_of(const struct attention_params &p, int32_t record) {
    const int32_t whole = sm90_groups_whole(p, SM90_ITEM_WORD(record, whole));
    return {SM90_ITEM_LONG(record, first), SM90_ITEM_LONG(record, mask) - whole,
            SM90_ITEM_WORD(record, count), whole};
}

/* Keys at this lane's places of a step that begins at place `at`; -1: none. */
template <int N>
DEVICE void sm90_find_keys(int32_t (&key)[N], const struct attention_params &p,
                           const struct sm90_list &list, int64_t at) {
    const int32_t size = 1 << p.granule_bits;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t place = at + 32 * i + warp_lane();
        const int64_t g = place >> p.granule_bits, group = place / GRANULE_GROUP;
        key[i] = g < list.count
                     ? __ldg(p.image.keys + list.first + g) + ((int32_t)place & (size - 1))
                     : -1;
        if (p.granule_bits > 0 && group >= list.whole && g < list.count &&
            !(__ldg(p.image.group_keys + list.group + group) >> place % GRANULE_GROUP & 1))
            key[i] = -1;
    }
}

/* Copies half of an item's Q, where TMA cannot take its strides: 4 rows at a time, each of its own
 * head. */
template <class T, class shape>
DEVICE void sm90_cp_async_q(const struct attention_params &p, uint32_t tile, int32_t batch,
                            int32_t head, int32_t row, int32_t rows, int half) {
    const int piece = warp_lane() % 8, first = shape::ROWS / 2 * half + warp_lane() / 8;
#pragma unroll 1
    for (int at = first; at < shape::ROWS / 2 * (half + 1); at += 4) {
        const struct sm90_queries queries = sm90_queries_of(p, head, row, rows, at);
        const struct sm90_rows of_head =
            sm90_rows_of<T, shape>(p.q, batch, queries.head, p.d_qk, shape::D_QK);
        const char *from = of_head.from + queries.row * of_head.step + 16 * piece;
#pragma unroll
        for (int s = 0; s < shape::QK_PANELS; s++)
            cp_async_16_l2_128(
                tile + (uint32_t)(s * shape::Q_PANEL + at * 128) + swizzle_piece(at, piece),
                from + 128 * s, queries.rows > 0 && (8 * s + piece) * 16 < of_head.bytes);
    }
    cp_async_wait_all();
    proxy_fence();
}

/* Publishes an item, and loads its Q. */
template <class T, class shape>
DEVICE void sm90_publish_item(char *memory, uint32_t shared, const struct attention_params &p,
                              const struct sm90_maps &maps, int half, uint32_t job, int32_t record,
                              struct sm90_pending_copy &pending) {
    const uint32_t slot = ring_stage<shape::Q_STAGES>(job),
                   full = shared + shape::Q_FULL + 8 * slot;
    const uint32_t tile = shared + shape::Q + slot * shape::Q_TILE;
    sm90_wait_signalling(shared + shape::Q_EMPTY + 8 * slot, ring_parity<shape::Q_STAGES>(job) ^ 1,
                         pending);
    if (half == 0)
        sm90_publish<shape>(memory, job, record);
    if (!maps.tma_q)
        sm90_cp_async_q<T, shape>(p, tile, SM90_ITEM_WORD(record, batch),
                                  SM90_ITEM_WORD(record, head), SM90_ITEM_WORD(record, row),
                                  SM90_ITEM_WORD(record, rows), half);
    if (half > 0 || warp_lane() > 0 || !maps.tma_q)
        barrier_arrive(full);
    const int32_t row = SM90_ITEM_WORD(record, row), head = SM90_ITEM_WORD(record, head);
    const int32_t batch = SM90_ITEM_WORD(record, batch);
    if (half == 0 && maps.tma_q)
        sm90_tma_q<shape>(p, tile, &maps.q, full, row, head, batch, 0);
    __syncwarp();
}

/* The producer loop of the CP_ASYNC path: items, Q and K (IS_K), or V; `half` of two warps. */
template <class T, class shape, bool IS_K>
DEVICE void sm90_produce_cp_async(char *memory, uint32_t shared, const struct attention_params &p,
                                  const struct sm90_maps &maps, int half, int64_t begin,
                                  int64_t end) {
    constexpr int PANELS = IS_K ? shape::QK_PANELS : shape::V_PANELS;
    constexpr int TILES = IS_K ? shape::K : shape::V, TILE = PANELS * shape::PANEL;
    constexpr int MINE = shape::KEYS / 2; /* rows of K or V */
    constexpr int FULL = IS_K ? shape::K_FULL : shape::V_FULL;
    constexpr int EMPTY = IS_K ? shape::K_EMPTY : shape::V_EMPTY;
    const bool first_thread = half == 0 && warp_lane() == 0;
    struct sm90_pending_copy pending = {0, false};
    uint32_t step = 0, job = 0;
    int32_t record = sm90_record(p, begin, end), key[MINE / 32], next[MINE / 32];
    struct sm90_list list = sm90_list_of(p, record);
    sm90_find_keys(key, p, list, MINE * half);
#pragma unroll 1
    for (int64_t i = begin; i < end; i++) {
        const int32_t current = record;
        const int64_t places = (int64_t)list.count << p.granule_bits;
        const struct sm90_rows rows = sm90_rows_of<T, shape>(
            IS_K ? p.k : p.v, SM90_ITEM_WORD(current, batch), SM90_ITEM_WORD(current, head_kv),
            IS_K ? p.d_qk : p.d_v, IS_K ? shape::D_QK : shape::D_V);
        record = sm90_record(p, i + 1, end);
        if (IS_K && places > 0)
            sm90_publish_item<T, shape>(memory, shared, p, maps, half, job++, current, pending);
        /* The keys of the next step, of this item or of the next one, are loaded during these
         * copies. */
        int64_t at = 0;
#pragma unroll 1
        do {
            const bool last = at + shape::KEYS >= places;
            if (last)
                list = sm90_list_of(p, record);
            sm90_find_keys(next, p, list, (last ? 0 : at + shape::KEYS) + MINE * half);
            if (places > 0) {
                const uint32_t stage = ring_stage<shape::STAGES>(step);
                sm90_wait_signalling(shared + EMPTY + 8 * stage,
                                     ring_parity<shape::STAGES>(step) ^ 1, pending);
                const uint32_t full = shared + FULL + 8 * stage;
                sm90_cp_async_tile<PANELS, shape::PANEL>(
                    shared + TILES + stage * TILE + (uint32_t)(half * MINE * 128), rows, key);
                cp_async_commit();
                sm90_signal_copy<1>(pending);
                pending = {full, true};
                step++;
            }
#pragma unroll
            for (int j = 0; j < MINE / 32; j++)
                key[j] = next[j];
            at += shape::KEYS;
        } while (at < places);
    }
    sm90_signal_copy<0>(pending);
    if (IS_K) {
        sm90_publish_end<shape>(memory, shared, job, first_thread);
        barrier_arrive(ring_barrier<shape::Q_STAGES>(shared + shape::Q_FULL, job));
    }
}

#endif
