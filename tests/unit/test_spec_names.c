/* Names that are no term's: what is said to be meant by them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tessera.h"

/* A spec as messages write it, "a(n1,n2,...)&b(left,0)", with numbers: "a(1,1)&b(1,0)". */
static void numbered(char *spec, const char *written) {
    int inside = 0;
    for (const char *c = written; *c; c++) {
        inside = *c == '(' || (inside && *c != ')');
        const int letter = inside && *c >= 'a' && *c <= 'z';
        if (letter && strchr("(,", c[-1]))
            *spec++ = '1';
        else if (!inside || strchr("(0", *c) || (*c == ',' && c[1] != '.'))
            *spec++ = *c;
    }
    *spec = 0;
}

/* Specs that names are said to mean are specs once letters are numbers. */
static void names_from_elsewhere_are_told_in_terms(void **state) {
    (void)state;
    static const struct {
        const char *name, *meant;
    } names[] = {
        {"local", "window(left,right)"},
        {"sliding", "window(left,right)"},
        {"SlidingWindow", "window(left,right)"},
        {"anticausal", "window(0,n)"},
        {"anti_causal", "window(0,n)"},
        {"chunk_causal", "blockdiag(w)&causal"},
        {"chunked", "blockdiag(w)"},
        {"block_diag", "blockdiag(w)"},
        {"prefix_lm", "causal+segments(n)"},
        {"streaming_llm", "window(left,0)+global(n)&causal"},
        {"documents", "segments(n1,n2,...)"},
        {"full", "dense"},
        {"tril", "causal"},
        {"casual", "causal"},
        {"causl", "causal"},
        {"wnidow", "window(left,right)"},
        {"big_bird", "bigbird(w,g,r,seed)"},
        {"randomrow", "random_row(keep,seed)"},
    };
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = 100;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char words[120], spec[60];
        tess_error error = tess_error_init();
        tess_pattern *pattern;
        snprintf(words, sizeof words, "no term is named '%s': is %s meant?", names[i].name,
                 names[i].meant);
        snprintf(spec, sizeof spec, "%s(1)", names[i].name);
        assert_int_equal(tess_pattern_from_spec(&pattern, spec, &shape, &error),
                         TESS_INVALID_ARGUMENT);
        if (!strstr(error.message, words))
            fail_msg("'%s' does not say '%s'", error.message, words);
        numbered(spec, names[i].meant);
        if (tess_pattern_from_spec(&pattern, spec, &shape, &error))
            fail_msg("'%s' of '%s': %s", spec, names[i].meant, error.message);
        tess_pattern_free(pattern);
    }
}

/* Names that are near to none have all terms told. */
static void far_names_are_not_guessed(void **state) {
    (void)state;
    static const char *const names[] = {"loco", "noncausal",   "rand",
                                        "glib", "each_causal", "a_window_of_the_global_grid"};
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = 100;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tess_error error = tess_error_init();
        tess_pattern *pattern;
        assert_int_equal(tess_pattern_from_spec(&pattern, names[i], &shape, &error),
                         TESS_INVALID_ARGUMENT);
        if (!strstr(error.message, "; there are dense, causal, window"))
            fail_msg("'%s': '%s'", names[i], error.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_from_elsewhere_are_told_in_terms),
        cmocka_unit_test(far_names_are_not_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
