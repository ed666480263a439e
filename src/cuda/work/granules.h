/*
 * Block lists of a filled tile as granules, which a forward copies a granule at a time: SIZE keys from a
 * multiple of SIZE on. A run is of one block of `width` keys and stands for all width / SIZE granules of the
 * block. So granule g of a list is found by a shift. A cut, or today's length, may leave a part of the first
 * and of the last block. Their other keys stand in granules too, and no row lists them.
 *
 *     block of 64 keys, granules of 16      run: key = block + 20, count = 30
 *     |    0    |    1    |    2    |    3    |
 *           columns  4..15    0..15    0..1           windows, of granules 1, 2, 3
 *
 * The file compiles as C11 and as CUDA C, as fill_rules.h does.
 */
#ifndef TESSERA_CUDA_FILL_GRANULES_H
#define TESSERA_CUDA_FILL_GRANULES_H

#include "lists/fill_rules.h"

#define FILL_GRANULE_LEAST 16 /* keys of a granule */
#define FILL_GRANULE_MOST 64
#define FILL_GRANULE_ROWS 128 /* rows of a tile that a window can tell apart */
#define FILL_NO_LIMIT (1 << 30)

/* log2 of a granule's keys: a power of two that divides blocks and pages. */
FILL_RULE int32_t fill_granule_bits(int64_t block_kv, int64_t page) {
    const int64_t size = fill_least(FILL_GRANULE_MOST, fill_least(block_kv, page));
    int32_t bits = 0;
    while (INT64_C(2) << bits <= size)
        bits++;
    return bits;
}

/* Granules of a tile: those of full runs, then those of bands. */
struct fill_granules {
    int32_t full, bands;
    int32_t whole; /* the first ones, of which every row lists every key that has a page */
};

/* n_full runs, of which the first has first_count keys and the last last_count, and n_bands bands; `each`:
 * log2 of a block's granules. */
FILL_RULE struct fill_granules fill_granules_of(int64_t n_full, int64_t n_bands,
                                                int32_t first_count, int32_t last_count,
                                                int32_t width, int32_t each) {
    struct fill_granules g;
    const int64_t whole = n_full == 0 || first_count < width ? 0 : n_full - (last_count < width);
    g.full = (int32_t)(n_full << each);
    g.bands = (int32_t)(n_bands << each);
    g.whole = (int32_t)(whole << each);
    return g;
}

/* Granules before part `part` of `parts` of a tile that has n, of 2^bits keys. All parts begin at multiples
 * of FILL_GRANULE_CHUNK keys, so at a kernel's whole steps. */
#define FILL_GRANULE_CHUNK 128
FILL_RULE int32_t fill_granules_before(int32_t n, int32_t part, int32_t parts, int32_t bits) {
    const uint32_t each = FILL_GRANULE_CHUNK >> bits, all = (uint32_t)parts, at = (uint32_t)part;
    const uint32_t chunks = ((uint32_t)n + each - 1) / each;
    if (part == parts)
        return n;
    return (int32_t)((chunks / all * at + chunks % all * at / all) * each);
}

/* A granule's first key, and its window: bytes begin, end, lo, hi from the lowest on. Row r lists column c
 * where begin <= c < end and lo <= c - r <= hi; all 0: none. */
struct fill_granule {
    int32_t key;
    uint32_t window;
};

FILL_RULE int32_t fill_between(int32_t x, int32_t least, int32_t most) {
    return x < least ? least : x > most ? most : x;
}
FILL_RULE int32_t fill_window_begin(uint32_t window) {
    return (int32_t)(window & 255);
}
FILL_RULE int32_t fill_window_end(uint32_t window) {
    return (int32_t)(window >> 8 & 255);
}
FILL_RULE int32_t fill_window_lo(uint32_t window) {
    return (int8_t)(window >> 16 & 255);
}
FILL_RULE int32_t fill_window_hi(uint32_t window) {
    return (int8_t)(window >> 24);
}

/* Granule `at` of the block whose listed keys are key ... key + count - 1, with a band's limits of c - r, c
 * and r from 0 within run and tile, or within FILL_NO_LIMIT. Limits that no column and row reach are cut to
 * bytes. */
FILL_RULE struct fill_granule fill_granule_of(int32_t key, int32_t count, int32_t lo, int32_t hi,
                                              int32_t width, int32_t at, int32_t bits) {
    struct fill_granule g;
    g.key = (key & -width) + (at << bits);
    const int32_t before = key - g.key, size = 1 << bits;
    const int32_t begin = fill_between(before, 0, size);
    const int32_t end = fill_between(before + count, 0, size);
    const uint32_t low = (uint32_t)fill_between(lo + before, INT8_MIN, INT8_MAX) & 255;
    const uint32_t high = (uint32_t)fill_between(hi + before, INT8_MIN, INT8_MAX) & 255;
    g.window = begin < end ? (uint32_t)begin | (uint32_t)end << 8 | low << 16 | high << 24 : 0;
    return g;
}

/* A listed key of a block: rows first ... first + count - 1 of a tile list it. key -1: it is not listed. */
struct fill_column {
    int32_t key, first, count;
};

/* Key c of the block of `width` keys, as fill_granule_of has blocks, by a tile of `rows` rows. */
FILL_RULE struct fill_column fill_column_of(int32_t key, int32_t count, int32_t lo, int32_t hi,
                                            int32_t width, int32_t c, int32_t rows) {
    const int32_t at = c - (key & (width - 1)); /* within the run */
    struct fill_column column;
    column.key = -1, column.first = column.count = 0;
    if (at < 0 || at >= count)
        return column;
    column.key = key + at;
    column.first = fill_between(at - hi, 0, rows);
    column.count = fill_between(at - lo + 1, column.first, rows) - column.first;
    return column;
}

/* The page of a key by its batch's row of the table; -1: there is no such page, and the key is not listed. */
FILL_RULE int32_t fill_page(const int32_t *row, int32_t key, int32_t shift, int32_t pages) {
    const int32_t page = row[key >> shift];
    return page >= 0 && page < pages ? page : -1;
}

/* Whether a granule with some listed keys has others, which may hold anything. */
FILL_RULE int fill_window_short(uint32_t window, int32_t bits) {
    return window && (fill_window_begin(window) > 0 || fill_window_end(window) < 1 << bits);
}
FILL_RULE int fill_window_has(uint32_t window, int32_t c) {
    return c >= fill_window_begin(window) && c < fill_window_end(window);
}
/* All columns of a granule, and those within its window. */
FILL_RULE uint64_t fill_granule_all(int32_t bits) {
    return UINT64_MAX >> (64 - (1 << bits));
}
FILL_RULE uint64_t fill_window_columns(uint32_t window) {
    return fill_ones(fill_window_begin(window), fill_window_end(window) - 1);
}

/* Window of a granule of a run of bits, whose keys have words of the rows that list them. */
#define FILL_WINDOW_BITS UINT32_C(0xff00)

/* Columns of the at-th granule of run i of bits that some row lists. each: log2 of a block's granules. */
FILL_RULE uint64_t fill_granule_listed(const uint64_t *listed, int64_t i, int32_t at, int32_t each,
                                       int32_t bits) {
    const int32_t first = at << bits, words = bits + each > 6 ? 2 : 1;
    return listed[i * words + (first >> 6)] >> (first & 63) & fill_granule_all(bits);
}

/* Columns before x among a thread's 8 i + t2, + 1 of a product's accumulators, t2 being 0, 2, 4 or 6: bits
 * 2 i, 2 i + 1. */
FILL_RULE uint32_t fill_columns_before(int32_t x, int32_t t2) {
    const int32_t far = fill_between(x - t2, 0, FILL_GRANULE_MOST), rest = far & 7;
    const int32_t n = far / 8 * 2 + (rest < 2 ? rest : 2);
    return (UINT32_C(1) << n) - 1;
}
/* Columns of these that row r lists. */
FILL_RULE uint32_t fill_window_row(uint32_t window, int32_t r, int32_t t2) {
    const int32_t first = fill_window_lo(window) + r, past = fill_window_hi(window) + r + 1;
    const int32_t begin = fill_window_begin(window), end = fill_window_end(window);
    return fill_columns_before(past < end ? past : end, t2) &
           ~fill_columns_before(first > begin ? first : begin, t2);
}

#endif
