/*
 * Patterns put together of documents, and parts taken out of patterns: each element against the
 * pattern that it came from. What `each` draws. Its terms without draws: test_spec.c.
 */
#include "support/words.h"

#include <omp.h>
#include <stdio.h>
#include <time.h>

/* Does a pattern's own list (batch, head) list key k for query q? One of either serves all. */
static int sees(const tess_pattern *p, int64_t batch, int64_t head, int64_t q, int64_t k) {
    int64_t keys[512], n;
    assert_int_equal(tess_pattern_row(p, batch, head, q, keys, 512, &n, NULL), TESS_OK);
    assert_true(n <= 512);
    for (int64_t i = 0; i < n; i++)
        if (keys[i] == k)
            return 1;
    return 0;
}

/* ---- concat ---------------------------------------------------------------------------------- */

struct parts {
    const tess_pattern *at[4];
    int64_t count, heads;
};

static int parts_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct parts *x = context;
    for (int64_t i = 0; i < x->count; i++) {
        tess_lists m = lists_of(x->at[i]);
        if (q < m.n_q)
            return 0 <= k && k < m.n_kv && sees(x->at[i], l / x->heads, l % x->heads, q, k);
        q -= m.n_q, k -= m.n_kv;
    }
    return 0;
}

static void check_concat(struct parts *x, const char *name) {
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    if (tess_pattern_concat(&p, x->at, x->count, &error) != TESS_OK)
        fail_msg("%s: %s", name, error.message);
    tess_lists m = lists_of(p), first = lists_of(x->at[0]);
    x->heads = m.heads;
    int64_t n_q = 0, n_kv = 0;
    for (int64_t i = 0; i < x->count; i++)
        n_q += lists_of(x->at[i]).n_q, n_kv += lists_of(x->at[i]).n_kv;
    assert_int_equal(m.n_q, n_q);
    assert_int_equal(m.n_kv, n_kv);
    assert_int_equal(m.block_q, first.block_q);
    assert_int_equal(m.block_kv, first.block_kv);
    struct naive naive = {parts_listed, x, name};
    naive_check(&naive, p);
    tess_pattern_free(p);
}

static void test_concat(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t count;
        struct {
            const char *spec;
            int64_t shape[4], batch, heads;
        } part[4];
    } concats[] = {
        {"one", 1, {{"causal", {37, 50, 8, 8}, 1, 1}}},
        {"aligned",
         3,
         {{"causal", {64, 64, 16, 16}, 1, 1},
          {"window(9,3)+random(0.4,1)", {32, 48, 16, 16}, 1, 1},
          {"global(3)&dilated(9,2)", {30, 20, 16, 16}, 1, 1}}},
        {"unaligned",
         4,
         {{"causal", {50, 41, 16, 16}, 1, 1},
          {"dense", {3, 2, 16, 16}, 1, 1},
          {"dense", {1, 90, 16, 16}, 1, 1},
          {"window(20,5)+dilated(9,7)", {83, 77, 16, 16}, 1, 1}}},
        {"many in a tile",
         4,
         {{"dense", {5, 5, 64, 64}, 1, 1},
          {"causal", {7, 7, 64, 64}, 1, 1},
          {"segments(1)", {9, 9, 64, 64}, 1, 1},
          {"dense", {11, 11, 64, 64}, 1, 1}}},
        {"empty in between",
         3,
         {{"dense", {20, 20, 8, 8}, 1, 1},
          {"random(0,1)", {40, 40, 8, 8}, 1, 1},
          {"dense", {20, 20, 8, 8}, 1, 1}}},
        {"other blocks",
         4,
         {{"causal", {61, 61, 5, 7}, 1, 1},
          {"summary(3,8)", {40, 33, 1, 1}, 1, 1},
          {"window(30,30)", {70, 70, 64, 64}, 1, 1},
          {"random(0.3,2)", {30, 130, 3, 64}, 1, 1}}},
        {"small of large",
         2,
         {{"causal", {150, 150, 1, 1}, 1, 1}, {"window(70,70)", {150, 150, 128, 128}, 1, 1}}},
        {"lists",
         3,
         {{"random(0.5,1)", {20, 20, 8, 8}, 2, 3},
          {"causal", {21, 22, 8, 8}, 1, 1},
          {"random(0.5,1)", {20, 20, 8, 8}, 2, 3}}},
    };
    for (size_t c = 0; c < sizeof concats / sizeof *concats; c++) {
        struct parts x = {.count = concats[c].count};
        tess_pattern *made[4];
        for (int64_t i = 0; i < x.count; i++)
            x.at[i] = made[i] = make(concats[c].part[i].spec, concats[c].part[i].shape,
                                     concats[c].part[i].batch, concats[c].part[i].heads);
        check_concat(&x, concats[c].name);
        for (int64_t i = 0; i < x.count; i++)
            tess_pattern_free(made[i]);
    }
}

/* `each` is the concatenation of what its documents are by themselves, array for array. */
static void test_concat_is_each(void **state) {
    (void)state;
    static const char *const specs[] = {"dense", "causal&window(20,0)+global(5)", "summary(3,7)",
                                        "blockdiag(9)+global_grid(4)", "longformer(16,3)"};
    const int64_t blocks[][2] = {{64, 64}, {8, 8}, {1, 1}, {5, 7}, {1, 32}, {128, 1}};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
            const int64_t n[] = {70, 33, 128, 50};
            tess_pattern *made[4], *all = NULL;
            char spec[100];
            for (int i = 0; i < 4; i++)
                made[i] = make(specs[s], (int64_t[]){n[i], n[i], blocks[k][0], blocks[k][1]}, 1, 1);
            snprintf(spec, sizeof spec, "each(70,33,128,50;%s)", specs[s]);
            tess_pattern *each =
                make(spec, (int64_t[]){281, 281, blocks[k][0], blocks[k][1]}, 1, 1);
            assert_int_equal(tess_pattern_concat(&all, (const tess_pattern *const *)made, 4, NULL),
                             TESS_OK);
            if (!naive_same(all, each))
                fail_msg("%s", spec);
            tess_pattern_free(all);
            tess_pattern_free(each);
            for (int i = 0; i < 4; i++)
                tess_pattern_free(made[i]);
        }
    }
}

static void test_concat_arguments(void **state) {
    (void)state;
    tess_pattern *p = NULL, *one = make("causal", (int64_t[]){20, 20, 8, 8}, 1, 1);
    tess_pattern *two = make("random(1,1)", (int64_t[]){20, 20, 8, 8}, 2, 1);
    tess_pattern *three = make("random(1,1)", (int64_t[]){20, 20, 8, 8}, 3, 1);
    tess_pattern *far = make("causal", (int64_t[]){INT32_MAX, 1, INT32_MAX, INT32_MAX}, 1, 1);
    const tess_pattern *good[] = {one, two}, *null[] = {one, NULL}, *batches[] = {two, three},
                       *large[] = {far, one};
    const struct {
        tess_pattern **out;
        const tess_pattern *const *parts;
        int64_t count;
        const char *argument, *message;
    } wrong[] = {
        {NULL, good, 2, "pattern", "is NULL"},
        {&p, NULL, 2, "parts", "is NULL"},
        {&p, null, 2, "parts", "parts[1] is NULL"},
        {&p, good, 0, "count", "count is 0"},
        {&p, good, -1, "count", "count is -1"},
        {&p, batches, 2, "parts", "batch is 3 in parts[1], but 2 before it"},
        {&p, large, 2, "parts", "n_q is 2147483667"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_error error = tess_error_init();
        p = one;
        assert_int_equal(tess_pattern_concat(wrong[i].out, wrong[i].parts, wrong[i].count, &error),
                         TESS_INVALID_ARGUMENT);
        assert_string_equal(error.function, "tess_pattern_concat");
        assert_string_equal(error.argument, wrong[i].argument);
        if (!strstr(error.message, wrong[i].message))
            fail_msg("%s", error.message);
        if (wrong[i].out)
            assert_null(p);
    }
    tess_pattern_free(one);
    tess_pattern_free(two);
    tess_pattern_free(three);
    tess_pattern_free(far);
}

/* ---- select ---------------------------------------------------------------------------------- */

struct selection {
    const tess_pattern *whole;
    int64_t query, key, heads;
};

static int selection_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct selection *x = context;
    return sees(x->whole, l / x->heads, l % x->heads, q + x->query, k + x->key);
}

static void test_select(void **state) {
    (void)state;
    const struct {
        const char *spec;
        int64_t shape[4], batch, heads;
    } wholes[] = {
        {"causal&window(30,0)+global(5)", {150, 150, 64, 64}, 1, 1},
        {"window(9,30)+dilated(5,7)", {150, 130, 16, 16}, 1, 1},
        {"random(0.4,1)", {120, 150, 8, 16}, 2, 3},
        {"summary(5,9)", {90, 140, 5, 7}, 1, 1},
        {"dense", {100, 100, 1, 1}, 1, 1},
        {"each(70,80;bigbird(9,3,1,1))", {150, 150, 16, 16}, 1, 2},
    };
    const double ranges[][2] = {{0, 1}, {0, 0.5}, {0.4, 1}, {0.21, 0.77}, {0.5, 0.52}};
    for (size_t w = 0; w < sizeof wholes / sizeof *wholes; w++) {
        tess_pattern *whole =
            make(wholes[w].spec, wholes[w].shape, wholes[w].batch, wholes[w].heads);
        tess_lists m = lists_of(whole);
        for (int i = 0; i < 25; i++) {
            const double *q = ranges[i % 5], *k = ranges[i / 5];
            int64_t q0 = (int64_t)(q[0] * (double)m.n_q), q1 = (int64_t)(q[1] * (double)m.n_q);
            int64_t k0 = (int64_t)(k[0] * (double)m.n_kv), k1 = (int64_t)(k[1] * (double)m.n_kv);
            struct selection x = {whole, q0, k0, m.heads};
            struct naive naive = {selection_listed, &x, wholes[w].spec};
            tess_pattern *part = NULL;
            assert_int_equal(tess_pattern_select(&part, whole, q0, q1, k0, k1, NULL), TESS_OK);
            tess_lists own = lists_of(part);
            assert_int_equal(own.n_q, q1 - q0);
            assert_int_equal(own.n_kv, k1 - k0);
            assert_int_equal(own.batch * own.heads, m.batch * m.heads);
            naive_check(&naive, part);
            if (i == 0)
                assert_true(naive_same(part, whole));
            tess_pattern_free(part);
        }
        tess_pattern_free(whole);
    }
}

/* A million tokens: time goes with the tiles, of which the band of each row must be found at once. */
static void test_select_size(void **state) {
    (void)state;
    const int64_t million = 1000000, shape[] = {million, million, 64, 64};
    tess_pattern *whole = make("each(400000,600000; window(256,256)+global(4))", shape, 1, 1);
    tess_pattern *part = NULL;
    tess_pattern_info info = tess_pattern_info_init();
    clock_t start = clock();
    assert_int_equal(tess_pattern_select(&part, whole, 400100, 900100, 400100, 900100, NULL),
                     TESS_OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_int_equal(tess_pattern_describe(part, &info, NULL), TESS_OK);
    /* the global tokens and the document's beginning are left out */
    assert_int_equal(info.pairs, 500000 * INT64_C(513) - 256 * 257);
    print_message("select: %.3f s of processor time\n", seconds);
    if (seconds > 2)
        fail_msg("%g s", seconds);
    tess_pattern_free(part);
    tess_pattern_free(whole);
}

static void test_select_arguments(void **state) {
    (void)state;
    tess_pattern *p = NULL, *a = make("causal", (int64_t[]){20, 30, 8, 8}, 1, 1);
    const struct {
        tess_pattern **out;
        const tess_pattern *a;
        int64_t range[4];
        const char *argument;
    } wrong[] = {
        {NULL, a, {0, 1, 0, 1}, "pattern"},          {&p, NULL, {0, 1, 0, 1}, "a"},
        {&p, a, {-1, 1, 0, 1}, "query_begin"},       {&p, a, {20, 21, 0, 1}, "query_begin"},
        {&p, a, {5, 5, 0, 1}, "query_end"},          {&p, a, {5, 4, 0, 1}, "query_end"},
        {&p, a, {0, 21, 0, 1}, "query_end"},         {&p, a, {0, INT64_MAX, 0, 1}, "query_end"},
        {&p, a, {0, 20, INT64_MIN, 1}, "key_begin"}, {&p, a, {0, 20, 30, 31}, "key_begin"},
        {&p, a, {0, 20, 0, 0}, "key_end"},           {&p, a, {0, 20, 0, 31}, "key_end"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_error error = tess_error_init();
        const int64_t *r = wrong[i].range;
        p = a;
        assert_int_equal(
            tess_pattern_select(wrong[i].out, wrong[i].a, r[0], r[1], r[2], r[3], &error),
            TESS_INVALID_ARGUMENT);
        assert_string_equal(error.function, "tess_pattern_select");
        assert_string_equal(error.argument, wrong[i].argument);
        if (wrong[i].out)
            assert_null(p);
    }
    tess_pattern_free(a);
}

/* ---- what `each` draws ------------------------------------------------------------------------ */

/* Documents of whole blocks: each has its own draw, the first that of a pattern of its length. */
static void test_each_draws(void **state) {
    (void)state;
    static const char *const specs[] = {"random(0.4,9)", "random_row(0.25,9)",
                                        "shared_random(0.25,0.5,9)", "bigbird(0,0,5,9)"};
    const int64_t whole[] = {512, 512, 8, 8}, own[] = {256, 256, 8, 8};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        char spec[80];
        tess_pattern *at[3], *part;
        snprintf(spec, sizeof spec, "each(256,256; %s)", specs[s]);
        tess_pattern *p = make(spec, whole, 1, 1);
        for (int i = 0; i < 2; i++)
            assert_int_equal(tess_pattern_select(&at[i], p, 256 * i, 256 * (i + 1), 256 * i,
                                                 256 * (i + 1), NULL),
                             TESS_OK);
        at[2] = make(specs[s], own, 1, 1);
        assert_true(naive_same(at[0], at[2]));
        assert_false(naive_same(at[0], at[1]));
        /* nothing across */
        assert_int_equal(tess_pattern_select(&part, p, 0, 256, 256, 512, NULL), TESS_OK);
        assert_int_equal(lists_of(part).n_tiles, 0);
        tess_pattern_free(part);
        assert_int_equal(lists_of(at[0]).n_tiles + lists_of(at[1]).n_tiles, lists_of(p).n_tiles);
        for (int i = 0; i < 3; i++)
            tess_pattern_free(at[i]);
        tess_pattern_free(p);
    }
}

/* Documents that end within blocks: all queries of a block row and document see the same of each block,
 * which is all that the document has of it or nothing. The rule says of how many blocks. */
static void test_each_draws_cut(void **state) {
    (void)state;
    enum { BLOCK = 8, N = 150 };
    const int64_t begin[] = {0, 50, 75, 78, 150}, shape[] = {N, N, BLOCK, BLOCK};
    tess_pattern *p = make("each(50,25,3,72; random_row(0.5,4))", shape, 1, 1);
    for (int d = 0; d < 4; d++) {
        int64_t col0 = begin[d] / BLOCK, cols = (begin[d + 1] - 1) / BLOCK - col0 + 1;
        for (int64_t q = begin[d]; q < begin[d + 1]; q++) {
            int64_t keys[N], before[N], n, n_before, blocks = 0;
            assert_int_equal(tess_pattern_row(p, 0, 0, q, keys, N, &n, NULL), TESS_OK);
            for (int64_t j = col0; j < col0 + cols; j++) {
                int64_t first = j * BLOCK < begin[d] ? begin[d] : j * BLOCK;
                int64_t end = (j + 1) * BLOCK > begin[d + 1] ? begin[d + 1] : (j + 1) * BLOCK;
                int64_t in_block = 0;
                for (int64_t i = 0; i < n; i++)
                    in_block += first <= keys[i] && keys[i] < end;
                assert_true(in_block == 0 || in_block == end - first);
                blocks += in_block > 0;
            }
            assert_int_equal(blocks, (cols + 1) / 2);
            for (int64_t i = 0; i < n; i++)
                assert_true(begin[d] <= keys[i] && keys[i] < begin[d + 1]);
            if (q == begin[d] || q % BLOCK == 0)
                continue;
            assert_int_equal(tess_pattern_row(p, 0, 0, q - 1, before, N, &n_before, NULL), TESS_OK);
            assert_int_equal(n, n_before);
            assert_memory_equal(keys, before, (size_t)n * sizeof *keys);
        }
    }
    tess_pattern_free(p);
}

/* Any number of threads builds the same. */
static void test_threads(void **state) {
    (void)state;
    const int64_t shape[] = {900, 900, 16, 16};
    const char *spec = "each(70,330,500; bigbird(20,4,1,1)&causal)+each(900; window(3,0))";
    int threads = omp_get_max_threads();
    tess_pattern *made[2], *all[2], *part[2];
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? 7 : 1);
        made[i] = make(spec, shape, 1, 2);
        const tess_pattern *parts[] = {made[i], made[i], made[i]};
        assert_int_equal(tess_pattern_concat(&all[i], parts, 3, NULL), TESS_OK);
        assert_int_equal(tess_pattern_select(&part[i], all[i], 7, 2000, 11, 2700, NULL), TESS_OK);
    }
    omp_set_num_threads(threads);
    assert_true(naive_same(made[0], made[1]));
    assert_true(naive_same(all[0], all[1]));
    assert_true(naive_same(part[0], part[1]));
    for (int i = 0; i < 2; i++) {
        tess_pattern_free(made[i]);
        tess_pattern_free(all[i]);
        tess_pattern_free(part[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_concat),           cmocka_unit_test(test_concat_is_each),
        cmocka_unit_test(test_concat_arguments), cmocka_unit_test(test_select),
        cmocka_unit_test(test_select_size),      cmocka_unit_test(test_select_arguments),
        cmocka_unit_test(test_each_draws),       cmocka_unit_test(test_each_draws_cut),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
