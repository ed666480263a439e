/* Fused attention on Hopper over filled lists: items of the image, and their granules. A kernel that starts early
 * reads both after the fill has ended: by ordinary loads, since read-only ones may give what was there before. */
#ifndef TESSERA_CUDA_SM90_FILLED_ITEMS_CUH
#define TESSERA_CUDA_SM90_FILLED_ITEMS_CUH

#include "forward/sm90/epilogue.cuh"
#include "forward/sm90/filled/config.cuh"
#include "work/image.cuh"
#include "work/rows.cuh"

/* An item as consumers and the epilogue know it, `mask` being the key position of query 0; and where its
 * granules are. Full runs begin at `first`, and so do bands: a block has a place for either. */
struct sm90_filled_item : granule_item {
    int32_t begin, full; /* granules of the tile: before the item, and of full runs */
};

/* log2 of a block's granules. */
DEVICE int sm90_filled_each(const struct decode_params &p) {
    return __ffs(p.block_kv) - 1 - p.run.granule_bits;
}

/* Granules of its tile that an item has. */
DEVICE void sm90_filled_cut(struct sm90_filled_item &item, const struct decode_params &p,
                            const struct work_item &w, int64_t T) {
    const int64_t masked = LIST_MASKED_KINDS * T + p.masked_kind;
    const int64_t n_full = p.full_end[T] - p.full_ptr[T];
    const int64_t n_bands = p.masked_end[masked] - p.masked_ptr[masked];
    item.first = p.full_ptr[T];
    int32_t first_count = p.block_kv, last_count = p.block_kv;
    if (n_full > 0 && p.block_kv > 1) { /* blocks of one key are whole */
        first_count = p.full[item.first].count;
        last_count = p.full[item.first + n_full - 1].count;
    }
    const struct fill_granules g =
        fill_granules_of(n_full, n_bands, first_count, last_count, p.block_kv, sm90_filled_each(p));
    item.full = g.full;
    item.begin = 0;
    item.count = g.full + g.bands;
    if (w.parts > 1) {
        const int32_t n = item.count, bits = p.run.granule_bits;
        item.begin = fill_granules_before(n, w.part, w.parts, bits);
        item.count = fill_granules_before(n, w.part + 1, w.parts, bits) - item.begin;
    }
    item.whole = fill_between(g.whole - item.begin, 0, item.count);
}

DEVICE struct sm90_filled_item sm90_filled_item_of(const struct decode_params &p,
                                                   const struct work_item &w) {
    const struct filled_tile tile = filled_tile_of(p, w);
    struct sm90_filled_item item;
    item.batch = tile.batch;
    item.head = tile.head;
    item.head_kv = tile.head_kv;
    sm90_filled_cut(item, p, w, tile.T);
    item.row = tile.row;
    item.rows = tile.rows;
    item.mask = tile.first;
    item.slot = w.slot * p.run.tile_heads;
    item.parts = w.parts;
    return item;
}

/* Items of this CTA. */
DEVICE int32_t sm90_filled_items(const struct decode_params &p) {
    const uint32_t items = (uint32_t)fill_least(filled_items(p), INT32_MAX);
    return items <= blockIdx.x ? 0 : (int32_t)((items - blockIdx.x - 1) / gridDim.x) + 1;
}

DEVICE struct work_item sm90_filled_work(const struct decode_params &p, int64_t i) {
    return p.image.items[blockIdx.x + i * (int64_t)gridDim.x];
}

/* Up to 32 of them from the first-th on, one for each lane. Count -1: no item. */
DEVICE struct sm90_filled_item sm90_filled_load_items(const struct decode_params &p, int64_t first,
                                                      int64_t end) {
    struct sm90_filled_item item;
    item.count = -1;
    if (first + warp_lane() < end)
        item = sm90_filled_item_of(p, sm90_filled_work(p, first + warp_lane()));
    return item;
}

/* Rows without keys of runs with a base, by consumers. */
template <class T, class shape> DEVICE void sm90_filled_store_based(const struct decode_params &p) {
    const int64_t end = sm90_filled_items(p);
    const auto load = [&](int64_t first) { return sm90_filled_load_items(p, first, end); };
    sm90_store_empty<T, shape, true>(p.run, load, 0, end, sm90_consumer_warp_here(),
                                     4 * shape::CONSUMERS);
}

/* First granules of an item that need no window. A fill sees no page table, so item.whole counts keys of
 * missing pages; without windows their scores would be 0 and count. Each lane looks at every 32nd. */
DEVICE int32_t sm90_filled_whole(const struct decode_params &p,
                                 const struct sm90_filled_item &item) {
    const int bits = p.run.granule_bits, each = sm90_filled_each(p);
    int32_t whole = item.whole;
    if (!p.table)
        return whole;
#pragma unroll 1
    for (int32_t at = warp_lane(); at < item.whole; at += 32) {
        const int32_t n = item.begin + at, block = n & ((1 << each) - 1);
        const int32_t key = p.full[item.first + (n >> each)].key + (block << bits);
        if (filled_page(p, item.batch, key) < 0)
            whole = min(whole, at);
    }
    return __reduce_min_sync(WARP_ALL, whole);
}

/* A granule and its TMA coordinates: the page, or the batch without pages, and the row. Granules without a
 * listed key lie past all rows, for which TMA fills zeros. Pages or batches that share their rows (a stride
 * of 0) are one in the map: 0. */
struct sm90_filled_place {
    struct fill_granule granule;
    int32_t page, row;
    uint64_t listed; /* columns that some row lists, where masks may be given */
};

/* Columns of granule `at` of an item's tile, of a run of bits, that some row lists. */
DEVICE uint64_t sm90_filled_listed(const struct decode_params &p,
                                   const struct sm90_filled_item &item, int32_t at) {
    const int each = sm90_filled_each(p), n = at - item.full;
    return fill_granule_listed(p.image.listed, item.first + (n >> each), n & ((1 << each) - 1),
                               each, p.run.granule_bits);
}

/* Whether a granule has columns that some row lists, and others; whether column c is one of the former. */
template <bool MASKS>
DEVICE bool sm90_filled_ragged(const struct sm90_filled_place &place, int bits) {
    return MASKS ? place.listed && place.listed != fill_granule_all(bits)
                 : fill_window_short(place.granule.window, bits);
}
template <bool MASKS>
DEVICE bool sm90_filled_has(const struct sm90_filled_place &place, int lane, int c) {
    return MASKS ? __shfl_sync(WARP_ALL, place.listed, lane) >> c & 1
                 : fill_window_has(__shfl_sync(WARP_ALL, place.granule.window, lane), c);
}

/* Words of an item's tile before those of key 0, as runs of bits have them: consumers add their keys'. */
DEVICE int64_t sm90_filled_words(const struct decode_params &p,
                                 const struct sm90_filled_item &item) {
    const struct list_masked *const run = p.masked + item.first;
    return run->u.word - (int64_t)run->key * (p.run.tile_rows > 64 ? 2 : 1);
}

/* Granule `at` of an item's tile; missing pages list no key. apart: pages, or batches, share no rows. */
template <bool MASKS>
DEVICE struct sm90_filled_place sm90_filled_find(const struct decode_params &p,
                                                 const struct sm90_filled_item &item, int32_t at,
                                                 bool apart) {
    const int bits = p.run.granule_bits, each = sm90_filled_each(p);
    const int32_t n = at < item.full ? at : at - item.full, run = n >> each;
    const struct list_masked *const band = p.masked + item.first + run;
    const struct list_run *const whole = p.full + item.first + run;
    int32_t key, count, lo = -FILL_NO_LIMIT, hi = FILL_NO_LIMIT;
    if (at < item.full)
        key = whole->key, count = whole->count;
    else
        key = band->key, count = band->count;
    if (at >= item.full && !(MASKS && p.words))
        lo = band->u.band.lo, hi = band->u.band.hi;
    struct sm90_filled_place place;
    place.granule = fill_granule_of(key, count, lo, hi, p.block_kv, n & ((1 << each) - 1), bits);
    place.listed = MASKS ? fill_window_columns(place.granule.window) : 0;
    if (MASKS && p.words && at >= item.full && place.granule.window) {
        place.listed = sm90_filled_listed(p, item, at);
        place.granule.window = place.listed ? FILL_WINDOW_BITS : 0;
    }
    place.page = item.batch, place.row = place.granule.key;
    if (p.table && place.granule.window) {
        place.page = filled_page(p, item.batch, place.row);
        place.row &= (1 << p.shift) - 1;
        if (place.page < 0)
            place.granule.window = 0;
    }
    if (place.granule.window == 0)
        place.row = p.rows, place.listed = 0;
    if (place.granule.window == 0 || !apart)
        place.page = 0;
    return place;
}

#endif
