/* Images that two fillers write of the same lists. */
#include "support/filled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/fill/rng.h"

/* Bytes of elements [begin, end). */
static void same(const void *a, const void *b, int64_t begin, int64_t end, size_t size,
                 const char *what, int64_t number, uint64_t seed) {
    const size_t at = (size_t)begin * size;
    if (end > begin &&
        memcmp((const char *)a + at, (const char *)b + at, (size_t)(end - begin) * size) != 0)
        fail_msg("seed %llu: %s %lld differ", (unsigned long long)seed, what, (long long)number);
}

static void items_same(const struct fill_job *a, const struct fill_job *b, uint64_t seed) {
    for (int64_t i = 0; i < a->header->items; i++)
        same(a->items, b->items, i, i + 1, sizeof *a->items, "items", i, seed);
    for (int64_t i = 0; i < a->header->combines; i++) { /* with a gap in each */
        const struct combine_item *x = &a->combines[i], *y = &b->combines[i];
        if (x->batch_head != y->batch_head || x->tile != y->tile || x->parts != y->parts ||
            x->first_slot != y->first_slot)
            fail_msg("seed %llu: combines %lld differ", (unsigned long long)seed, (long long)i);
    }
}

/* Words of the blocks of tile T that have some, and which of their keys are listed. */
static void masks_same(const struct fill_job *a, const struct fill_job *b, int64_t T,
                       uint64_t seed) {
    const struct fill_shape *s = a->shape;
    const struct fill_arrays *x = &a->arrays, *y = &b->arrays;
    const int64_t bits = LIST_MASKED_KINDS * T + LIST_BITS;
    for (int64_t i = x->masked_ptr[bits]; i < x->masked_end[bits]; i++) {
        const int64_t word = x->masked[i].u.word;
        same(x->words, y->words, word, word + s->block_kv * fill_words(s), sizeof *x->words,
             "words of tile", T, seed);
        same(x->listed, y->listed, i * fill_listed_words(s), (i + 1) * fill_listed_words(s),
             sizeof *x->listed, "listed keys of tile", T, seed);
    }
}

void filled_same(const struct fill_job *a, const struct fill_job *b, uint64_t seed) {
    const struct fill_shape *s = a->shape;
    const struct fill_arrays *x = &a->arrays, *y = &b->arrays;
    const int64_t tiles = s->batches * s->heads * s->tiles;
    same(a->header, b->header, 0, TESS_REPORT_SIZE, 1, "header", 0, seed);
    same(x->lengths, y->lengths, 0, s->batches, sizeof *x->lengths, "lengths", 0, seed);
    same(x->place, y->place, 0, s->batch * s->heads * s->rows + 1, sizeof *x->place, "places", 0,
         seed);
    for (int64_t T = 0; T < tiles; T++) {
        same(x->keys, y->keys, T, T + 1, sizeof *x->keys, "keys of tile", T, seed);
        same(x->full_ptr, y->full_ptr, T, T + 1, sizeof *x->full_ptr, "places of tile", T, seed);
        same(x->full_end, y->full_end, T, T + 1, sizeof *x->full_end, "ends of tile", T, seed);
        same(x->masked_ptr, y->masked_ptr, LIST_MASKED_KINDS * T, LIST_MASKED_KINDS * (T + 1),
             sizeof *x->masked_ptr, "places of bands of tile", T, seed);
        same(x->masked_end, y->masked_end, LIST_MASKED_KINDS * T, LIST_MASKED_KINDS * (T + 1),
             sizeof *x->masked_end, "ends of bands of tile", T, seed);
        same(x->full, y->full, x->full_ptr[T], x->full_end[T], sizeof *x->full, "runs of tile", T,
             seed);
        same(x->masked, y->masked, x->masked_ptr[LIST_MASKED_KINDS * T],
             x->masked_end[LIST_MASKED_KINDS * T + LIST_BITS], sizeof *x->masked,
             "masked runs of tile", T, seed);
        masks_same(a, b, T, seed);
    }
    items_same(a, b, seed);
}

void filled_alike(const struct device_lists *l, filled_filler *fill, uint64_t seed) {
    struct lab_buffer image;
    tess_problem problem = device_problem(&l->sizes, 16);
    problem.part_keys = lab_below(seed, 9, 4, 2) ? 128 : 0;
    problem.tile_rows = (int32_t)(lab_below(seed, 9, 5, 3) ? 0 : 1 << lab_below(seed, 9, 6, 7));
    tess_plan *plan = device_plan(l, &problem, &image);
    device_fill(l, plan, &image);
    const size_t size = (tess_plan_image_size(plan) + 255) / 256 * 256;
    char *memory = aligned_alloc(256, size);
    assert_non_null(memory);
    memset(memory, 0x5a, size);
    fill(plan, l, memory, seed);
    const struct fill_job host = reserve_job(plan, plan->parts, NULL, device_image(&image));
    const struct fill_job other = reserve_job(plan, plan->parts, NULL, memory);
    filled_same(&host, &other, seed);
    free(memory);
    lab_buffer_free(&image);
    tess_plan_free(plan);
}

void filled_cases(filled_filler *fill, uint64_t cases) {
    for (uint64_t seed = 1; seed <= cases; seed++) {
        struct device_sizes s = device_sizes_draw(seed);
        struct device_lists l;
        if (seed % 8 == 0 && s.form != TESS_RANGES) { /* long rows, which thread blocks take */
            s.n_q = 1 + lab_below(seed, 9, 1, 4), s.block_q = 1, s.block_kv = 1 + (seed % 16 == 0);
            s.n_kv = 3000 + lab_below(seed, 9, 2, 60000);
            s.capacity = 1 + lab_below(seed, 9, 3, 5000);
            if (s.form != TESS_BLOCK_ROWS && s.form != TESS_BLOCK_BITS &&
                s.capacity > s.n_kv / s.block_kv)
                s.capacity = s.n_kv / s.block_kv;
            if (seed % 24 == 0) /* block rows of several tiles */
                s.n_q = 1 + lab_below(seed, 9, 1, 150), s.block_q = 64;
        }
        if (seed % 12 == 5) { /* more units than a thread block has threads, some of them split */
            s.form = TESS_INDICES, s.batch = s.list_batch = s.block_q = s.block_kv = 1;
            s.n_q = 70 + lab_below(seed, 9, 1, 50), s.n_kv = 1000, s.capacity = 600;
            s.counts = 1, s.promises = 0;
        }
        device_lists_make(&l, &s, seed);
        filled_alike(&l, fill, seed);
        device_lists_free(&l);
    }
}

/* ---- limits ---- */

static struct device_sizes two_batches(void) {
    struct device_sizes s = device_small;
    s.batch = 2;
    return s;
}

static void padding_of_indices(filled_filler *fill) {
    struct device_lists l;
    const struct device_sizes sizes = two_batches();
    device_lists_make(&l, &sizes, 1);
    for (size_t i = 0; i < DEVICE_PADDINGS; i++) {
        for (int64_t row = 0; row < 3; row++)
            memcpy(l.listed.indices.data + row * (int64_t)sizeof *device_paddings,
                   device_paddings[(i + (size_t)row) % DEVICE_PADDINGS], sizeof *device_paddings);
        device_lists_expect(&l);
        filled_alike(&l, fill, i);
    }
    device_lists_free(&l);
}

static void counts_and_lengths(filled_filler *fill) {
    struct device_sizes s = two_batches();
    struct device_lists l;
    s.counts = s.lengths = 1;
    device_lists_make(&l, &s, 2);
    int32_t *counts = (int32_t *)(void *)l.listed.counts.data;
    int32_t *lengths = (int32_t *)(void *)l.listed.lengths.data;
    for (int32_t x = -1; x <= 8; x++) {
        counts[0] = x, counts[1] = 6 - x, counts[2] = x == 0 ? INT32_MIN : INT32_MAX;
        lengths[0] = x == 8 ? 41 : 40 - x, lengths[1] = x == 0 ? INT32_MIN : x;
        device_lists_expect(&l);
        filled_alike(&l, fill, (uint64_t)(x + 1));
    }
    device_lists_free(&l);
}

/* Blocks as many as there is room for, one fewer and, of rows that may be padded, one more. */
static void blocks_of_capacities(filled_filler *fill) {
    for (int form = TESS_BLOCK_ROWS; form <= TESS_BLOCK_BITS; form++)
        for (int64_t capacity = 23; capacity <= 24 + (form == TESS_BLOCK_ROWS); capacity++) {
            struct device_sizes s = two_batches();
            struct device_lists l;
            s.form = (tess_form)form, s.n_q = 130, s.n_kv = 500, s.block_q = 64, s.block_kv = 64;
            s.capacity = 24;
            device_lists_make(&l, &s, 3);
            for (int64_t row = 0; row < 3; row++) { /* 8 blocks each */
                if (form == TESS_BLOCK_BITS)
                    ((uint64_t *)(void *)l.listed.bits.data)[row] = UINT64_MAX;
                else
                    ((int64_t *)(void *)l.listed.row_ptr.data)[row + 1] = 8 * (row + 1);
            }
            if (form == TESS_BLOCK_ROWS)
                ((int64_t *)(void *)l.listed.row_ptr.data)[0] = 0;
            for (int64_t i = 0; i < 24 && form == TESS_BLOCK_ROWS; i++)
                ((int32_t *)(void *)l.listed.indices.data)[i] = (int32_t)(i % 8);
            l.sizes.capacity = capacity, l.listed.pattern.capacity = capacity;
            device_lists_expect(&l);
            filled_alike(&l, fill, (uint64_t)capacity);
            device_lists_free(&l);
        }
}

/* Rows of all lengths about a limit, ascending and falling, over many batches of one list. */
static void limits_of_rows(filled_filler *fill) {
    static const int64_t limits[] = {31,  32,  33,  63,  64,  65,   127,
                                     128, 129, 511, 512, 513, 2047, 2048};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct device_sizes s = two_batches();
        struct device_lists l;
        s.capacity = limits[i], s.n_kv = limits[i], s.n_q = 2, s.lengths = i % 2;
        s.cut_lo = i % 3 ? 0 : -100;
        device_lists_make(&l, &s, 4);
        int32_t *index = (int32_t *)(void *)l.listed.indices.data;
        for (int32_t k = 0; k < limits[i]; k++)
            index[k] = k, index[limits[i] + k] = (int32_t)limits[i] - 1 - k;
        device_lists_expect(&l);
        filled_alike(&l, fill, i);
        device_lists_free(&l);
    }
}

/* Bitmaps of all bits set, past the last column too; columns and lengths about words of 64 bits. */
static void bits_about_words(filled_filler *fill) {
    for (int64_t n_kv = 62; n_kv <= 130; n_kv += n_kv == 66 ? 60 : 1) {
        struct device_sizes s = two_batches();
        struct device_lists l;
        s.form = TESS_BLOCK_BITS, s.n_kv = n_kv, s.capacity = 3 * n_kv, s.lengths = 1;
        device_lists_make(&l, &s, 5);
        memset(l.listed.bits.data, 0xff, l.listed.bits.size);
        for (int32_t x = 0; x < 5; x++) {
            ((int32_t *)(void *)l.listed.lengths.data)[0] = 61 + x;
            ((int32_t *)(void *)l.listed.lengths.data)[1] = (int32_t)n_kv;
            device_lists_expect(&l);
            filled_alike(&l, fill, (uint64_t)(10 * n_kv + x));
        }
        device_lists_free(&l);
    }
}

void filled_edges(filled_filler *fill) {
    bits_about_words(fill);
    padding_of_indices(fill);
    counts_and_lengths(fill);
    blocks_of_capacities(fill);
    limits_of_rows(fill);
}
