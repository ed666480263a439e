/* Device patterns of cases. */
#include "lab/listed.h"

#include "lab/rng.h"

#include <stdio.h>
#include <stdlib.h>

/* A draw's streams; every set has its own. */
enum { ENTRIES = 300, ORDER, STYLE, COUNTS, LENGTHS, STREAMS };
/* Cells of the mask that exact cuts are written down in. */
static const int64_t MOST_CELLS = INT64_C(1) << 26;

/* ---- sizes ---- */

struct sizes {
    int64_t lists, rows, cols; /* of all batches and heads; block rows and columns */
};

static struct sizes sizes_of(const struct lab_case *c) {
    const tess_pattern_shape shape = lab_case_shape(c);
    return (struct sizes){shape.batch * shape.heads, (c->n + c->block_q - 1) / c->block_q,
                          (c->nkv + c->block_kv - 1) / c->block_kv};
}

static int has(const struct lab_listed *l, int64_t letter) {
    return (l->c.entries & letter) != 0;
}

static int has_counts(const struct lab_case *c) {
    return (c->form == TESS_INDICES || c->form == TESS_RANGES) &&
           (c->entries & (LAB_ENTRIES_COUNTS | LAB_ENTRIES_OVERFLOW)) != 0;
}

const char *lab_listed_refuses(const struct lab_case *c) {
    const struct sizes s = sizes_of(c);
    int64_t all;
    if (lab_case_backward(c))
        return "the backward has no lists on the device";
    if (c->pipeline == TESS_STAGED)
        return "the staged pipeline has no lists on the device";
    if (c->form == TESS_RANGES && (c->topk > 4 || c->block_kv != 1))
        return "form=ranges has at most 4 of them, and blocks of QUERIESx1";
    if (!(c->valid >= 0 && c->valid <= 1))
        return "valid is a share within 0 ... 1";
    if (__builtin_mul_overflow(s.lists * s.rows, c->topk + s.cols, &all) || all > INT64_MAX / 16)
        return "the lists of this case do not fit 64 bits";
    return NULL;
}

/* ---- drawing ---- */

static uint64_t stream(uint64_t set, uint64_t what) {
    return what + set * STREAMS;
}

static void *array_make(struct lab_buffer *b, int64_t count, size_t size) {
    return lab_buffer_make(b, (size_t)count * size, size) == 0 ? b->data : NULL;
}

/* What a draw needs to know of a block row. */
struct row {
    const struct lab_listed *l;
    uint64_t set, number; /* over all lists */
    int64_t cols;
};

static int64_t draw(const struct row *r, uint64_t what, int64_t i, int64_t n) {
    const uint64_t entries = (uint64_t)r->l->c.topk + 2;
    return lab_below(r->l->c.seed, stream(r->set, what), r->number * entries + (uint64_t)i, n);
}

/* How many different columns a row names. */
static int64_t valid_of(const struct row *r) {
    const struct lab_case *c = &r->l->c;
    const int64_t n = llround((double)c->topk * c->valid), most = n < r->cols ? n : r->cols;
    return has(r->l, LAB_ENTRIES_EMPTY) && draw(r, STYLE, c->topk, 4) == 0 ? 0 : most;
}

/* Column `e` of `valid` that ascend, one of each equal stretch of all. */
static int32_t column(const struct row *r, int64_t e, int64_t valid) {
    const int64_t begin = e * r->cols / valid, end = (e + 1) * r->cols / valid;
    return (int32_t)(begin + draw(r, ENTRIES, e, end - begin));
}

/* Where entry `e` of `valid` stands among the row's. */
static int64_t place_of(const struct row *r, int64_t e, int64_t valid) {
    const int64_t k = r->l->c.topk;
    return has(r->l, LAB_ENTRIES_FIRST)   ? k - valid + e
           : has(r->l, LAB_ENTRIES_MIXED) ? e * k / valid
                                          : e;
}

/* A block row of INDICES or BLOCK_ROWS. */
static void row_draw(const struct row *r, int32_t *x) {
    const int32_t wrong[] = {-2, INT32_MIN, INT32_MAX, (int32_t)r->cols};
    const int64_t k = r->l->c.topk, valid = valid_of(r);
    for (int64_t i = 0; i < k; i++)
        x[i] = -1;
    for (int64_t e = 0; e < valid; e++) {
        const int64_t at = place_of(r, e, valid);
        x[at] = column(r, e, valid);
        if (has(r->l, LAB_ENTRIES_DUPLICATES) && e && draw(r, STYLE, e, 4) == 0)
            x[at] = x[place_of(r, draw(r, ORDER, e, e), valid)];
    }
    for (int64_t e = valid - 1; e > 0 && has(r->l, LAB_ENTRIES_UNORDERED); e--) {
        int32_t *a = &x[place_of(r, e, valid)];
        int32_t *b = &x[place_of(r, draw(r, COUNTS, e, e + 1), valid)];
        const int32_t swap = *a;
        *a = *b, *b = swap;
    }
    for (int64_t i = 0; i < k && has(r->l, LAB_ENTRIES_WRONG); i++)
        if (draw(r, LENGTHS, i, 8) == 0)
            x[i] = wrong[draw(r, ORDER, i, 4)];
}

/* Ranges that part the keys evenly; or with any ends, counted from the front or the back. */
static void ranges_draw(const struct row *r, int32_t *x) {
    const int64_t k = r->l->c.topk, n = r->l->c.nkv;
    const int empty = has(r->l, LAB_ENTRIES_EMPTY) && draw(r, STYLE, k, 4) == 0;
    for (int64_t e = 0; e < k; e++) {
        const int64_t begin = e * n / k, all = (e + 1) * n / k - begin;
        x[2 * e] = (int32_t)begin;
        x[2 * e + 1] = (int32_t)(begin + (empty ? 0 : llround((double)all * r->l->c.valid)));
        for (int end = 0; end < 2 && has(r->l, LAB_ENTRIES_UNORDERED); end++) {
            const int32_t key = (int32_t)draw(r, end ? ENTRIES : ORDER, e, n + 2);
            x[2 * e + end] = draw(r, end ? STYLE : COUNTS, e, 2) ? key : -1 - key;
        }
        if (has(r->l, LAB_ENTRIES_WRONG) && draw(r, LENGTHS, e, 4) == 0)
            x[2 * e + draw(r, LENGTHS, k, 2)] = draw(r, LENGTHS, k + 1, 2) ? INT32_MIN : INT32_MAX;
    }
}

/* Rows of the padded forms, and their counts. */
static int padded_draw(struct lab_listed *l, const struct sizes *s, uint64_t set) {
    const int64_t width = l->c.form == TESS_RANGES ? 2 : 1, k = l->c.topk;
    const int64_t all = s->lists * s->rows;
    int32_t *x = array_make(&l->indices, all * k * width, sizeof *x);
    int32_t *counts = has_counts(&l->c) ? array_make(&l->counts, all, sizeof *counts) : NULL;
    if (!x || (has_counts(&l->c) && !counts))
        return -1;
    const int64_t past = has(l, LAB_ENTRIES_OVERFLOW), low = has(l, LAB_ENTRIES_WRONG) ? -1 : 0;
#pragma omp parallel for schedule(static) if (all * k > 100000)
    for (int64_t row = 0; row < all; row++) {
        const struct row r = {l, set, (uint64_t)row, s->cols};
        (width == 2 ? ranges_draw : row_draw)(&r, x + row * k * width);
        if (counts)
            counts[row] = (int32_t)(low + draw(&r, COUNTS, k, k + 1 + past - low));
        if (counts && draw(&r, COUNTS, k + 1, 3) == 0)
            counts[row] = (int32_t)(k + past);
    }
    l->pattern.indices = x, l->pattern.counts = counts;
    l->pattern.capacity = k;
    return 0;
}

/* Capacity for so many blocks: as many, one fewer or one more. */
static int64_t room_for(const struct lab_listed *l, int64_t blocks) {
    blocks += has(l, LAB_ENTRIES_ROOM) - has(l, LAB_ENTRIES_OVERFLOW);
    return blocks < 1 ? 1 : blocks;
}

static int rows_draw(struct lab_listed *l, const struct sizes *s, uint64_t set) {
    const int64_t k = l->c.topk;
    int64_t *ptr = array_make(&l->row_ptr, s->lists * (s->rows + 1), sizeof *ptr), at = 0;
    int32_t *x = array_make(&l->indices, s->lists * s->rows * k + 1, sizeof *x);
    int32_t *whole = malloc((size_t)k * sizeof *whole);
    for (int64_t row = 0; x && ptr && whole && row < s->lists * s->rows; row++) {
        const struct row r = {l, set, (uint64_t)row, s->cols};
        const int64_t n = has(l, LAB_ENTRIES_COUNTS) ? draw(&r, COUNTS, k, k + 1) : k;
        int64_t *here = ptr + row / s->rows * (s->rows + 1) + row % s->rows;
        row_draw(&r, whole);
        memcpy(x + at, whole, (size_t)n * sizeof *whole);
        *here = at, here[1] = at += n;
        if (has(l, LAB_ENTRIES_WRONG) && draw(&r, LENGTHS, k, 12) == 0)
            *here = draw(&r, LENGTHS, k + 1, 2) ? INT64_MIN : at + 3 * k;
    }
    free(whole);
    l->pattern.row_ptr = ptr, l->pattern.indices = x;
    l->pattern.capacity = room_for(l, at);
    return ptr && x && whole ? 0 : -1;
}

static int bits_draw(struct lab_listed *l, const struct sizes *s, uint64_t set) {
    const int64_t words = (s->cols + 63) / 64, all = s->lists * s->rows;
    uint64_t *x = array_make(&l->bits, all * words, sizeof *x);
    int64_t blocks = 0;
    if (!x)
        return -1;
    memset(x, 0, l->bits.size);
    for (int64_t row = 0; row < all; row++) {
        const struct row r = {l, set, (uint64_t)row, s->cols};
        const int64_t valid = valid_of(&r);
        for (int64_t e = 0; e < valid; e++) {
            const int32_t at = column(&r, e, valid);
            x[row * words + at / 64] |= UINT64_C(1) << at % 64;
        }
        if (has(l, LAB_ENTRIES_WRONG) && s->cols % 64) /* no columns */
            x[row * words + words - 1] |= UINT64_MAX << s->cols % 64;
        blocks += valid;
    }
    l->pattern.bits = x;
    l->pattern.capacity = room_for(l, blocks);
    return 0;
}

static int lengths_draw(struct lab_listed *l, uint64_t set) {
    const struct lab_case *c = &l->c;
    const uint64_t from = stream(set, LENGTHS);
    int32_t *x = array_make(&l->lengths, c->b, sizeof *x);
    l->today = malloc((size_t)c->b * sizeof *l->today);
    if (!x || !l->today)
        return -1;
    for (int64_t b = 0; b < c->b; b++) {
        const uint64_t i = UINT64_MAX - 2 * (uint64_t)b;
        const int64_t what = lab_below(c->seed, from, i, 8);
        x[b] = (int32_t)(what == 0   ? 0
                         : what == 1 ? c->nkv
                                     : lab_below(c->seed, from, i - 1, c->nkv + 1));
        if (has(l, LAB_ENTRIES_WRONG) && what > 5)
            x[b] = what == 6 ? -1 : (int32_t)c->nkv + 1;
        l->today[b] = x[b] < 0 || x[b] > c->nkv ? 0 : x[b];
    }
    l->pattern.lengths = x;
    return 0;
}

/* Those that hold; what is not to be breaks them. */
static int64_t promises_of(const struct lab_listed *l) {
    if (!has(l, LAB_ENTRIES_PROMISED) || has(l, LAB_ENTRIES_WRONG) || l->c.form != TESS_INDICES)
        return 0;
    const int distinct = !has(l, LAB_ENTRIES_DUPLICATES);
    const int ascending = distinct && !has(l, LAB_ENTRIES_UNORDERED);
    const int last = !has(l, LAB_ENTRIES_FIRST | LAB_ENTRIES_MIXED);
    return (distinct ? TESS_DISTINCT : 0) | (ascending ? TESS_ASCENDING : 0) |
           (last ? TESS_PADDED_LAST : 0);
}

int lab_listed_make(struct lab_listed *l, const struct lab_case *c, uint64_t set) {
    const struct {
        int64_t lo, hi;
    } cuts[] = {[LAB_CUT_NONE] = {0, 0},
                [LAB_CUT_CAUSAL] = {INT64_MIN, 0},
                [LAB_CUT_WINDOW] = {-c->nkv / 3 - 1, 4},
                [LAB_CUT_AHEAD] = {-9, INT64_MAX}};
    const struct sizes s = sizes_of(c);
    const tess_pattern_shape shape = lab_case_shape(c);
    tess_device_pattern p = tess_device_pattern_init();
    *l = (struct lab_listed){.c = *c};
    p.form = c->form, p.n_q = c->n, p.n_kv = c->nkv;
    p.block_q = c->block_q, p.block_kv = c->block_kv;
    p.batch = shape.batch, p.heads = shape.heads;
    p.cut_lo = cuts[c->cut].lo, p.cut_hi = cuts[c->cut].hi;
    p.promises = promises_of(l);
    l->pattern = p;
    if (has(l, LAB_ENTRIES_LENGTHS) && lengths_draw(l, set))
        return -1;
    return (c->form == TESS_BLOCK_ROWS   ? rows_draw
            : c->form == TESS_BLOCK_BITS ? bits_draw
                                         : padded_draw)(l, &s, set);
}

void lab_listed_free(struct lab_listed *l) {
    struct lab_buffer *const all[] = {&l->indices, &l->counts, &l->row_ptr, &l->bits, &l->lengths};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lab_buffer_free(all[i]);
    free(l->today);
    memset(l, 0, sizeof *l);
}

/* ---- what is listed ---- */

/* Marks the blocks (RANGES: keys) that a block row lists of the keys before `length`; *claimed are the
 * blocks that it and the rows before it claim. */
static void row_mark(const struct lab_listed *l, const struct sizes *s, int64_t row, int64_t length,
                     int64_t *claimed, uint8_t *listed) {
    const tess_device_pattern *p = &l->pattern;
    const int64_t words = (s->cols + 63) / 64, width = l->c.block_kv;
    const int64_t blocks = (length + width - 1) / width;
    int64_t begin = row * p->capacity, n = p->capacity;
    memset(listed, 0, (size_t)s->cols);
    if (p->form == TESS_BLOCK_BITS) {
        int64_t own = 0;
        for (int64_t x = 0; x < s->cols; x++)
            own += listed[x] = p->bits[row * words + x / 64] >> x % 64 & 1;
        *claimed += own;
        if (blocks < s->cols)
            memset(listed + blocks, 0, (size_t)(s->cols - blocks));
        if (*claimed > p->capacity)
            memset(listed, 0, (size_t)s->cols);
        return;
    }
    if (p->form == TESS_BLOCK_ROWS) {
        const int64_t *ptr = p->row_ptr + row / s->rows * (s->rows + 1) + row % s->rows;
        if (ptr[0] < 0 || ptr[1] < ptr[0] || ptr[1] > p->capacity)
            return;
        begin = ptr[0], n = ptr[1] - ptr[0];
        *claimed += n;
        if (*claimed > p->capacity)
            return;
    } else if (p->counts) {
        n = p->counts[row];
        if (n < 0 || n > p->capacity)
            return;
    }
    for (int64_t i = begin; i < begin + n; i++) {
        if (p->form == TESS_RANGES) {
            int64_t from = p->indices[2 * i], to = p->indices[2 * i + 1];
            from += from < 0 ? length + 1 : 0;
            to += to < 0 ? length + 1 : 0;
            for (int64_t j = from < 0 ? 0 : from; j < to && j < length; j++)
                listed[j] = 1;
        } else if (p->indices[i] >= 0 && p->indices[i] < blocks)
            listed[p->indices[i]] = 1;
    }
}

/* Gives every block row of every list of each batch to `take`. Answers 0, or -1 without memory. */
struct walk {
    const struct lab_listed *l;
    struct sizes s;
    int64_t batches, heads;
    void *to;
    void (*take)(struct walk *walk, int64_t list, int64_t row, int64_t length,
                 const uint8_t *listed);
};

static int walk_rows(struct walk *w) {
    const struct lab_listed *l = w->l;
    uint8_t *listed = malloc((size_t)w->s.cols);
    int64_t claimed = 0;
    for (int64_t b = 0; listed && b < w->batches; b++) {
        const int64_t first = l->pattern.batch == 1 ? 0 : b * w->heads;
        const int64_t length = l->today ? l->today[b] : l->c.nkv;
        claimed = l->pattern.batch == 1 ? 0 : claimed;
        for (int64_t x = 0; x < w->heads * w->s.rows; x++) {
            row_mark(l, &w->s, first * w->s.rows + x, length, &claimed, listed);
            w->take(w, b * w->heads + x / w->s.rows, x % w->s.rows, length, listed);
        }
    }
    free(listed);
    return listed ? 0 : -1;
}

static void take_cells(struct walk *w, int64_t list, int64_t row, int64_t length,
                       const uint8_t *listed) {
    const struct lab_case *c = &w->l->c;
    const tess_device_pattern *p = &w->l->pattern;
    const int whole = p->cut_lo == 0 && p->cut_hi == 0;
    for (int64_t i = row * c->block_q; i < (row + 1) * c->block_q && i < c->n; i++) {
        uint8_t *mask = (uint8_t *)w->to + (list * c->n + i) * c->nkv;
        for (int64_t j = 0; j < length; j++) {
            const int64_t behind = j - (i + length - c->n);
            mask[j] =
                listed[j / c->block_kv] && (whole || (p->cut_lo <= behind && behind <= p->cut_hi));
        }
    }
}

static tess_status by_mask(struct walk *w, const tess_pattern_shape *shape, tess_pattern **pattern,
                           tess_error *error) {
    w->to = calloc((size_t)(shape->batch * shape->heads * shape->n_q), (size_t)shape->n_kv);
    w->take = take_cells;
    tess_status status = TESS_OUT_OF_MEMORY;
    if (w->to && walk_rows(w) == 0)
        status = tess_pattern_from_mask(pattern, w->to, shape, error);
    free(w->to);
    return status;
}

/* Whole blocks as padded lists with their counts. */
struct blocks {
    int32_t *indices, *counts;
    int64_t capacity;
};

static void take_blocks(struct walk *w, int64_t list, int64_t row, int64_t length,
                        const uint8_t *listed) {
    const struct blocks *to = w->to;
    int32_t *x = to->indices + (list * w->s.rows + row) * to->capacity, n = 0;
    (void)length;
    for (int64_t col = 0; col < w->s.cols && n < to->capacity; col++)
        if (listed[col])
            x[n++] = (int32_t)col;
    to->counts[list * w->s.rows + row] = n;
}

static tess_status by_blocks(struct walk *w, const tess_pattern_shape *shape,
                             tess_pattern **pattern, tess_error *error) {
    const int64_t all = w->s.lists * w->s.rows, k = w->l->c.topk;
    struct blocks to = {calloc((size_t)all, (size_t)k * sizeof(int32_t)),
                        calloc((size_t)all, sizeof(int32_t)), k};
    w->to = &to, w->take = take_blocks;
    tess_status status = TESS_OUT_OF_MEMORY;
    if (to.indices && to.counts && walk_rows(w) == 0)
        status = tess_pattern_from_counts(pattern, to.indices, to.counts, k, shape, error);
    free(to.indices);
    free(to.counts);
    return status;
}

tess_status lab_listed_pattern(const struct lab_listed *l, tess_pattern **pattern,
                               tess_error *error) {
    const struct lab_case *c = &l->c;
    tess_pattern_shape shape = lab_case_shape(c);
    struct walk w = {.l = l, .s = sizes_of(c), .batches = shape.batch, .heads = shape.heads};
    *pattern = NULL;
    if (l->today)
        w.batches = shape.batch = c->b;
    const int exact =
        l->today || c->cut != LAB_CUT_NONE || c->form == TESS_RANGES || has(l, LAB_ENTRIES_WRONG);
    const int small =
        (double)(shape.batch * shape.heads * c->n) * (double)c->nkv <= (double)MOST_CELLS;
    if (small)
        return by_mask(&w, &shape, pattern, error);
    if (!exact)
        return by_blocks(&w, &shape, pattern, error);
    if (error)
        snprintf(error->message, sizeof error->message,
                 "lists of more than %lld queries by keys are drawn without ranges, lengths, cuts "
                 "and wrong entries",
                 (long long)MOST_CELLS);
    return TESS_INVALID_ARGUMENT;
}

tess_status lab_listed_spec(const struct lab_case *c, tess_pattern **pattern, tess_error *error) {
    struct lab_listed l;
    *pattern = NULL;
    const tess_status status =
        lab_listed_make(&l, c, 0) ? TESS_OUT_OF_MEMORY : lab_listed_pattern(&l, pattern, error);
    lab_listed_free(&l);
    return status;
}

/* ---- on a backend ---- */

tess_device_pattern lab_listed_declared(const struct lab_listed *l) {
    tess_device_pattern p = l->pattern;
    p.indices = p.counts = p.lengths = NULL;
    p.row_ptr = NULL, p.bits = NULL;
    return p;
}

/* The arrays, and where each stands in the pattern. */
enum { ARRAYS = 5 };
struct array {
    const char *name;
    const struct lab_buffer *buffer;
    size_t slot;
};

#define SLOT(field) offsetof(tess_device_pattern, field)
static void arrays_of(const struct lab_listed *l, struct array all[ARRAYS]) {
    const struct array of[ARRAYS] = {{"indices", &l->indices, SLOT(indices)},
                                     {"counts", &l->counts, SLOT(counts)},
                                     {"row_ptr", &l->row_ptr, SLOT(row_ptr)},
                                     {"bits", &l->bits, SLOT(bits)},
                                     {"lengths", &l->lengths, SLOT(lengths)}};
    memcpy(all, of, sizeof of);
}

int lab_listed_place(const struct lab_listed *l, struct lab_mirror *mirror,
                     tess_device_pattern *there) {
    struct array all[ARRAYS];
    arrays_of(l, all);
    *there = l->pattern;
    for (int i = 0; i < ARRAYS; i++) {
        if (!all[i].buffer->base)
            continue;
        void *at = lab_mirror_add(mirror, all[i].buffer);
        if (!at)
            return -1;
        memcpy((char *)there + all[i].slot, &at, sizeof at);
    }
    return 0;
}

int lab_listed_check(const struct lab_listed *l, char why[LAB_WHY]) {
    struct array all[ARRAYS];
    arrays_of(l, all);
    for (int i = 0; i < ARRAYS; i++)
        if (all[i].buffer->base && lab_buffer_check(all[i].buffer, all[i].name, why))
            return -1;
    return 0;
}

uint64_t lab_listed_hash(const struct lab_listed *l) {
    struct array all[ARRAYS];
    uint64_t hash = 0;
    arrays_of(l, all);
    for (int i = 0; i < ARRAYS; i++)
        hash = 31 * hash + (all[i].buffer->base ? lab_buffer_hash(all[i].buffer) : 0);
    return hash;
}
