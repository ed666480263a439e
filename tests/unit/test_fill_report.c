/* Lists that live on the device, on the CPU: what a report tells of the first fault, what a strict plan answers, and
 * patterns made inline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lists/fill.h"
#include "support/device_run.h"

enum { QUERIES = 3, KEYS = 40, MOST = 6, LISTS = 2, BATCHES = 2 };

/* Arrays of lists without a fault, and where a case puts one into them. */
struct arrays {
    int32_t indices[LISTS * QUERIES * MOST], counts[LISTS * QUERIES], lengths[BATCHES];
    int64_t row_ptr[LISTS * (QUERIES + 1)];
    uint64_t bits[LISTS * QUERIES];
};

/* Two heads with lists of their own, shared by two batches. */
static const struct device_sizes sizes = {.batch = BATCHES,
                                          .heads_q = 2,
                                          .heads_kv = 2,
                                          .list_batch = 1,
                                          .list_heads = LISTS,
                                          .n_q = QUERIES,
                                          .n_kv = KEYS};

static struct arrays arrays_right(void) {
    struct arrays a;
    for (int i = 0; i < LISTS * QUERIES * MOST; i++)
        a.indices[i] = i % MOST;
    for (int i = 0; i < LISTS * QUERIES; i++)
        a.counts[i] = MOST, a.bits[i] = 0x3f;
    for (int i = 0; i < LISTS * (QUERIES + 1); i++)
        a.row_ptr[i] = MOST * (i % (QUERIES + 1) + i / (QUERIES + 1) * QUERIES);
    for (int i = 0; i < BATCHES; i++)
        a.lengths[i] = KEYS;
    return a;
}

static tess_device_pattern pattern_of(tess_form form, const struct arrays *a) {
    tess_device_pattern p =
        tess_device_pattern_topk(a->indices, a->counts, 1, LISTS, QUERIES, KEYS, MOST);
    p.form = form, p.lengths = a->lengths;
    if (form == TESS_INDICES)
        return p;
    p.capacity = LISTS * QUERIES * MOST, p.counts = NULL;
    if (form == TESS_BLOCK_ROWS)
        p.row_ptr = a->row_ptr;
    else
        p.bits = a->bits, p.indices = NULL;
    return p;
}

/* Fills an image of its own, 256-byte aligned memory that the caller frees. */
static tess_status filled(tess_plan **plan, void **image, const tess_device_pattern *pattern,
                          int64_t strict, int64_t threads, tess_error *error) {
    tess_problem problem = device_problem(&sizes, 16);
    problem.strict = strict, problem.threads = threads;
    if (tess_plan_reserve(plan, &problem, pattern, NULL, error))
        fail_msg("%s", error->message);
    const size_t size = tess_plan_image_size(*plan);
    *image = aligned_alloc(256, (size + 255) / 256 * 256);
    assert_non_null(*image);
    memset(*image, 0x5a, size);
    return tess_plan_fill(*plan, pattern, *image, size, error, NULL);
}

/* A fault that a case puts into the arrays, and where reports have it. Of two faults `other` is the later. */
static const struct fault {
    tess_form form;
    enum { NOTHING, INDEX, COUNT, LENGTH, ROW_PTR, BITS } array, other_array;
    int at, other_at;
    int64_t value, other;
    tess_list_fault kind;
    int64_t batch, head, row, position;
    const char *words; /* error of a strict plan */
} faults[] = {
    {.form = TESS_INDICES,
     .kind = TESS_FAULT_NONE,
     .batch = -1,
     .head = -1,
     .row = -1,
     .position = -1},
    {TESS_INDICES, INDEX, 0, 3 * MOST + 4, 0, KEYS, 0, TESS_FAULT_OUT_OF_RANGE, 0, 1, 0, 4,
     "pattern: an index is at or past the last block"},
    {TESS_INDICES, INDEX, 0, 2 * MOST + 5, 0, -2, 0, TESS_FAULT_NEGATIVE, 0, 0, 2, 5,
     "pattern: an index is below -1"},
    /* kinds come first: an index below -1 is told before one past the last block of an earlier row */
    {TESS_INDICES, INDEX, INDEX, 5 * MOST + 1, 0, INT32_MIN, KEYS, TESS_FAULT_NEGATIVE, 0, 1, 2, 1,
     "below -1"},
    {TESS_INDICES, INDEX, INDEX, MOST, MOST + 1, KEYS, KEYS, TESS_FAULT_OUT_OF_RANGE, 0, 0, 1, 0,
     "past the last block"},
    /* a row comes before its entries, and a length before its rows */
    {TESS_INDICES, COUNT, INDEX, 1, MOST, -1, -5, TESS_FAULT_NEGATIVE, 0, 0, 1, -1,
     "pattern: a count or row_ptr is below 0"},
    {TESS_INDICES, COUNT, 0, 4, 0, MOST + 1, 0, TESS_FAULT_OVERFLOW, 0, 1, 1, -1,
     "pattern: its entries are past the capacity"},
    {TESS_INDICES, COUNT, INDEX, 0, 5 * MOST, MOST + 1, KEYS, TESS_FAULT_OUT_OF_RANGE, 0, 1, 2, 0,
     "past the last block"},
    {TESS_INDICES, LENGTH, 0, 1, 0, KEYS + 1, 0, TESS_FAULT_OUT_OF_RANGE, 1, -1, -1, -1,
     "a length is not in 0 ... n_kv"},
    {TESS_INDICES, LENGTH, INDEX, 1, 0, -1, KEYS, TESS_FAULT_NEGATIVE, 1, -1, -1, -1, "a length"},
    /* the second batch has two keys today: its third index is none of them */
    {TESS_INDICES, LENGTH, 0, 1, 0, 2, 0, TESS_FAULT_OUT_OF_RANGE, 1, 0, 0, 2, "today's length"},
    {TESS_BLOCK_ROWS, ROW_PTR, 0, 3, 0, 2, 0, TESS_FAULT_NOT_MONOTONE, 0, 0, 2, -1,
     "pattern: row_ptr falls"},
    {TESS_BLOCK_ROWS, ROW_PTR, 0, 4, 0, -1, 0, TESS_FAULT_NEGATIVE, 0, 1, 0, -1, "below 0"},
    {TESS_BLOCK_ROWS, ROW_PTR, 0, 7, 0, LISTS *QUERIES *MOST + 1, 0, TESS_FAULT_OVERFLOW, 0, 1, 2,
     -1, "past the capacity"},
    {TESS_BLOCK_ROWS, INDEX, 0, 4 * MOST + 3, 0, KEYS, 0, TESS_FAULT_OUT_OF_RANGE, 0, 1, 1, 3,
     "past the last block"},
    {TESS_BLOCK_BITS, BITS, 0, 1, 0, 0x7f, 0, TESS_FAULT_OVERFLOW, 0, 1, 2, -1,
     "past the capacity"},
};
enum { FAULTS = sizeof faults / sizeof *faults };

static void put(struct arrays *a, int array, int at, int64_t value) {
    switch (array) {
    case INDEX:
        a->indices[at] = (int32_t)value;
        break;
    case COUNT:
        a->counts[at] = (int32_t)value;
        break;
    case LENGTH:
        a->lengths[at] = (int32_t)value;
        break;
    case ROW_PTR:
        a->row_ptr[at] = value;
        break;
    case BITS:
        a->bits[at] = (uint64_t)value;
        break;
    default:
        break;
    }
}

static struct arrays arrays_with(const struct fault *f) {
    struct arrays a = arrays_right();
    put(&a, f->array, f->at, f->value);
    put(&a, f->other_array, f->other_at, f->other);
    return a;
}

/* By one thread and by several. */
static void a_report_tells_the_first_fault(void **state) {
    (void)state;
    for (const struct fault *f = faults; f < faults + FAULTS; f++) {
        const struct arrays a = arrays_with(f);
        const tess_device_pattern p = pattern_of(f->form, &a);
        for (int64_t threads = 1; threads <= 4; threads++) {
            tess_fill_report report = tess_fill_report_init();
            tess_error error = tess_error_init();
            tess_plan *plan;
            void *image;
            assert_int_equal(filled(&plan, &image, &p, 0, threads, &error), TESS_OK);
            assert_int_equal(tess_plan_report(plan, image, &report, &error), TESS_OK);
            if (report.first_fault != f->kind || report.batch != f->batch ||
                report.head != f->head || report.row != f->row || report.position != f->position)
                fail_msg("case %d: kind %d at %d, %d, %d, %d", (int)(f - faults),
                         (int)report.first_fault, (int)report.batch, (int)report.head,
                         (int)report.row, (int)report.position);
            assert_int_equal(report.faults + report.overflows > 0, f->kind != TESS_FAULT_NONE);
            free(image);
            tess_plan_free(plan);
        }
    }
}

/* A caller of an earlier version, whose report ends before the place. */
static void an_earlier_report_is_shorter(void **state) {
    (void)state;
    const struct arrays a = arrays_with(&faults[1]);
    const tess_device_pattern p = pattern_of(TESS_INDICES, &a);
    tess_fill_report report = tess_fill_report_init();
    tess_error error = tess_error_init();
    tess_plan *plan;
    void *image;
    assert_int_equal(filled(&plan, &image, &p, 0, 1, &error), TESS_OK);
    report.struct_size = offsetof(tess_fill_report, first_fault);
    report.row = 77;
    assert_int_equal(tess_plan_report(plan, image, &report, &error), TESS_OK);
    assert_int_equal(report.faults, 2); /* in each batch */
    assert_int_equal(report.row, 77);
    free(image);
    tess_plan_free(plan);
}

/* The error is the report's; a run refuses the image, and takes it after a fill without a fault. */
static void a_strict_fill_refuses_lists_with_a_fault(void **state) {
    (void)state;
    const struct arrays right = arrays_right();
    for (const struct fault *f = faults; f < faults + FAULTS; f++) {
        const struct arrays a = arrays_with(f);
        const tess_device_pattern p = pattern_of(f->form, &a), mended = pattern_of(f->form, &right);
        tess_fill_report report = tess_fill_report_init();
        tess_error error = tess_error_init();
        struct tensors t;
        tess_plan *plan;
        void *image;
        const tess_problem problem = device_problem(&sizes, 16);
        tensors_make(&t, &problem, 3);
        const tess_status status = filled(&plan, &image, &p, 1, 1 + (f - faults) % 3, &error);
        const tess_arguments arguments = arguments_of(&t, plan, image);
        if (f->kind != TESS_FAULT_NONE) {
            assert_int_equal(status, TESS_INVALID_LIST);
            assert_string_equal(error.function, "tess_plan_fill");
            assert_string_equal(error.argument, "pattern");
            assert_int_equal(error.fault, f->kind);
            assert_true(error.batch == f->batch && error.head == f->head && error.row == f->row &&
                        error.position == f->position);
            if (!strstr(error.message, f->words))
                fail_msg("'%s' does not say '%s'", error.message, f->words);
            assert_int_equal(tess_plan_report(plan, image, &report, &error), TESS_INVALID_ARGUMENT);
            assert_int_equal(tess_run(plan, &arguments, &error, NULL), TESS_INVALID_ARGUMENT);
            assert_int_equal(
                tess_plan_fill(plan, &mended, image, tess_plan_image_size(plan), &error, NULL),
                TESS_OK);
        } else {
            assert_int_equal(status, TESS_OK);
        }
        run(&t, plan, &arguments);
        tensors_free(&t);
        free(image);
        tess_plan_free(plan);
    }
}

/* Numbers of places at the limits: 2^31 - 1 block rows, and as many entries of each. */
static void places_fit_one_number(void **state) {
    (void)state;
    const struct fill_shape s = {.heads = 1, .rows = INT32_MAX, .capacity = INT32_MAX};
    const uint64_t last = INT32_MAX - 1;
    uint64_t before = 0;
    for (int wrong = FILL_FALLS; wrong < FILL_RIGHT; wrong++) {
        const uint64_t number =
            fill_order((enum fill_wrong)wrong, last, s.capacity, FILL_AT_ENTRY(INT32_MAX - 1));
        const struct fill_place place = fill_place_of(&s, number);
        assert_true(number >= before && number != FILL_NOWHERE);
        assert_int_equal(place.wrong, wrong);
        assert_true(place.batch == 0 && place.head == 0 && place.row == INT32_MAX - 1);
        assert_int_equal(place.position, INT32_MAX - 1);
        before = number;
    }
}

static void patterns_are_made_inline(void **state) {
    (void)state;
    static const int32_t indices[1], counts[1];
    const tess_device_pattern tokens = tess_device_pattern_topk(indices, counts, 2, 3, 5, 70, 9);
    const tess_device_pattern blocks =
        tess_device_pattern_blocks(indices, NULL, 1, 3, 500, 700, 64, 16, 40);
    assert_int_equal(tokens.struct_size, sizeof tokens);
    assert_int_equal(tokens.form, TESS_INDICES);
    assert_true(tokens.n_q == 5 && tokens.n_kv == 70 && tokens.batch == 2 && tokens.heads == 3);
    assert_true(tokens.block_q == 1 && tokens.block_kv == 1 && tokens.capacity == 9);
    assert_true(tokens.indices == indices && tokens.counts == counts && !tokens.lengths);
    assert_true(!tokens.cut_lo && !tokens.cut_hi && !tokens.promises && !tokens.bits);
    assert_true(blocks.n_q == 500 && blocks.n_kv == 700 && blocks.batch == 1 && blocks.heads == 3);
    assert_true(blocks.block_q == 64 && blocks.block_kv == 16 && blocks.capacity == 40);
    assert_true(blocks.form == TESS_INDICES && blocks.indices == indices && !blocks.counts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_tells_the_first_fault),
        cmocka_unit_test(an_earlier_report_is_shorter),
        cmocka_unit_test(a_strict_fill_refuses_lists_with_a_fault),
        cmocka_unit_test(places_fit_one_number),
        cmocka_unit_test(patterns_are_made_inline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
