/*
 * Sizes at which 32-bit arithmetic and N x N memory break: a million tokens in little memory; masks,
 * bitmasks and tensors whose offsets pass 2^31 and 2^32. Patterns are held against predicates, sampled
 * rows against the oracle. Planning stays a small part of one run.
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
#include <sys/mman.h>
#include <sys/resource.h>

#include "lab/check/compare.h"
#include "lab/oracle/oracle.h"
#include "lab/fill/rng.h"
#include "lab/lists/source.h"
#include "lab/device/timer.h"
#include "lab/fill/half.h"
#include "support/support.h"

#define SAMPLES 96
#define MEGABYTE 1e6

/* The first and last rows and others drawn at random, against the oracle. */
static void assert_samples_right(const struct lab_setting *s, const tess_pattern *pattern,
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
    const struct lab_scoring scoring = lab_modifiers_scoring(&s->modifiers, &s->c);
    if (lab_oracle_run(&oracle, &s->q.view, &s->k.view, &s->v.view, pattern, &scoring, places,
                       SAMPLES) != 0)
        fail_msg("no memory for the oracle");
    lab_compare(&report, &oracle, &s->o.view, &s->lse.view, 256);
    lab_oracle_free(&oracle);
    if (!report.ok)
        fail_msg("%s", report.message);
    print_message("%s, n=%lld: %d rows right, worst error %.2f of the bound\n", name,
                  (long long)s->c.n, SAMPLES, report.worst);
}

/* Zero pages, of which only those that are written cost memory. Ends the test without them. */
static void *pages_make(size_t size) {
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        fail_msg("no %zu bytes of address space", size);
    madvise(pages, size, MADV_NOHUGEPAGE); /* a kernel without huge pages refuses, rightly */
    return pages;
}

/* Does query q list key k? */
typedef int listed_fn(const void *context, int64_t q, int64_t k);

/* Rows of the pattern, every `step`-th and the last, hold exactly the keys that are listed. */
static void assert_rows_list(const tess_pattern *pattern, int64_t n, int64_t step,
                             listed_fn *listed, const void *context) {
    int64_t *keys = malloc((size_t)n * sizeof *keys), count;
    assert_non_null(keys);
    for (int64_t q = 0; q < n; q = q + step < n || q == n - 1 ? q + step : n - 1) {
        assert_int_equal(tess_pattern_row(pattern, 0, 0, q, keys, n, &count, NULL), TESS_OK);
        int64_t at = 0;
        for (int64_t k = 0; k < n; k++)
            if (listed(context, q, k) && (at == count || keys[at++] != k))
                fail_msg("row %lld does not list key %lld", (long long)q, (long long)k);
        if (at != count)
            fail_msg("row %lld lists %lld keys instead of %lld", (long long)q, (long long)count,
                     (long long)at);
    }
    free(keys);
}

static double peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

/*
 * Runs first: the peak of the process is that of this test. The pattern is made once more after the
 * tensors, so that what making it takes stands on top of them.
 */
static void million_tokens_in_little_memory(void **state) {
    (void)state;
    struct lab_setting s;
    double empty = peak_bytes();
    setting_make(&s, "h=1,n=1000000,d=64,pattern=window(256,256),block=64x64,seed=21");
    double tensors = (double)(s.q.buffer.size + s.k.buffer.size + s.v.buffer.size +
                              s.o.buffer.size + s.lse.buffer.size);
    tess_pattern_info pattern = tess_pattern_info_init();
    tess_plan_info info = tess_plan_info_init();
    tess_pattern_free(s.pattern);
    double start = lab_seconds();
    assert_int_equal(lab_case_pattern(&s.c, &s.pattern, NULL), TESS_OK);
    assert_int_equal(tess_pattern_describe(s.pattern, &pattern, NULL), TESS_OK);

    double made = lab_seconds();
    tess_plan *plan = setting_plan(&s, NULL, TESS_FUSED, 0);
    double planned = lab_seconds();
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments arguments = setting_arguments(&s, &workspace);
    assert_int_equal(tess_run(plan, &arguments, NULL, NULL), TESS_OK);
    double ran = lab_seconds(), beyond = peak_bytes() - empty - tensors;

    double told = (double)pattern.memory_size + (double)info.memory_size + (double)workspace.size;
    print_message("a million tokens: pattern %.2f s, plan %.2f s, run %.2f s; pattern %.1f, plan "
                  "%.1f, workspace %.1f MB; peak beyond inputs and outputs %.1f MB\n",
                  made - start, planned - made, ran - planned,
                  (double)pattern.memory_size / MEGABYTE, (double)info.memory_size / MEGABYTE,
                  (double)workspace.size / MEGABYTE, beyond / MEGABYTE);
    assert_true(told < 200 * MEGABYTE);
    assert_true(beyond > 0 && beyond < 200 * MEGABYTE);
    assert_int_equal(info.pairs, pattern.pairs);
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
    assert_samples_right(&s, s.pattern, s.c.pattern);
    lab_setting_free(&s);
}

static void bitmasks_at_65536_tokens(void **state) {
    (void)state;
    struct lab_setting s;
    setting_make(&s, "h=1,n=65536,d=16,pattern=dilated(40,3)+global_grid(3),block=64x64,seed=22");
    tess_pattern_info info = tess_pattern_info_init();
    assert_int_equal(tess_pattern_describe(s.pattern, &info, NULL), TESS_OK);
    assert_true(info.bitmask_tiles > 1024);
    for (int pipeline = 0; pipeline < 2; pipeline++) {
        setting_run(&s, NULL, (tess_pipeline)pipeline, 0);
        assert_samples_right(&s, s.pattern, s.c.pattern);
    }
    lab_setting_free(&s);
}

static int listed_grid(const void *context, int64_t q, int64_t k) {
    int64_t apart = q < k ? k - q : q - k;
    (void)context;
    return q % 1024 == 0 || k % 1024 == 0 || (apart % 3 == 0 && apart <= 120);
}

/* 65 x 65 bitmasks of 2^20 bits: together more than 2^32 bits. */
static void bitmasks_of_more_than_32_bits(void **state) {
    (void)state;
    struct lab_setting s;
    setting_make(&s, "h=1,n=66560,d=16,pattern=global_grid(65)+dilated(40,3),block=1024x1024,"
                     "seed=25");
    tess_pattern_info info = tess_pattern_info_init();
    assert_int_equal(tess_pattern_describe(s.pattern, &info, NULL), TESS_OK);
    assert_int_equal(info.bitmask_tiles, 65 * 65);
    assert_rows_list(s.pattern, s.c.n, 257, listed_grid, NULL);
    setting_run(&s, NULL, TESS_FUSED, 0);
    assert_samples_right(&s, s.pattern, s.c.pattern);
    lab_setting_free(&s);
}

struct mask {
    uint8_t *bytes;
    int64_t n;
};

static int listed_mask(const void *context, int64_t q, int64_t k) {
    const struct mask *mask = context;
    return mask->bytes[q * mask->n + k];
}

/* A mask of n x n bytes whose rows differ: the diagonal, a line of half its slope, and a key drawn
 * at random. */
static void mask_of(int64_t n, const char *text) {
    struct lab_setting s;
    setting_make(&s, text);
    struct mask mask = {pages_make((size_t)(n * n)), n};
    for (int64_t i = 0; i < n; i++) {
        uint8_t *row = mask.bytes + i * n;
        row[i] = row[i / 2] = row[lab_below(s.c.seed, 3, (uint64_t)i, n)] = 1;
    }
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = n;
    assert_int_equal(tess_pattern_from_mask(&pattern, mask.bytes, &shape, NULL), TESS_OK);
    assert_rows_list(pattern, n, 101, listed_mask, &mask);
    munmap(mask.bytes, (size_t)(n * n));

    tess_pattern_info info = tess_pattern_info_init();
    assert_int_equal(tess_pattern_describe(pattern, &info, NULL), TESS_OK);
    assert_true(info.bitmask_tiles > 1000);
    setting_run(&s, pattern, TESS_FUSED, 0);
    assert_samples_right(&s, pattern, "a mask");
    tess_pattern_free(pattern);
    lab_setting_free(&s);
}

/* The least mask of more than 2^31 bytes, and one of more than 2^32. */
static void mask_of_46341_tokens(void **state) {
    (void)state;
    mask_of(46341, "h=1,n=46341,d=16,pattern=dense,block=64x64,seed=23");
}

static void mask_of_65600_tokens(void **state) {
    (void)state;
    mask_of(65600, "h=1,n=65600,d=16,pattern=dense,block=64x64,seed=26");
}

/* ---- rows that stand far apart ---- */

#define ROW_BYTES ((int64_t)8 << 20 | 4160) /* no power of two, so that rows share no cache set */

struct wide {
    tess_tensor view;
    size_t size; /* bytes */
};

/* A tensor of the shape and type of `narrow`, and its rows where `copied`. */
static struct wide wide_make(const struct lab_tensor *narrow, int copied) {
    const tess_tensor *from = &narrow->view;
    int64_t element = (int64_t)tess_type_size(from->type);
    struct wide w = {.view = *from};
    w.view.stride[2] = ROW_BYTES / element;
    w.view.stride[1] = w.view.size[2] * w.view.stride[2];
    w.view.stride[0] = w.view.size[1] * w.view.stride[1];
    w.size = (size_t)(w.view.size[0] * w.view.stride[0] * element);
    w.view.data = pages_make(w.size);
    for (int64_t b = 0; copied && b < from->size[0]; b++)
        for (int64_t h = 0; h < from->size[1]; h++)
            for (int64_t i = 0; i < from->size[2]; i++)
                memcpy((char *)w.view.data + lab_row(&w.view, b, h, i) * element,
                       (char *)from->data + lab_row(from, b, h, i) * element,
                       (size_t)(from->size[3] * element));
    return w;
}

static void wide_free(struct wide *w) {
    munmap(w->view.data, w->size);
}

/* A head is 5 GB long, a tensor of queries 20 GB, hardly any of it ever touched. The bits must be
 * those of the same rows side by side. */
static void rows_apart(const char *text) {
    struct lab_setting s;
    setting_make(&s, text);
    for (int pipeline = 0; pipeline < 2; pipeline++) {
        char why[LAB_WHY];
        tess_plan *plan = setting_plan(&s, NULL, (tess_pipeline)pipeline, 0);
        setting_run_plan(&s, plan);
        assert_samples_right(&s, s.pattern, s.c.pattern);

        struct wide q = wide_make(&s.q, 1), k = wide_make(&s.k, 1), v = wide_make(&s.v, 1);
        struct wide o = wide_make(&s.o, 0), lse = wide_make(&s.lse, 0);
        struct lab_buffer workspace = setting_workspace(plan);
        tess_arguments arguments = setting_arguments(&s, &workspace);
        arguments.q = &q.view, arguments.k = &k.view, arguments.v = &v.view;
        arguments.o = &o.view, arguments.lse = &lse.view;
        assert_int_equal(tess_run(plan, &arguments, NULL, NULL), TESS_OK);
        if (lab_tensor_same(&s.o.view, &o.view, "o", why) ||
            lab_tensor_same(&s.lse.view, &lse.view, "lse", why))
            fail_msg("%s, rows apart: %s", text, why);
        lab_buffer_free(&workspace);
        tess_plan_free(plan);
        wide_free(&q), wide_free(&k), wide_free(&v), wide_free(&o), wide_free(&lse);
    }
    lab_setting_free(&s);
}

static void rows_megabytes_apart(void **state) {
    (void)state;
    rows_apart("b=2,h=2,hkv=1,n=600,d=24,dv=16,pattern=random(0.5,1)+window(20,3),block=16x16,"
               "seed=27");
    rows_apart("b=2,h=2,hkv=2,n=600,d=16,dtype=bf16,pattern=global(3)+dilated(9,7),seed=28");
}

static void planning_is_a_small_part_of_one_run(void **state) {
    (void)state;
    struct lab_setting s;
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
    lab_setting_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(million_tokens_in_little_memory),
        cmocka_unit_test(bitmasks_at_65536_tokens),
        cmocka_unit_test(bitmasks_of_more_than_32_bits),
        cmocka_unit_test(mask_of_46341_tokens),
        cmocka_unit_test(mask_of_65600_tokens),
        cmocka_unit_test(rows_megabytes_apart),
        cmocka_unit_test(planning_is_a_small_part_of_one_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
