/*
 * Patterns from a caller's lists: against the elements they list, and every fault by its place.
 */
#include "support/naive.h"

#include <stdio.h>

/* Two lists of 3 block rows; n 20 x 30, blocks 8 x 8, so 4 block columns. The tiles are
 * 0: (0, 0), 1: (0, 3), 2: (2, 1), 3: (2, 2), then the second list's 4: (1, 0), 5: (1, 3). */
struct sample {
    int64_t row_ptr[8], band_entry[2], bitmask_entry[2];
    int32_t col_idx[6], band[4];
    uint64_t bits[2];
    tess_lists lists;
};

static struct sample *sample_make(struct sample *s) {
    *s = (struct sample){.row_ptr = {0, 2, 2, 4, 4, 4, 6, 6},
                         .band_entry = {1, 3},
                         .bitmask_entry = {2, 5},
                         .col_idx = {0, 3, 1, 2, 0, 3},
                         .band = {0, 2, -1, -1},
                         .bits = {0x0123456789abcdef, 0x8100000000000081},
                         .lists = tess_lists_init()};
    tess_lists *l = &s->lists;
    l->n_q = 20, l->n_kv = 30, l->block_q = l->block_kv = 8;
    l->batch = 2, l->heads = 1;
    l->n_tiles = 6, l->n_bands = l->n_bitmasks = 2;
    l->row_ptr = s->row_ptr, l->col_idx = s->col_idx;
    l->band_entry = s->band_entry, l->band = s->band;
    l->bitmask_entry = s->bitmask_entry, l->bits = s->bits;
    return s;
}

static int sample_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct sample *s = context;
    int64_t r = q % 8, c = k % 8;
    for (int64_t e = s->row_ptr[l * 4 + q / 8]; e < s->row_ptr[l * 4 + q / 8 + 1]; e++) {
        if (s->col_idx[e] != k / 8)
            continue;
        for (int i = 0; i < 2; i++) {
            if (s->band_entry[i] == e)
                return s->band[2 * i] <= c - r && c - r <= s->band[2 * i + 1];
            if (s->bitmask_entry[i] == e)
                return (int)(s->bits[i] >> (8 * r + c) & 1);
        }
        return 1;
    }
    return 0;
}

static void test_lists(void **state) {
    (void)state;
    struct sample s;
    struct naive x = {sample_listed, sample_make(&s), "lists"};
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    assert_int_equal(tess_pattern_from_lists(&p, &s.lists, &error), TESS_OK);
    naive_check(&x, p);
    tess_pattern_free(p);
}

/* Lists that say a thing in a roundabout way: the pattern says it in the simplest. */
static void test_lists_canonical(void **state) {
    (void)state;
    struct sample s;
    struct naive x = {sample_listed, sample_make(&s), "lists"};
    tess_pattern *p = NULL;
    tess_pattern_info info = tess_pattern_info_init();
    s.bits[0] = 0;                                /* an empty tile */
    s.bits[1] = UINT64_MAX;                       /* a full one, past the ends of both sides */
    s.band[0] = INT32_MIN, s.band[1] = INT32_MAX; /* full */
    s.band[2] = 3, s.band[3] = 1;                 /* empty */
    assert_int_equal(tess_pattern_from_lists(&p, &s.lists, NULL), TESS_OK);
    naive_check(&x, p);
    assert_int_equal(tess_pattern_describe(p, &info, NULL), TESS_OK);
    assert_int_equal(info.full_tiles, 4);
    assert_int_equal(info.band_tiles + info.bitmask_tiles, 0);
    tess_pattern_free(p);
    s.bits[1] = 0x8040201008040201; /* a diagonal */
    s.band[0] = INT32_MIN, s.band[1] = INT32_MIN;
    assert_int_equal(tess_pattern_from_lists(&p, &s.lists, NULL), TESS_OK);
    naive_check(&x, p);
    assert_int_equal(tess_pattern_describe(p, &info, NULL), TESS_OK);
    assert_int_equal(info.band_tiles, 1);
    tess_pattern_free(p);
}

/* Nothing listed: arrays without elements may be NULL. */
static void test_lists_empty(void **state) {
    (void)state;
    const int64_t row_ptr[4] = {0};
    tess_pattern *p = NULL;
    tess_lists l = tess_lists_init();
    tess_pattern_info info = tess_pattern_info_init();
    l.n_q = 20, l.n_kv = 30, l.block_q = l.block_kv = 8;
    l.row_ptr = row_ptr;
    assert_int_equal(tess_pattern_from_lists(&p, &l, NULL), TESS_OK);
    assert_int_equal(tess_pattern_describe(p, &info, NULL), TESS_OK);
    assert_int_equal(info.pairs, 0);
    assert_int_equal(info.empty_rows, 20);
    tess_pattern_free(p);
}

static void break_null_rows(struct sample *s) {
    s->lists.row_ptr = NULL;
}
static void break_null_columns(struct sample *s) {
    s->lists.col_idx = NULL;
}
static void break_null_band_entry(struct sample *s) {
    s->lists.band_entry = NULL;
}
static void break_null_band(struct sample *s) {
    s->lists.band = NULL;
}
static void break_null_bitmask_entry(struct sample *s) {
    s->lists.bitmask_entry = NULL;
}
static void break_null_bits(struct sample *s) {
    s->lists.bits = NULL;
}
static void break_monotone(struct sample *s) {
    s->row_ptr[2] = 1;
}
static void break_list_falls(struct sample *s) {
    s->row_ptr[4] = 3;
}
static void break_negative_row(struct sample *s) {
    s->row_ptr[1] = -5;
}
static void break_negative_first(struct sample *s) {
    s->row_ptr[0] = -1;
}
static void break_first(struct sample *s) {
    s->row_ptr[0] = 1;
}
static void break_list_jumps(struct sample *s) {
    s->row_ptr[4] = 5;
}
static void break_list_jumps_far(struct sample *s) {
    s->row_ptr[4] = 7;
}
static void break_negative_column(struct sample *s) {
    s->col_idx[4] = -1;
}
static void break_column(struct sample *s) {
    s->col_idx[1] = 4;
}
static void break_sorted(struct sample *s) {
    s->col_idx[3] = 0;
}
static void break_twice(struct sample *s) {
    s->col_idx[5] = 0;
}
static void break_past(struct sample *s) {
    s->row_ptr[6] = INT64_MAX;
}
static void break_tiles(struct sample *s) {
    s->lists.n_tiles = 5;
}
static void break_tiles_left(struct sample *s) {
    s->lists.n_tiles = 7;
}
static void break_tiles_negative(struct sample *s) {
    s->lists.n_tiles = -1;
}
static void break_bands_negative(struct sample *s) {
    s->lists.n_bands = INT64_MIN;
}
static void break_masks_many(struct sample *s) {
    s->lists.n_bitmasks = INT64_MAX / 32;
}
static void break_bands_many(struct sample *s) {
    s->lists.n_bands = INT64_MAX / 4;
}
static void break_band_negative(struct sample *s) {
    s->band_entry[0] = -1;
}
static void break_band_range(struct sample *s) {
    s->band_entry[1] = 6;
}
static void break_band_sorted(struct sample *s) {
    s->band_entry[0] = 4;
}
static void break_band_twice(struct sample *s) {
    s->band_entry[1] = 1;
}
static void break_mask_range(struct sample *s) {
    s->bitmask_entry[1] = INT64_MAX;
}
static void break_mask_sorted(struct sample *s) {
    s->bitmask_entry[1] = 0;
}
static void break_mask_twice(struct sample *s) {
    s->bitmask_entry[0] = 5;
}
static void break_both(struct sample *s) {
    s->bitmask_entry[0] = 3;
}

static void test_faults(void **state) {
    (void)state;
    static const struct {
        void (*break_it)(struct sample *s);
        tess_list_fault fault;
        const char *argument;
        int64_t batch, head, row, position;
    } faults[] = {
        {break_null_rows, TESS_FAULT_NULL, "row_ptr", -1, -1, -1, -1},
        {break_null_columns, TESS_FAULT_NULL, "col_idx", -1, -1, -1, -1},
        {break_null_band_entry, TESS_FAULT_NULL, "band_entry", -1, -1, -1, -1},
        {break_null_band, TESS_FAULT_NULL, "band", -1, -1, -1, -1},
        {break_null_bitmask_entry, TESS_FAULT_NULL, "bitmask_entry", -1, -1, -1, -1},
        {break_null_bits, TESS_FAULT_NULL, "bits", -1, -1, -1, -1},
        {break_monotone, TESS_FAULT_NOT_MONOTONE, "row_ptr", 0, 0, 1, -1},
        {break_list_falls, TESS_FAULT_NOT_MONOTONE, "row_ptr", 1, 0, 0, -1},
        {break_negative_row, TESS_FAULT_NEGATIVE, "row_ptr", 0, 0, 0, -1},
        {break_negative_first, TESS_FAULT_NEGATIVE, "row_ptr", 0, 0, 0, -1},
        {break_first, TESS_FAULT_OUT_OF_RANGE, "row_ptr", 0, 0, 0, -1},
        {break_list_jumps, TESS_FAULT_OUT_OF_RANGE, "row_ptr", 1, 0, 0, -1},
        {break_list_jumps_far, TESS_FAULT_OVERFLOW, "row_ptr", 1, 0, 0, -1},
        {break_negative_column, TESS_FAULT_NEGATIVE, "col_idx", 1, 0, 1, 0},
        {break_column, TESS_FAULT_OUT_OF_RANGE, "col_idx", 0, 0, 0, 1},
        {break_sorted, TESS_FAULT_UNSORTED, "col_idx", 0, 0, 2, 1},
        {break_twice, TESS_FAULT_DUPLICATE, "col_idx", 1, 0, 1, 1},
        {break_past, TESS_FAULT_OVERFLOW, "row_ptr", 1, 0, 1, -1},
        {break_tiles, TESS_FAULT_OVERFLOW, "row_ptr", 1, 0, 1, -1},
        {break_tiles_left, TESS_FAULT_OUT_OF_RANGE, "n_tiles", -1, -1, -1, -1},
        {break_tiles_negative, TESS_FAULT_NEGATIVE, "n_tiles", -1, -1, -1, -1},
        {break_bands_negative, TESS_FAULT_NEGATIVE, "n_bands", -1, -1, -1, -1},
        {break_masks_many, TESS_FAULT_OVERFLOW, "n_bitmasks", -1, -1, -1, -1},
        {break_bands_many, TESS_FAULT_OVERFLOW, "n_bands", -1, -1, -1, -1},
        {break_band_negative, TESS_FAULT_NEGATIVE, "band_entry", -1, -1, -1, 0},
        {break_band_range, TESS_FAULT_OUT_OF_RANGE, "band_entry", -1, -1, -1, 1},
        {break_band_sorted, TESS_FAULT_UNSORTED, "band_entry", -1, -1, -1, 1},
        {break_band_twice, TESS_FAULT_DUPLICATE, "band_entry", -1, -1, -1, 1},
        {break_mask_range, TESS_FAULT_OUT_OF_RANGE, "bitmask_entry", -1, -1, -1, 1},
        {break_mask_sorted, TESS_FAULT_UNSORTED, "bitmask_entry", -1, -1, -1, 1},
        {break_mask_twice, TESS_FAULT_DUPLICATE, "bitmask_entry", -1, -1, -1, 1},
        {break_both, TESS_FAULT_DUPLICATE, "bitmask_entry", -1, -1, -1, 0},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct sample s;
        tess_pattern *p = (tess_pattern *)&s;
        tess_error error = tess_error_init();
        faults[i].break_it(sample_make(&s));
        assert_int_equal(tess_pattern_from_lists(&p, &s.lists, &error), TESS_INVALID_LIST);
        assert_null(p);
        if (error.fault != faults[i].fault || strcmp(error.argument, faults[i].argument) != 0 ||
            error.batch != faults[i].batch || error.head != faults[i].head ||
            error.row != faults[i].row || error.position != faults[i].position)
            fail_msg("fault %zu: %d %s %lld %lld %lld %lld: %s", i, (int)error.fault,
                     error.argument, (long long)error.batch, (long long)error.head,
                     (long long)error.row, (long long)error.position, error.message);
        assert_string_equal(error.function, "tess_pattern_from_lists");
        assert_int_equal(tess_pattern_from_lists(&p, &s.lists, NULL), TESS_INVALID_LIST);
    }
}

static void test_lists_sizes(void **state) {
    (void)state;
    struct sample s;
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    assert_int_equal(tess_pattern_from_lists(NULL, &sample_make(&s)->lists, &error),
                     TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_from_lists(&p, NULL, &error), TESS_INVALID_ARGUMENT);
    s.lists.n_q = INT64_C(1) << 31;
    assert_int_equal(tess_pattern_from_lists(&p, &s.lists, &error), TESS_INVALID_ARGUMENT);
    sample_make(&s)->lists.struct_size = offsetof(tess_lists, bits) + 4; /* within a pointer */
    assert_int_equal(tess_pattern_from_lists(&p, &s.lists, &error), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "struct_size"));
    sample_make(&s)->lists.struct_size = 0;
    assert_int_equal(tess_pattern_from_lists(&p, &s.lists, &error), TESS_INVALID_ARGUMENT);

    /* sizes that say what the arrays mean have no defaults */
    int64_t *const given[] = {&s.lists.n_kv, &s.lists.block_q, &s.lists.block_kv};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        sample_make(&s);
        *given[i] = 0;
        assert_int_equal(tess_pattern_from_lists(&p, &s.lists, &error), TESS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "must be given"));
    }

    /* pairs of one list of the largest size fit 64 bits, those of three do not */
    const int64_t row_ptr[] = {0, 1, 1, 2, 2, 3};
    const int32_t col_idx[] = {0, 0, 0};
    tess_lists l = tess_lists_init();
    l.n_q = l.n_kv = l.block_q = l.block_kv = INT32_MAX;
    l.row_ptr = row_ptr, l.col_idx = col_idx;
    l.n_tiles = 1;
    assert_int_equal(tess_pattern_from_lists(&p, &l, &error), TESS_OK);
    tess_pattern_free(p);
    l.heads = l.n_tiles = 3;
    assert_int_equal(tess_pattern_from_lists(&p, &l, &error), TESS_INVALID_ARGUMENT);
    assert_null(p);
    assert_non_null(strstr(error.message, "do not fit 64 bits"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),       cmocka_unit_test(test_lists_canonical),
        cmocka_unit_test(test_lists_empty), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_lists_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
