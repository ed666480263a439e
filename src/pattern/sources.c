/*
 * The sources of build.h that are words of a spec: element patterns, drawn columns, set operations.
 * A seek() tells the first tile at or after a column and leaves column `cols` when there is none.
 */
#include "pattern/build.h"

#include <string.h>

struct build_tile *build_answer(struct build_row *b, int64_t source, int64_t col) {
    struct build_tile *t = &b->cursors[source].answer;
    memset(t, 0, sizeof *t);
    t->tile.col = (int32_t)col;
    t->tile.kind = TILE_FULL;
    return t;
}

int build_answer_none(struct build_row *b, int64_t source) {
    build_answer(b, source, b->m->cols);
    return 0;
}

struct build_tile *build_answer_bits(struct build_row *b, int64_t source, int64_t col) {
    struct build_tile *t = build_answer(b, source, col);
    t->tile.kind = TILE_BITMASK;
    t->bits = build_bits(b, &b->cursors[source]);
    return t->bits ? t : NULL;
}

int build_single_element(const struct build_row *b, int64_t col) {
    return b->rows == 1 && bcsr_col_width(b->m, col) == 1;
}

/* ---- band: keys p + lo ... p + hi ------------------------------------------------------------ */

static int band_seek(struct build_row *b, int64_t source, int64_t j) {
    const struct bcsr *m = b->m;
    int64_t lo = b->position + b->sources[source].u.band.lo;
    int64_t hi = b->position + b->sources[source].u.band.hi;
    int64_t first = max_i64(0, lo), last = min_i64(m->n_kv - 1, hi + b->rows - 1);
    if (lo > hi || first > last)
        return build_answer_none(b, source);
    int64_t col = max_i64(j, first / m->block_kv);
    if (col > last / m->block_kv)
        return build_answer_none(b, source);
    struct build_tile *t = build_answer(b, source, col);
    tile_set_band(b, t, lo - col * m->block_kv, hi - col * m->block_kv);
    return 0;
}

const struct source_kind source_band = {NULL, band_seek};

/* ---- ranges: one range of keys for each query ------------------------------------------------ */

/* Rows r0 ... r1 - 1 of the block row see keys a ... b - 1. */
struct piece {
    int64_t r0, r1, a, b;
};

static int ranges_begin(struct build_row *b, int64_t source) {
    const struct source *s = &b->sources[source];
    const struct build_document *d = &b->document;
    struct cursor *c = &b->cursors[source];
    int64_t end, n_kv = d->end - d->begin, position = b->position - d->begin;
    c->n = c->at = 0;
    for (int64_t r = 0; r < b->rows; r = end) {
        struct piece piece = {.r0 = r};
        end = s->u.ranges.piece(s, n_kv, position + r, &piece.a, &piece.b) - position;
        end = min_i64(end, b->rows);
        piece.r1 = end;
        piece.a = d->begin + max_i64(piece.a, 0);
        piece.b = d->begin + min_i64(piece.b, n_kv);
        if (piece.a >= piece.b)
            continue;
        if (!build_scratch(c, (c->n + 1) * (int64_t)sizeof piece))
            return -1;
        ((struct piece *)c->scratch)[c->n++] = piece;
    }
    return 0;
}

static void bits_fill(uint64_t *bits, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; i += 64) {
        int k = (int)min_i64(64, n - i);
        bits_put(bits, at + i, UINT64_MAX >> (64 - k), k);
    }
}

static int ranges_seek(struct build_row *b, int64_t source, int64_t j) {
    const struct bcsr *m = b->m;
    const struct piece *pieces = b->cursors[source].scratch;
    struct cursor *cursor = &b->cursors[source];
    int64_t n = cursor->n, from = j * m->block_kv, whole = 0;
    while (cursor->at < n && pieces[cursor->at].b <= from)
        cursor->at++; /* seeks only go forward, and so do the ends of pieces */
    if (cursor->at == n)
        return build_answer_none(b, source);
    int64_t col = max_i64(from, pieces[cursor->at].a) / m->block_kv, begin = col * m->block_kv;
    int64_t end = begin + bcsr_col_width(m, col);
    for (int64_t i = cursor->at; i < n && pieces[i].a <= begin; i++)
        if (end <= pieces[i].b)
            whole += pieces[i].r1 - pieces[i].r0;
    struct build_tile *t = build_answer(b, source, col);
    if (whole == b->rows)
        return 0;
    if (b->rows == 1) { /* a range of a single row is a band */
        tile_set_band(b, t, pieces[0].a - begin, pieces[0].b - 1 - begin);
        return 0;
    }
    t = build_answer_bits(b, source, col);
    if (!t)
        return -1;
    for (int64_t i = cursor->at; i < n && pieces[i].a < end; i++) {
        int64_t first = max_i64(pieces[i].a, begin), last = min_i64(pieces[i].b, end);
        for (int64_t r = pieces[i].r0; r < pieces[i].r1 && first < last; r++)
            bits_fill(t->bits, r * m->block_kv + first - begin, last - first);
    }
    tile_set_bits(b, t);
    return 0;
}

const struct source_kind source_ranges = {ranges_begin, ranges_seek};

/* ---- steps: keys apart from one another ------------------------------------------------------ */

/* Copies row 0 of a mask to the rows below it. */
static void bits_repeat(const struct build_row *b, uint64_t *bits, int64_t cols) {
    for (int64_t c = 0; c < cols; c += 64) {
        int n = (int)min_i64(64, cols - c);
        uint64_t v = bits_get(bits, c, n);
        for (int64_t r = 1; r < b->rows; r++)
            bits_put(bits, r * b->m->block_kv + c, v, n);
    }
}

static int steps_seek(struct build_row *b, int64_t source, int64_t j) {
    const struct bcsr *m = b->m;
    const struct source *s = &b->sources[source];
    const struct build_document *d = &b->document;
    int64_t n_kv = d->end - d->begin, key = n_kv, position = b->position - d->begin;
    int64_t rows = s->u.steps.same_for_all ? 1 : b->rows;
    int64_t from = max_i64(j * m->block_kv - d->begin, 0);
    for (int64_t r = 0; r < rows; r++)
        key = min_i64(key, s->u.steps.next(s, n_kv, position + r, from));
    if (key == n_kv)
        return build_answer_none(b, source);
    /* begin: the key, counted from the document's first, that the column begins at */
    int64_t col = (d->begin + key) / m->block_kv, begin = col * m->block_kv - d->begin;
    int64_t end = min_i64(begin + bcsr_col_width(m, col), n_kv);
    if (build_single_element(b, col)) {
        build_answer(b, source, col);
        return 0;
    }
    struct build_tile *t = build_answer_bits(b, source, col);
    if (!t)
        return -1;
    for (int64_t r = 0; r < rows; r++) {
        int64_t k = s->u.steps.next(s, n_kv, position + r, max_i64(begin, 0));
        for (; k < end; k = s->u.steps.next(s, n_kv, position + r, k + 1))
            bits_put(t->bits, r * m->block_kv + k - begin, 1, 1);
    }
    if (rows < b->rows)
        bits_repeat(b, t->bits, end - begin);
    tile_set_bits(b, t);
    return 0;
}

const struct source_kind source_steps = {NULL, steps_seek};

/* ---- columns: whole blocks ------------------------------------------------------------------- */

static int columns_begin(struct build_row *b, int64_t source) {
    struct cursor *c = &b->cursors[source];
    c->at = 0;
    c->n = 0;
    if (b->sources[source].u.columns.fill(b, &b->sources[source], c))
        return -1;
    for (int64_t i = 0; i < c->n; i++)
        ((int32_t *)c->scratch)[i] += (int32_t)build_first_col(b);
    return 0;
}

static int columns_seek(struct build_row *b, int64_t source, int64_t j) {
    struct cursor *c = &b->cursors[source];
    const int32_t *col = c->scratch;
    while (c->at < c->n && col[c->at] < j)
        c->at++;
    build_answer(b, source, c->at < c->n ? col[c->at] : b->m->cols);
    return 0;
}

const struct source_kind source_columns = {columns_begin, columns_seek};

/* ---- set operations -------------------------------------------------------------------------- */

/* Joins what all children list in a column that some (`both`: all) of them answered. */
static int join_children(struct build_row *b, int64_t source, int64_t col, int both) {
    struct cursor *c = &b->cursors[source];
    int64_t child = b->sources[source].child;
    while (b->cursors[child].answer.tile.col != col)
        child = b->sources[child].next;
    c->answer = b->cursors[child].answer;
    for (child = b->sources[child].next; child >= 0; child = b->sources[child].next) {
        const struct build_tile *u = &b->cursors[child].answer;
        int listed = u->tile.col == col ? tile_join(b, c, &c->answer, u, both) : 1;
        if (listed <= 0)
            return listed;
    }
    return 1;
}

static int union_seek(struct build_row *b, int64_t source, int64_t j) {
    int64_t col = b->m->cols;
    for (int64_t child = b->sources[source].child; child >= 0; child = b->sources[child].next) {
        if (build_seek(b, child, j))
            return -1;
        col = min_i64(col, b->cursors[child].answer.tile.col);
    }
    if (col == b->m->cols)
        return build_answer_none(b, source);
    return join_children(b, source, col, 0) < 0 ? -1 : 0;
}

const struct source_kind source_union = {NULL, union_seek};

/* Moves all children to a column that each of them lists, at or after j. */
static int64_t children_meet(struct build_row *b, int64_t source, int64_t j) {
    for (int64_t child = b->sources[source].child; child >= 0;) {
        if (build_seek(b, child, j))
            return -1;
        int64_t col = b->cursors[child].answer.tile.col;
        child = col == j ? b->sources[child].next : b->sources[source].child;
        if (col == b->m->cols)
            return col;
        j = col;
    }
    return j;
}

static int intersection_seek(struct build_row *b, int64_t source, int64_t j) {
    for (; j < b->m->cols; j++) {
        j = children_meet(b, source, j);
        if (j < 0)
            return -1;
        if (j == b->m->cols)
            break;
        int listed = join_children(b, source, j, 1);
        if (listed)
            return listed < 0 ? -1 : 0;
    }
    return build_answer_none(b, source);
}

const struct source_kind source_intersection = {NULL, intersection_seek};
