/*
 * Patterns from masks, set operations and transposition: each against the elements it was made of.
 */
#include "support/naive.h"

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

/* ---- plain arrays ----------------------------------------------------------------------------- */

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
    assert_int_equal(tess_pattern_row(p, INT64_MAX, INT64_MAX, 299, NULL, 0, &count, &error),
                     TESS_OK);
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
        cmocka_unit_test(test_masks),         cmocka_unit_test(test_masks_in_words),
        cmocka_unit_test(test_mask_threads),  cmocka_unit_test(test_mask_arguments),
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_sets),
        cmocka_unit_test(test_set_arguments), cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
