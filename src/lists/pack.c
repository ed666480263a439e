/*
 * Packing one query tile. Part of one block row: the block row's tiles are taken over one by one. Several
 * block rows, or pieces of several (the members): the union of the members' lists is taken.
 */
#include "lists/pack.h"

#include <stdlib.h>

/* Keys that all rows list, inside a partial tile, join the full runs only from this length on: a
 * mask costs less than a short run. */
#define PACK_MIN_FULL 16

void pack_sink_reset(struct pack_sink *sink) {
    *sink = (struct pack_sink){.full_end = -1, .masked_end = {-1, -1, -1}};
}

static void emit_full(struct pack_sink *s, int64_t key, int64_t count) {
    s->full_keys += count;
    if (s->full_end != key) {
        if (s->full)
            s->full[s->n_full] = (struct list_run){(int32_t)key, 0};
        s->n_full++;
    }
    if (s->full)
        s->full[s->n_full - 1].count += (int32_t)count;
    s->full_end = key + count;
}

static int mask_equal(const uint64_t *a, const uint64_t *b, int32_t words) {
    uint64_t differ = 0;
    for (int32_t w = 0; w < words; w++)
        differ |= a[w] ^ b[w];
    return differ == 0;
}

/* Counts, for each of `count` keys with this mask, the groups of LISTS_GROUP rows that list it. */
static void count_rows(struct pack_sink *s, int64_t count, const uint64_t *mask, int32_t words) {
    int64_t groups = 0;
    for (int32_t w = 0; w < words; w++)
        for (int shift = 0; shift < 64; shift += LISTS_GROUP)
            groups += (mask[w] >> shift & UINT64_MAX >> (64 - LISTS_GROUP)) != 0;
    s->masked_groups += count * groups;
}

static void emit_band(struct pack_sink *s, int64_t key, int64_t count, int64_t lo, int64_t hi,
                      int64_t rows) {
    s->masked_keys += count;
    for (int64_t c = 0; c < count; c++) {
        int64_t first = c - hi < 0 ? 0 : c - hi, last = c - lo > rows - 1 ? rows - 1 : c - lo;
        if (first <= last)
            s->masked_groups += last / LISTS_GROUP - first / LISTS_GROUP + 1;
    }
    if (s->full) {
        struct list_masked *run = &s->masked[LIST_BAND][s->n_masked[LIST_BAND]];
        *run = (struct list_masked){.key = (int32_t)key, .count = (int32_t)count};
        run->u.band.lo = (int32_t)lo;
        run->u.band.hi = (int32_t)hi;
    }
    s->n_masked[LIST_BAND]++;
}

/* Begins a run of row masks at key, or goes on with the last one. */
static void emit_masked_run(struct pack_sink *s, int kind, int64_t key, int64_t count, int go_on) {
    s->masked_keys += count;
    if (!go_on) {
        if (s->full) {
            struct list_masked *run = &s->masked[kind][s->n_masked[kind]];
            *run = (struct list_masked){.key = (int32_t)key};
            run->u.word = s->first_word + s->n_words;
        }
        s->n_masked[kind]++;
    }
    if (s->full)
        s->masked[kind][s->n_masked[kind] - 1].count += (int32_t)count;
    s->masked_end[kind] = key + count;
}

static void emit_words(struct pack_sink *s, const uint64_t *mask, int32_t words) {
    if (s->full)
        memcpy(s->words + s->n_words, mask, (size_t)words * sizeof *mask);
    s->n_words += words;
}

static void emit_members(struct pack_sink *s, int64_t key, int64_t count, const uint64_t *mask,
                         int32_t words) {
    int go_on = s->masked_end[LIST_MEMBERS] == key && mask_equal(mask, s->last_mask, words);
    emit_masked_run(s, LIST_MEMBERS, key, count, go_on);
    count_rows(s, count, mask, words);
    if (!go_on) {
        emit_words(s, mask, words);
        memcpy(s->last_mask, mask, (size_t)words * sizeof *mask);
    }
}

static void emit_bits(struct pack_sink *s, int64_t key, const uint64_t *mask, int32_t words) {
    /* The masks of a run stand one behind the other: no other mask can have come in between,
     * because keys ascend. */
    int go_on = s->masked_end[LIST_BITS] == key;
    emit_masked_run(s, LIST_BITS, key, 1, go_on);
    count_rows(s, 1, mask, words);
    emit_words(s, mask, words);
}

/* mask = the first `rows` rows. */
static void mask_rows(uint64_t *mask, int32_t words, int64_t rows) {
    for (int32_t w = 0; w < words; w++) {
        int64_t n = rows - 64 * w;
        mask[w] = n >= 64 ? UINT64_MAX : n <= 0 ? 0 : (UINT64_C(1) << n) - 1;
    }
}

/* Bit c of a[r] becomes bit r of a[c] (recursive block transposition, Warren, Hacker's Delight,
 * section 7-3). */
static void transpose64(uint64_t a[64]) {
    uint64_t half = UINT64_C(0x00000000FFFFFFFF);
    for (int j = 32; j; j >>= 1, half ^= half << j)
        for (int k = 0; k < 64; k = (k + j + 1) & ~j) {
            uint64_t t = ((a[k] >> j) ^ a[k + j]) & half;
            a[k] ^= t << j;
            a[k + j] ^= t;
        }
}

/* Row masks of up to 64 keys: columns[c][w] from row bits rows[64 w + r]. */
struct key_masks {
    uint64_t rows[PACK_MAX_ROWS];
    uint64_t columns[64][PACK_MAX_WORDS];
};

static void key_masks_transpose(struct key_masks *k, int32_t words) {
    for (int32_t w = 0; w < words; w++) {
        uint64_t *a = k->rows + 64 * w;
        transpose64(a);
        for (int c = 0; c < 64; c++)
            k->columns[c][w] = a[c];
    }
}

/* Emits keys key ... key + n - 1 by their masks: none, all rows, or some. */
static void emit_key_masks(struct pack_sink *sink, const struct key_masks *k, int64_t key, int n,
                           const uint64_t *all, int32_t words) {
    const uint64_t none[PACK_MAX_WORDS] = {0};
    for (int c = 0; c < n;) {
        int full = 0;
        while (c + full < n && mask_equal(k->columns[c + full], all, words))
            full++;
        if (full >= PACK_MIN_FULL) {
            emit_full(sink, key + c, full);
            c += full;
            continue;
        }
        for (int end = c + (full ? full : 1); c < end; c++)
            if (!mask_equal(k->columns[c], none, words))
                emit_bits(sink, key + c, k->columns[c], words);
    }
}

/* A band tile, cut to rows r0 ... r0 + rows - 1 of its block row: the keys that all of them list
 * as a full run, those at the edges as bands. */
static void pack_band(struct pack_sink *sink, int64_t key, int64_t keys, int64_t lo, int64_t hi,
                      int64_t rows) {
    int64_t first = lo > 0 ? lo : 0;
    int64_t last = hi + rows - 1 < keys - 1 ? hi + rows - 1 : keys - 1;
    int64_t full_first = lo + rows - 1 > first ? lo + rows - 1 : first;
    int64_t full_last = hi < last ? hi : last;
    if (last < first)
        return;
    if (full_last - full_first + 1 < PACK_MIN_FULL) {
        emit_band(sink, key + first, last - first + 1, lo - first, hi - first, rows);
        return;
    }
    if (first < full_first)
        emit_band(sink, key + first, full_first - first, lo - first, hi - first, rows);
    emit_full(sink, key + full_first, full_last - full_first + 1);
    if (full_last < last) {
        int64_t rest = full_last + 1;
        emit_band(sink, key + rest, last - full_last, lo - rest, hi - rest, rows);
    }
}

/* The tile is part of one block row. */
static void pack_part(const struct packer *p, int64_t list, int64_t t, struct pack_sink *sink) {
    const struct bcsr *m = p->m;
    int64_t block_row = packer_row(p, t) / m->block_q;
    int64_t r0 = packer_row(p, t) - block_row * m->block_q;
    int64_t rows = packer_row(p, t + 1) - packer_row(p, t);
    uint64_t all[PACK_MAX_WORDS];
    mask_rows(all, p->words, rows);

    struct tile_walk walk;
    struct tile tile;
    for (tile_walk_begin(&walk, m, list, block_row); tile_walk_next(&walk, &tile);) {
        int64_t key = tile.col * m->block_kv;
        int64_t keys = bcsr_col_width(m, tile.col);
        if (tile.kind == TILE_FULL) {
            emit_full(sink, key, keys);
        } else if (tile.kind == TILE_BAND) {
            pack_band(sink, key, keys, tile.lo + r0, tile.hi + r0, rows);
        } else {
            for (int64_t c = 0; c < keys; c += 64) {
                int n = keys - c < 64 ? (int)(keys - c) : 64;
                struct key_masks masks = {.rows = {0}};
                for (int64_t r = 0; r < rows; r++)
                    masks.rows[r] = tile_row_bits(m, &tile, r0 + r, c, n);
                key_masks_transpose(&masks, p->words);
                emit_key_masks(sink, &masks, key + c, n, all, p->words);
            }
        }
    }
}

int pack_scratch_make(struct pack_scratch *s, const struct packer *p) {
    s->member = s->present = s->partial = NULL;
    if (p->members == 1)
        return 0;
    size_t cols = (size_t)p->m->cols;
    s->member = calloc(cols, (size_t)((p->members + 63) / 64) * sizeof(uint64_t));
    s->present = calloc(cols / 64 + 1, sizeof(uint64_t));
    s->partial = calloc(cols / 64 + 1, sizeof(uint64_t));
    return s->member && s->present && s->partial ? 0 : -1;
}

void pack_scratch_free(struct pack_scratch *s) {
    free(s->member);
    free(s->present);
    free(s->partial);
}

/* Member g's tile of column block `col`, which it lists; columns are asked for in order. */
static const struct tile *member_tile(struct pack_scratch *s, int64_t g, int32_t col) {
    while (s->tile[g].col < col)
        tile_walk_next(&s->walk[g], &s->tile[g]);
    return &s->tile[g];
}

/* The row of its block row at which member g of tile t begins. */
static int64_t member_offset(const struct packer *p, int64_t t, int64_t g) {
    return (packer_row(p, t) + g * p->member_rows) % p->m->block_q;
}

/* Row bits of columns c ... c + n - 1 of every member of tile t that lists column block `col`. */
static void union_rows(const struct packer *p, struct pack_scratch *s, const uint64_t *member,
                       int64_t t, int32_t col, int64_t c, int n, int64_t rows, uint64_t *row_bits) {
    for (int32_t w = 0; 64 * w < p->members; w++)
        for (uint64_t left = member[w]; left; left &= left - 1) {
            int64_t g = 64 * w + __builtin_ctzll(left), first = g * p->member_rows;
            int64_t offset = member_offset(p, t, g);
            const struct tile *tile = member_tile(s, g, col);
            for (int64_t r = 0; r < p->member_rows && first + r < rows; r++)
                row_bits[first + r] = tile_row_bits(p->m, tile, offset + r, c, n);
        }
}

/* Sets bits first ... end - 1. */
static void mask_set(uint64_t *mask, int64_t first, int64_t end) {
    for (int64_t w = first / 64; 64 * w < end; w++) {
        int64_t from = first > 64 * w ? first - 64 * w : 0, to = end - 64 * w;
        mask[w] |= UINT64_MAX << from & UINT64_MAX >> (to < 64 ? 64 - to : 0);
    }
}

/* Row mask of the rows of the members whose bits are set. */
static void union_mask(const struct packer *p, const uint64_t *member, int64_t rows,
                       uint64_t *mask) {
    memset(mask, 0, (size_t)p->words * sizeof *mask);
    for (int32_t w = 0; 64 * w < p->members; w++) {
        if (p->member_rows == 1) {
            mask[w] = member[w];
            continue;
        }
        for (uint64_t left = member[w]; left; left &= left - 1) {
            int64_t first = (64 * w + __builtin_ctzll(left)) * p->member_rows;
            int64_t end = first + p->member_rows;
            mask_set(mask, first, end < rows ? end : rows);
        }
    }
}

/* Marks the columns of all members of tile t; answers the range of words of `present` in use. */
static void union_mark(const struct packer *p, int64_t list, int64_t t, int64_t members,
                       struct pack_scratch *s, int64_t *begin, int64_t *end) {
    int32_t member_words = (p->members + 63) / 64;
    *begin = INT64_MAX, *end = 0;
    for (int64_t g = 0; g < members; g++) {
        const int64_t block_row = (packer_row(p, t) + g * p->member_rows) / p->m->block_q;
        struct tile tile;
        for (tile_walk_begin(&s->walk[g], p->m, list, block_row);
             tile_walk_next(&s->walk[g], &tile);) {
            int64_t word = tile.col / 64;
            uint64_t bit = UINT64_C(1) << (tile.col % 64);
            s->member[(int64_t)tile.col * member_words + g / 64] |= UINT64_C(1) << (g % 64);
            s->present[word] |= bit;
            if (tile.kind != TILE_FULL)
                s->partial[word] |= bit;
            *begin = word < *begin ? word : *begin;
            *end = word + 1 > *end ? word + 1 : *end;
        }
        tile_walk_begin(&s->walk[g], p->m, list, block_row);
        s->tile[g].col = -1;
    }
}

/* The first and the last row of a mask; 0 if it is not all rows from the one to the other. */
static int mask_span(const uint64_t *mask, int32_t words, int64_t *first, int64_t *last) {
    int64_t listed = 0;
    *first = *last = -1;
    for (int32_t w = 0; w < words; w++) {
        if (!mask[w])
            continue;
        if (*first < 0)
            *first = 64 * w + __builtin_ctzll(mask[w]);
        *last = 64 * w + 63 - __builtin_clzll(mask[w]);
        listed += __builtin_popcountll(mask[w]);
    }
    return listed && listed == *last - *first + 1;
}

/* Whether n keys' masks over `rows` rows are one band's, and its limits. Keys that no row lists are
 * not part of bands here. */
static int band_of(const struct key_masks *k, int n, int64_t rows, int32_t words, int64_t *lo,
                   int64_t *hi) {
    int64_t first[64], last[64];
    *lo = -rows, *hi = n;
    for (int c = 0; c < n; c++) {
        if (!mask_span(k->columns[c], words, &first[c], &last[c]))
            return 0;
        *hi = first[c] > 0 ? c - first[c] : *hi;
        *lo = last[c] < rows - 1 ? c - last[c] : *lo;
    }
    for (int c = 0; c < n; c++)
        if (first[c] != (c > *hi ? c - *hi : 0) || last[c] != (c - *lo < rows ? c - *lo : rows - 1))
            return 0;
    return 1;
}

static int member_lists(const uint64_t *member, int64_t g) {
    return member[g / 64] >> (g % 64) & 1;
}

/* Band of column block `col` that the `height` rows of member g of tile t list: all is one of
 * 1 - height ... cols - 1. Answers 0 where it is none; they
 * list nothing where *lo > *hi. */
static int member_band(const struct packer *p, struct pack_scratch *s, const uint64_t *member,
                       int64_t t, int64_t g, int32_t col, int64_t height, int64_t *lo,
                       int64_t *hi) {
    *lo = 1 - height, *hi = bcsr_col_width(p->m, col) - 1;
    if (!member_lists(member, g)) {
        *hi = *lo - 1;
        return 1;
    }
    const struct tile *tile = member_tile(s, g, col);
    const int64_t offset = member_offset(p, t, g);
    if (tile->kind == TILE_BAND)
        *lo = max_i64(*lo, tile->lo + offset), *hi = min_i64(*hi, tile->hi + offset);
    return tile->kind != TILE_BITMASK;
}

/* Whether the rows of tile t list, of column block `col`, the keys of one band, as where a window goes on
 * from block row to block row. The band's limits count from the tile's first row and the block's first
 * key. A limit that the band lacks is out of reach. */
static int union_band(const struct packer *p, struct pack_scratch *s, const uint64_t *member,
                      int64_t t, int32_t col, int64_t rows, int64_t *lo, int64_t *hi) {
    const int64_t each = p->member_rows, cols = bcsr_col_width(p->m, col);
    int64_t from, to;
    *lo = -rows, *hi = cols;
    for (int64_t g = 0; g * each < rows; g++) {
        const int64_t first = g * each, height = min_i64(each, rows - first);
        if (!member_band(p, s, member, t, g, col, height, &from, &to))
            return 0;
        if (from <= to && from > 1 - height)
            *lo = from - first;
        if (from <= to && to < cols - 1)
            *hi = to - first;
    }
    /* Does every member list what that band lists of it? */
    for (int64_t g = 0; g * each < rows; g++) {
        const int64_t first = g * each, height = min_i64(each, rows - first);
        const int64_t of_band = max_i64(*lo + first, 1 - height);
        const int64_t to_band = min_i64(*hi + first, cols - 1);
        member_band(p, s, member, t, g, col, height, &from, &to);
        if (from > to ? of_band <= to_band : from != of_band || to != to_band)
            return 0;
    }
    return 1;
}

/* A column block of the union that no member lists in part. */
static void union_whole(const struct packer *p, const uint64_t *member, int32_t col, int64_t rows,
                        const uint64_t *all, struct pack_sink *sink) {
    const int64_t key = col * p->m->block_kv, keys = bcsr_col_width(p->m, col);
    uint64_t mask[PACK_MAX_WORDS];
    union_mask(p, member, rows, mask);
    if (mask_equal(mask, all, p->words))
        emit_full(sink, key, keys);
    else if (p->m->block_kv == 1)
        emit_bits(sink, key, mask, p->words);
    else
        emit_members(sink, key, keys, mask, p->words);
}

/* A column block of the union that one of the members lists in part. Not inline: its masks would make
 * room on the stack for every block. */
__attribute__((noinline)) static void union_partial(const struct packer *p, struct pack_scratch *s,
                                                    const uint64_t *member, int64_t t, int32_t col,
                                                    int64_t rows, const uint64_t *all,
                                                    struct pack_sink *sink) {
    const int64_t begin = col * p->m->block_kv, keys = bcsr_col_width(p->m, col);
    int64_t band_lo = 0, band_hi = 0, lo, hi;
    const int band = union_band(p, s, member, t, col, rows, &band_lo, &band_hi);
    for (int64_t c = 0; c < keys; c += 64) {
        const int n = (int)min_i64(64, keys - c);
        lo = band_lo - c, hi = band_hi - c;
        /* each key is listed by some row, and some key not by all */
        if (band && lo <= 0 && hi + rows >= n && (lo + rows > 1 || hi < n - 1)) {
            emit_band(sink, begin + c, n, lo, hi, rows);
            continue;
        }
        struct key_masks masks = {.rows = {0}};
        union_rows(p, s, member, t, col, c, n, rows, masks.rows);
        key_masks_transpose(&masks, p->words);
        if (band_of(&masks, n, rows, p->words, &lo, &hi) && (lo > -rows || hi < n))
            emit_band(sink, begin + c, n, lo, hi, rows);
        else
            emit_key_masks(sink, &masks, begin + c, n, all, p->words);
    }
}

/* The tile holds several block rows, or pieces of them. */
static void pack_union(const struct packer *p, int64_t list, int64_t t, struct pack_scratch *s,
                       struct pack_sink *sink) {
    int32_t member_words = (p->members + 63) / 64;
    int64_t rows = packer_row(p, t + 1) - packer_row(p, t);
    int64_t members = (rows + p->member_rows - 1) / p->member_rows;
    uint64_t all[PACK_MAX_WORDS];
    mask_rows(all, p->words, rows);

    int64_t begin, end;
    union_mark(p, list, t, members, s, &begin, &end);
    for (int64_t w = begin; w < end; w++) {
        for (uint64_t left = s->present[w]; left; left &= left - 1) {
            int bit = __builtin_ctzll(left);
            int32_t col = (int32_t)(w * 64 + bit);
            uint64_t *member = s->member + (int64_t)col * member_words;
            if (s->partial[w] >> bit & 1)
                union_partial(p, s, member, t, col, rows, all, sink);
            else
                union_whole(p, member, col, rows, all, sink);
            *member = 0; /* most have one word, and a call for each would be 2 % of planning */
            if (member_words > 1)
                memset(member + 1, 0, (size_t)(member_words - 1) * sizeof *member);
        }
        s->present[w] = s->partial[w] = 0;
    }
}

void pack_tile(const struct packer *p, int64_t list, int64_t t, struct pack_scratch *scratch,
               struct pack_sink *sink) {
    if (p->members == 1)
        pack_part(p, list, t, sink);
    else
        pack_union(p, list, t, scratch, sink);
}
