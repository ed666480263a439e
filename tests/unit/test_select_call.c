/* tess_select on the CPU, and what it refuses on any backend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <omp.h>

#include "support/selecting.h"

static void choices_are_those_of_a_sort(void **state) {
    (void)state;
    choices_are_right(TESS_CPU, 3, 64);
    choices_are_right(TESS_CPU, 2, 777);
    choices_are_right(TESS_CPU, 1, 1);
}

static void edges(void **state) {
    (void)state;
    edges_are_right(TESS_CPU);
}

static void longest_rows(void **state) {
    (void)state;
    const struct choice c = {.size = {1, 1, 2, 1 << 20},
                             .selection = {sizeof(tess_selection), .k = 2048},
                             .capacity = 2048};
    choice_is_right(TESS_CPU, &c, 5);
}

static void lists(void **state) {
    (void)state;
    choices_are_lists(TESS_CPU);
}

static void any_number_of_threads_chooses_the_same(void **state) {
    (void)state;
    const struct choice c = {.type = TESS_BF16,
                             .size = {2, 3, 11, 501},
                             .selection = {sizeof(tess_selection), TESS_SELECT_TOP_P, .p = 0.7f}};
    const int threads = omp_get_max_threads();
    struct selecting s;
    uint64_t hash[4];
    selecting_make(&s, TESS_CPU, &c);
    for (int n = 1; n <= 4; n++) {
        selecting_draw(&s, 1);
        omp_set_num_threads(n);
        selecting_run(&s, NULL);
        hash[n - 1] = selecting_hash(&s);
        assert_true(hash[n - 1] == hash[0]);
    }
    omp_set_num_threads(threads);
    selecting_free(&s);
}

/* Results that are not right are found: so the tests above can fail. */
static void wrong_results_are_found(void **state) {
    (void)state;
    const struct choice c = {.size = {1, 1, 2, 100},
                             .scores = SCORES_EQUAL,
                             .selection = {sizeof(tess_selection), .k = 10},
                             .capacity = 20};
    char why[LAB_WHY];
    struct selecting s;
    selecting_make(&s, TESS_CPU, &c);
    int32_t *indices = s.selected.indices, *counts = s.selected.counts;
    uint64_t *bits = s.selected.bits;
    for (int bug = 0; bug < 7; bug++) {
        selecting_draw(&s, 1);
        selecting_run(&s, NULL);
        assert_int_equal(selecting_compare(&s, why), 0);
        switch (bug) {
        case 0: /* ties by arrival */
            indices[9] = 10, bits[0] ^= 3 << 9;
            break;
        case 1: /* not ascending */
            indices[0] = 1, indices[1] = 0;
            break;
        case 2: /* a bit past the end */
            bits[1] |= UINT64_C(1) << 36;
            break;
        case 3: /* ragged end of padding */
            indices[39] = 0;
            break;
        case 4:
            counts[1] = 11;
            break;
        case 5:
            s.selected.overflows[0] = 1;
            break;
        default: /* past the array */
            s.indices.data[s.indices.size] ^= 1;
        }
        assert_int_equal(selecting_compare(&s, why), -1);
    }
    s.indices.data[s.indices.size] ^= 1;
    selecting_free(&s);
}

/* ---- refusals ---- */

struct given {
    tess_selection selection;
    tess_tensor scores;
    tess_selected selected;
};

static float scores[6][128];
static int32_t indices[6 * 128];
static const uint64_t bits[12];

static struct given given_good(void) {
    struct given g = {.selection = tess_selection_init(),
                      .scores = tess_tensor_bhnd(scores, TESS_F32, 1, 2, 3, 128),
                      .selected = tess_selected_init()};
    g.selection.k = 5;
    g.selected.indices = indices;
    return g;
}

static void expect(tess_backend backend, const struct given *g, const char *argument,
                   const char *words) {
    tess_error error = tess_error_init();
    indices[0] = 77;
    assert_int_equal(tess_select(backend, &g->selection, &g->scores, &g->selected, &error, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.function, "tess_select");
    assert_string_equal(error.argument, argument);
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
    assert_int_equal(indices[0], 77);
}

static void bad_declarations_are_refused(void **state) {
    (void)state;
    struct given g = given_good();
    tess_error error = tess_error_init();
    assert_int_equal(tess_select(TESS_CPU, &g.selection, &g.scores, &g.selected, NULL, NULL),
                     TESS_OK);
    expect((tess_backend)7, &g, "backend", "backend is not");
#define REFUSED(argument, words, ...)                                                              \
    do {                                                                                           \
        g = given_good();                                                                          \
        __VA_ARGS__;                                                                               \
        expect(TESS_CPU, &g, argument, words);                                                     \
    } while (0)
    REFUSED("scores", "struct_size", g.scores.struct_size = 0);
    REFUSED("scores", "data is NULL", g.scores.data = NULL);
    REFUSED("scores", "type", g.scores.type = TESS_E4M3);
    REFUSED("scores", "aligned", g.scores.data = (char *)scores + 2);
    REFUSED("scores", "negative", g.scores.stride[2] = -1);
    REFUSED("scores", "last stride", g.scores.stride[3] = 2);
    REFUSED("scores", "1048576", g.scores.size[3] = (1 << 20) + 1);
    REFUSED("scores", "2^31 - 1", g.scores.size[1] = g.scores.size[0] = 1 << 16);
    REFUSED("selection", "struct_size", g.selection.struct_size = 0);
    REFUSED("selection", "mode is not", g.selection.mode = (tess_select_mode)3);
    REFUSED("selection", "k is 0", g.selection.k = 0);
    REFUSED("selection", "k is 129", g.selection.k = 129);
    REFUSED("selection", "no use", g.selection.mode = TESS_SELECT_TOP_P, g.selection.p = 1);
    REFUSED("selection", "p is not", g.selection.mode = TESS_SELECT_TOP_P);
    REFUSED("selection", "p is not", g.selection.mode = TESS_SELECT_TOP_P, g.selection.p = NAN);
    REFUSED("selection", "threshold is NaN", g.selection.mode = TESS_SELECT_THRESHOLD,
            g.selection.threshold = NAN);
    REFUSED("selection", "keep_first is 129", g.selection.keep_first = 129);
    REFUSED("selection", "keep_last is -1", g.selection.keep_last = -1);
    REFUSED("selection", "block_q is -1", g.selection.block_q = -1);
    REFUSED("selection", "block_kv", g.selection.block_kv = 1 << 25);
    REFUSED("selection", "causal is 2", g.selection.causal = 2);
    REFUSED("selection", "n_q is 4", g.selection.n_q = 4);
    REFUSED("selection", "n_kv is 127", g.selection.n_kv = 127);
    REFUSED("selection", "keep_rows is 2", g.selection.keep = bits, g.selection.keep_rows = 2);
    REFUSED("selection", "keep_rows is 0", g.selection.keep = bits);
    REFUSED("selection", "aligned",
            g.selection.lengths = (const int32_t *)(const void *)((const char *)indices + 1));
    REFUSED("selected", "struct_size", g.selected.struct_size = 0);
    REFUSED("selected", "one of them", g.selected.indices = NULL);
    REFUSED("selected", "capacity is 129", g.selected.capacity = 129);
    REFUSED("selected", "capacity is 4, not in k", g.selected.capacity = 4);
    REFUSED("selected", "counts is not aligned",
            g.selected.counts = (int32_t *)(void *)((char *)indices + 2));
#undef REFUSED
    g = given_good();
    assert_int_equal(tess_select(TESS_CPU, NULL, &g.scores, &g.selected, &error, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "selection");
    assert_int_equal(tess_select(TESS_CPU, &g.selection, NULL, &g.selected, &error, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "scores");
    assert_int_equal(tess_select(TESS_CPU, &g.selection, &g.scores, NULL, &error, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "selected");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_those_of_a_sort),
        cmocka_unit_test(edges),
        cmocka_unit_test(longest_rows),
        cmocka_unit_test(lists),
        cmocka_unit_test(any_number_of_threads_chooses_the_same),
        cmocka_unit_test(wrong_results_are_found),
        cmocka_unit_test(bad_declarations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
