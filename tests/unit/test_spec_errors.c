/* Words that are no pattern, by the place of their error; arguments that are none. */
#include "support/words.h"

#include <stdio.h>

static void errors_tell_their_place(void **state) {
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
        {"summary(1,0)", 10, "at least 1"},
        {"strided(1,0)", 10, "at least 1"},
        {"fixed(0,1)", 6, "at least 1"},
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
static void depth_is_limited_and_length_is_not(void **state) {
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

static void arguments_are_checked(void **state) {
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_tell_their_place),
        cmocka_unit_test(depth_is_limited_and_length_is_not),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
