/*
 * Sizes at which 32-bit arithmetic and N x N thinking break: a million tokens in little memory, and
 * 46,341 and 65,536 tokens (the roots of 2^31 and 2^32) with bitmask tiles, sampled rows held
 * against the oracle. And planning stays a small part of one run.
 */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <omp.h>
#include <sys/resource.h>

#include "lab/compare.h"
#include "lab/oracle.h"
#include "lab/rng.h"
#include "lab/timer.h"
#include "support.h"

#define SAMPLES 96
#define MEGABYTE 1e6

/* The first and last rows and others drawn at random, against the oracle. */
static void assert_samples_right(const struct setting *s, const tess_pattern *pattern,
                                 const char *name) {
    struct lab_place places[SAMPLES];
    for (int64_t x = 0; x < SAMPLES; x++) {
        places[x] = (struct lab_place){0, lab_below(s->c.seed, 1, (uint64_t)x, s->c.h),
                                       lab_below(s->c.seed, 2, (uint64_t)x, s->c.n)};
        if (x < 8)
            places[x].i = x < 4 ? x : s->c.n - 8 + x;
    }
    struct lab_oracle oracle;
    struct lab_report report;
    if (lab_oracle_run(&oracle, &s->q.view, &s->k.view, &s->v.view, pattern, s->c.scale, places,
                       SAMPLES) != 0)
        fail_msg("no memory for the oracle");
    lab_compare(&report, &oracle, &s->o.view, &s->lse.view, 256);
    lab_oracle_free(&oracle);
    if (!report.ok)
        fail_msg("%s", report.message);
    print_message("%s, n=%lld: %d rows right, worst error %.2f of the bound\n", name,
                  (long long)s->c.n, SAMPLES, report.worst);
}

static double peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

/* Runs first: the peak of the process is that of this test. */
static void million_tokens_in_little_memory(void **state) {
    (void)state;
    struct setting s;
    setting_make(&s, "h=1,n=1000000,d=64,pattern=window(256,256),block=64x64,seed=21");
    tess_pattern_info pattern = tess_pattern_info_init();
    tess_plan_info info = tess_plan_info_init();
    assert_int_equal(tess_pattern_describe(s.pattern, &pattern, NULL), TESS_OK);
    lab_tensor_poison(&s.o);
    double before = peak_bytes(), start = lab_seconds();

    tess_plan *plan = setting_plan(&s, NULL, TESS_FUSED, 0);
    double planned = lab_seconds();
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments arguments = setting_arguments(&s, &workspace);
    assert_int_equal(tess_run(plan, &arguments, NULL, NULL), TESS_OK);
    double ran = lab_seconds(), grown = peak_bytes() - before;

    double told = (double)pattern.memory_size + (double)info.memory_size + (double)workspace.size;
    print_message("a million tokens: plan %.2f s, run %.2f s; pattern %.1f, plan %.1f, workspace "
                  "%.1f MB; the process grew by %.1f MB\n",
                  planned - start, ran - planned, (double)pattern.memory_size / MEGABYTE,
                  (double)info.memory_size / MEGABYTE, (double)workspace.size / MEGABYTE,
                  grown / MEGABYTE);
    assert_true(told < 200 * MEGABYTE);
    assert_true((double)pattern.memory_size + grown < 200 * MEGABYTE);
    assert_int_equal(info.pairs, pattern.pairs);
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
    assert_samples_right(&s, s.pattern, s.c.pattern);
    setting_free(&s);
}

static void bitmasks_at_65536_tokens(void **state) {
    (void)state;
    struct setting s;
    setting_make(&s, "h=1,n=65536,d=16,pattern=dilated(40,3)+global_grid(3),block=64x64,seed=22");
    tess_pattern_info info = tess_pattern_info_init();
    assert_int_equal(tess_pattern_describe(s.pattern, &info, NULL), TESS_OK);
    assert_true(info.bitmask_tiles > 1024);
    for (int pipeline = 0; pipeline < 2; pipeline++) {
        setting_run(&s, NULL, (tess_pipeline)pipeline, 0);
        assert_samples_right(&s, s.pattern, s.c.pattern);
    }
    setting_free(&s);
}

/* The mask has more than 2^31 bytes; most of its pages are never written, so they cost nothing. */
static void mask_of_46341_tokens(void **state) {
    (void)state;
    struct setting s;
    setting_make(&s, "h=1,n=46341,d=16,pattern=dense,block=64x64,seed=23");
    size_t n = 46341;
    uint8_t *mask = calloc(n, n);
    assert_non_null(mask);
    for (size_t i = 0; i < n; i++)
        mask[i * n + i] = mask[i * n + i / 2] = mask[i * n + (i % 64 == 63 ? n - 1 : 0)] = 1;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = (int64_t)n;
    assert_int_equal(tess_pattern_from_mask(&pattern, mask, &shape, NULL), TESS_OK);
    free(mask);

    tess_pattern_info info = tess_pattern_info_init();
    assert_int_equal(tess_pattern_describe(pattern, &info, NULL), TESS_OK);
    assert_true(info.bitmask_tiles > 1000);
    setting_run(&s, pattern, TESS_FUSED, 0);
    assert_samples_right(&s, pattern, "a mask");
    tess_pattern_free(pattern);
    setting_free(&s);
}

static void planning_is_a_small_part_of_one_run(void **state) {
    (void)state;
    struct setting s;
    setting_make(&s, "h=8,n=16384,d=64,pattern=random(0.05,7),block=64x64,seed=24");
    omp_set_num_threads(1);
    double plan_seconds = 1e9, run_seconds;
    tess_plan *plan = NULL;
    for (int i = 0; i < 3; i++) { /* the least of three: the machine may be busy */
        tess_plan_free(plan);
        double start = lab_seconds();
        plan = setting_plan(&s, NULL, TESS_FUSED, 1);
        double seconds = lab_seconds() - start;
        plan_seconds = seconds < plan_seconds ? seconds : plan_seconds;
    }
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments arguments = setting_arguments(&s, &workspace);
    double start = lab_seconds();
    assert_int_equal(tess_run(plan, &arguments, NULL, NULL), TESS_OK);
    run_seconds = lab_seconds() - start;
    print_message("one thread: planning %.4f s, one run %.3f s: %.2f %%\n", plan_seconds,
                  run_seconds, 100 * plan_seconds / run_seconds);
    assert_true(plan_seconds < 0.05 * run_seconds);
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
    setting_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(million_tokens_in_little_memory),
        cmocka_unit_test(bitmasks_at_65536_tokens),
        cmocka_unit_test(mask_of_46341_tokens),
        cmocka_unit_test(planning_is_a_small_part_of_one_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
