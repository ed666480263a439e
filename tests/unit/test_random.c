/* Random terms, by their counts: how many blocks are drawn, which are shared, and that a seed draws
 * the same on any number of threads. */
#include "support/words.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_density), cmocka_unit_test(test_random_ends),
        cmocka_unit_test(test_random_row),     cmocka_unit_test(test_shared_random),
        cmocka_unit_test(test_bigbird),        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
