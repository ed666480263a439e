/*
 * Patterns from words: every term against its definition in the header, written down a second time
 * here as a predicate; random terms by their counts; the errors of the reader by their places.
 */
#include "naive.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <time.h>

static const int64_t shapes[][4] = {
    /* n_q, n_kv, block_q, block_kv */
    {100, 100, 64, 64}, {100, 100, 8, 8}, {37, 37, 1, 1},     {70, 130, 64, 64},
    {130, 70, 64, 64},  {90, 90, 192, 1}, {61, 83, 5, 7},     {83, 61, 5, 7},
    {50, 70, 1, 16},    {70, 50, 1, 16},  {230, 110, 100, 3}, {64, 64, 64, 64},
    {1, 1, 1, 1},       {1, 40, 8, 8},    {40, 1, 8, 8},      {20, 20, 1000, 1000},
    {150, 140, 65, 65}, {3, 300, 2, 130}, {300, 3, 130, 2},   {33, 47, 1, 1000},
};

static tess_pattern *make(const char *spec, const int64_t shape[4], int64_t batch, int64_t heads) {
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    tess_pattern_shape s = tess_pattern_shape_init();
    s.n_q = shape[0], s.n_kv = shape[1], s.block_q = shape[2], s.block_kv = shape[3];
    s.batch = batch, s.heads = heads;
    if (tess_pattern_from_spec(&p, spec, &s, &error) != TESS_OK)
        fail_msg("%s: %s", spec, error.message);
    return p;
}

/* ---- terms ----------------------------------------------------------------------------------- */

/* p: the query's position, k: the key, a: the term's numbers. */
typedef int predicate(int64_t p, int64_t k, int64_t n_kv, const int64_t *a);

static int dense(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)p, (void)k, (void)n_kv, (void)a;
    return 1;
}

static int causal(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv, (void)a;
    return k <= p;
}

static int window(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv;
    return p - k <= a[0] && k - p <= a[1];
}

static int blockdiag(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv;
    return p >= 0 && p / a[0] == k / a[0];
}

static int dilated(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv;
    return llabs(k - p) % a[1] == 0 && llabs(k - p) / a[1] <= a[0];
}

static int global(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv;
    return k < a[0] || (0 <= p && p < a[0]);
}

static int global_grid(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    for (int64_t t = 0; t < a[0]; t++)
        if (t * n_kv / a[0] == k || t * n_kv / a[0] == p)
            return 1;
    return 0;
}

static int strided(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv;
    return k <= p && (p - k < a[0] || (k + 1) % a[1] == 0);
}

/* a: the lengths, ended by -1 */
static int segments(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv;
    for (int64_t begin = 0; *a >= 0; begin += *a++)
        if (begin <= p && p < begin + *a)
            return begin <= k && k < begin + *a;
    return 0;
}

static int longformer(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    const int64_t half[2] = {a[0] / 2, a[0] / 2};
    return window(p, k, n_kv, half) || global(p, k, n_kv, a + 1);
}

/* Compositions: a holds the numbers of all terms in the order of the spec. */
static int causal_and_window(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return causal(p, k, n_kv, a) && window(p, k, n_kv, a);
}

static int window_or_window(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return window(p, k, n_kv, a) || window(p, k, n_kv, a + 2);
}

static int window_and_window(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return window(p, k, n_kv, a) && window(p, k, n_kv, a + 2);
}

static int causal_and_window_or_global(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return causal(p, k, n_kv, a) && (window(p, k, n_kv, a) || global(p, k, n_kv, a + 2));
}

static int dilated_and_causal_or_global(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return (dilated(p, k, n_kv, a) && causal(p, k, n_kv, a)) || global(p, k, n_kv, a + 2);
}

static int three_sets(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return (blockdiag(p, k, n_kv, a) || strided(p, k, n_kv, a + 1)) &&
           (segments(p, k, n_kv, a + 3) || global_grid(p, k, n_kv, a + 6));
}

static int four_unions(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return window(p, k, n_kv, a) || dilated(p, k, n_kv, a + 2) || dilated(p, k, n_kv, a + 4) ||
           global_grid(p, k, n_kv, a + 6);
}

static int four_intersections(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    return window(p, k, n_kv, a) && dilated(p, k, n_kv, a + 2) && dilated(p, k, n_kv, a + 4) &&
           blockdiag(p, k, n_kv, a + 6);
}

static const struct spec_case {
    const char *spec;
    predicate *listed;
    int64_t a[8];
    int64_t least_kv; /* shapes with fewer keys are left out */
} cases[] = {
    {"dense", dense, {0}, 1},
    {"causal", causal, {0}, 1},
    {"window(3,5)", window, {3, 5}, 1},
    {"window(0,0)", window, {0, 0}, 1},
    {"window(70,0)", window, {70, 0}, 1},
    {"window(0,1e3)", window, {0, 1000}, 1},
    {"window(1e30,18446744073709551615)", window, {1 << 20, 1 << 20}, 1},
    {"blockdiag(1)", blockdiag, {1}, 1},
    {"blockdiag(7)", blockdiag, {7}, 1},
    {"blockdiag(64)", blockdiag, {64}, 1},
    {"blockdiag(500.0)", blockdiag, {500}, 1},
    {"dilated(3,4)", dilated, {3, 4}, 1},
    {"dilated(5,1)", dilated, {5, 1}, 1},
    {"dilated(0,9)", dilated, {0, 9}, 1},
    {"dilated(100,13)", dilated, {100, 13}, 1},
    {"dilated(1e18,1e18)", dilated, {1, 1 << 20}, 1},
    {"global(0)", global, {0}, 1},
    {"global(3)", global, {3}, 1},
    {"global(70)", global, {70}, 1},
    {"global(999)", global, {999}, 1},
    {"global_grid(1)", global_grid, {1}, 1},
    {"global_grid(5)", global_grid, {5}, 1},
    {"global_grid(36)", global_grid, {36}, 1},
    {"global_grid(64)", global_grid, {64}, 1},
    {"global_grid(1000)", global_grid, {1000}, 1},
    {"strided(4,8)", strided, {4, 8}, 1},
    {"strided(0,3)", strided, {0, 3}, 1},
    {"strided(10,1)", strided, {10, 1}, 1},
    {"strided(3,1000)", strided, {3, 1000}, 1},
    {"segments(10,20,5)", segments, {10, 20, 5, -1}, 35},
    {"segments(0,30,0,7)", segments, {0, 30, 0, 7, -1}, 37},
    {"segments(1)", segments, {1, -1}, 1},
    {"longformer(8,3)", longformer, {8, 3}, 1},
    {"longformer(7,0)", longformer, {7, 0}, 1},
    {"causal & window(9,9)", causal_and_window, {9, 9}, 1},
    {"window(2,2)+window(0,6)", window_or_window, {2, 2, 0, 6}, 1},
    {"window(20,1) & window(1,20)", window_and_window, {20, 1, 1, 20}, 1},
    {" causal&( window( 4 , 0 )\t+global(2))\n", causal_and_window_or_global, {4, 0, 2}, 1},
    {"dilated(4,3)&causal+global(1)", dilated_and_causal_or_global, {4, 3, 1}, 1},
    {"global(1)+causal&dilated(4,3)", dilated_and_causal_or_global, {4, 3, 1}, 1},
    {"((blockdiag(16)+strided(3,5)))&(segments(20,30)+global_grid(4))",
     three_sets,
     {16, 3, 5, 20, 30, -1, 4},
     50},
    {"window(1,1)+dilated(3,7)+dilated(2,40)+global_grid(3)",
     four_unions,
     {1, 1, 3, 7, 2, 40, 3},
     1},
    {"window(90,90)&dilated(50,2)&dilated(50,3)&blockdiag(45)",
     four_intersections,
     {90, 90, 50, 2, 50, 3, 45},
     1},
};

struct context {
    const struct spec_case *c;
    int64_t n_q, n_kv;
};

static int case_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct context *x = context;
    (void)l;
    return x->c->listed(q + x->n_kv - x->n_q, k, x->n_kv, x->c->a);
}

static void test_terms(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if (shapes[s][1] < cases[i].least_kv)
                continue;
            struct context context = {&cases[i], shapes[s][0], shapes[s][1]};
            struct naive x = {case_listed, &context, cases[i].spec};
            tess_pattern *p = make(cases[i].spec, shapes[s], 3, 2);
            tess_pattern_info info = tess_pattern_info_init();
            assert_int_equal(tess_pattern_describe(p, &info, NULL), TESS_OK);
            assert_int_equal(info.batch * info.heads, 1); /* nothing random: one list for all */
            naive_check(&x, p);
            tess_pattern_free(p);
        }
    }
}

/* ---- random terms ---------------------------------------------------------------------------- */

static tess_lists lists_of(const tess_pattern *p) {
    tess_lists m = tess_lists_init();
    assert_int_equal(tess_pattern_lists(p, &m, NULL), TESS_OK);
    return m;
}

/* Is `got` within five standard deviations of n draws of probability p? */
static void assert_binomial(int64_t got, double n, double p) {
    if (fabs((double)got - n * p) > 5 * sqrt(n * p * (1 - p)))
        fail_msg("%lld hits of %g draws at %g", (long long)got, n, p);
}

static void test_random_density(void **state) {
    (void)state;
    const int64_t shape[] = {2000, 1999, 16, 16}, rows = 125, cols = 125;
    const double keeps[] = {0.001, 0.1, 0.5, 0.97};
    for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++) {
        char spec[64];
        int64_t in_col[125] = {0};
        snprintf(spec, sizeof spec, "random(%g,%zu)", keeps[i], i);
        tess_pattern *p = make(spec, shape, 2, 3);
        tess_lists m = lists_of(p);
        assert_int_equal(m.batch * m.heads, 6);
        assert_int_equal(m.n_bands + m.n_bitmasks, 0);
        assert_binomial(m.n_tiles, (double)(6 * rows * cols), keeps[i]);
        for (int64_t e = 0; e < m.n_tiles; e++)
            in_col[m.col_idx[e]]++;
        for (int64_t j = 0; j < cols; j++)
            if (i > 0)
                assert_binomial(in_col[j], (double)(6 * rows), keeps[i]);
        /* lists draw apart from one another */
        for (int64_t l = 1; l < 6 && i > 0; l++) {
            const int64_t *a = m.row_ptr, *b = m.row_ptr + l * (rows + 1);
            assert_true(a[rows] - a[0] != b[rows] - b[0] ||
                        memcmp(m.col_idx + a[0], m.col_idx + b[0],
                               (size_t)(a[rows] - a[0]) * sizeof *m.col_idx) != 0);
        }
        tess_pattern_free(p);
    }
}

static void test_random_ends(void **state) {
    (void)state;
    const int64_t shape[] = {50, 70, 8, 8};
    const struct {
        const char *spec;
        int64_t tiles;
    } ends[] = {{"random(0,1)", 0},
                {"random(1,1)", 63},
                {"random(1e-300,1)", 0},
                {"random_row(0,1)", 0},
                {"random_row(1,1)", 63},
                {"random_row(0.05,1)", 0}, /* 0.45 of a block */
                {"random_row(0.5,1)", 35}, /* 4.5, rounded to 5 */
                {"shared_random(1,0.2,1)", 63},
                {"shared_random(0,0.2,1)", 0},
                {"bigbird(0,0,9,1)", 63},
                {"bigbird(0,0,1e9,1)", 63}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        tess_pattern *p = make(ends[i].spec, shape, 1, 1);
        assert_int_equal(lists_of(p).n_tiles, ends[i].tiles);
        tess_pattern_free(p);
    }
}

static void test_random_row(void **state) {
    (void)state;
    const int64_t shape[] = {5000, 512, 1, 8};
    const struct {
        const char *spec;
        int64_t each;
    } rules[] = {{"random_row(0.25,77)", 16}, {"random_row(0.015625,78)", 1}};
    for (size_t s = 0; s < sizeof rules / sizeof *rules; s++) {
        int64_t in_col[64] = {0};
        tess_pattern *p = make(rules[s].spec, shape, 1, 1);
        tess_lists m = lists_of(p);
        for (int64_t i = 0; i < 5000; i++)
            assert_int_equal(m.row_ptr[i + 1] - m.row_ptr[i], rules[s].each);
        for (int64_t e = 0; e < m.n_tiles; e++)
            in_col[m.col_idx[e]]++;
        for (int j = 0; j < 64; j++)
            assert_binomial(in_col[j], 5000, (double)rules[s].each / 64);
        tess_pattern_free(p);
    }
}

static int64_t in_common(const tess_lists *m, int64_t i) {
    int64_t n = 0;
    for (int64_t a = m->row_ptr[i]; a < m->row_ptr[i + 1]; a++)
        for (int64_t b = m->row_ptr[i + 1]; b < m->row_ptr[i + 2]; b++)
            n += m->col_idx[a] == m->col_idx[b];
    return n;
}

static void test_shared_random(void **state) {
    (void)state;
    const int64_t shape[] = {1010, 400, 10, 10}; /* 101 block rows: the last has no neighbour */
    const struct {
        const char *spec;
        int64_t each, common;
    } shared[] = {{"shared_random(0.25,0.5,3)", 10, 5},
                  {"shared_random(0.25,1,3)", 10, 10},
                  {"shared_random(0.25,0,3)", 10, 0},
                  {"shared_random(0.75,0.1,3)", 30, 20}}; /* 60 of 40: 20 must be common */
    for (size_t s = 0; s < sizeof shared / sizeof *shared; s++) {
        int64_t in_col[40] = {0}, first = 0, second = 0;
        tess_pattern *p = make(shared[s].spec, shape, 1, 1);
        tess_lists m = lists_of(p);
        for (int64_t i = 0; i < 101; i++)
            assert_int_equal(m.row_ptr[i + 1] - m.row_ptr[i], shared[s].each);
        for (int64_t i = 0; i < 100; i += 2) {
            assert_int_equal(in_common(&m, i), shared[s].common);
            for (int64_t e = m.row_ptr[i]; e < m.row_ptr[i + 1]; e++)
                first += m.col_idx[e];
            for (int64_t e = m.row_ptr[i + 1]; e < m.row_ptr[i + 2]; e++)
                second += m.col_idx[e];
        }
        for (int64_t e = 0; e < m.n_tiles; e++)
            in_col[m.col_idx[e]]++;
        for (int j = 0; j < 40;
             j++) /* pairs are drawn together: half as many draws, twice the spread */
            assert_binomial(in_col[j] / 2, 50, (double)shared[s].each / 40);
        /* roles are dealt evenly: no row of a pair leans to the left */
        assert_true(llabs(first - second) < 50 * 40);
        tess_pattern_free(p);
    }
}

static void test_bigbird(void **state) {
    (void)state;
    const int64_t shape[] = {512, 512, 8, 8};
    tess_pattern *whole = make("bigbird(16,4,3,9)", shape, 1, 2);
    tess_pattern *fixed = make("longformer(16,4)", shape, 1, 2);
    tess_pattern *random = make("bigbird(0,0,3,9)", shape, 1, 2), *both = NULL;
    tess_lists m = lists_of(random);
    for (int64_t l = 0; l < 2; l++) {
        for (int64_t i = 0; i < 64; i++) {
            const int64_t *ptr = m.row_ptr + l * 65 + i;
            int64_t full = ptr[1] - ptr[0];
            for (int64_t b = 0; b < m.n_bands; b++) /* window(0,0) is a band unless drawn over */
                full -= ptr[0] <= m.band_entry[b] && m.band_entry[b] < ptr[1];
            assert_int_equal(full, 3);
        }
    }
    assert_int_equal(tess_pattern_union(&both, fixed, random, NULL), TESS_OK);
    assert_true(naive_same(both, whole));
    tess_pattern_free(whole);
    tess_pattern_free(fixed);
    tess_pattern_free(random);
    tess_pattern_free(both);
}

static void test_threads(void **state) {
    (void)state;
    const char *const specs[] = {"random(0.1,5)", "random_row(0.2,5)", "shared_random(0.3,0.5,5)",
                                 "bigbird(20,3,2,5)&causal", "dilated(9,5)+global_grid(7)"};
    const int threads[] = {2, 3, 8};
    const int64_t shape[] = {700, 600, 9, 11}; /* 99 bits: masks share words */
    int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        omp_set_num_threads(1);
        tess_pattern *one = make(specs[i], shape, 2, 2);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            omp_set_num_threads(threads[t]);
            tess_pattern *many = make(specs[i], shape, 2, 2);
            assert_true(naive_same(one, many));
            tess_pattern_free(many);
        }
        tess_pattern_free(one);
    }
    omp_set_num_threads(before);
}

static void test_seeds(void **state) {
    (void)state;
    const int64_t shape[] = {400, 400, 4, 4};
    const char *const same[][2] = {{"random(0.5,3)", "random(0.5,3)&dense"},
                                   {"random(0.5,3)", "random(0.5,3)+random(0.5,3.0)"}};
    const char *const different[][2] = {
        {"random(0.5,3)", "random(0.5,4)"},
        {"random_row(0.5,3)", "random_row(0.5,18446744073709551615)"},
        {"random_row(0.5,18446744073709551614)", "random_row(0.5,18446744073709551615)"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        tess_pattern *a = make(same[i][0], shape, 1, 1), *b = make(same[i][1], shape, 1, 1);
        assert_true(naive_same(a, b));
        tess_pattern_free(a);
        tess_pattern_free(b);
    }
    for (size_t i = 0; i < sizeof different / sizeof *different; i++) {
        tess_pattern *a = make(different[i][0], shape, 1, 1);
        tess_pattern *b = make(different[i][1], shape, 1, 1);
        assert_false(naive_same(a, b));
        tess_pattern_free(a);
        tess_pattern_free(b);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_errors(void **state) {
    (void)state;
    const struct {
        const char *spec;
        int64_t offset;
        const char *message;
    } wrong[] = {
        {"", 0, "expected a term"},
        {"  ", 2, "expected a term"},
        {"windo(1,2)", 0, "not 'windo(1,2)'"},
        {"causal+", 7, "not the end"},
        {"causal+window(5)", 7, "window takes 2 numbers, got 1, at offset 7"},
        {"window", 0, "window takes 2 numbers, got 0"},
        {"window()", 0, "window takes 2 numbers, got 0"},
        {"causal(1)", 0, "causal takes 0 numbers, got 1"},
        {"global(1,2)", 0, "global takes 1 number, got 2"},
        {"segments()", 0, "segments takes 1 number or more, got 0"},
        {"window(1,2", 10, "expected ',' or ')', not the end"},
        {"window(1;2)", 8, "expected ',' or ')', not ';2)'"},
        {"window(1,-2)", 9, "a number that is not negative"},
        {"window(1,)", 9, "a number"},
        {"window(1,nan)", 9, "a number"},
        {"window(inf,1)", 7, "a number"},
        {"window(0x10,1)", 8, "expected ','"},
        {"window(1e,1)", 7, "a number"},
        {"window(.,1)", 7, "a number"},
        {"window(1e999,1)", 7, "number 1 of window is too large"},
        {"window(1.5,1)", 7, "number 1 of window must be a whole number"},
        {"dilated(1,0)", 10, "number 2 of dilated must be a whole number, at least 1"},
        {"strided(1,0)", 10, "at least 1"},
        {"blockdiag(0)", 10, "at least 1"},
        {"global_grid(0)", 12, "at least 1"},
        {"random(1.01,1)", 7, "number 1 of random must be a fraction from 0 to 1"},
        {"random(0.5,0.5)", 11, "number 2 of random must be a whole number below 2^64"},
        {"random(0.5,18446744073709551616)", 11, "below 2^64"},
        {"shared_random(0.5,2,1)", 18, "fraction"},
        {"segments(60,30,11)", 15, "segments take 101 tokens or more, but n_kv is 100"},
        {"causal causal", 7, "expected '+' or '&'"},
        {"causal)", 6, "expected '+' or '&', not ')'"},
        {"(causal", 7, "expected '+', '&' or ')', not the end"},
        {"causal++causal", 7, "expected a term"},
        {"causal\xc3\xa9", 6, "a byte outside ASCII"},
        {"Causal", 0, "expected a term"},
    };
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = 100;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_pattern *p = (tess_pattern *)&shape;
        tess_error error = tess_error_init();
        assert_int_equal(tess_pattern_from_spec(&p, wrong[i].spec, &shape, &error),
                         TESS_INVALID_ARGUMENT);
        assert_null(p);
        if (error.position != wrong[i].offset || !strstr(error.message, wrong[i].message))
            fail_msg("'%s': %lld '%s'", wrong[i].spec, (long long)error.position, error.message);
        assert_string_equal(error.function, "tess_pattern_from_spec");
        assert_string_equal(error.argument, "spec");
        assert_int_equal(tess_pattern_from_spec(&p, wrong[i].spec, &shape, NULL),
                         TESS_INVALID_ARGUMENT);
    }
}

/* Parentheses are limited, operands are not. */
static void test_long_specs(void **state) {
    (void)state;
    const int64_t shape[] = {10, 10, 4, 4};
    enum { TERMS = 20000, DEPTH = 64 };
    char *spec = malloc(TERMS * 12), *at = spec;
    assert_non_null(spec);
    for (int i = 0; i < TERMS; i++)
        at += sprintf(at, "%s%s", i ? (i % 2 ? "+" : "&") : "", i % 3 ? "causal" : "global(2)");
    tess_pattern *p = make(spec, shape, 1, 1);
    tess_pattern_free(p);
    for (int depth = DEPTH; depth <= DEPTH + 1; depth++) {
        memset(spec, '(', (size_t)depth);
        memcpy(spec + depth, "causal", 6);
        memset(spec + depth + 6, ')', (size_t)depth);
        spec[2 * depth + 6] = 0;
        tess_pattern_shape s = tess_pattern_shape_init();
        tess_error error = tess_error_init();
        s.n_q = 10;
        assert_int_equal(tess_pattern_from_spec(&p, spec, &s, &error),
                         depth == DEPTH ? TESS_OK : TESS_INVALID_ARGUMENT);
        assert_int_equal(error.position, depth == DEPTH ? 0 : DEPTH);
        tess_pattern_free(p);
    }
    free(spec);
}

static void test_arguments(void **state) {
    (void)state;
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init(), bad;
    shape.n_q = 10;
    assert_int_equal(tess_pattern_from_spec(NULL, "dense", &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "pattern");
    assert_int_equal(tess_pattern_from_spec(&p, NULL, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "spec");
    assert_int_equal(tess_pattern_from_spec(&p, "dense", NULL, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "shape");
    memset(&bad, 0, sizeof bad);
    bad.n_q = 10;
    assert_int_equal(tess_pattern_from_spec(&p, "dense", &bad, &error), TESS_INVALID_ARGUMENT);
    const int64_t sizes[] = {-1, INT64_C(1) << 31, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int field = 0; field < 6; field++) {
            bad = shape;
            int64_t *fields[] = {&bad.n_q,      &bad.n_kv,  &bad.block_q,
                                 &bad.block_kv, &bad.batch, &bad.heads};
            *fields[field] = sizes[i];
            assert_int_equal(tess_pattern_from_spec(&p, "dense", &bad, &error),
                             TESS_INVALID_ARGUMENT);
            assert_string_equal(error.argument, "shape");
        }
    }
    bad = tess_pattern_shape_init(); /* n_q has no default */
    assert_int_equal(tess_pattern_from_spec(&p, "dense", &bad, &error), TESS_INVALID_ARGUMENT);
    bad = shape;
    bad.n_q = bad.batch = bad.heads = INT32_MAX;
    bad.block_q = 1;
    assert_int_equal(tess_pattern_from_spec(&p, "random(0,1)", &bad, &error),
                     TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "do not fit"));
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Builds over n x n, checks tiles, bands and pairs, and that time went with the tiles: the limit is
 * generous, but visiting all n^2 / 4096 tiles takes far longer. */
static void check_size(const char *spec, int64_t n, int64_t block, int64_t tiles, int64_t bands,
                       int64_t pairs) {
    const int64_t shape[] = {n, n, block, block};
    clock_t start = clock();
    tess_pattern *p = make(spec, shape, 1, 1);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    tess_pattern_info info = tess_pattern_info_init();
    tess_lists m = lists_of(p);
    assert_int_equal(tess_pattern_describe(p, &info, NULL), TESS_OK);
    if (m.n_tiles != tiles || info.band_tiles != bands || info.pairs != pairs ||
        info.bitmask_tiles || info.empty_rows)
        fail_msg("%s: %lld tiles, %lld bands, %lld pairs", spec, (long long)m.n_tiles,
                 (long long)info.band_tiles, (long long)info.pairs);
    if (seconds > 3)
        fail_msg("%s: %g s", spec, seconds);
    print_message("%s: n %lld, %lld tiles, %.3f s of processor time\n", spec, (long long)n,
                  (long long)m.n_tiles, seconds);
    tess_pattern_free(p);
}

static void test_sizes(void **state) {
    (void)state;
    const int64_t million = 1000000, most = INT32_MAX, half = most / 2 + 1;
    check_size("window(256,256)", million, 64, 15625 * 9 - 20, 2 * (15625 - 4),
               million * 513 - 256 * 257);
    check_size("causal&window(4096,0)", million, 64, 15625 * 65 - 2080, 15625 + 15625 - 64,
               million * 4097 - 4096 * 4097 / 2);
    check_size("(global(640)+window(64,64))&causal&window(64,100)", million, 64, 15625 * 2 - 1,
               15625 * 2 - 1, million * 65 - 64 * 65 / 2);
    check_size("window(1000,1000)", most, 65536, 32768 * 3 - 2, 32768 * 3 - 2,
               most * 2001 - 1000 * 1001);
    check_size("causal", most, most, 1, 1, most * half);
    check_size("dense", most, most, 1, 0, most * most);
    check_size("dense", most, 1 << 30, 4, 0, most * most);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terms),         cmocka_unit_test(test_random_density),
        cmocka_unit_test(test_random_ends),   cmocka_unit_test(test_random_row),
        cmocka_unit_test(test_shared_random), cmocka_unit_test(test_bigbird),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_errors),        cmocka_unit_test(test_long_specs),
        cmocka_unit_test(test_arguments),     cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
