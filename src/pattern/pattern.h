/*
 * Block lists (BCSR) inside the library, and the walk over the tiles of a block row.
 *
 * A pattern is immutable once built. All builders go through pattern_build (build.h), so that every
 * pattern obeys the same rules: rows ascending, no empty tile, no partial tile that is really full,
 * bits past n_q or n_kv clear.
 */
#ifndef TESSERA_PATTERN_H
#define TESSERA_PATTERN_H

#include "tessera.h"

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* The arrays of tess_lists (tessera.h has the layout), owned. */
struct bcsr {
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    int64_t batch, heads; /* lists: batch * heads */
    int64_t rows, cols;   /* block rows and columns: ceil(n_q / block_q), ceil(n_kv / block_kv) */
    int64_t n_tiles, n_bands, n_bitmasks;
    int64_t threads; /* threads that the caller allows for building it; 0: as many as are offered */
    int64_t *row_ptr;       /* [batch * heads][rows + 1] */
    int32_t *col_idx;       /* [n_tiles] */
    int64_t *band_entry;    /* [n_bands] */
    int32_t *band;          /* [n_bands][2] */
    int64_t *bitmask_entry; /* [n_bitmasks] */
    uint64_t *bits;         /* n_bitmasks * block_q * block_kv bits, and one word of slack */
};

struct tess_pattern {
    struct bcsr lists;
    int64_t pairs;      /* listed query-key pairs over all lists */
    int64_t empty_rows; /* queries that see no key, over all lists */
};

/* The transposed pattern, which tess_pattern_free releases. Into *entries, unless entries is NULL, an
 * array that the caller frees: the place in m of each tile of the transposed one, which has as many.
 * Rows and columns that a tile lists are exchanged, whatever its kind. Errors name `argument` of
 * `function`. */
tess_status pattern_transpose(tess_pattern **pattern, int64_t **entries, const struct bcsr *m,
                              const char *function, const char *argument, tess_error *error);

/* The list that (batch b, query head h) reads. */
static inline int64_t bcsr_list(const struct bcsr *m, int64_t b, int64_t h, int64_t heads_q) {
    int64_t head = m->heads == 1 ? 0 : h / (heads_q / m->heads);
    return (m->batch == 1 ? 0 : b) * m->heads + head;
}

/* Queries that exist in a block row, keys that exist in a block column. */
static inline int64_t bcsr_row_height(const struct bcsr *m, int64_t row) {
    return min_i64(m->block_q, m->n_q - row * m->block_q);
}
static inline int64_t bcsr_col_width(const struct bcsr *m, int64_t col) {
    return min_i64(m->block_kv, m->n_kv - col * m->block_kv);
}

/* Words of bits[], the slack included. */
static inline int64_t bcsr_words(const struct bcsr *m) {
    return (m->n_bitmasks * m->block_q * m->block_kv + 63) / 64 + 1;
}
/* Words of one bit for each block column. */
static inline int64_t bcsr_col_words(const struct bcsr *m) {
    return (m->cols + 63) / 64;
}
void bcsr_free(struct bcsr *m);
size_t bcsr_memory(const struct bcsr *m);

static inline int64_t bcsr_row_begin(const struct bcsr *m, int64_t list, int64_t row) {
    return m->row_ptr[list * (m->rows + 1) + row];
}
static inline int64_t bcsr_row_end(const struct bcsr *m, int64_t list, int64_t row) {
    return m->row_ptr[list * (m->rows + 1) + row + 1];
}

enum tile_kind { TILE_FULL, TILE_BAND, TILE_BITMASK };

struct tile {
    int64_t entry; /* place in col_idx */
    int32_t col;
    enum tile_kind kind;
    int32_t lo, hi;  /* TILE_BAND: lo <= c - r <= hi */
    int64_t bitmask; /* TILE_BITMASK: number of its mask */
};

/* for (tile_walk_begin(&w, m, list, row); tile_walk_next(&w, &tile);) ... */
struct tile_walk {
    const struct bcsr *m;
    int64_t entry, end;
    int64_t band, bitmask; /* the first of each at or after entry */
};
void tile_walk_begin(struct tile_walk *w, const struct bcsr *m, int64_t list, int64_t row);
/* The tile at one place of col_idx. */
void tile_at(const struct bcsr *m, int64_t entry, struct tile *t);
static inline int tile_walk_next(struct tile_walk *w, struct tile *t) {
    if (w->entry == w->end)
        return 0;
    const struct bcsr *m = w->m;
    t->entry = w->entry++;
    t->col = m->col_idx[t->entry];
    t->kind = TILE_FULL;
    t->lo = t->hi = 0;
    t->bitmask = -1;
    if (w->band < m->n_bands && m->band_entry[w->band] == t->entry) {
        t->kind = TILE_BAND;
        t->lo = m->band[2 * w->band];
        t->hi = m->band[2 * w->band + 1];
        w->band++;
    } else if (w->bitmask < m->n_bitmasks && m->bitmask_entry[w->bitmask] == t->entry) {
        t->kind = TILE_BITMASK;
        t->bitmask = w->bitmask++;
    }
    return 1;
}

/* n (1 ... 64) bits from bit `at` of an array that has a word of slack behind it. */
static inline uint64_t bits_get(const uint64_t *bits, int64_t at, int n) {
    int shift = (int)(at & 63);
    uint64_t v = bits[at >> 6] >> shift;
    if (shift + n > 64)
        v |= bits[(at >> 6) + 1] << (64 - shift);
    return n == 64 ? v : v & ((UINT64_C(1) << n) - 1);
}

/*
 * The listed elements of row r of a tile, columns c0 ... c0 + n - 1 (n <= 64), as bits; bit 0 is
 * column c0. Columns past block_kv or n_kv, and rows past n_q, are the caller's to avoid or ignore:
 * bands and full tiles answer as if the tile were whole.
 */
static inline uint64_t tile_row_bits(const struct bcsr *m, const struct tile *t, int64_t r,
                                     int64_t c0, int n) {
    uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    if (t->kind == TILE_FULL)
        return all;
    if (t->kind == TILE_BITMASK)
        return bits_get(m->bits, (t->bitmask * m->block_q + r) * m->block_kv + c0, n);
    int64_t first = r + t->lo - c0, last = r + t->hi - c0; /* listed: first <= bit <= last */
    if (first >= n || last < 0 || last < first)
        return 0;
    uint64_t bits = all;
    if (first > 0)
        bits &= UINT64_MAX << first;
    if (last < 63)
        bits &= (UINT64_C(2) << last) - 1;
    return bits;
}

#endif
