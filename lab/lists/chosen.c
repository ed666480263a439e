/* Lists that tess_select chooses of drawn scores: the choice by its definition, a sort. */
#include "lab/lists/listed.h"

#include "lab/fill/rng.h"

#include <stdlib.h>

enum { SCORES = 400 }; /* streams of a draw; every set has its own */

static struct sizes { int64_t lists, rows, cols, words; } sizes_of(const tess_device_pattern *p) {
    const int64_t cols = (p->n_kv + p->block_kv - 1) / p->block_kv;
    return (struct sizes){p->batch * p->heads, (p->n_q + p->block_q - 1) / p->block_q, cols,
                          (cols + 63) / 64};
}

/* ---- a row ---- */

struct column {
    float score;
    int32_t index;
    int32_t kept; /* 1: before all others */
};

/* In the order in which columns are chosen. */
static int column_order(const void *a, const void *b) {
    const struct column *x = a, *y = b;
    if (x->kept != y->kept)
        return y->kept - x->kept;
    if (!x->kept && x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Columns that begin at or before the last query of a block row; all, where the choice is not causal. */
static int64_t columns_today(const tess_selection *s, int64_t row, int64_t cols) {
    const int64_t after = (row + 1) * s->block_q < s->n_q ? (row + 1) * s->block_q : s->n_q;
    int64_t end = 0;
    while (end < cols && (!s->causal || end * s->block_kv <= after - 1 + s->n_kv - s->n_q))
        end++;
    return end;
}

/* Marks the columns of a row; answers how many there are. */
static int64_t row_choose(const tess_selection *s, int64_t row, const float *scores, int64_t cols,
                          struct column *column, uint8_t *marks) {
    const int64_t end = columns_today(s, row, cols);
    int64_t count = 0;
    for (int64_t c = 0; c < end; c++)
        column[c] =
            (struct column){scores[c], (int32_t)c, c < s->keep_first || c >= end - s->keep_last};
    qsort(column, (size_t)end, sizeof *column, column_order);
    memset(marks, 0, (size_t)cols);
    for (; count < end; count++) {
        const int wanted = s->mode == TESS_SELECT_EXACT
                               ? count < s->k
                               : column[count].kept || column[count].score >= s->threshold;
        if (!wanted)
            break;
        marks[column[count].index] = 1;
    }
    return count;
}

/* ---- lists ---- */

static int buffers_make(struct lab_listed *l, const struct sizes *s) {
    const size_t rows = (size_t)(s->lists * s->rows);
    const int bits = l->pattern.form == TESS_BLOCK_BITS;
    const struct {
        struct lab_buffer *buffer;
        size_t size;
    } all[] = {
        {&l->chosen.scores, rows * (size_t)s->cols * sizeof(float)},
        {&l->indices, bits ? 0 : rows * (size_t)l->listing.most * sizeof(int32_t)},
        {&l->chosen.indices, bits ? 0 : rows * (size_t)l->listing.most * sizeof(int32_t)},
        {&l->counts, bits ? 0 : rows * sizeof(int32_t)},
        {&l->chosen.counts, bits ? 0 : rows * sizeof(int32_t)},
        {&l->bits, bits ? rows * (size_t)s->words * sizeof(uint64_t) : 0},
        {&l->chosen.bits, bits ? rows * (size_t)s->words * sizeof(uint64_t) : 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].size && lab_buffer_make(all[i].buffer, all[i].size, 16))
            return -1;
    return 0;
}

/* Writes a row's marks as its pattern has them. */
static void row_write(const struct lab_listed *l, const struct sizes *s, int64_t row,
                      const uint8_t *marks) {
    const int64_t most = l->listing.most;
    int32_t *indices = (int32_t *)(void *)l->indices.data;
    uint64_t *bits = (uint64_t *)(void *)l->bits.data;
    int64_t n = 0;
    for (int64_t w = 0; bits && w < s->words; w++)
        bits[row * s->words + w] = 0;
    for (int64_t c = 0; c < s->cols; c++) {
        if (!marks[c])
            continue;
        if (bits)
            bits[row * s->words + c / 64] |= UINT64_C(1) << c % 64;
        else
            indices[row * most + n++] = (int32_t)c;
    }
    if (bits)
        return;
    ((int32_t *)(void *)l->counts.data)[row] = (int32_t)n;
    while (n < most)
        indices[row * most + n++] = -1;
}

int lab_chosen_draw(struct lab_listed *l, uint64_t set) {
    const struct sizes s = sizes_of(&l->pattern);
    const int64_t all = s.lists * s.rows;
    if (buffers_make(l, &s))
        return -1;
    float *scores = (float *)(void *)l->chosen.scores.data;
    int failed = 0;
#pragma omp parallel for schedule(static) reduction(| : failed) if (all * s.cols > 10000)
    for (int64_t row = 0; row < all; row++) {
        float *own = scores + row * s.cols;
        struct column *column = malloc((size_t)s.cols * sizeof *column);
        uint8_t *marks = malloc((size_t)s.cols);
        failed |= !column || !marks;
        for (int64_t c = 0; c < s.cols; c++)
            own[c] = (float)lab_normal(l->listing.seed, SCORES + set, (uint64_t)(row * s.cols + c));
        if (column && marks) {
            row_choose(&l->listing.selection, row % s.rows, own, s.cols, column, marks);
            row_write(l, &s, row, marks);
        }
        free(column);
        free(marks);
    }
    l->pattern.indices = (const int32_t *)(const void *)l->indices.data;
    l->pattern.counts = (const int32_t *)(const void *)l->counts.data;
    l->pattern.bits = (const uint64_t *)(const void *)l->bits.data;
    l->pattern.capacity =
        l->pattern.form == TESS_BLOCK_BITS ? all * l->listing.most : l->listing.most;
    l->pattern.promises =
        l->pattern.form == TESS_BLOCK_BITS ? 0 : TESS_DISTINCT | TESS_ASCENDING | TESS_PADDED_LAST;
    return failed ? -1 : 0;
}

/* Place of a buffer, of those that there are. */
static void *place(const struct lab_mirror *mirror, const struct lab_buffer *buffer) {
    return buffer->base ? lab_mirror_at(mirror, buffer) : NULL;
}

tess_status lab_listed_choose(const struct lab_listed *l, const struct lab_mirror *mirror,
                              tess_error *error, tess_stream stream) {
    const struct sizes s = sizes_of(&l->pattern);
    if (!l->listing.chosen)
        return TESS_OK;
    const tess_tensor scores = tess_tensor_bhnd(place(mirror, &l->chosen.scores), TESS_F32,
                                                l->pattern.batch, l->pattern.heads, s.rows, s.cols);
    tess_selected to = tess_selected_init();
    to.capacity = l->listing.most;
    to.indices = place(mirror, &l->chosen.indices);
    to.counts = place(mirror, &l->chosen.counts);
    to.bits = place(mirror, &l->chosen.bits);
    return tess_select(mirror->backend, &l->listing.selection, &scores, &to, error, stream);
}
