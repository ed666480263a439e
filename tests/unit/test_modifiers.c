/*
 * Score modifiers on the CPU: cases against the oracle, the words of dropout, slices of a whole
 * problem, sinks at their ends, what is off, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/fill/philox.h"
#include "lab/fill/rng.h"
#include "support/modified.h"

static void right_within_the_bounds(void **state) {
    (void)state;
    cases_are_right("tests/cases/modifiers.txt", TESS_CPU);
}

/* ---- dropout's words ---- */

/* Answers of the authors' table, for seven rounds. */
static void philox_is_philox(void **state) {
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t c[4];
        memcpy(c, known[i].counter, sizeof c);
        lab_philox(c, (uint64_t)known[i].key[1] << 32 | known[i].key[0]);
        assert_memory_equal(c, known[i].words, sizeof c);
    }
}

/* Weights are kept as often as they ought to be, to 4 sigma, in all and by words of a call. */
static void the_rate_is_kept(void **state) {
    static const int64_t dropped[] = {1, 655, 6554, 32768, 65535};
    enum { N = 1024 };
    (void)state;
    for (size_t t = 0; t < sizeof dropped / sizeof *dropped; t++) {
        const double p = (double)dropped[t] / 65536;
        int64_t lost[9] = {0};
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t j = 0; j < N; j++) {
                const int drops = lab_draw(7 + t, 3, i, j) < (uint32_t)dropped[t];
                lost[8] += drops;
                lost[4 * (i / 8 % 2) + 2 * (j / 8 % 2) + j % 2] += drops;
            }
        for (int w = 0; w <= 8; w++) {
            const double n = w == 8 ? N * N : N * N / 8;
            assert_true(fabs((double)lost[w] - n * p) <= 4 * sqrt(n * p * (1 - p)));
        }
    }
}

static void every_way_of_the_cpu(void **state) {
    (void)state;
    every_way_drops_the_same(TESS_CPU);
}

static void slices(void **state) {
    (void)state;
    slices_are_of_the_whole(TESS_CPU);
}

static void positions(void **state) {
    (void)state;
    positions_may_be_given(TESS_CPU);
}

static void gradients_of_slices(void **state) {
    (void)state;
    gradients_of_slices_are_of_the_whole(TESS_CPU);
}

/* ---- ends ---- */

static void sinks_at_their_ends(void **state) {
    (void)state;
    sinks_stand_at_their_ends(TESS_CPU);
}

/* A problem that modifies nothing runs as if there were no modifiers, wherever it says that it lies. */
static void what_is_off_changes_no_bit(void **state) {
    (void)state;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting s;
        setting_make(&s, "h=2,n=80,nkv=120,d=32");
        setting_run(&s, NULL, (tess_pipeline)pipeline, 1);
        const uint64_t o = lab_buffer_hash(&s.o.buffer), lse = lab_buffer_hash(&s.lse.buffer);
        lab_tensor_poison(&s.o);
        lab_tensor_poison(&s.lse);
        struct lab_setting part = s; /* a slice of 9 heads, 100 queries and 150 keys */
        part.c.h = part.c.hkv = 9, part.c.n = 100, part.c.nkv = 150;
        slice_run(&part, &(struct slice){0, 1, 0, 2, 0, 80, 0, 120, NULL}, TESS_CPU,
                  (tess_pipeline)pipeline);
        assert_true(o == lab_buffer_hash(&s.o.buffer) && lse == lab_buffer_hash(&s.lse.buffer));
        lab_setting_free(&s);
    }
}

/* ---- what is refused ---- */

static void problems_are_refused(void **state) {
    static const struct {
        const char *words;
        tess_problem set;
    } faults[] = {
        {"softcap", {.softcap = -1}},
        {"softcap", {.softcap = (double)NAN}},
        {"softcap", {.softcap = (double)INFINITY}},
        {"softcap", {.softcap = 0x1p65}},
        {"softcap", {.softcap = 0x1p-65}},
        {"alibi", {.alibi = 2}},
        {"alibi", {.alibi = -1}},
        {"sink", {.sink = 2}},
        {"dropout", {.dropout = 1}},
        {"dropout", {.dropout = -0.1}},
        {"dropout", {.dropout = (double)NAN}},
        {"dropout", {.dropout = 0.99999}},
        {"key_positions", {.key_positions = 2}},
        {"key_offset is given beside", {.key_positions = 1, .key_offset = 1}},
        {"offset of its batches", {.batch_offset = -1}},
        {"offset of its batches", {.batch_offset = INT64_C(1) << 32}},
        {"offset of its query heads is 1, not 0: the whole problem has 2, of which these are 2",
         {.head_offset = 1}},
        {"offset of its query heads", {.head_offset = INT64_MAX, .whole_heads_q = 4}},
        {"has -1 query heads, not 2 ...", {.whole_heads_q = -1}},
        {"offset of its queries is 1, not 0: the whole problem has 10", {.query_offset = 1}},
        {"offset of its queries is -1, not 0 ... 90", {.query_offset = -1, .whole_n_q = 100}},
        {"has 5 queries", {.whole_n_q = 5}},
        {"has 2147483648 queries", {.whole_n_q = INT64_C(1) << 31}},
        {"offset of its keys", {.key_offset = 1}},
        {"keys, not 10 ...", {.whole_n_kv = INT64_MIN}},
    };
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    (void)state;
    shape.n_q = 10;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, NULL));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        tess_error error = tess_error_init();
        tess_problem p = faults[i].set;
        tess_plan *plan;
        p.struct_size = sizeof p;
        p.batch = 1, p.heads_q = p.heads_kv = 2, p.n_q = p.n_kv = 10, p.d_qk = p.d_v = 8;
        assert_int_equal(TESS_INVALID_ARGUMENT, tess_plan_create(&plan, &p, pattern, NULL, &error));
        if (!strstr(error.message, faults[i].words))
            fail_msg("fault %d: '%s' does not say %s", (int)i, error.message, faults[i].words);
    }
    tess_pattern_free(pattern);
}

static void arguments_are_refused(void **state) {
    static const struct {
        const char *name, *option;
    } arrays[] = {{"alibi", "alibi=1"}, {"sink", "sink=1"}, {"seed", "dropout=0.5"}};
    (void)state;
    for (int a = 0; a < 3; a++) {
        struct lab_setting plain, s;
        char text[LAB_CASE_TEXT];
        tess_error error = tess_error_init();
        snprintf(text, sizeof text, "h=2,n=10,d=8,%s", arrays[a].option);
        setting_make(&plain, "h=2,n=10,d=8");
        setting_make(&s, text);
        tess_plan *without = setting_plan(&plain, NULL, TESS_FUSED, 1);
        tess_plan *with = setting_plan(&s, NULL, TESS_FUSED, 1);
        struct lab_buffer workspace = setting_workspace(with);
        tess_arguments given = setting_arguments(&s, &workspace);
        assert_int_equal(TESS_INVALID_ARGUMENT, tess_run(without, &given, &error, NULL));
        assert_string_equal(error.argument, arrays[a].name);
        const char *const at = a == 0   ? (const char *)given.alibi
                               : a == 1 ? (const char *)given.sink
                                        : (const char *)given.seed;
        for (int misaligned = 0; misaligned < 2; misaligned++) {
            const void *bad = misaligned ? at + 2 : NULL;
            if (a == 0)
                given.alibi = bad;
            else if (a == 1)
                given.sink = bad;
            else
                given.seed = bad;
            error = tess_error_init();
            assert_int_equal(TESS_INVALID_ARGUMENT, tess_run(with, &given, &error, NULL));
            assert_string_equal(error.argument, arrays[a].name);
        }
        lab_buffer_free(&workspace);
        tess_plan_free(with);
        tess_plan_free(without);
        lab_setting_free(&plain);
        lab_setting_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_within_the_bounds),
        cmocka_unit_test(philox_is_philox),
        cmocka_unit_test(the_rate_is_kept),
        cmocka_unit_test(every_way_of_the_cpu),
        cmocka_unit_test(slices),
        cmocka_unit_test(positions),
        cmocka_unit_test(gradients_of_slices),
        cmocka_unit_test(sinks_at_their_ends),
        cmocka_unit_test(what_is_off_changes_no_bit),
        cmocka_unit_test(problems_are_refused),
        cmocka_unit_test(arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
