/* Arithmetic on single tiles: the simplest kind that is exact, set operations, counting. */
#include "pattern/build.h"

#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

/* Elements (r, c) of rows x cols with c - r <= h: the sum over r of r + h + 1, held to 0 ... cols.
 */
static int64_t count_up_to(int64_t rows, int64_t cols, int64_t h) {
    int64_t first = min_i64(max_i64(-h, 0), rows);               /* the first row with any */
    int64_t whole = min_i64(max_i64(cols - h - 1, first), rows); /* the first with all cols */
    return (whole - first) * (first + whole - 1) / 2 + (whole - first) * (h + 1) +
           (rows - whole) * cols;
}

int64_t tile_band_count(int64_t rows, int64_t cols, int64_t lo, int64_t hi) {
    lo = max_i64(lo, 1 - rows);
    hi = min_i64(hi, cols - 1);
    return lo > hi ? 0 : count_up_to(rows, cols, hi) - count_up_to(rows, cols, lo - 1);
}

int tile_set_band(const struct build_row *b, struct build_tile *t, int64_t lo, int64_t hi) {
    int64_t first = 1 - b->rows, last = bcsr_col_width(b->m, t->tile.col) - 1;
    lo = max_i64(lo, first);
    hi = min_i64(hi, last);
    if (lo > hi)
        return 0;
    t->tile.kind = lo == first && hi == last ? TILE_FULL : TILE_BAND;
    t->tile.lo = (int32_t)lo;
    t->tile.hi = (int32_t)hi;
    return 1;
}

int tile_set_bits(const struct build_row *b, struct build_tile *t) {
    int64_t rows = b->rows, cols = bcsr_col_width(b->m, t->tile.col);
    int64_t count = 0, lo = INT64_MAX, hi = INT64_MIN;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c += 64) {
            int n = (int)min_i64(64, cols - c);
            uint64_t v = bits_get(t->bits, r * b->m->block_kv + c, n);
            if (!v)
                continue;
            count += __builtin_popcountll(v);
            lo = min_i64(lo, c + __builtin_ctzll(v) - r);
            hi = max_i64(hi, c + 63 - __builtin_clzll(v) - r);
        }
    }
    if (count == 0)
        return 0;
    if (count == tile_band_count(rows, cols, lo, hi))
        return tile_set_band(b, t, lo, hi);
    t->tile.kind = TILE_BITMASK;
    return 1;
}

/* Through bits, row by row. The result may take the place of t's own mask. */
static int join_bits(const struct build_row *b, struct cursor *c, struct build_tile *t,
                     const struct build_tile *u, int both) {
    struct bcsr of_t = *b->m, of_u = *b->m;
    struct tile was = t->tile;
    of_t.bits = t->bits;
    of_u.bits = u->bits;
    if (was.kind != TILE_BITMASK || t->bits != c->bits) {
        t->bits = build_bits(b, c);
        if (!t->bits)
            return -1;
    }
    int64_t cols = bcsr_col_width(b->m, was.col);
    for (int64_t r = 0; r < b->rows; r++) {
        for (int64_t k = 0; k < cols; k += 64) {
            int n = (int)min_i64(64, cols - k);
            uint64_t v = tile_row_bits(&of_t, &was, r, k, n);
            uint64_t w = tile_row_bits(&of_u, &u->tile, r, k, n);
            bits_put(t->bits, r * b->m->block_kv + k, both ? v & w : v | w, n);
        }
    }
    return tile_set_bits(b, t);
}

int tile_join(const struct build_row *b, struct cursor *c, struct build_tile *t,
              const struct build_tile *u, int both) {
    const struct tile *x = &t->tile, *y = &u->tile;
    if (x->kind == TILE_FULL) {
        if (both)
            *t = *u;
        return 1;
    }
    if (y->kind == TILE_FULL) {
        if (!both)
            *t = *u;
        return 1;
    }
    if (x->kind == TILE_BAND && y->kind == TILE_BAND) {
        int64_t inner_lo = max_i64(x->lo, y->lo), inner_hi = min_i64(x->hi, y->hi);
        if (both)
            return tile_set_band(b, t, inner_lo, inner_hi);
        if (inner_lo <= inner_hi + 1) /* overlap or touch: no diagonal lies between */
            return tile_set_band(b, t, min_i64(x->lo, y->lo), max_i64(x->hi, y->hi));
    }
    return join_bits(b, c, t, u, both);
}

/* Rows first ... *end - 1 of a band or full tile list something. */
static int64_t tile_rows_seen(const struct bcsr *m, const struct tile *t, int64_t rows,
                              int64_t *end) {
    if (t->kind == TILE_FULL) {
        *end = rows;
        return 0;
    }
    *end = min_i64(rows, bcsr_col_width(m, t->col) - t->lo);
    return max_i64(0, -(int64_t)t->hi);
}

static uint64_t tile_pairs(const struct bcsr *m, const struct tile *t, int64_t rows) {
    int64_t cols = bcsr_col_width(m, t->col);
    if (t->kind == TILE_FULL)
        return (uint64_t)(rows * cols);
    if (t->kind == TILE_BAND)
        return (uint64_t)tile_band_count(rows, cols, t->lo, t->hi);
    uint64_t pairs = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += 64)
            pairs += (uint64_t)__builtin_popcountll(
                tile_row_bits(m, t, r, c, (int)min_i64(64, cols - c)));
    return pairs;
}

static int tile_row_any(const struct bcsr *m, const struct tile *t, int64_t r) {
    int64_t cols = bcsr_col_width(m, t->col);
    for (int64_t c = 0; c < cols; c += 64)
        if (tile_row_bits(m, t, r, c, (int)min_i64(64, cols - c)))
            return 1;
    return 0;
}

/* Queries of a block row that see no key, marked one by one in *seen (allocated when needed). */
static int64_t row_unseen_marked(const struct bcsr *m, int64_t list, int64_t row,
                                 unsigned char **seen) {
    int64_t rows = bcsr_row_height(m, row), unseen = 0;
    if (!*seen)
        *seen = malloc((size_t)min_i64(m->block_q, m->n_q));
    if (!*seen)
        return -1;
    memset(*seen, 0, (size_t)rows);
    struct tile_walk w;
    struct tile t;
    for (tile_walk_begin(&w, m, list, row); tile_walk_next(&w, &t);) {
        int64_t end = rows, r = 0;
        if (t.kind != TILE_BITMASK)
            r = tile_rows_seen(m, &t, rows, &end);
        for (; r < end; r++)
            if (!(*seen)[r])
                (*seen)[r] = t.kind != TILE_BITMASK || tile_row_any(m, &t, r);
    }
    for (int64_t r = 0; r < rows; r++)
        unseen += !(*seen)[r];
    return unseen;
}

/* Adds the pairs of a block row and answers how many of its queries see no key; -1: no memory.
 * While full tiles and bands that meet cover the rows, one interval tells. */
static int64_t row_count(const struct bcsr *m, int64_t list, int64_t row, unsigned char **seen,
                         uint64_t *pairs) {
    int64_t rows = bcsr_row_height(m, row);
    int64_t first = 0, last = 0; /* rows first ... last - 1 are known to be seen */
    int torn = 0;
    struct tile_walk w;
    struct tile t;
    for (tile_walk_begin(&w, m, list, row); tile_walk_next(&w, &t);) {
        int64_t end;
        *pairs += tile_pairs(m, &t, rows);
        if (t.kind == TILE_BITMASK) {
            torn = 1;
            continue;
        }
        int64_t begin = tile_rows_seen(m, &t, rows, &end);
        if (first == last || (begin <= first && end >= last)) {
            first = begin, last = end;
        } else if (begin <= last && end >= first) {
            first = min_i64(first, begin), last = max_i64(last, end);
        } else {
            torn = 1;
        }
    }
    if (last - first == rows || !torn)
        return rows - (last - first);
    return row_unseen_marked(m, list, row, seen);
}

tess_status pattern_count(tess_pattern *pattern) {
    const struct bcsr *m = &pattern->lists;
    int64_t total = m->batch * m->heads * m->rows, empty = 0;
    uint64_t pairs = 0;
    double about = 0; /* tells whether pairs wrapped */
    int failed = 0;
    double seconds =
        30e-9 * (double)total + 5e-9 * (double)m->n_tiles +
        0.1e-9 * (double)m->n_bitmasks * (double)(bcsr_row_height(m, 0) * bcsr_col_width(m, 0));
#pragma omp parallel reduction(+ : empty, pairs, about) reduction(| : failed) \
    if (threads_pay(seconds))
    {
        unsigned char *seen = NULL;
#pragma omp for schedule(dynamic, 64)
        for (int64_t i = 0; i < total; i++) {
            uint64_t in_row = 0;
            int64_t unseen = failed ? 0 : row_count(m, i / m->rows, i % m->rows, &seen, &in_row);
            failed |= unseen < 0;
            empty += unseen;
            pairs += in_row;
            about += (double)in_row;
        }
        free(seen);
    }
    if (failed)
        return TESS_OUT_OF_MEMORY;
    if (about >= 9.2e18)
        return TESS_UNSUPPORTED;
    pattern->pairs = (int64_t)pairs;
    pattern->empty_rows = empty;
    return TESS_OK;
}
