/*
 * The rules by which a fill turns a device pattern into packed lists: what is listed, where it stands,
 * how tiles are split. Integers alone, so that every filler writes the same bytes. The file compiles
 * as C11 and as CUDA C, where FILL_RULE names its functions' qualifiers.
 */
#ifndef TESSERA_FILL_RULES_H
#define TESSERA_FILL_RULES_H

#include <stdint.h>

#ifndef FILL_RULE
#define FILL_RULE static inline
#endif

FILL_RULE int64_t fill_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
FILL_RULE int64_t fill_most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- the image's header ---- */

#define FILL_MAGIC UINT64_C(0x4c4c494653534554) /* "TESSFILL" */

/* Header of an image: TESS_REPORT_SIZE bytes, those behind these members 0. */
struct fill_header {
    uint64_t magic, layout;                        /* FILL_MAGIC, and a number of the plan */
    int64_t faults, overflows, keys, items, pairs; /* tess_fill_report */
    int64_t combines, slots;
    int64_t unit_keys; /* keys of the tiles of all heads, heads packed in one once */
    uint64_t first;    /* the lowest fill_order of what is wrong */
};

/* Whether a plan of this layout has filled the image. */
FILL_RULE int fill_is_of(const struct fill_header *header, uint64_t layout) {
    return header->magic == FILL_MAGIC && header->layout == layout;
}

/* ---- what cannot be ---- */

/* Kinds, in the order of tess_list_fault. All but FILL_OVERFLOW are faults. */
enum fill_wrong { FILL_FALLS, FILL_NEGATIVE, FILL_OUT_OF_RANGE, FILL_OVERFLOW, FILL_RIGHT };

/* Places within a block row: its batch's length, which the batch's first row tells; the row; entry e. */
#define FILL_AT_LENGTH 0
#define FILL_AT_ROW 1
#define FILL_AT_ENTRY(e) (2 + (int64_t)(e))

/*
 * Kind and place of a fault in one number, so that the lowest is the first of any order of threads:
 *
 *     | kind, 2 bits | (block row over all lists of all batches) * (capacity + 2) + where within it, 62 bits |
 *
 * Block rows are 2^31 - 1 at most, and so is the capacity: (2^31 - 1) (2^31 + 1) < 2^62.
 */
#define FILL_NOWHERE UINT64_MAX
FILL_RULE uint64_t fill_order(enum fill_wrong wrong, uint64_t row, int64_t capacity,
                              int64_t where) {
    return (uint64_t)wrong << 62 | (row * (uint64_t)(capacity + 2) + (uint64_t)where);
}
FILL_RULE uint64_t fill_earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- query tiles ---- */

/* First query of tile t of a list, also where t is the number of tiles. */
FILL_RULE int64_t fill_tile_query(int64_t t, int64_t row_tiles, int64_t block_q, int64_t tile_rows,
                                  int64_t n_q) {
    if (row_tiles == 1) /* token lists: no division */
        return fill_least(n_q, t * block_q);
    return fill_least(n_q, t / row_tiles * block_q + t % row_tiles * tile_rows);
}

/* ---- which keys ---- */

/* Today's length of a batch: one that cannot be is 0. */
FILL_RULE enum fill_wrong fill_length_wrong(int32_t given, int32_t n_kv) {
    return given < 0 ? FILL_NEGATIVE : given > n_kv ? FILL_OUT_OF_RANGE : FILL_RIGHT;
}
FILL_RULE int32_t fill_length(int32_t given, int32_t n_kv) {
    return fill_length_wrong(given, n_kv) == FILL_RIGHT ? given : 0;
}

/* Block columns that begin before `length`. */
FILL_RULE int32_t fill_blocks(int32_t length, int32_t block_kv) {
    return (int32_t)(((int64_t)length + block_kv - 1) / block_kv);
}

/* Entries of a row to look at: none where the count cannot be, or is past the capacity. */
FILL_RULE enum fill_wrong fill_count_wrong(int32_t given, int32_t capacity) {
    return given < 0 ? FILL_NEGATIVE : given > capacity ? FILL_OVERFLOW : FILL_RIGHT;
}
FILL_RULE int32_t fill_count(int32_t given, int32_t capacity) {
    return fill_count_wrong(given, capacity) == FILL_RIGHT ? given : 0;
}

/* Whether an index is listed, of `blocks` that there are today. */
FILL_RULE int fill_listed(int32_t index, int32_t blocks) {
    return (uint32_t)index < (uint32_t)blocks;
}
/* Whether one that is not listed is a fault, not padding. */
FILL_RULE int fill_fault(int32_t index) {
    return index != -1;
}
FILL_RULE enum fill_wrong fill_index_wrong(int32_t index, int32_t blocks) {
    return fill_listed(index, blocks) || !fill_fault(index) ? FILL_RIGHT
           : index < 0                                      ? FILL_NEGATIVE
                                                            : FILL_OUT_OF_RANGE;
}

/* An end of a range: from key 0, or back from today's length. */
FILL_RULE int32_t fill_range_end(int32_t x, int32_t length) {
    return (int32_t)(x < 0 ? fill_most(0, (int64_t)length + 1 + x) : fill_least(x, length));
}

/* Entries that a row of BLOCK_ROWS claims, which begin at `begin`; 0 where they cannot be. */
FILL_RULE enum fill_wrong fill_claim_wrong(int64_t begin, int64_t end, int64_t capacity) {
    return begin < 0        ? FILL_NEGATIVE
           : end < begin    ? FILL_FALLS
           : end > capacity ? FILL_OVERFLOW
                            : FILL_RIGHT;
}
FILL_RULE int64_t fill_claim(int64_t begin, int64_t end, int64_t capacity) {
    return fill_claim_wrong(begin, end, capacity) == FILL_RIGHT ? end - begin : 0;
}

/* The first n ranges of a row: cut to today's length, ascending, joined where they meet; answers how
 * many there are. */
FILL_RULE int32_t fill_ranges(const int32_t *given, int32_t n, int32_t length,
                              int32_t (*range)[2]) {
    int32_t taken = 0, apart = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t begin = fill_range_end(given[2 * i], length);
        const int32_t end = fill_range_end(given[2 * i + 1], length);
        int32_t at = taken;
        if (begin >= end)
            continue;
        for (; at > 0 && range[at - 1][0] > begin; at--)
            range[at][0] = range[at - 1][0], range[at][1] = range[at - 1][1];
        range[at][0] = begin, range[at][1] = end;
        taken++;
    }
    for (int32_t i = 0; i < taken; i++) {
        const int32_t begin = range[i][0], end = range[i][1];
        if (apart && begin <= range[apart - 1][1])
            range[apart - 1][1] = (int32_t)fill_most(range[apart - 1][1], end);
        else
            range[apart][0] = begin, range[apart][1] = end, apart++;
    }
    return apart;
}

/* ---- the cut ---- */

/* Bounds of a query tile: its row r lists key j where low <= j - r <= high. */
struct fill_cut {
    int64_t low, high;
    int32_t rows;
};

/* Limits of j - p_i for a tile whose first query stands at key position `position`. */
FILL_RULE struct fill_cut fill_cut_at(int64_t lo, int64_t hi, int64_t position, int32_t rows) {
    struct fill_cut cut;
    cut.low = position + lo;
    cut.high = position + hi;
    cut.rows = rows;
    return cut;
}

/* Keys begin ... end - 1, cut to those that some row lists; `full` where each row lists them all. */
struct fill_run {
    int32_t begin, end;
    int full;
};
FILL_RULE struct fill_run fill_run_cut(const struct fill_cut *cut, int32_t begin, int32_t end) {
    struct fill_run run;
    run.begin = (int32_t)fill_least(fill_most(begin, cut->low), end);
    run.end = (int32_t)fill_most(fill_least(end, cut->high + cut->rows), run.begin);
    run.full = cut->low + cut->rows - 1 <= run.begin && run.end - 1 <= cut->high;
    return run;
}

/* Keys as up to three runs: a full one between two that the edges of the cut go through. */
FILL_RULE int32_t fill_range_cut(const struct fill_cut *cut, int32_t begin, int32_t end,
                                 struct fill_run out[3]) {
    const struct fill_run whole = fill_run_cut(cut, begin, end);
    const int32_t first = (int32_t)fill_most(
        whole.begin, fill_least(cut->low + cut->rows - 1, whole.end)); /* all rows list it */
    const int32_t last = (int32_t)fill_least(whole.end, fill_most(cut->high + 1, whole.begin));
    if (first >= last) {
        out[0] = whole;
        return 1;
    }
    out[0].begin = whole.begin, out[0].end = first, out[0].full = 0;
    out[1].begin = first, out[1].end = last, out[1].full = 1;
    out[2].begin = last, out[2].end = whole.end, out[2].full = 0;
    return 3;
}

/* Block columns with a key that some row lists, live ... live_end - 1, and among these full ...
 * full_end - 1, whose keys within the cut each row lists: fill_run_cut says the same of each. */
struct fill_columns {
    uint32_t live, live_end, full, full_end;
};
FILL_RULE struct fill_columns fill_columns_cut(const struct fill_cut *cut, int64_t width,
                                               int32_t length) {
    const int64_t blocks = (length + width - 1) / width, past = cut->high + cut->rows;
    const int64_t all = cut->low + cut->rows - 1; /* from here on every row has begun */
    int64_t live, live_end, full, full_end;
    struct fill_columns c;
    live = cut->low >= length ? blocks : cut->low < 0 ? 0 : cut->low / width;
    live_end = past <= 0 ? 0 : fill_least(blocks, (past + width - 1) / width);
    live_end = fill_most(live, live_end);
    full = all <= 0 ? 0 : (all + width - 1) / width;
    full_end = length <= cut->high + 1 ? blocks : cut->high < 0 ? 0 : (cut->high + 1) / width;
    if (cut->rows == 1) /* a run is cut to what the only row lists */
        full = live, full_end = live_end;
    full = fill_least(fill_most(full, live), live_end);
    c.live = (uint32_t)live, c.live_end = (uint32_t)live_end;
    c.full = (uint32_t)full;
    c.full_end = (uint32_t)fill_least(fill_most(full_end, full), live_end);
    return c;
}

/* Columns within begin ... end - 1, of 32 that begin at `first`, column first + c as bit c. */
FILL_RULE uint32_t fill_bits_from(uint32_t begin, uint32_t first) {
    return begin <= first ? UINT32_MAX : begin - first < 32 ? UINT32_MAX << (begin - first) : 0;
}
FILL_RULE uint32_t fill_bits_between(uint32_t begin, uint32_t end, uint32_t first) {
    return fill_bits_from(begin, first) & ~fill_bits_from(end, first);
}

/* Limits of c - r within a band run that begins at key `begin`, as 32 bits: nearer ones than a tile or
 * a run is long do not change. */
FILL_RULE int32_t fill_band_limit(int64_t limit, int32_t begin) {
    return (int32_t)fill_most(-(1 << 30), fill_least(1 << 30, limit - begin));
}

/* Pairs of the tile's rows and a run's keys that are listed. */
FILL_RULE int64_t fill_pairs(const struct fill_cut *cut, int32_t begin, int32_t end) {
    int64_t pairs = 0;
    for (int32_t r = 0; r < cut->rows; r++)
        pairs += fill_most(0, fill_least(end, cut->high + r + 1) - fill_most(begin, cut->low + r));
    return pairs;
}

/* ---- masks ---- */

/* Bits first ... last; those outside of 0 ... 63 are left out. */
FILL_RULE uint64_t fill_ones(int64_t first, int64_t last) {
    if (first > last || first > 63 || last < 0)
        return 0;
    return UINT64_MAX << fill_most(first, 0) & UINT64_MAX >> (63 - fill_least(last, 63));
}

/* Rows 64 w ... 64 w + 63 of a tile that may list key j: those within the cut, where there is one. */
FILL_RULE uint64_t fill_mask_rows(const struct fill_cut *cut, int has_cut, int64_t j, int32_t w) {
    const int64_t first = has_cut ? j - cut->high : 0, all = cut->rows - 1;
    const int64_t last = has_cut ? fill_least(j - cut->low, all) : all;
    return fill_ones(first - 64 * w, last - 64 * w);
}

/* ---- splits ---- */

/* Costs are counted in keys: an item takes `item` keys more than it lists, below 2^31 as a tile's keys are. whole: a
 * worker takes one item at a time, whose begin and end nothing hides, so that a part more than there are workers for is
 * a round more. */
struct fill_splits {
    int64_t item, part_keys, workers, whole;
    int64_t last, last_parts; /* parts of units `last` and on, the last round; 0: as of others */
};

/* Keys of a part of the last round, at least: joining takes as long as fewer. */
#define FILL_LAST_KEYS 256

/* Whole: units that fill no round of all workers have a part for each worker. */
FILL_RULE void fill_last_round(struct fill_splits *s, int64_t units) {
    const int64_t rest = units % s->workers;
    s->last = units - rest;
    s->last_parts = s->whole && rest && s->last ? s->workers / rest : 0;
}

/* The cost from which a tile is split, when `total` is that of all tiles: half of a worker's share, or a
 * whole one. */
FILL_RULE int64_t fill_share(const struct fill_splits *s, int64_t total) {
    return s->whole ? fill_most(1, total / s->workers) : total / (2 * s->workers) + 1;
}

/* The fewest keys of a part of a tile of so many: part_keys, and where that is short a 32nd of a tile below 32 * 128
 * keys. */
FILL_RULE int64_t fill_fewest(const struct fill_splits *s, int64_t keys) {
    return fill_most(s->part_keys, fill_least(128, keys / 32));
}

/* The most parts of a tile of so many keys, which grow with these. */
FILL_RULE int64_t fill_parts_most(const struct fill_splits *s, int64_t keys) {
    return fill_most(1, keys / fill_fewest(s, keys));
}

/* Parts of a tile of so many keys, by its share. Over all tiles they are at most as many as tiles and twice the
 * workers. */
FILL_RULE int32_t fill_parts(const struct fill_splits *s, int64_t keys, int64_t share) {
    if (keys - s->part_keys < s->part_keys || s->item + keys < share)
        return 1; /* the answer of the divisions below, which 32 bits hold now */
    const uint32_t most = (uint32_t)keys / (uint32_t)fill_fewest(s, keys);
    const uint32_t shares = (uint32_t)(s->item + keys) / (uint32_t)share + !s->whole;
    return (int32_t)fill_most(1, fill_least(most, shares));
}

/* Parts of unit u, whose tile has so many keys: its share's, or more in the last round. */
FILL_RULE int32_t fill_unit_parts(const struct fill_splits *s, int64_t u, int64_t keys,
                                  int64_t share) {
    const int32_t parts = fill_parts(s, keys, share);
    if (u < s->last || s->last_parts <= parts)
        return parts;
    const uint32_t most = (uint32_t)keys / (uint32_t)fill_most(FILL_LAST_KEYS, s->part_keys);
    return (int32_t)fill_most(parts, fill_least(most, s->last_parts));
}

#endif
