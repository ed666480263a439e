/*
 * Patterns from masks, lists and top-k indices, set operations and transposition: each against the
 * elements it was made of, and every fault of a caller's lists by its place.
 */
#include "naive.h"

#include <omp.h>
#include <stdio.h>

#define SEED 20240607u

static uint64_t random_state;

static uint32_t random_next(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33);
}

static tess_pattern_shape shape_of(int64_t n_q, int64_t n_kv, int64_t block_q, int64_t block_kv,
                                   int64_t batch, int64_t heads) {
    tess_pattern_shape s = tess_pattern_shape_init();
    s.n_q = n_q, s.n_kv = n_kv, s.block_q = block_q, s.block_kv = block_kv;
    s.batch = batch, s.heads = heads;
    return s;
}

static const int64_t shapes[][4] = {
    {100, 100, 64, 64}, {37, 50, 1, 1},     {50, 37, 8, 8},    {90, 90, 192, 1},
    {61, 83, 5, 7},     {50, 70, 1, 16},    {230, 90, 100, 3}, {20, 20, 99, 1000},
    {1, 1, 64, 64},     {140, 150, 65, 65}, {64, 192, 64, 64},
};

/* ---- masks ----------------------------------------------------------------------------------- */

struct mask {
    int64_t n_q, n_kv;
    uint8_t *bytes;
};

static int mask_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct mask *m = context;
    return m->bytes[(l * m->n_q + q) * m->n_kv + k] != 0;
}

static int in_band(int64_t q, int64_t k) {
    return q - k <= 9 && k - q <= 3;
}
static int in_causal(int64_t q, int64_t k) {
    return k <= q;
}
static int in_blocks(int64_t q, int64_t k) {
    return (q / 16 * 7 + k / 16 * 3) % 5 == 0;
}
static int at_random(int64_t q, int64_t k) {
    (void)q, (void)k;
    return random_next() % 7 == 0;
}
static int rarely(int64_t q, int64_t k) {
    (void)q, (void)k;
    return random_next() % 300 == 0;
}
static int always(int64_t q, int64_t k) {
    (void)q, (void)k;
    return 1;
}
static int never(int64_t q, int64_t k) {
    (void)q, (void)k;
    return 0;
}

static int (*const makers[])(int64_t q, int64_t k) = {in_band, in_causal, in_blocks, at_random,
                                                      rarely,  always,    never};
enum { MAKERS = sizeof makers / sizeof *makers };

static struct mask mask_make(int64_t lists, int64_t n_q, int64_t n_kv, int maker) {
    struct mask m = {n_q, n_kv, malloc((size_t)(lists * n_q * n_kv))};
    assert_non_null(m.bytes);
    for (int64_t i = 0; i < lists * n_q * n_kv; i++) {
        int listed = makers[maker](i / n_kv % n_q, i % n_kv);
        m.bytes[i] = (uint8_t)(listed ? 1 + random_next() % 255 : 0);
    }
    return m;
}

static tess_pattern *pattern_of(const struct mask *m, const tess_pattern_shape *shape) {
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    if (tess_pattern_from_mask(&p, m->bytes, shape, &error) != TESS_OK)
        fail_msg("%s", error.message);
    return p;
}

static void test_masks(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int maker = 0; maker < MAKERS; maker++) {
            tess_pattern_shape shape =
                shape_of(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], 1, 2);
            struct mask m = mask_make(2, shape.n_q, shape.n_kv, maker);
            struct naive x = {mask_listed, &m, "mask"};
            tess_pattern *p = pattern_of(&m, &shape);
            naive_check(&x, p);
            tess_pattern_free(p);
            free(m.bytes);
        }
    }
}

/* A mask that says what words can say costs no bits and equals the words' pattern. */
static void test_masks_in_words(void **state) {
    (void)state;
    const struct {
        int maker;
        const char *spec;
    } same[] = {{0, "window(9,3)"}, {1, "causal"}, {5, "dense"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        tess_pattern_shape shape = shape_of(300, 300, 64, 32, 1, 1);
        struct mask m = mask_make(1, 300, 300, same[i].maker);
        tess_pattern *p = pattern_of(&m, &shape), *q = NULL;
        tess_pattern_info info = tess_pattern_info_init();
        assert_int_equal(tess_pattern_from_spec(&q, same[i].spec, &shape, NULL), TESS_OK);
        assert_true(naive_same(p, q));
        assert_int_equal(tess_pattern_describe(p, &info, NULL), TESS_OK);
        assert_int_equal(info.bitmask_tiles, 0);
        tess_pattern_free(p);
        tess_pattern_free(q);
        free(m.bytes);
    }
}

static void test_mask_threads(void **state) {
    (void)state;
    tess_pattern_shape shape = shape_of(700, 500, 9, 11, 1, 2);
    struct mask m = mask_make(2, 700, 500, 3);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    tess_pattern *one = pattern_of(&m, &shape);
    for (int threads = 2; threads <= 8; threads += 3) {
        omp_set_num_threads(threads);
        tess_pattern *many = pattern_of(&m, &shape);
        assert_true(naive_same(one, many));
        tess_pattern_free(many);
    }
    omp_set_num_threads(before);
    tess_pattern_free(one);
    free(m.bytes);
}

static void test_mask_arguments(void **state) {
    (void)state;
    uint8_t byte = 1;
    tess_error error = tess_error_init();
    tess_pattern_shape shape = shape_of(1, 1, 1, 1, 1, 1);
    tess_pattern *p = (tess_pattern *)&shape;
    assert_int_equal(tess_pattern_from_mask(NULL, &byte, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_from_mask(&p, NULL, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "mask");
    assert_null(p);
    assert_int_equal(tess_pattern_from_mask(&p, &byte, NULL, &error), TESS_INVALID_ARGUMENT);
    shape.n_q = shape.n_kv = shape.batch = INT32_MAX; /* 2^93 bytes */
    shape.block_q = INT32_MAX;
    assert_int_equal(tess_pattern_from_mask(&p, &byte, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "do not fit"));
}

/* ---- lists ----------------------------------------------------------------------------------- */

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

/* Out to plain arrays and in again. */
static void test_round_trip(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int maker = 0; maker < MAKERS; maker++) {
            tess_pattern_shape shape =
                shape_of(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], 2, 1);
            struct mask m = mask_make(2, shape.n_q, shape.n_kv, maker);
            tess_pattern *p = pattern_of(&m, &shape), *again = NULL;
            tess_lists l = tess_lists_init();
            assert_int_equal(tess_pattern_lists(p, &l, NULL), TESS_OK);
            assert_int_equal(tess_pattern_from_lists(&again, &l, NULL), TESS_OK);
            assert_true(naive_same(p, again));
            tess_pattern_free(p);
            tess_pattern_free(again);
            free(m.bytes);
        }
    }
}

/* ---- top-k ----------------------------------------------------------------------------------- */

static void test_topk(void **state) {
    (void)state;
    const struct {
        int64_t n_q, n_kv, k;
    } sizes[] = {{30, 40, 7}, {5, 3000, 9}, {8, 10, 40}, {1, 1, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n_q = sizes[i].n_q, n_kv = sizes[i].n_kv, k = sizes[i].k, lists = 6;
        struct mask m = mask_make(lists, n_q, n_kv, 6);
        int32_t *indices = malloc((size_t)(lists * n_q * k) * sizeof *indices);
        assert_non_null(indices);
        for (int64_t e = 0; e < lists * n_q * k; e++) {
            indices[e] = (int32_t)(random_next() % (n_kv + 1)) - 1; /* -1: padding */
            if (e % k > 0 && random_next() % 3 == 0)
                indices[e] = indices[e - 1];
            if (indices[e] >= 0)
                m.bytes[e / k * n_kv + indices[e]] = 1;
        }
        struct naive x = {mask_listed, &m, "topk"};
        tess_pattern_shape shape = shape_of(n_q, n_kv, 0, i % 2, 2, 3);
        tess_pattern *p = NULL;
        assert_int_equal(tess_pattern_from_topk(&p, indices, k, &shape, NULL), TESS_OK);
        naive_check(&x, p);
        tess_pattern_free(p);
        free(indices);
        free(m.bytes);
    }
}

static void test_topk_faults(void **state) {
    (void)state;
    enum { N_Q = 3, K = 4, LISTS = 4 };
    const struct {
        int64_t place;
        int32_t value;
        tess_list_fault fault;
    } wrong[] = {{0, 10, TESS_FAULT_OUT_OF_RANGE},
                 {17, -2, TESS_FAULT_NEGATIVE},
                 {47, INT32_MAX, TESS_FAULT_OUT_OF_RANGE},
                 {30, INT32_MIN, TESS_FAULT_NEGATIVE}};
    int32_t indices[LISTS * N_Q * K] = {0};
    tess_pattern_shape shape = shape_of(N_Q, 10, 1, 1, 2, 2);
    tess_error error = tess_error_init();
    tess_pattern *p = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t at = wrong[i].place;
        indices[at] = wrong[i].value;
        assert_int_equal(tess_pattern_from_topk(&p, indices, K, &shape, &error), TESS_INVALID_LIST);
        indices[at] = 0;
        assert_null(p);
        assert_int_equal(error.fault, wrong[i].fault);
        assert_int_equal(error.batch, at / (K * N_Q * 2));
        assert_int_equal(error.head, at / (K * N_Q) % 2);
        assert_int_equal(error.row, at / K % N_Q);
        assert_int_equal(error.position, at % K);
    }
    assert_int_equal(tess_pattern_from_topk(&p, NULL, K, &shape, &error), TESS_INVALID_LIST);
    assert_int_equal(error.fault, TESS_FAULT_NULL);
    const int64_t ks[] = {0, -1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        assert_int_equal(tess_pattern_from_topk(&p, indices, ks[i], &shape, &error),
                         TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, "k");
    }
    shape.block_kv = 2;
    assert_int_equal(tess_pattern_from_topk(&p, indices, K, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "shape");
    assert_int_equal(tess_pattern_from_topk(NULL, indices, K, &shape, &error),
                     TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_from_topk(&p, indices, K, NULL, &error), TESS_INVALID_ARGUMENT);
}

/* ---- set operations -------------------------------------------------------------------------- */

struct two_masks {
    struct mask a, b;
    int64_t a_lists, b_lists; /* 1: serves all */
    int both;
};

static int two_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct two_masks *x = context;
    int a = mask_listed(&x->a, x->a_lists == 1 ? 0 : l, q, k);
    int b = mask_listed(&x->b, x->b_lists == 1 ? 0 : l, q, k);
    return x->both ? a && b : a || b;
}

static void check_sets(const int64_t size[4], int first, int second, int64_t a_lists,
                       int64_t b_lists) {
    struct two_masks x = {.a_lists = a_lists, .b_lists = b_lists};
    struct naive naive = {two_listed, &x, "sets"};
    tess_pattern_shape of_a = shape_of(size[0], size[1], size[2], size[3], 1, a_lists);
    tess_pattern_shape of_b = shape_of(size[0], size[1], size[2], size[3], 1, b_lists);
    x.a = mask_make(a_lists, size[0], size[1], first);
    x.b = mask_make(b_lists, size[0], size[1], second);
    tess_pattern *a = pattern_of(&x.a, &of_a), *b = pattern_of(&x.b, &of_b), *c = NULL;
    assert_int_equal(tess_pattern_union(&c, a, b, NULL), TESS_OK);
    naive_check(&naive, c);
    tess_pattern_free(c);
    x.both = 1;
    assert_int_equal(tess_pattern_intersection(&c, a, b, NULL), TESS_OK);
    naive_check(&naive, c);
    tess_pattern_free(c);
    tess_pattern_free(a);
    tess_pattern_free(b);
    free(x.a.bytes);
    free(x.b.bytes);
}

static void test_sets(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int first = 0; first < MAKERS; first++)
            for (int second = 0; second < MAKERS; second++)
                check_sets(shapes[s], first, second, first % 2 ? 1 : 2, second % 3 ? 2 : 1);
}

static void test_set_arguments(void **state) {
    (void)state;
    const struct {
        tess_pattern_shape shape;
        tess_status status;
    } others[] = {{shape_of(20, 30, 4, 5, 1, 1), TESS_OK},
                  {shape_of(20, 30, 4, 5, 7, 3), TESS_OK},
                  {shape_of(20, 30, 4, 5, 2, 1), TESS_OK},
                  {shape_of(20, 30, 4, 5, 1, 2), TESS_INVALID_ARGUMENT},
                  {shape_of(21, 30, 4, 5, 1, 3), TESS_INVALID_ARGUMENT},
                  {shape_of(20, 31, 4, 5, 1, 3), TESS_INVALID_ARGUMENT},
                  {shape_of(20, 30, 5, 5, 1, 3), TESS_INVALID_ARGUMENT},
                  {shape_of(20, 30, 4, 4, 1, 3), TESS_INVALID_ARGUMENT}};
    tess_pattern_shape shape = shape_of(20, 30, 4, 5, 1, 3);
    tess_pattern *a = NULL, *b = NULL, *c = NULL;
    tess_error error = tess_error_init();
    assert_int_equal(tess_pattern_from_spec(&a, "random(0.5,1)", &shape, NULL), TESS_OK);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(tess_pattern_from_spec(&b, "random(0.5,2)", &others[i].shape, NULL),
                         TESS_OK);
        assert_int_equal(tess_pattern_union(&c, a, b, &error), others[i].status);
        tess_pattern_free(c);
        assert_int_equal(tess_pattern_intersection(&c, b, a, &error), others[i].status);
        tess_pattern_free(c);
        tess_pattern_free(b);
    }
    assert_int_equal(tess_pattern_union(&c, NULL, a, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "a");
    assert_int_equal(tess_pattern_union(&c, a, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "b");
    assert_int_equal(tess_pattern_intersection(NULL, a, a, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_transpose(NULL, a, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_transpose(&c, NULL, &error), TESS_INVALID_ARGUMENT);
    tess_pattern_free(a);
    tess_pattern_free(NULL);
}

/* ---- transposition --------------------------------------------------------------------------- */

static int transposed_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    return mask_listed(context, l, k, q);
}

static void test_transpose(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int maker = 0; maker < MAKERS; maker++) {
            tess_pattern_shape shape =
                shape_of(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], 1, 3);
            struct mask m = mask_make(3, shape.n_q, shape.n_kv, maker);
            struct naive x = {transposed_listed, &m, "transposed"};
            tess_pattern *p = pattern_of(&m, &shape), *t = NULL, *again = NULL;
            assert_int_equal(tess_pattern_transpose(&t, p, NULL), TESS_OK);
            naive_check(&x, t);
            assert_int_equal(tess_pattern_transpose(&again, t, NULL), TESS_OK);
            assert_true(naive_same(p, again));
            tess_pattern_free(p);
            tess_pattern_free(t);
            tess_pattern_free(again);
            free(m.bytes);
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void test_row(void **state) {
    (void)state;
    tess_pattern_shape shape = shape_of(300, 300, 64, 64, 1, 1);
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    int64_t keys[8], count = 0;
    assert_int_equal(tess_pattern_from_spec(&p, "window(2,200)", &shape, NULL), TESS_OK);
    for (int i = 0; i < 8; i++)
        keys[i] = -7;
    assert_int_equal(tess_pattern_row(p, 0, 0, 62, keys, 5, &count, &error), TESS_OK);
    assert_int_equal(count, 203); /* counted beyond the capacity, not written */
    for (int i = 0; i < 8; i++)
        assert_int_equal(keys[i], i < 5 ? 60 + i : -7);
    count = 0;
    assert_int_equal(tess_pattern_row(p, 0, 0, 299, NULL, 0, &count, &error), TESS_OK);
    assert_int_equal(count, 3);
    const struct {
        int64_t batch, head, query;
        const char *argument;
    } wrong[] = {{2, 0, 0, "batch"}, {-1, 0, 0, "batch"},  {0, 3, 0, "head"},
                 {0, -1, 0, "head"}, {0, 0, 300, "query"}, {0, 0, -1, "query"}};
    /* one list for all answers any index, but no negative one */
    assert_int_equal(tess_pattern_row(p, 5, 7, 299, NULL, 0, &count, &error), TESS_OK);
    assert_int_equal(count, 3);
    assert_int_equal(tess_pattern_row(p, 0, -1, 0, NULL, 0, &count, &error), TESS_INVALID_ARGUMENT);
    tess_pattern_free(p);
    shape.batch = 2, shape.heads = 3;
    assert_int_equal(tess_pattern_from_spec(&p, "random(0.5,1)", &shape, NULL), TESS_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(tess_pattern_row(p, wrong[i].batch, wrong[i].head, wrong[i].query, keys, 8,
                                          &count, &error),
                         TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, wrong[i].argument);
    }
    assert_int_equal(tess_pattern_row(NULL, 0, 0, 0, keys, 8, &count, &error),
                     TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_row(p, 0, 0, 0, keys, 8, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_row(p, 0, 0, 0, NULL, 8, &count, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_row(p, 0, 0, 0, keys, -1, &count, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_lists(p, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_lists(NULL, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_describe(p, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_describe(NULL, NULL, &error), TESS_INVALID_ARGUMENT);
    tess_pattern_free(p);
}

int main(void) {
    random_state = SEED;
    print_message("seed %u\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),        cmocka_unit_test(test_masks_in_words),
        cmocka_unit_test(test_mask_threads), cmocka_unit_test(test_mask_arguments),
        cmocka_unit_test(test_lists),        cmocka_unit_test(test_lists_canonical),
        cmocka_unit_test(test_lists_empty),  cmocka_unit_test(test_faults),
        cmocka_unit_test(test_lists_sizes),  cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_topk),         cmocka_unit_test(test_topk_faults),
        cmocka_unit_test(test_sets),         cmocka_unit_test(test_set_arguments),
        cmocka_unit_test(test_transpose),    cmocka_unit_test(test_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
