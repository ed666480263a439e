/*
 * Fused attention on Hopper, the warpgroup that fetches. Queries and keys are fetched by one part of
 * it, values by another, neither waiting for the other. Items without keys are not handed on.
 */
#ifndef TESSERA_CUDA_SM90_FETCH_CUH
#define TESSERA_CUDA_SM90_FETCH_CUH

#include "forward/sm90/mask.cuh"
#include "forward/sm90/epilogue.cuh"

/* The end, an item without keys, when its place is free. `writes`: of all that call this, one. */
template <class shape>
static __device__ __forceinline__ void sm90_hand_end(char *memory, uint32_t shared, uint32_t job,
                                                     bool writes) {
    const uint32_t slot = 8 * ring_stage<shape::SLOTS>(job);
    barrier_wait(shared + shape::Q_EMPTY + slot, ring_parity<shape::SLOTS>(job) ^ 1);
    if (writes)
        sm90_item<shape>(memory, job).count = 0;
}

/* ---- boxes, by one warp for each ring ---- */

/* A tile by boxes of all its rows, which begin at `first`, and columns, at panel `panel`. */
template <int PANELS, int ROWS>
static __device__ __forceinline__ void sm90_box(uint32_t tile, const CUtensorMap *map,
                                                uint32_t barrier, int panel, int32_t first,
                                                int32_t h, int32_t b, uint64_t policy) {
    if (warp_lane() == 0) {
        barrier_arrive_expect(barrier, PANELS * ROWS * 128);
#pragma unroll
        for (int i = 0; i < PANELS; i++)
            box_load(tile + i * (ROWS * 128), map, barrier, 64 * (panel + i), first, h, b, policy);
    }
    __syncwarp();
}

/* A tile by boxes of half its rows, which begin at `first` and `second`. */
template <int PANELS, int ROWS>
static __device__ __forceinline__ void sm90_boxes(uint32_t tile, const CUtensorMap *map,
                                                  uint32_t barrier, int32_t first, int32_t second,
                                                  int32_t h, int32_t b, uint64_t policy) {
    if (warp_lane() == 0) {
        barrier_arrive_expect(barrier, PANELS * ROWS * 128);
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            const uint32_t panel = tile + i * (ROWS * 128);
            box_load(panel, map, barrier, 64 * i, first, h, b, policy);
            box_load(panel + ROWS * 64, map, barrier, 64 * i, second, h, b, policy);
        }
    }
    __syncwarp();
}

/* A step's tile of K or V: by one box where its granules are neighbours. */
template <class shape, int PANELS>
static __device__ __forceinline__ void sm90_box_granules(uint32_t tile, const CUtensorMap *maps,
                                                         uint32_t barrier, int32_t keys, int g,
                                                         int32_t h, int32_t b) {
    const int32_t one = sm90_of_lane(keys, g);
    const int panel = sm90_rank<shape>() * PANELS;
    if (shape::GRANULES == 1) {
        sm90_box<PANELS, shape::KEYS>(tile, maps, barrier, panel, one, h, b, BOX_AGAIN);
        return;
    }
    const int32_t two = sm90_of_lane(keys, g + 1);
    if (two - one == GRANULE_MAX)
        sm90_box<PANELS, shape::KEYS>(tile, maps + 1, barrier, panel, one, h, b, BOX_AGAIN);
    else
        sm90_boxes<PANELS, shape::KEYS>(tile, maps, barrier, one, two, h, b, BOX_AGAIN);
}

/* A step's tile of K or V by a box for each granule, of 2^bits keys: those of lanes g ... of `keys`,
 * each by its lane. */
template <class shape, int PANELS>
static __device__ __forceinline__ void sm90_box_pieces(uint32_t tile, const CUtensorMap *map,
                                                       uint32_t barrier, int32_t key, int g,
                                                       int bits, int32_t h, int32_t b) {
    const int piece = warp_lane() - g, panel = sm90_rank<shape>() * PANELS;
    if (warp_lane() == 0)
        barrier_arrive_expect(barrier, PANELS * shape::PANEL);
    __syncwarp();
    if (piece >= 0 && piece < shape::KEYS >> bits)
#pragma unroll
        for (int d = 0; d < PANELS; d++)
            box_load(tile + (uint32_t)(d * shape::PANEL + (piece << bits) * 128), map, barrier,
                     64 * (panel + d), key, h, b, BOX_AGAIN);
    __syncwarp();
}

/* The queries from `row` on of `head` and those that are stacked with it, by lane `lane`. */
template <class shape>
static __device__ __forceinline__ void
sm90_box_queries(const struct attention_params &p, uint32_t tile, const CUtensorMap *map,
                 uint32_t barrier, int32_t row, int32_t head, int32_t b, int lane) {
    if (warp_lane() == lane) {
        barrier_arrive_expect(barrier, (uint32_t)(p.stack * p.tile_rows) * 128 * shape::QK_PANELS);
#pragma unroll 1
        for (int s = 0; s < p.stack; s++, tile += (uint32_t)p.tile_rows * 128)
#pragma unroll
            for (int i = 0; i < shape::QK_PANELS; i++)
                box_load(tile + i * shape::Q_PANEL, map, barrier,
                         64 * (sm90_rank<shape>() * shape::QK_PANELS + i), row, head + s, b,
                         BOX_ONCE);
    }
    __syncwarp();
}

/* The keys of granules g + lane of a list of `count`; past its end, one past the last key: zeros. */
static __device__ __forceinline__ int32_t sm90_keys(const struct attention_params &p, int64_t first,
                                                    int32_t g, int32_t count) {
    return g + warp_lane() < count ? __ldg(p.image.keys + first + g + warp_lane()) : p.n_kv;
}

/* Keys with the queries before them, or values. */
template <class shape, bool QUERIES>
static __device__ __forceinline__ void
sm90_fetch_boxes(char *memory, uint32_t shared, const struct attention_params &p,
                 const CUtensorMap *map_q, const CUtensorMap *maps, int64_t begin, int64_t end) {
    constexpr int PANELS = QUERIES ? shape::QK_PANELS : shape::V_PANELS;
    constexpr int TILES = QUERIES ? shape::K : shape::V, TILE = PANELS * shape::PANEL;
    constexpr int FULL = QUERIES ? shape::K_FULL : shape::V_FULL;
    constexpr int EMPTY = QUERIES ? shape::K_EMPTY : shape::V_EMPTY;
    const int bits = p.granule_bits, each = shape::KEYS >> bits; /* granules of a step */
    uint32_t step = 0, job = 0;
    if (warp_lane() < 2)
        box_prefetch_map(maps + warp_lane());
    if (QUERIES && warp_lane() == 2)
        box_prefetch_map(map_q);
#pragma unroll 1
    for (int64_t window = begin; window < end; window += 32) {
        const struct granule_item items = sm90_look_at_items(p, window, end);
        uint32_t left = __ballot_sync(WARP_ALL, items.count > 0);
        int lane = max(__ffs((int)left) - 1, 0);
        int32_t keys =
            sm90_keys(p, sm90_of_lane(items.first, lane), 0, sm90_of_lane(items.count, lane));
        kernel_before_wait(); /* not for the plan, which no kernel writes */
#pragma unroll 1
        while (left) {
            const int here = lane;
            const int32_t count = sm90_of_lane(items.count, lane);
            const int32_t b = sm90_of_lane(items.batch, lane);
            const int32_t h = sm90_of_lane(items.head_kv, lane);
            if (QUERIES) {
                const uint32_t slot = ring_stage<shape::SLOTS>(job);
                const uint32_t tile = shared + shape::Q + slot * shape::Q_TILE;
                const uint32_t full = shared + shape::Q_FULL + 8 * slot;
                const int32_t row = sm90_of_lane(items.row, lane);
                const int32_t head = sm90_of_lane(items.head, lane);
                barrier_wait(shared + shape::Q_EMPTY + 8 * slot,
                             ring_parity<shape::SLOTS>(job) ^ 1);
                if (warp_lane() == lane) /* who arrives at Q's barrier, too */
                    sm90_item<shape>(memory, job) = items;
                __syncwarp();
                sm90_box_queries<shape>(p, tile, map_q, full, row, head, b, lane);
                job++;
            }
            /* The keys after these 32 are on their way meanwhile: of this item, or of the next. */
            left &= left - 1;
            lane = left ? __ffs((int)left) - 1 : lane;
#pragma unroll 1
            for (int32_t chunk = 0; chunk < count; chunk += 32) {
                const int of = chunk + 32 < count ? here : lane;
                const int32_t after =
                    sm90_keys(p, sm90_of_lane(items.first, of), of == here ? chunk + 32 : 0,
                              sm90_of_lane(items.count, of));
                const int32_t granules = min(count - chunk, 32);
#pragma unroll 1
                for (int32_t g = 0; g < granules; g += each, step++) {
                    const uint32_t stage = ring_stage<shape::STAGES>(step);
                    const uint32_t empty = shared + EMPTY + 8 * stage;
                    const uint32_t parity = ring_parity<shape::STAGES>(step) ^ 1;
                    /* Before the stage is free: the groups' own place has been since the one before
                     * was. */
                    const struct granule_item &item = sm90_item<shape>(memory, job - 1);
                    if (QUERIES && (int64_t)(chunk + g + each) > item.whole)
                        sm90_leave_groups<shape>(sm90_groups<shape>(memory, step), p, item,
                                                 (chunk + g) / each);
                    barrier_wait(empty, parity);
                    if (bits == 6)
                        sm90_box_granules<shape, PANELS>(shared + TILES + stage * TILE, maps,
                                                         shared + FULL + 8 * stage, keys, g, h, b);
                    else
                        sm90_box_pieces<shape, PANELS>(shared + TILES + stage * TILE, maps,
                                                       shared + FULL + 8 * stage, keys, g, bits, h,
                                                       b);
                }
                keys = after;
            }
        }
    }
    if (QUERIES) {
        sm90_hand_end<shape>(memory, shared, job, warp_lane() == 0);
        if (warp_lane() == 0)
            barrier_arrive(shared + shape::Q_FULL + 8 * ring_stage<shape::SLOTS>(job));
    }
}

/* ---- copies of 16 bytes, by two warps to a tile, of which each has half the rows ---- */

/* Copies of a tile that this thread has handed in, and not yet told of: the barrier to tell. */
struct sm90_copies {
    uint32_t full;
    bool open;
};

/* Tells of them, once they are done, but for those of the last PENDING batches: tensor cores may read
 * what they wrote. */
template <int PENDING>
static __device__ __forceinline__ void sm90_tell(struct sm90_copies &copies) {
    if (!copies.open)
        return;
    copy_wait<PENDING>();
    proxy_fence();
    barrier_arrive(copies.full);
    copies.open = false;
}

/* Waits for a place to be free, unless it is, not before having told of the copies. */
static __device__ __forceinline__ void sm90_wait_telling(uint32_t barrier, uint32_t parity,
                                                         struct sm90_copies &copies) {
    if (__all_sync(WARP_ALL, barrier_ended(barrier, parity)))
        return;
    sm90_tell<0>(copies);
    barrier_wait(barrier, parity);
}

/* Lane l names, in key[i], the row that goes to 32 i + l, -1 for zeros. Panels are PANEL bytes
 * apart. PLAIN: all rows are there, and all columns of PANELS, less than 2^32 bytes from row to
 * row. */
template <int PANELS, int PANEL, bool PLAIN, int N>
static __device__ __forceinline__ void sm90_copy_rows(uint32_t to, const char *from, int64_t step,
                                                      int32_t bytes, const int32_t (&key)[N]) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
    from += 16 * piece;
    to += (uint32_t)(sub * 128) + panel_piece(sub, piece);
    asm("" : "+l"(from)); /* one sum: else each row adds its two terms */
#pragma unroll
    for (int i = 0; i < 32 * N; i += 4) {
        const int32_t k = __shfl_sync(WARP_ALL, key[i / 32], (i + sub) % 32);
        const char *row = PLAIN ? from + (uint64_t)(uint32_t)k * (uint32_t)step
                                : from + (int64_t)max(k, 0) * step;
        const uint32_t at = (to ^ (uint32_t)(i % 8 * 16)) + (uint32_t)(i * 128);
#pragma unroll
        for (int s = 0; s < PANELS; s++)
            copy_16_of_line(at + (uint32_t)(s * PANEL), row + 128 * s,
                            PLAIN || (k >= 0 && (8 * s + piece) * 16 < bytes));
    }
}

/* What is copied from: the rows of one head, from the first of this block's dims on. */
struct sm90_rows {
    const char *from;
    int64_t step;  /* bytes from row to row */
    int32_t bytes; /* of a row; of one that ends before, fewer than 0 */
};

/* Of d dims, of which a block has `mine`. */
template <class T, class shape>
static __device__ __forceinline__ struct sm90_rows
sm90_rows_of(const struct view &view, int32_t batch, int32_t head, int32_t d, int32_t mine) {
    const int32_t first = sm90_rank<shape>() * mine;
    return {attention_head<T>(view, batch, head) + first * (int32_t)sizeof(T),
            view.stride[2] * (int64_t)sizeof(T), (d - first) * (int32_t)sizeof(T)};
}

/* This warp's rows of a tile. */
template <int PANELS, int PANEL, int N>
static __device__ __forceinline__ void sm90_copy(uint32_t to, const struct sm90_rows &rows,
                                                 const int32_t (&key)[N]) {
    const bool plain = rows.bytes >= 128 * PANELS && (uint64_t)rows.step <= UINT32_MAX;
    if (__all_sync(WARP_ALL, plain && (key[0] | key[N - 1]) >= 0))
        sm90_copy_rows<PANELS, PANEL, true>(to, rows.from, rows.step, rows.bytes, key);
    else
        sm90_copy_rows<PANELS, PANEL, false>(to, rows.from, rows.step, rows.bytes, key);
}

/* An item, a word to a lane, so that it comes while the item before is copied. */
static __device__ __forceinline__ bool sm90_has_word(void) {
    return warp_lane() < (int)sizeof(struct granule_item) / 4;
}
static __device__ __forceinline__ int32_t sm90_record(const struct attention_params &p, int64_t i,
                                                      int64_t end) {
    return i < end && sm90_has_word()
               ? __ldg(reinterpret_cast<const int32_t *>(p.image.items + i) + warp_lane())
               : 0;
}
#define SM90_ITEM_WORD(record, field)                                                              \
    sm90_of_lane(record, (int)(offsetof(struct granule_item, field) / 4))
#define SM90_ITEM_LONG(record, field)                                                              \
    ((int64_t)sm90_of_lane(record, (int)(offsetof(struct granule_item, field) / 4) + 1) << 32 |    \
     (uint32_t)SM90_ITEM_WORD(record, field))

/* Hands it on, by all lanes of a warp. */
template <class shape>
static __device__ __forceinline__ void sm90_hand(char *memory, uint32_t job, int32_t record) {
    if (sm90_has_word())
        reinterpret_cast<int32_t *>(&sm90_item<shape>(memory, job))[warp_lane()] = record;
}

/* What finding an item's keys takes. */
struct sm90_list {
    int64_t first, group; /* its first granule; its first group, as if all had records */
    int32_t count, whole; /* granules; groups without a record */
};
static __device__ __forceinline__ struct sm90_list sm90_list_of(const struct attention_params &p,
                                                                int32_t record) {
    const int32_t whole =
        (int32_t)(((int64_t)SM90_ITEM_WORD(record, whole) << p.granule_bits) / GRANULE_GROUP);
    return {SM90_ITEM_LONG(record, first), SM90_ITEM_LONG(record, mask) - whole,
            SM90_ITEM_WORD(record, count), whole};
}

/* The keys at this lane's places of a step that begins at place `at`; -1 where there is none. */
template <int N>
static __device__ __forceinline__ void sm90_look_at_keys(int32_t (&key)[N],
                                                         const struct attention_params &p,
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
            !(__ldg(&p.image.groups[list.group + group].keys) >> place % GRANULE_GROUP & 1))
            key[i] = -1;
    }
}

/* Half of an item's queries, where boxes do not reach them: 4 rows at a time, each of its own head. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_copy_queries(const struct attention_params &p,
                                                         uint32_t tile, int32_t record, int half) {
    const int piece = warp_lane() % 8, first = shape::ROWS / 2 * half + warp_lane() / 8;
    const int32_t batch = SM90_ITEM_WORD(record, batch), head = SM90_ITEM_WORD(record, head);
    const int32_t row = SM90_ITEM_WORD(record, row), rows = SM90_ITEM_WORD(record, rows);
#pragma unroll 1
    for (int at = first; at < shape::ROWS / 2 * (half + 1); at += 4) {
        const struct sm90_queries of = sm90_queries_of(p, head, row, rows, at);
        const struct sm90_rows of_head =
            sm90_rows_of<T, shape>(p.q, batch, of.head, p.d_qk, shape::D_QK);
        const char *from = of_head.from + of.row * of_head.step + 16 * piece;
#pragma unroll
        for (int s = 0; s < shape::QK_PANELS; s++)
            copy_16_of_line(tile + (uint32_t)(s * shape::Q_PANEL + at * 128) +
                                panel_piece(at, piece),
                            from + 128 * s, of.rows > 0 && (8 * s + piece) * 16 < of_head.bytes);
    }
    copy_wait_all();
    proxy_fence();
}

/* An item, and its queries. */
template <class T, class shape>
static __device__ __forceinline__ void
sm90_hand_item(char *memory, uint32_t shared, const struct attention_params &p,
               const struct sm90_maps &maps, int half, uint32_t job, int32_t record,
               struct sm90_copies &copies) {
    const uint32_t slot = ring_stage<shape::SLOTS>(job), full = shared + shape::Q_FULL + 8 * slot;
    const uint32_t tile = shared + shape::Q + slot * shape::Q_TILE;
    sm90_wait_telling(shared + shape::Q_EMPTY + 8 * slot, ring_parity<shape::SLOTS>(job) ^ 1,
                      copies);
    if (half == 0)
        sm90_hand<shape>(memory, job, record);
    if (!maps.queries)
        sm90_copy_queries<T, shape>(p, tile, record, half);
    if (half > 0 || warp_lane() > 0 || !maps.queries)
        barrier_arrive(full);
    const int32_t row = SM90_ITEM_WORD(record, row), head = SM90_ITEM_WORD(record, head);
    const int32_t batch = SM90_ITEM_WORD(record, batch);
    if (half == 0 && maps.queries)
        sm90_box_queries<shape>(p, tile, &maps.q, full, row, head, batch, 0);
    __syncwarp();
}

/* Keys with the queries before them, or values; `half` of two warps. */
template <class T, class shape, bool QUERIES>
static __device__ __forceinline__ void
sm90_fetch_copies(char *memory, uint32_t shared, const struct attention_params &p,
                  const struct sm90_maps &maps, int half, int64_t begin, int64_t end) {
    constexpr int PANELS = QUERIES ? shape::QK_PANELS : shape::V_PANELS;
    constexpr int TILES = QUERIES ? shape::K : shape::V, TILE = PANELS * shape::PANEL;
    constexpr int MINE = shape::KEYS / 2; /* rows of K or V */
    constexpr int FULL = QUERIES ? shape::K_FULL : shape::V_FULL;
    constexpr int EMPTY = QUERIES ? shape::K_EMPTY : shape::V_EMPTY;
    const bool first_thread = half == 0 && warp_lane() == 0;
    struct sm90_copies copies = {0, false};
    uint32_t step = 0, job = 0;
    int32_t record = sm90_record(p, begin, end), key[MINE / 32], next[MINE / 32];
    struct sm90_list list = sm90_list_of(p, record);
    sm90_look_at_keys(key, p, list, MINE * half);
#pragma unroll 1
    for (int64_t i = begin; i < end; i++) {
        const int32_t here = record;
        const int64_t places = (int64_t)list.count << p.granule_bits;
        const struct sm90_rows rows = sm90_rows_of<T, shape>(
            QUERIES ? p.k : p.v, SM90_ITEM_WORD(here, batch), SM90_ITEM_WORD(here, head_kv),
            QUERIES ? p.d_qk : p.d_v, QUERIES ? shape::D_QK : shape::D_V);
        record = sm90_record(p, i + 1, end);
        if (QUERIES && places > 0)
            sm90_hand_item<T, shape>(memory, shared, p, maps, half, job++, here, copies);
        /* The keys of the next step, of this item or of the next, come while these are copied. */
        int64_t at = 0;
#pragma unroll 1
        do {
            const bool last = at + shape::KEYS >= places;
            if (last)
                list = sm90_list_of(p, record);
            sm90_look_at_keys(next, p, list, (last ? 0 : at + shape::KEYS) + MINE * half);
            if (places > 0) {
                const uint32_t stage = ring_stage<shape::STAGES>(step);
                const struct granule_item &item = sm90_item<shape>(memory, job - 1);
                if (QUERIES && half == 0 &&
                    at + shape::KEYS > (int64_t)item.whole << p.granule_bits)
                    sm90_leave_groups<shape>(sm90_groups<shape>(memory, step), p, item,
                                             (int32_t)(at >> shape::BITS));
                sm90_wait_telling(shared + EMPTY + 8 * stage, ring_parity<shape::STAGES>(step) ^ 1,
                                  copies);
                const uint32_t full = shared + FULL + 8 * stage;
                sm90_copy<PANELS, shape::PANEL>(
                    shared + TILES + stage * TILE + (uint32_t)(half * MINE * 128), rows, key);
                copy_batch();
                sm90_tell<1>(copies);
                copies = {full, true};
                step++;
            }
#pragma unroll
            for (int j = 0; j < MINE / 32; j++)
                key[j] = next[j];
            at += shape::KEYS;
        } while (at < places);
    }
    sm90_tell<0>(copies);
    if (QUERIES) {
        sm90_hand_end<shape>(memory, shared, job, first_thread);
        barrier_arrive(shared + shape::Q_FULL + 8 * ring_stage<shape::SLOTS>(job));
    }
}

#endif
