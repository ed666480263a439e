/*
 * The sources of build.h that a caller gave: other patterns, as they are or moved, masks
 * of bytes, a byte or a bit for each block.
 */
#include "pattern/build.h"

#include <string.h>

/* ---- pattern: what another pattern lists ----------------------------------------------------- */

/* The list of m for the list at hand: one batch or head serves all. */
static int64_t list_of(const struct build_row *b, const struct bcsr *m) {
    int64_t batch = b->list / b->m->heads, head = b->list % b->m->heads;
    return (m->batch == 1 ? 0 : batch) * m->heads + (m->heads == 1 ? 0 : head);
}

static int pattern_begin(struct build_row *b, int64_t source) {
    const struct bcsr *m = b->sources[source].u.pattern;
    tile_walk_begin(&b->cursors[source].walk, m, list_of(b, m), b->row);
    return 0;
}

/* The first of the entries first ... end - 1, of one block row, at or after column j; or end. */
static int64_t entry_seek(const struct bcsr *m, int64_t first, int64_t end, int64_t j) {
    if (first == end || m->col_idx[first] >= j)
        return first;
    while (first < end) {
        int64_t middle = first + (end - first) / 2;
        if (m->col_idx[middle] < j)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Jumps to the first tile at or after column j. */
static void walk_seek(struct tile_walk *w, int64_t j) {
    const struct bcsr *m = w->m;
    w->entry = entry_seek(m, w->entry, w->end, j);
    while (w->band < m->n_bands && m->band_entry[w->band] < w->entry)
        w->band++;
    while (w->bitmask < m->n_bitmasks && m->bitmask_entry[w->bitmask] < w->entry)
        w->bitmask++;
}

/* Makes the source's answer what tile t of m lists: 1, 0 when that is nothing, -1: no memory. */
static int answer_copy(struct build_row *b, int64_t source, const struct bcsr *m,
                       const struct tile *t) {
    struct build_tile *answer = build_answer(b, source, t->col);
    if (t->kind == TILE_FULL)
        return 1;
    if (t->kind == TILE_BAND)
        return tile_set_band(b, answer, t->lo, t->hi);
    answer = build_answer_bits(b, source, t->col);
    if (!answer)
        return -1;
    int64_t cols = bcsr_col_width(m, t->col);
    for (int64_t r = 0; r < b->rows; r++) {
        for (int64_t c = 0; c < cols; c += 64) {
            int n = (int)min_i64(64, cols - c);
            bits_put(answer->bits, r * b->m->block_kv + c, tile_row_bits(m, t, r, c, n), n);
        }
    }
    return tile_set_bits(b, answer);
}

static int pattern_seek(struct build_row *b, int64_t source, int64_t j) {
    struct tile_walk *w = &b->cursors[source].walk;
    struct tile t;
    walk_seek(w, j);
    while (tile_walk_next(w, &t)) {
        int listed = answer_copy(b, source, w->m, &t);
        if (listed)
            return listed < 0 ? -1 : 0;
    }
    return build_answer_none(b, source);
}

const struct source_kind source_pattern = {pattern_begin, pattern_seek};

/* ---- placed: what another pattern lists, moved by queries and keys --------------------------- */

/* The other pattern's side of the block row at hand. */
struct placed {
    const struct bcsr *m;
    int64_t list;
    int64_t q0, q1; /* its queries in the block row */
    int64_t row0;   /* the row of the block row that q0 is */
    int64_t key;    /* its key k is key k + key here */
};

static struct placed placed_of(const struct build_row *b, const struct source *s) {
    const struct bcsr *m = s->u.placed.m;
    int64_t query = b->row * b->m->block_q - s->u.placed.query;
    struct placed p = {.m = m, .list = list_of(b, m), .key = s->u.placed.key};
    p.q0 = max_i64(query, 0);
    p.q1 = min_i64(query + b->rows, m->n_q);
    p.row0 = p.q0 - query;
    return p;
}

/* The first column here, at or after j, in which the other pattern has a tile. */
static int64_t placed_next(const struct build_row *b, const struct placed *p, int64_t j) {
    const struct bcsr *m = p->m;
    int64_t from = max_i64(j * b->m->block_kv - p->key, 0), key = b->m->n_kv;
    for (int64_t row = p->q0 / m->block_q; row * m->block_q < p->q1; row++) {
        int64_t end = bcsr_row_end(m, p->list, row);
        int64_t entry = entry_seek(m, bcsr_row_begin(m, p->list, row), end, from / m->block_kv);
        if (entry < end)
            key = min_i64(key, max_i64(m->col_idx[entry] * m->block_kv, from) + p->key);
    }
    return key < b->m->n_kv ? key / b->m->block_kv : b->m->cols;
}

/* Copies what the other pattern's tile t of block row `row` lists in column `col` here. */
static void placed_copy(const struct build_row *b, const struct placed *p, const struct tile *t,
                        int64_t row, int64_t col, uint64_t *bits) {
    const struct bcsr *m = p->m;
    int64_t begin = col * b->m->block_kv - p->key, tile = t->col * m->block_kv;
    int64_t k0 = max_i64(begin, tile);
    int64_t k1 = min_i64(begin + bcsr_col_width(b->m, col), tile + bcsr_col_width(m, t->col));
    int64_t q1 = min_i64(p->q1, (row + 1) * m->block_q);
    for (int64_t q = max_i64(p->q0, row * m->block_q); q < q1; q++) {
        for (int64_t k = k0; k < k1; k += 64) {
            int n = (int)min_i64(64, k1 - k);
            bits_put(bits, (q - p->q0 + p->row0) * b->m->block_kv + k - begin,
                     tile_row_bits(m, t, q - row * m->block_q, k - tile, n), n);
        }
    }
}

/* Do the other pattern's tiles lie as those here do, so that its tile is the tile of column col? */
static int placed_aligned(const struct build_row *b, const struct placed *p, int64_t col) {
    const struct bcsr *m = p->m;
    return m->block_q == b->m->block_q && m->block_kv == b->m->block_kv && p->row0 == 0 &&
           p->q0 % m->block_q == 0 && (col * m->block_kv - p->key) % m->block_kv == 0;
}

/* Makes the answer what is listed in column col: 1, 0 when that is nothing, -1: no memory. */
static int placed_answer(struct build_row *b, int64_t source, const struct placed *p, int64_t col) {
    const struct bcsr *m = p->m;
    int64_t begin = max_i64(col * b->m->block_kv - p->key, 0);
    int64_t end = col * b->m->block_kv + bcsr_col_width(b->m, col) - p->key;
    struct build_tile *answer = NULL;
    struct tile_walk w;
    struct tile t;
    for (int64_t row = p->q0 / m->block_q; row * m->block_q < p->q1; row++) {
        tile_walk_begin(&w, m, p->list, row);
        walk_seek(&w, begin / m->block_kv);
        while (tile_walk_next(&w, &t) && t.col * m->block_kv < end) {
            if (t.kind != TILE_BITMASK && placed_aligned(b, p, col)) {
                answer = build_answer(b, source, col);
                return t.kind == TILE_FULL || tile_set_band(b, answer, t.lo, t.hi);
            }
            if (!answer && !(answer = build_answer_bits(b, source, col)))
                return -1;
            placed_copy(b, p, &t, row, col, answer->bits);
        }
    }
    return answer && tile_set_bits(b, answer);
}

static int placed_seek(struct build_row *b, int64_t source, int64_t j) {
    struct placed p = placed_of(b, &b->sources[source]);
    for (; (j = placed_next(b, &p, j)) < b->m->cols; j++) {
        int listed = placed_answer(b, source, &p, j);
        if (listed)
            return listed < 0 ? -1 : 0;
    }
    return build_answer_none(b, source);
}

const struct source_kind source_placed = {NULL, placed_seek};

/* ---- mask: one byte for each query and key --------------------------------------------------- */

/* Eight bytes of a mask as a number, the first lowest. */
static uint64_t bytes_get(const uint8_t *bytes) {
    uint64_t v;
    memcpy(&v, bytes, sizeof v);
    return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? __builtin_bswap64(v) : v;
}

/* n (<= 64) bytes as bits, nonzero = 1. */
static uint64_t mask_bits(const uint8_t *bytes, int n) {
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t bits = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t v = bytes_get(bytes + i);
        v = (((v & low) + low) | v) & ~low; /* the top bit of each byte that is not zero */
        /* the product brings bit 8 k to bit 56 + k, without a carry */
        bits |= ((v >> 7) * UINT64_C(0x0102040810204080) >> 56) << i;
    }
    for (; i < n; i++)
        bits |= (uint64_t)(bytes[i] != 0) << i;
    return bits;
}

/* The first nonzero of bytes[x ... n - 1], or n. */
static int64_t mask_next(const uint8_t *bytes, int64_t x, int64_t n) {
    while (x + 8 <= n && bytes_get(bytes + x) == 0)
        x += 8;
    while (x < n && !bytes[x])
        x++;
    return x;
}

/* Scratch: for each query of the block row, a key at or before which nothing more is listed. */
static int mask_begin(struct build_row *b, int64_t source) {
    int64_t *next = build_scratch(&b->cursors[source], b->rows * (int64_t)sizeof *next);
    if (!next)
        return -1;
    for (int64_t r = 0; r < b->rows; r++)
        next[r] = -1;
    return 0;
}

static int mask_seek(struct build_row *b, int64_t source, int64_t j) {
    const struct bcsr *m = b->m;
    const uint8_t *mask =
        b->sources[source].u.mask + (b->list * m->n_q + b->row * m->block_q) * m->n_kv;
    int64_t *next = b->cursors[source].scratch, key = m->n_kv, from = j * m->block_kv;
    for (int64_t r = 0; r < b->rows; r++) {
        if (next[r] < from)
            next[r] = mask_next(mask + r * m->n_kv, from, m->n_kv);
        key = min_i64(key, next[r]);
    }
    if (key == m->n_kv)
        return build_answer_none(b, source);
    int64_t col = key / m->block_kv, begin = col * m->block_kv, cols = bcsr_col_width(m, col);
    if (build_single_element(b, col)) {
        build_answer(b, source, col);
        return 0;
    }
    struct build_tile *t = build_answer_bits(b, source, col);
    if (!t)
        return -1;
    for (int64_t r = 0; r < b->rows; r++) {
        if (next[r] >= begin + cols)
            continue;
        for (int64_t c = 0; c < cols; c += 64) {
            int n = (int)min_i64(64, cols - c);
            bits_put(t->bits, r * m->block_kv + c, mask_bits(mask + r * m->n_kv + begin + c, n), n);
        }
    }
    tile_set_bits(b, t);
    return 0;
}

const struct source_kind source_mask = {mask_begin, mask_seek};

/* ---- blocks: one byte for each block --------------------------------------------------------- */

static int blocks_seek(struct build_row *b, int64_t source, int64_t j) {
    const struct bcsr *m = b->m;
    const uint8_t *bytes = b->sources[source].u.blocks + (b->list * m->rows + b->row) * m->cols;
    build_answer(b, source, mask_next(bytes, j, m->cols));
    return 0;
}

const struct source_kind source_blocks = {NULL, blocks_seek};

/* ---- bits: one bit for each block ------------------------------------------------------------ */

/* A bit past the last column comes after all that count: it answers as no bit at all does. */
static int bits_seek(struct build_row *b, int64_t source, int64_t j) {
    const struct bcsr *m = b->m;
    int64_t words = bcsr_col_words(m), w = j / 64;
    const uint64_t *bits = b->sources[source].u.bits + (b->list * m->rows + b->row) * words;
    uint64_t v = bits[w] & UINT64_MAX << j % 64;
    while (!v && ++w < words)
        v = bits[w];
    build_answer(b, source, v ? min_i64(64 * w + __builtin_ctzll(v), m->cols) : m->cols);
    return 0;
}

const struct source_kind source_bits = {NULL, bits_seek};
