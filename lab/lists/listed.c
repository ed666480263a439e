/* Keys that device patterns list, straight from the definitions (docs/semantics.md). */
#include "lab/lists/listed.h"

#include <stdio.h>
#include <stdlib.h>

/* Cells of the mask that exact cuts are written down in. */
static const int64_t MOST_CELLS = INT64_C(1) << 26;

/* A walk over every block row of every list of each batch. */
struct walk {
    const struct lab_listed *l;
    int64_t batches, rows, cols, width; /* width: keys of a block, RANGES: 1 */
    int64_t claimed;                    /* blocks that this row and the rows before it claim */
    int64_t batch, head, row;           /* place of the walk; -1: at none of them */
    tess_fill_report report;            /* faults, overflows and the first of both */
    void *to;
    void (*take)(struct walk *walk, int64_t list, int64_t row, int64_t length,
                 const uint8_t *listed);
};

static struct walk walk_of(const struct lab_listed *l, int64_t batches) {
    const tess_device_pattern *p = &l->pattern;
    const int64_t width = p->form == TESS_RANGES ? 1 : p->block_kv;
    tess_fill_report nothing = tess_fill_report_init();
    nothing.batch = nothing.head = nothing.row = nothing.position = -1;
    return (struct walk){.l = l,
                         .report = nothing,
                         .batches = batches,
                         .rows = (p->n_q + p->block_q - 1) / p->block_q,
                         .cols = (p->n_kv + width - 1) / width,
                         .width = width};
}

/* ---- block rows ---- */

/* Counts what is wrong where the walk stands, and keeps the first: by kind, batch, head, row, position. */
static void tell(struct walk *w, tess_list_fault fault, int64_t position) {
    tess_fill_report *r = &w->report;
    const int64_t is[] = {fault, w->batch, w->head, w->row, position};
    const int64_t was[] = {r->first_fault, r->batch, r->head, r->row, r->position};
    size_t same = 0;
    r->faults += fault != TESS_FAULT_OVERFLOW;
    r->overflows += fault == TESS_FAULT_OVERFLOW;
    while (same < 4 && is[same] == was[same])
        same++;
    if (r->first_fault && is[same] >= was[same])
        return;
    r->first_fault = fault, r->batch = w->batch;
    r->head = w->head, r->row = w->row, r->position = position;
}

static int claim(struct walk *w, int64_t n) {
    const int fits = w->claimed + n <= w->l->pattern.capacity;
    w->claimed += n;
    if (n > 0 && !fits)
        tell(w, TESS_FAULT_OVERFLOW, -1);
    return fits;
}

static void bits_mark(struct walk *w, const uint64_t *bits, int64_t blocks, uint8_t *listed) {
    int64_t own = 0;
    for (int64_t x = 0; x < w->cols; x++)
        own += listed[x] = bits[x / 64] >> x % 64 & 1;
    const int64_t kept = claim(w, own) ? blocks : 0;
    if (kept < w->cols)
        memset(listed + kept, 0, (size_t)(w->cols - kept));
}

/* Whether the cut lets query i list key j. */
static int within_cut(const tess_device_pattern *p, int64_t length, int64_t i, int64_t j) {
    const int64_t behind = j - (i + length - p->n_q);
    return (p->cut_lo == 0 && p->cut_hi == 0) || (p->cut_lo <= behind && behind <= p->cut_hi);
}

/* A block is listed where any of its elements is; too many for the capacity leave none. */
static void mask_mark(struct walk *w, int64_t row, int64_t length, uint8_t *listed) {
    const tess_device_pattern *p = &w->l->pattern;
    const uint8_t *mask = p->mask + row / w->rows * p->n_q * p->n_kv;
    const int64_t first = row % w->rows * p->block_q;
    int64_t blocks = 0;
    for (int64_t i = first; i < first + p->block_q && i < p->n_q; i++)
        for (int64_t j = 0; j < length; j++)
            if (mask[i * p->n_kv + j] && within_cut(p, length, i, j))
                listed[j / w->width] = 1;
    for (int64_t x = 0; x < w->cols; x++)
        blocks += listed[x];
    if (blocks <= p->capacity)
        return;
    tell(w, TESS_FAULT_OVERFLOW, -1);
    memset(listed, 0, (size_t)w->cols);
}

/* Entries [*begin, *end) of a block row; 0: none, and why not is counted. */
static int entries_of(struct walk *w, int64_t row, int64_t *begin, int64_t *end) {
    const tess_device_pattern *p = &w->l->pattern;
    const int64_t n = p->counts ? p->counts[row] : p->capacity;
    tess_list_fault fault = TESS_FAULT_NONE;
    *begin = row * p->capacity, *end = *begin + n;
    if (p->form == TESS_BLOCK_ROWS) {
        const int64_t *ptr = p->row_ptr + row / w->rows * (w->rows + 1) + row % w->rows;
        *begin = ptr[0], *end = ptr[1];
        if (ptr[0] < 0)
            fault = TESS_FAULT_NEGATIVE;
        else if (ptr[1] < ptr[0])
            fault = TESS_FAULT_NOT_MONOTONE;
        else if (ptr[1] > p->capacity)
            fault = TESS_FAULT_OVERFLOW;
    } else if (n < 0 || n > p->capacity) {
        fault = n < 0 ? TESS_FAULT_NEGATIVE : TESS_FAULT_OVERFLOW;
    }
    if (fault)
        tell(w, fault, -1);
    return !fault && (p->form != TESS_BLOCK_ROWS || claim(w, *end - *begin));
}

static void range_mark(const int32_t *range, int64_t length, uint8_t *listed) {
    int64_t from = range[0], to = range[1];
    from += from < 0 ? length + 1 : 0;
    to += to < 0 ? length + 1 : 0;
    for (int64_t j = from < 0 ? 0 : from; j < to && j < length; j++)
        listed[j] = 1;
}

/* Marks the blocks (RANGES: keys) that a block row lists of the keys before `length`. */
static void row_mark(struct walk *w, int64_t row, int64_t length, uint8_t *listed) {
    const tess_device_pattern *p = &w->l->pattern;
    const int64_t blocks = (length + w->width - 1) / w->width;
    int64_t begin, end;
    memset(listed, 0, (size_t)w->cols);
    if (p->form == TESS_BLOCK_BITS) {
        bits_mark(w, p->bits + row * ((w->cols + 63) / 64), blocks, listed);
        return;
    }
    if (p->form == TESS_MASK) {
        mask_mark(w, row, length, listed);
        return;
    }
    if (!entries_of(w, row, &begin, &end))
        return;
    for (int64_t i = begin; i < end; i++) {
        if (p->form == TESS_RANGES) {
            range_mark(p->indices + 2 * i, length, listed);
            continue;
        }
        const int32_t block = p->indices[i];
        if (block == -1 && p->promises & TESS_PADDED_LAST)
            return;
        if (block >= 0 && block < blocks)
            listed[block] = 1;
        else if (block != -1)
            tell(w, block < 0 ? TESS_FAULT_NEGATIVE : TESS_FAULT_OUT_OF_RANGE, i - begin);
    }
}

int64_t lab_listed_length(const struct lab_listed *l, int64_t b) {
    const tess_device_pattern *p = &l->pattern;
    const int64_t length = p->lengths ? p->lengths[b] : p->n_kv;
    return length < 0 || length > p->n_kv ? 0 : length;
}

/* 0, or -1 without memory. */
static int walk_rows(struct walk *w) {
    const tess_device_pattern *p = &w->l->pattern;
    uint8_t *listed = malloc((size_t)w->cols);
    for (int64_t b = 0; listed && b < w->batches; b++) {
        const int64_t first = p->batch == 1 ? 0 : b * p->heads;
        const int64_t length = lab_listed_length(w->l, b);
        w->batch = b, w->head = w->row = -1;
        if (p->lengths && p->lengths[b] != length)
            tell(w, p->lengths[b] < 0 ? TESS_FAULT_NEGATIVE : TESS_FAULT_OUT_OF_RANGE, -1);
        w->claimed = p->batch == 1 ? 0 : w->claimed;
        for (int64_t x = 0; x < p->heads * w->rows; x++) {
            w->head = x / w->rows, w->row = x % w->rows;
            row_mark(w, first * w->rows + x, length, listed);
            if (w->take)
                w->take(w, b * p->heads + x / w->rows, x % w->rows, length, listed);
        }
    }
    free(listed);
    return listed ? 0 : -1;
}

int lab_listed_report(const struct lab_listed *l, tess_fill_report *report) {
    struct walk w = walk_of(l, l->listing.batch);
    const int walked = walk_rows(&w);
    *report = w.report;
    return walked;
}

/* ---- patterns ---- */

static void take_cells(struct walk *w, int64_t list, int64_t row, int64_t length,
                       const uint8_t *listed) {
    const tess_device_pattern *p = &w->l->pattern;
    const uint8_t *of_list =
        p->mask ? p->mask + (p->batch == 1 ? list % p->heads : list) * p->n_q * p->n_kv : NULL;
    for (int64_t i = row * p->block_q; i < (row + 1) * p->block_q && i < p->n_q; i++) {
        uint8_t *mask = (uint8_t *)w->to + (list * p->n_q + i) * p->n_kv;
        for (int64_t j = 0; j < length; j++)
            mask[j] = listed[j / w->width] && within_cut(p, length, i, j) &&
                      (!of_list || of_list[i * p->n_kv + j]);
    }
}

int lab_listed_mask(const struct lab_listed *l, int64_t batches, uint8_t *mask) {
    struct walk w = walk_of(l, batches);
    w.to = mask, w.take = take_cells;
    memset(mask, 0, (size_t)(batches * l->pattern.heads * l->pattern.n_q * l->pattern.n_kv));
    return walk_rows(&w);
}

static tess_status by_mask(const struct lab_listed *l, const tess_pattern_shape *shape,
                           tess_pattern **pattern, tess_error *error) {
    uint8_t *mask = malloc((size_t)(shape->batch * shape->heads * shape->n_q * shape->n_kv));
    tess_status status = TESS_OUT_OF_MEMORY;
    if (mask && lab_listed_mask(l, shape->batch, mask) == 0)
        status = tess_pattern_from_mask(pattern, mask, shape, error);
    free(mask);
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
    int32_t *x = to->indices + (list * w->rows + row) * to->capacity, n = 0;
    (void)length;
    for (int64_t col = 0; col < w->cols && n < to->capacity; col++)
        if (listed[col])
            x[n++] = (int32_t)col;
    to->counts[list * w->rows + row] = n;
}

static tess_status by_blocks(const struct lab_listed *l, const tess_pattern_shape *shape,
                             tess_pattern **pattern, tess_error *error) {
    struct walk w = walk_of(l, shape->batch);
    const int64_t all = shape->batch * shape->heads * w.rows, k = l->listing.most;
    struct blocks to = {calloc((size_t)all, (size_t)k * sizeof(int32_t)),
                        calloc((size_t)all, sizeof(int32_t)), k};
    w.to = &to, w.take = take_blocks;
    tess_status status = TESS_OUT_OF_MEMORY;
    if (to.indices && to.counts && walk_rows(&w) == 0)
        status = tess_pattern_from_counts(pattern, to.indices, to.counts, k, shape, error);
    free(to.indices);
    free(to.counts);
    return status;
}

tess_status lab_listed_pattern(const struct lab_listed *l, tess_pattern **pattern,
                               tess_error *error) {
    const tess_device_pattern *p = &l->pattern;
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = p->n_q, shape.n_kv = p->n_kv;
    shape.block_q = p->block_q, shape.block_kv = p->form == TESS_RANGES ? 1 : p->block_kv;
    shape.batch = p->lengths ? l->listing.batch : p->batch, shape.heads = p->heads;
    *pattern = NULL;
    const int exact = p->lengths || p->cut_lo || p->cut_hi || p->form == TESS_RANGES ||
                      p->form == TESS_MASK || l->listing.entries & LAB_ENTRIES_WRONG;
    const int small =
        (double)(shape.batch * shape.heads * p->n_q) * (double)p->n_kv <= (double)MOST_CELLS;
    if (small)
        return by_mask(l, &shape, pattern, error);
    if (!exact)
        return by_blocks(l, &shape, pattern, error);
    if (error)
        snprintf(error->message, sizeof error->message,
                 "lists of more than %lld queries by keys are drawn without ranges, masks, "
                 "lengths, cuts "
                 "and wrong entries",
                 (long long)MOST_CELLS);
    return TESS_INVALID_ARGUMENT;
}
