/*
 * Patterns from words: every term against its definition in the header, written down a second time
 * here as a predicate; the errors of the reader by their places. Random terms: test_draw.c.
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
        {"windo(1,2)", 0, "no term is named 'windo': is window(left,right) meant?, at offset 0"},
        {"sliding_window(128)", 0, "'sliding_window': is window(left,right) meant?"},
        {"causal&BigBird(1)", 7, "'BigBird': is bigbird(w,g,r,seed) meant?"},
        {"frob", 0, "no term is named 'frob'; there are dense, causal, window,"},
        {"frob", 0, "random_row, shared_random, at offset 0"},
        {"a_name_that_is_far_too_long_for_any_term", 0, "'a_name_that_is_far_too_l...'; there are"},
        {"each", 0, "each(n1,n2,...; SPEC) takes 1 number or more, got 0"},
        {"each(10)", 7, "expected ',' or ';', not ')'"},
        {"each(10;causal", 14, "expected '+', '&' or ')', not the end"},
        {"each(10;)", 8, "expected a term"},
        {"each(60,30,11;dense)", 11, "documents take 101 tokens or more, but n_kv is 100"},
        {"each(60,0,30; segments(20,11))", 26, "segments take 31 tokens or more, but the shortest"},
        {"each(60,30; each(31; dense))", 17, "the shortest document has 30"},
        {"causal+", 7, "not the end"},
        {"causal+window(5)", 7, "window(left,right) takes 2 numbers, got 1, at offset 7"},
        {"window", 0, "window(left,right) takes 2 numbers, got 0"},
        {"window()", 0, "window(left,right) takes 2 numbers, got 0"},
        {"causal(1)", 0, "causal takes 0 numbers, got 1"},
        {"global(1,2)", 0, "global(n) takes 1 number, got 2"},
        {"segments()", 0, "segments(n1,n2,...) takes 1 number or more, got 0"},
        {"window(1,2", 10, "expected ',' or ')', not the end"},
        {"window(1;2)", 8, "expected ',' or ')', not ';2)'"},
        {"window(1,-2)", 9, "a number that is not negative"},
        {"window(-1,0)", 7,
         "not -1: no limit is written 100, all keys there are, and window(-1,0) causal"},
        {"global(4)+window(5,-1)", 19, "no limit is written 100"},
        {"window(-12,0)", 7, "not '-12,0)'"},
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
        {"Causal", 0, "is causal meant?"},
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
        cmocka_unit_test(test_terms),      cmocka_unit_test(test_each),
        cmocka_unit_test(test_errors),     cmocka_unit_test(test_long_specs),
        cmocka_unit_test(test_arguments),  cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_far_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
