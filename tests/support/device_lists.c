/* Device patterns for tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/fill/rng.h"
#include "support/device_lists.h"

static int64_t cols_of(const struct device_sizes *s) {
    return (s->n_kv + s->block_kv - 1) / s->block_kv;
}

/* ---- drawing ---- */

const struct device_sizes device_small = {.form = TESS_INDICES,
                                          .batch = 1,
                                          .heads_q = 2,
                                          .heads_kv = 1,
                                          .list_batch = 1,
                                          .list_heads = 1,
                                          .n_q = 3,
                                          .n_kv = 40,
                                          .block_q = 1,
                                          .block_kv = 1,
                                          .capacity = 6};

const int32_t device_paddings[DEVICE_PADDINGS][DEVICE_PADDING] = {
    {-1, 3, 39, 7, 0, 12},
    {3, 39, 7, 0, 12, -1},
    {3, -1, 39, -1, 7, -1},
    {-1, -1, -1, -1, -1, -1},
    {5, 5, 5, 5, 5, 5},
    {39, 38, 3, 2, 38, 39},
    {-2, 40, 4, INT32_MIN, INT32_MAX, 4},
    {0, 1, 2, 3, 4, 5},
};

struct device_sizes device_sizes_draw(uint64_t seed) {
    struct device_sizes s = {.form = (tess_form)PICK(0, 0, 1, 2, 3, 4)};
    s.batch = PICK(1, 1, 1, 2, 3);
    s.heads_kv = PICK(2, 1, 1, 2, 3);
    s.heads_q = s.heads_kv * PICK(3, 1, 2, 3, 4, 8, 16);
    s.list_batch = PICK(4, 1, 0) ? 1 : s.batch;
    s.list_heads = pick(seed, 5, (const int64_t[]){1, s.heads_kv, s.heads_q}, 3);
    s.n_q = PICK(6, 1, 1, 2, 5, 33, 64, 70, 130, 200);
    s.n_kv = PICK(7, 1, 7, 63, 64, 100, 127, 200, 260, 500);
    s.block_q = PICK(8, 1, 1, 8, 16, 32, 64, 128, 192);
    s.block_kv = s.form == TESS_RANGES ? 1 : PICK(9, 1, 1, 8, 16, 32, 64, 128);
    const int64_t rows = (s.n_q + s.block_q - 1) / s.block_q;
    const int64_t cols = (s.n_kv + s.block_kv - 1) / s.block_kv;
    const int64_t all = s.list_batch * s.list_heads * rows * cols;
    s.hostile = (int)PICK(10, 0, 1);
    if (s.form == TESS_INDICES || s.form == TESS_MASK)
        s.capacity = PICK(19, 0, 1) ? cols : 1 + lab_below(seed, 78, 1, cols);
    else if (s.form == TESS_RANGES)
        s.capacity = PICK(11, 1, 2, 3, 4);
    else
        s.capacity =
            s.form == TESS_BLOCK_ROWS || PICK(12, 0, 1) ? 1 + lab_below(seed, 78, 2, all) : all;
    if (PICK(13, 0, 1)) {
        s.cut_lo = PICK(14, INT64_MIN, -9, -70, 0);
        s.cut_hi = PICK(15, 0, 4, INT64_MAX, 90);
    }
    s.counts = (s.form == TESS_INDICES || s.form == TESS_RANGES) && PICK(16, 0, 1);
    s.lengths = (int)PICK(17, 0, 1, 1);
    s.promises = s.form == TESS_INDICES ? PICK(18, 0, 0, TESS_PADDED_LAST, TESS_DISTINCT, 3, 7) : 0;
    return s;
}

/* Letters of entries= that a test's sizes allow: what they say, and half of all others that leave its
 * promises true. */
static int64_t entries_of(const struct device_sizes *s, uint64_t seed) {
    const int64_t drawn = (int64_t)(lab_random(seed, 79, 0) & LAB_ENTRIES_ALL);
    const int64_t any =
        LAB_ENTRIES_EMPTY | (s->promises & TESS_DISTINCT ? 0 : LAB_ENTRIES_DUPLICATES) |
        (s->promises & TESS_ASCENDING ? 0 : LAB_ENTRIES_UNORDERED) |
        (s->promises & TESS_PADDED_LAST ? 0 : LAB_ENTRIES_FIRST | LAB_ENTRIES_MIXED);
    return (drawn & any) | (s->counts || s->form == TESS_BLOCK_ROWS ? LAB_ENTRIES_COUNTS : 0) |
           (s->lengths ? LAB_ENTRIES_LENGTHS : 0) |
           (s->hostile ? LAB_ENTRIES_WRONG | (drawn & LAB_ENTRIES_OVERFLOW) : 0);
}

static struct lab_listing listing_of(const struct device_sizes *s, uint64_t seed) {
    static const double valid[] = {0.1, 0.3, 0.6, 1};
    const int by_entry = s->form == TESS_INDICES || s->form == TESS_RANGES;
    tess_device_pattern p = tess_device_pattern_init();
    p.form = s->form;
    p.n_q = s->n_q, p.n_kv = s->n_kv;
    p.block_q = s->block_q, p.block_kv = s->form == TESS_RANGES ? 0 : s->block_kv;
    p.batch = s->list_batch, p.heads = s->list_heads;
    p.capacity = s->capacity, p.promises = s->promises;
    p.cut_lo = s->cut_lo, p.cut_hi = s->cut_hi;
    return (struct lab_listing){.pattern = p,
                                .batch = s->batch,
                                .entries = entries_of(s, seed),
                                .most = by_entry ? s->capacity : cols_of(s),
                                .valid = valid[lab_below(seed, 79, 1, 4)],
                                .uneven = lab_below(seed, 79, 2, 3) > 0,
                                .seed = seed};
}

/* ---- what is listed ---- */

void device_lists_expect(struct device_lists *l) {
    const struct device_sizes *s = &l->sizes;
    const int64_t cells = s->batch * s->list_heads * s->n_q * s->n_kv;
    if (lab_listed_mask(&l->listed, s->batch, l->mask) || lab_listed_report(&l->listed, &l->report))
        fail_msg("no memory");
    for (int64_t b = 0; b < s->batch; b++)
        l->today[b] = (int32_t)lab_listed_length(&l->listed, b);
    for (int64_t x = 0; x < cells; x++)
        l->report.pairs += l->mask[x] * (s->heads_q / s->list_heads);
}

void device_lists_make(struct device_lists *l, const struct device_sizes *sizes, uint64_t seed) {
    const struct lab_listing listing = listing_of(sizes, seed);
    *l = (struct device_lists){.sizes = *sizes};
    l->today = malloc((size_t)sizes->batch * sizeof *l->today);
    l->mask = malloc((size_t)(sizes->batch * sizes->list_heads * sizes->n_q * sizes->n_kv));
    if (lab_listed_draw(&l->listed, &listing, 0) || !l->today || !l->mask)
        fail_msg("no memory");
    device_lists_expect(l);
}

void device_lists_free(struct device_lists *l) {
    lab_listed_free(&l->listed);
    free(l->mask);
    free(l->today);
}

/* ---- plans ---- */

tess_pattern *device_lists_pattern(const struct device_lists *l) {
    const struct device_sizes *s = &l->sizes;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    shape.n_q = s->n_q, shape.n_kv = s->n_kv;
    shape.block_q = s->block_q, shape.block_kv = s->block_kv;
    shape.batch = s->batch, shape.heads = s->list_heads;
    if (tess_pattern_from_mask(&pattern, l->mask, &shape, &error))
        fail_msg("%s", error.message);
    return pattern;
}

tess_problem device_problem(const struct device_sizes *s, int64_t d) {
    tess_problem p = tess_problem_init();
    p.batch = s->batch, p.heads_q = s->heads_q, p.heads_kv = s->heads_kv;
    p.n_q = s->n_q, p.n_kv = s->n_kv, p.d_qk = p.d_v = d;
    return p;
}

tess_plan *device_plan(const struct device_lists *l, const tess_problem *problem,
                       struct lab_buffer *image) {
    tess_error error = tess_error_init();
    const tess_device_pattern declared = lab_listed_declared(&l->listed);
    tess_plan *plan;
    if (tess_plan_reserve(&plan, problem, &declared, NULL, &error))
        fail_msg("%s", error.message);
    if (lab_buffer_make(image, tess_plan_image_size(plan), 256) != 0)
        fail_msg("no memory");
    memset(image->data, 0xaa, image->size);
    return plan;
}

void device_fill(const struct device_lists *l, const tess_plan *plan, struct lab_buffer *image) {
    tess_error error = tess_error_init();
    tess_fill_report report = tess_fill_report_init();
    char why[LAB_WHY];
    void *memory = device_image(image);
    if (tess_plan_fill(plan, &l->listed.pattern, memory, tess_plan_image_size(plan), &error, NULL))
        fail_msg("%s", error.message);
    assert_int_equal(tess_plan_report(plan, memory, &report, &error), TESS_OK);
    assert_int_equal(report.faults, l->report.faults);
    assert_int_equal(report.overflows, l->report.overflows);
    assert_int_equal(report.pairs, l->report.pairs);
    assert_int_equal(report.first_fault, l->report.first_fault);
    assert_int_equal(report.batch, l->report.batch);
    assert_int_equal(report.head, l->report.head);
    assert_int_equal(report.row, l->report.row);
    assert_int_equal(report.position, l->report.position);
    if (lab_buffer_check(image, "image", why))
        fail_msg("%s", why);
    const unsigned char *behind = (unsigned char *)memory + tess_plan_image_size(plan);
    for (const unsigned char *x = image->data; x < image->data + image->size; x++)
        if ((x < (unsigned char *)memory || x >= behind) && *x != 0xaa)
            fail_msg("byte %d outside the image was written", (int)(x - image->data));
}
