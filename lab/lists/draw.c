/* Drawing of device patterns. */
#include "lab/lists/listed.h"

#include "lab/fill/rng.h"

#include <stdlib.h>

/* A draw's streams; every set has its own. */
enum { ENTRIES = 300, ORDER, STYLE, COUNTS, LENGTHS, BYTES, STREAMS };

/* ---- sizes ---- */

struct sizes {
    int64_t lists, rows, cols; /* lists of all batches and heads; block rows and columns */
};

static struct sizes sizes_of(const tess_device_pattern *p) {
    const int64_t width = p->form == TESS_RANGES ? 1 : p->block_kv;
    return (struct sizes){p->batch * p->heads, (p->n_q + p->block_q - 1) / p->block_q,
                          (p->n_kv + width - 1) / width};
}

static int has(const struct lab_listed *l, int64_t letter) {
    return (l->listing.entries & letter) != 0;
}

static int has_counts(const struct lab_listed *l) {
    return (l->pattern.form == TESS_INDICES || l->pattern.form == TESS_RANGES) &&
           has(l, LAB_ENTRIES_COUNTS | LAB_ENTRIES_OVERFLOW);
}

/* ---- drawing ---- */

static uint64_t stream(uint64_t set, uint64_t what) {
    return what + set * STREAMS;
}

static void *array_make(struct lab_buffer *b, int64_t count, size_t size) {
    return lab_buffer_make(b, (size_t)count * size, size) == 0 ? b->data : NULL;
}

/* A block row that is drawn. */
struct row {
    const struct lab_listed *l;
    uint64_t set, number; /* over all lists */
    int64_t cols;
};

static int64_t draw(const struct row *r, uint64_t what, int64_t i, int64_t n) {
    const uint64_t entries = (uint64_t)r->l->listing.most + 2;
    return lab_below(r->l->listing.seed, stream(r->set, what), r->number * entries + (uint64_t)i,
                     n);
}

/* How many different columns a row names. */
static int64_t valid_of(const struct row *r) {
    const struct lab_listing *listing = &r->l->listing;
    const int64_t n = llround((double)listing->most * listing->valid),
                  most = n < r->cols ? n : r->cols;
    if (has(r->l, LAB_ENTRIES_EMPTY) && draw(r, STYLE, listing->most, 4) == 0)
        return 0;
    return listing->uneven ? draw(r, STYLE, listing->most + 1, most + 1) : most;
}

/* Column `e` of `valid` that ascend, one of each equal stretch of all. */
static int32_t column(const struct row *r, int64_t e, int64_t valid) {
    const int64_t begin = e * r->cols / valid, end = (e + 1) * r->cols / valid;
    return (int32_t)(begin + draw(r, ENTRIES, e, end - begin));
}

/* Place of entry `e` of `valid` among the row's. */
static int64_t place_of(const struct row *r, int64_t e, int64_t valid) {
    const int64_t k = r->l->listing.most;
    return has(r->l, LAB_ENTRIES_FIRST)   ? k - valid + e
           : has(r->l, LAB_ENTRIES_MIXED) ? e * k / valid
                                          : e;
}

static int ascending(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Makes promises true of n entries, wrong ones among them. */
static void promises_keep(int64_t promises, int32_t *x, int64_t n) {
    int64_t kept = 0;
    if (promises & TESS_ASCENDING) {
        qsort(x, (size_t)n, sizeof *x, ascending); /* padding and faults first */
        for (int64_t i = n - 1; i > 0; i--)
            x[i] = x[i] == x[i - 1] ? -1 : x[i];
    }
    for (int64_t i = 0; i < n && promises & TESS_DISTINCT; i++)
        for (int64_t j = 0; j < i; j++)
            x[i] = x[i] == x[j] ? -1 : x[i];
    if (!(promises & TESS_PADDED_LAST))
        return;
    for (int64_t i = 0; i < n; i++)
        if (x[i] != -1)
            x[kept++] = x[i];
    while (kept < n)
        x[kept++] = -1;
}

/* A block row of INDICES or BLOCK_ROWS. */
static void row_draw(const struct row *r, int32_t *x) {
    const int32_t wrong[] = {-2, INT32_MIN, INT32_MAX, (int32_t)r->cols};
    const int64_t k = r->l->listing.most, valid = valid_of(r);
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
    if (has(r->l, LAB_ENTRIES_WRONG) && r->l->listing.pattern.promises)
        promises_keep(r->l->listing.pattern.promises, x, k);
}

/* Ranges that part the keys evenly; or with any ends, counted from the front or the back. */
static void ranges_draw(const struct row *r, int32_t *x) {
    const int64_t k = r->l->listing.most, n = r->l->listing.pattern.n_kv;
    const int empty = has(r->l, LAB_ENTRIES_EMPTY) && draw(r, STYLE, k, 4) == 0;
    for (int64_t e = 0; e < k; e++) {
        const int64_t begin = e * n / k, all = (e + 1) * n / k - begin;
        x[2 * e] = (int32_t)begin;
        x[2 * e + 1] = (int32_t)(begin + (empty ? 0 : llround((double)all * r->l->listing.valid)));
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
    const int64_t width = l->listing.pattern.form == TESS_RANGES ? 2 : 1, k = l->listing.most;
    const int64_t all = s->lists * s->rows;
    int32_t *x = array_make(&l->indices, all * k * width, sizeof *x);
    int32_t *counts = has_counts(l) ? array_make(&l->counts, all, sizeof *counts) : NULL;
    if (!x || (has_counts(l) && !counts))
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

/* Capacity for so many blocks, of `most` that a plan may be reserved for: what is asked for; else as many, one
 * fewer or one more. */
static int64_t room_for(const struct lab_listed *l, int64_t blocks, int64_t most) {
    if (l->listing.pattern.capacity)
        return l->listing.pattern.capacity;
    blocks += has(l, LAB_ENTRIES_ROOM) - has(l, LAB_ENTRIES_OVERFLOW);
    return blocks < 1 ? 1 : blocks > most ? most : blocks;
}

/* How many of `n` blocks a row may claim after `claimed`. */
static int64_t claim(const struct lab_listed *l, int64_t claimed, int64_t n) {
    const int64_t left = l->listing.pattern.capacity - claimed;
    return !l->listing.pattern.capacity || has(l, LAB_ENTRIES_OVERFLOW) || n < left ? n : left;
}

static int rows_draw(struct lab_listed *l, const struct sizes *s, uint64_t set) {
    const int64_t k = l->listing.most;
    int64_t *ptr = array_make(&l->row_ptr, s->lists * (s->rows + 1), sizeof *ptr), at = 0;
    const int64_t drawn = s->lists * s->rows * k + 1, capacity = l->listing.pattern.capacity;
    int32_t *x = array_make(&l->indices, drawn > capacity ? drawn : capacity, sizeof *x);
    int32_t *whole = malloc((size_t)k * sizeof *whole);
    for (int64_t row = 0; x && ptr && whole && row < s->lists * s->rows; row++) {
        const struct row r = {l, set, (uint64_t)row, s->cols};
        const int64_t n = claim(l, at, has(l, LAB_ENTRIES_COUNTS) ? draw(&r, COUNTS, k, k + 1) : k);
        int64_t *ends = ptr + row / s->rows * (s->rows + 1) + row % s->rows;
        row_draw(&r, whole);
        memcpy(x + at, whole, (size_t)n * sizeof *whole);
        *ends = at, ends[1] = at += n;
        if (has(l, LAB_ENTRIES_WRONG) && draw(&r, LENGTHS, k, 12) == 0)
            *ends = draw(&r, LENGTHS, k + 1, 2) ? INT64_MIN : at + 3 * k;
    }
    free(whole);
    l->pattern.row_ptr = ptr, l->pattern.indices = x;
    l->pattern.capacity = room_for(l, at, INT64_MAX);
    return ptr && x && whole ? 0 : -1;
}

static int bits_draw(struct lab_listed *l, const struct sizes *s, uint64_t set) {
    const int64_t words = (s->cols + 63) / 64, all = s->lists * s->rows;
    uint64_t *x = array_make(&l->bits, all * words, sizeof *x);
    int64_t *valid = malloc((size_t)all * sizeof *valid), blocks = 0;
    for (int64_t row = 0; valid && row < all; row++) {
        const struct row r = {l, set, (uint64_t)row, s->cols};
        blocks += valid[row] = claim(l, blocks, valid_of(&r));
    }
#pragma omp parallel for schedule(static) if (blocks > 100000)
    for (int64_t row = 0; row < (x && valid ? all : 0); row++) {
        const struct row r = {l, set, (uint64_t)row, s->cols};
        memset(x + row * words, 0, (size_t)words * sizeof *x);
        for (int64_t e = 0; e < valid[row]; e++) {
            const int32_t at = column(&r, e, valid[row]);
            x[row * words + at / 64] |= UINT64_C(1) << at % 64;
        }
        if (has(l, LAB_ENTRIES_WRONG) && s->cols % 64) /* no columns */
            x[row * words + words - 1] |= UINT64_MAX << s->cols % 64;
    }
    free(valid);
    l->pattern.bits = x;
    l->pattern.capacity = room_for(l, blocks, all * s->cols);
    return x && valid ? 0 : -1;
}

/* Element i of row `r` in a block of a style: all, about half, a few, or some keys whole. */
static uint8_t byte_draw(const struct row *r, int64_t i, int64_t j, int64_t style) {
    const struct lab_listing *listing = &r->l->listing;
    const uint64_t n = (uint64_t)listing->pattern.n_kv,
                   cell = r->number * (uint64_t)listing->pattern.block_q;
    const uint64_t from = stream(r->set, BYTES), key = (uint64_t)j;
    const uint64_t x = lab_random(listing->seed, from, (cell + (uint64_t)i) * n + key);
    const uint64_t column = lab_random(listing->seed, from, ~(r->number * n + key));
    const int is[] = {1, x >> 63 != 0, x >> 59 == 0, column >> 62 == 0};
    return is[style] ? (uint8_t)(1 + (x & 255) % 255) : 0; /* any byte but 0 lists */
}

static int mask_draw(struct lab_listed *l, const struct sizes *s, uint64_t set) {
    const tess_device_pattern *p = &l->listing.pattern;
    uint8_t *mask = array_make(&l->mask, s->lists * p->n_q * p->n_kv, 1);
    const int64_t k = l->listing.most,
                  room = has(l, LAB_ENTRIES_ROOM) - has(l, LAB_ENTRIES_OVERFLOW);
    const int64_t capacity = p->capacity ? p->capacity : k + room;
    if (!mask)
        return -1;
    l->pattern.mask = mask;
    l->pattern.capacity = capacity < 1 ? 1 : capacity > s->cols ? s->cols : capacity;
    memset(mask, 0, l->mask.size);
    for (int64_t row = 0; row < s->lists * s->rows; row++) {
        const struct row r = {l, set, (uint64_t)row, s->cols};
        const int64_t most = has(l, LAB_ENTRIES_OVERFLOW) ? k : l->pattern.capacity;
        const int64_t drawn = valid_of(&r), valid = drawn < most ? drawn : most;
        const int64_t first = row % s->rows * p->block_q;
        for (int64_t e = 0; e < valid; e++) {
            const int64_t begin = column(&r, e, valid) * p->block_kv, style = draw(&r, ORDER, e, 5);
            for (int64_t i = 0; i < p->block_q && first + i < p->n_q; i++)
                for (int64_t j = begin; j < begin + p->block_kv && j < p->n_kv; j++)
                    mask[(row / s->rows * p->n_q + first + i) * p->n_kv + j] =
                        byte_draw(&r, i, j, style % 4);
        }
    }
    return 0;
}

static int lengths_draw(struct lab_listed *l, uint64_t set) {
    const struct lab_listing *listing = &l->listing;
    const int64_t n_kv = listing->pattern.n_kv;
    const uint64_t from = stream(set, LENGTHS);
    int32_t *x = array_make(&l->lengths, listing->batch, sizeof *x);
    l->today = malloc((size_t)listing->batch * sizeof *l->today);
    if (!x || !l->today)
        return -1;
    l->pattern.lengths = x;
    for (int64_t b = 0; b < listing->batch; b++) {
        const uint64_t i = UINT64_MAX - 2 * (uint64_t)b;
        const int64_t what = lab_below(listing->seed, from, i, 8);
        x[b] = (int32_t)(what == 0   ? 0
                         : what == 1 ? n_kv
                                     : lab_below(listing->seed, from, i - 1, n_kv + 1));
        if (has(l, LAB_ENTRIES_WRONG) && what > 5)
            x[b] = what == 6 ? -1 : (int32_t)n_kv + 1;
        l->today[b] = (int32_t)lab_listed_length(l, b);
    }
    return 0;
}

int lab_listed_draw(struct lab_listed *l, const struct lab_listing *listing, uint64_t set) {
    const struct sizes s = sizes_of(&listing->pattern);
    *l = (struct lab_listed){.listing = *listing, .pattern = listing->pattern};
    if (has(l, LAB_ENTRIES_LENGTHS) && lengths_draw(l, set))
        return -1;
    if (listing->chosen)
        return lab_chosen_draw(l, set);
    return (listing->pattern.form == TESS_BLOCK_ROWS   ? rows_draw
            : listing->pattern.form == TESS_BLOCK_BITS ? bits_draw
            : listing->pattern.form == TESS_MASK       ? mask_draw
                                                       : padded_draw)(l, &s, set);
}

void lab_listed_free(struct lab_listed *l) {
    struct lab_buffer *const all[] = {
        &l->indices, &l->counts,        &l->row_ptr,        &l->bits,          &l->lengths,
        &l->mask,    &l->chosen.scores, &l->chosen.indices, &l->chosen.counts, &l->chosen.bits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lab_buffer_free(all[i]);
    free(l->today);
    memset(l, 0, sizeof *l);
}
