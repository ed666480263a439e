/*
 * Patterns from words: every term against its definition in the header, written down a second time
 * here as a predicate. Random terms: test_random.c.
 */
#include "support/child.h"
#include "support/words.h"

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
    return k <= p && (p - k < a[0] || (p - k) % a[1] == 0);
}

static int fixed(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
    (void)n_kv;
    return k <= p && (k / a[0] == p / a[0] || k % a[0] >= a[0] - a[1]);
}

static int summary(int64_t p, int64_t k, int64_t n_kv, const int64_t *a) {
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
    return (blockdiag(p, k, n_kv, a) || summary(p, k, n_kv, a + 1)) &&
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
    {"strided(8,8)", strided, {8, 8}, 1},
    {"strided(0,3)", strided, {0, 3}, 1},
    {"strided(10,1)", strided, {10, 1}, 1},
    {"strided(3,1000)", strided, {3, 1000}, 1},
    {"fixed(8,2)", fixed, {8, 2}, 1},
    {"fixed(70,5)", fixed, {70, 5}, 1},
    {"fixed(13,0)", fixed, {13, 0}, 1},
    {"fixed(1,0)", fixed, {1, 0}, 1},
    {"fixed(9,9)", fixed, {9, 9}, 1},
    {"fixed(5,1e30)", fixed, {5, 5}, 1},
    {"fixed(1000,3)", fixed, {1000, 3}, 1},
    {"summary(4,8)", summary, {4, 8}, 1},
    {"summary(0,3)", summary, {0, 3}, 1},
    {"summary(10,1)", summary, {10, 1}, 1},
    {"summary(3,1000)", summary, {3, 1000}, 1},
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
    {"((blockdiag(16)+summary(3,5)))&(segments(20,30)+global_grid(4))",
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

/* Any term laid out in documents: what it says of a document's length, from its first token on. */
struct documents {
    struct context one;
    int64_t n[4]; /* tokens of each */
};

static int documents_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct documents *x = context;
    int64_t p = q + x->one.n_kv - x->one.n_q, begin = 0;
    (void)l;
    for (int d = 0; d < 4; begin += x->n[d++])
        if (begin <= p && p < begin + x->n[d])
            return begin <= k && k < begin + x->n[d] &&
                   x->one.c->listed(p - begin, k - begin, x->n[d], x->one.c->a);
    return 0;
}

static void test_each(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            int64_t n_kv = shapes[s][1];
            struct documents x = {{&cases[i], shapes[s][0], n_kv},
                                  {n_kv * 5 / 9, 0, n_kv / 3, n_kv > 3 ? 1 : 0}};
            char spec[400];
            int64_t shortest = n_kv;
            for (int d = 0; d < 4; d++)
                shortest = x.n[d] && x.n[d] < shortest ? x.n[d] : shortest;
            if (shortest < cases[i].least_kv)
                x.n[3] = 0, shortest = n_kv / 3;
            if (shortest < cases[i].least_kv)
                continue;
            /* every other one within a document that is the whole sequence */
            int used =
                snprintf(spec, sizeof spec, "each(%lld,%lld,%lld,%lld; %s)", (long long)x.n[0],
                         (long long)x.n[1], (long long)x.n[2], (long long)x.n[3], cases[i].spec);
            if (i % 2) {
                memmove(spec + 20, spec, (size_t)used + 1);
                memset(spec, ' ', 20);
                spec[snprintf(spec, 20, "each(0,%lld;", (long long)n_kv)] = ' ';
                strcat(spec, ")");
            }
            struct naive naive = {documents_listed, &x, spec};
            tess_pattern *p = make(spec, shapes[s], 1, 1);
            naive_check(&naive, p);
            tess_pattern_free(p);
        }
    }
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

/* Blocks that reach past the keys: as if they ended there, and no memory for the rest. */
static int far_blocks(const char *spec, int64_t block_kv) {
    tess_pattern_shape near = tess_pattern_shape_init(), far;
    tess_pattern *a = NULL, *b = NULL;
    near.n_q = 30, near.n_kv = 3, near.block_q = near.block_kv = 3;
    near.threads = 1; /* a team would not survive fork() */
    far = near;
    far.block_kv = block_kv;
    int failed = tess_pattern_from_spec(&a, spec, &near, NULL) ||
                 tess_pattern_from_spec(&b, spec, &far, NULL);
    for (int64_t q = 0; !failed && q < near.n_q; q++) {
        int64_t keys[2][3] = {{0}}, n[2];
        failed = tess_pattern_row(a, 0, 0, q, keys[0], 3, &n[0], NULL) ||
                 tess_pattern_row(b, 0, 0, q, keys[1], 3, &n[1], NULL) || n[0] != n[1] ||
                 memcmp(keys[0], keys[1], sizeof keys[0]);
    }
    tess_pattern_free(a);
    tess_pattern_free(b);
    return failed;
}

static int farthest_blocks(void) {
    return far_blocks("bigbird(4,1,1,1)", INT32_MAX); /* all masks turn out to be full */
}

static void test_far_blocks(void **state) {
    (void)state;
    assert_true(limited_holds(farthest_blocks, 256 << 20));
    assert_int_equal(far_blocks("dilated(1,2)+random(0.5,1)", 100), 0);
    assert_int_equal(far_blocks("dilated(1,2)", 1000), 0);
    assert_int_equal(far_blocks("segments(1,2)", 64), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_each),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_far_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
