/* Lists that live on the device, on the CPU: what reserving, filling and running refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/device_run.h"

static void reserve_refuses(const tess_problem *problem, const tess_device_pattern *pattern,
                            const tess_target *target, tess_status status, const char *argument,
                            const char *words) {
    tess_error error = tess_error_init();
    tess_plan *plan = (tess_plan *)&error;
    assert_int_equal(tess_plan_reserve(&plan, problem, pattern, target, &error), status);
    assert_null(plan);
    assert_string_equal(error.function, "tess_plan_reserve");
    if (argument)
        assert_string_equal(error.argument, argument);
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
}

/* Whether the library was built with CUDA, on whatever machine. */
static int has_cuda(void) {
    tess_kernel_info kernel = tess_kernel_info_init();
    int found = 0;
    for (int64_t i = 0; tess_kernel_describe(i, &kernel, NULL) == TESS_OK; i++)
        found |= kernel.backend == TESS_CUDA;
    return found;
}

static void reserve_refuses_by_name(void **state) {
    (void)state;
    tess_problem p = device_problem(&device_small, 16);
    tess_device_pattern d = tess_device_pattern_init();
    d.n_q = 3, d.n_kv = 40, d.block_q = d.block_kv = 1, d.capacity = 6;
    tess_plan *plan;
    assert_int_equal(tess_plan_reserve(&plan, &p, &d, NULL, NULL), TESS_OK);
    tess_plan_free(plan);
    assert_int_equal(tess_plan_reserve(NULL, &p, &d, NULL, NULL), TESS_INVALID_ARGUMENT);
    reserve_refuses(NULL, &d, NULL, TESS_INVALID_ARGUMENT, "problem", "problem is NULL");
    reserve_refuses(&p, NULL, NULL, TESS_INVALID_ARGUMENT, "pattern", "NULL");
    const struct {
        size_t field;
        int64_t value;
        tess_status status;
        const char *words;
    } wrong[] = {
        {offsetof(tess_device_pattern, struct_size), 0, TESS_INVALID_ARGUMENT, "struct_size"},
        {offsetof(tess_device_pattern, n_q), 4, TESS_INVALID_ARGUMENT, "3 queries"},
        {offsetof(tess_device_pattern, n_kv), 41, TESS_INVALID_ARGUMENT, "40 keys"},
        {offsetof(tess_device_pattern, batch), 3, TESS_INVALID_ARGUMENT, "should have 1"},
        {offsetof(tess_device_pattern, heads), 5, TESS_INVALID_ARGUMENT, "should have 1 or 2"},
        {offsetof(tess_device_pattern, block_q), 0, TESS_INVALID_ARGUMENT, "block_q is 0: name it"},
        {offsetof(tess_device_pattern, block_kv), 0, TESS_INVALID_ARGUMENT,
         "block_kv is 0: name it"},
        {offsetof(tess_device_pattern, capacity), 41, TESS_INVALID_ARGUMENT, "40 block columns"},
        {offsetof(tess_device_pattern, block_q), 3, TESS_UNSUPPORTED, "block_q is 3"},
        {offsetof(tess_device_pattern, block_q), 96, TESS_UNSUPPORTED, "block_q is 96"},
        {offsetof(tess_device_pattern, block_q), -64, TESS_UNSUPPORTED, "block_q is -64"},
        {offsetof(tess_device_pattern, block_kv), 48, TESS_UNSUPPORTED, "block_kv is 48"},
        {offsetof(tess_device_pattern, block_kv), 256, TESS_UNSUPPORTED, "block_kv is 256"},
        {offsetof(tess_device_pattern, block_kv), -1, TESS_UNSUPPORTED, "block_kv is -1"},
        {offsetof(tess_device_pattern, capacity), -1, TESS_INVALID_ARGUMENT, "not in 0 ..."},
        {offsetof(tess_device_pattern, capacity), INT64_C(1) << 31, TESS_INVALID_ARGUMENT,
         "not in 0 ..."},
        {offsetof(tess_device_pattern, cut_lo), 1, TESS_INVALID_ARGUMENT, "cut_lo"},
        {offsetof(tess_device_pattern, promises), 8, TESS_INVALID_ARGUMENT, "promises"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_device_pattern bad = d;
        memcpy((char *)&bad + wrong[i].field, &wrong[i].value, sizeof wrong[i].value);
        reserve_refuses(&p, &bad, NULL, wrong[i].status, "pattern", wrong[i].words);
    }
    tess_device_pattern bad = d;
    bad.form = (tess_form)5;
    reserve_refuses(&p, &bad, NULL, TESS_INVALID_ARGUMENT, "pattern", "form");
    bad = d, bad.form = TESS_RANGES, bad.capacity = 5;
    reserve_refuses(&p, &bad, NULL, TESS_INVALID_ARGUMENT, "pattern", "at most 4 ranges");
    bad.capacity = 4, bad.block_kv = 16;
    reserve_refuses(&p, &bad, NULL, TESS_UNSUPPORTED, "pattern", "ranges are of keys");
    bad = d, bad.form = TESS_MASK, bad.capacity = 41;
    reserve_refuses(&p, &bad, NULL, TESS_INVALID_ARGUMENT, "pattern", "40 block columns");
    bad = d, bad.form = TESS_BLOCK_BITS, bad.capacity = 3 * 40 + 1;
    reserve_refuses(&p, &bad, NULL, TESS_INVALID_ARGUMENT, "pattern", "120 blocks");
    tess_problem odd = p;
    odd.strict = 2;
    reserve_refuses(&odd, &d, NULL, TESS_INVALID_ARGUMENT, "problem", "strict is not 0 or 1");
    tess_problem staged = p;
    staged.pipeline = TESS_STAGED;
    reserve_refuses(&staged, &d, NULL, TESS_UNSUPPORTED, "problem", "staged");
    tess_problem backward = p;
    backward.operation = TESS_ATTENTION_BACKWARD, backward.gradients = TESS_GRADIENT_Q;
    reserve_refuses(&backward, &d, NULL, TESS_UNSUPPORTED, "problem", "backward");
    const size_t of_slices[] = {offsetof(tess_problem, query_offset),
                                offsetof(tess_problem, key_offset),
                                offsetof(tess_problem, key_positions)};
    for (size_t i = 0; i < sizeof of_slices / sizeof *of_slices; i++) {
        tess_problem slice = p;
        slice.whole_n_q = p.n_q + 1, slice.whole_n_kv = p.n_kv + 1; /* p_0 stays */
        *(int64_t *)(void *)((char *)&slice + of_slices[i]) = 1;
        reserve_refuses(&slice, &d, NULL, TESS_UNSUPPORTED, "problem", "today's lengths");
    }
    tess_problem offset = p;
    offset.query_offset = 5;
    reserve_refuses(&offset, &d, NULL, TESS_UNSUPPORTED, "problem",
                    "query_offset is 5, and must be 0: positions of a reserved plan");
    tess_problem longer = p;
    longer.whole_n_kv = p.n_kv + 1;
    reserve_refuses(&longer, &d, NULL, TESS_UNSUPPORTED, "problem", "today's lengths");
    tess_problem named = p;
    named.kernel = "cpu_spmm_portable";
    reserve_refuses(&named, &d, NULL, TESS_UNSUPPORTED, "problem", "cpu_spmm_portable");
    tess_target target = tess_target_init();
    target.backend = TESS_CUDA, target.multiprocessors = 132, target.architecture = 90;
    if (!has_cuda())
        reserve_refuses(&p, &d, &target, TESS_NO_CUDA, "target", "CUDA");
    /* Lists that no image holds: more entries than addresses. */
    p.n_q = 1 << 30, p.n_kv = INT32_MAX, p.d_qk = p.d_v = 1;
    d.n_q = 1 << 30, d.n_kv = INT32_MAX, d.capacity = INT32_MAX;
    reserve_refuses(&p, &d, NULL, TESS_INVALID_ARGUMENT, "pattern", "2^48");
    p.batch = 2, d.capacity = 1;
    reserve_refuses(&p, &d, NULL, TESS_INVALID_ARGUMENT, "pattern", "2^31 - 1");
}

static void fill_refuses(const tess_plan *plan, const tess_device_pattern *pattern, void *image,
                         size_t size, tess_status status, const char *words) {
    tess_error error = tess_error_init();
    assert_int_equal(tess_plan_fill(plan, pattern, image, size, &error, NULL), status);
    assert_string_equal(error.function, "tess_plan_fill");
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
}

static void fill_and_run_refuse_by_name(void **state) {
    (void)state;
    struct device_sizes s = device_small;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    tess_error error = tess_error_init();
    device_lists_make(&l, &s, 1);
    const tess_problem problem = device_problem(&s, 16);
    tensors_make(&t, &problem, 3);
    tess_plan *plan = device_plan(&l, &problem, &image), *host;
    tess_pattern *pattern = device_lists_pattern(&l);
    assert_int_equal(tess_plan_create(&host, &problem, pattern, NULL, &error), TESS_OK);
    char *memory = device_image(&image);
    const size_t size = tess_plan_image_size(plan);
    assert_true(size > 0 && tess_plan_image_size(host) == 0);

    fill_refuses(NULL, &l.listed.pattern, memory, size, TESS_INVALID_ARGUMENT, "plan is NULL");
    fill_refuses(host, &l.listed.pattern, memory, size, TESS_INVALID_ARGUMENT, "tess_plan_reserve");
    fill_refuses(plan, NULL, memory, size, TESS_INVALID_ARGUMENT, "NULL");
    fill_refuses(plan, &l.listed.pattern, NULL, size, TESS_INVALID_ARGUMENT, "image");
    fill_refuses(plan, &l.listed.pattern, memory + 64, size, TESS_INVALID_ARGUMENT, "image");
    fill_refuses(plan, &l.listed.pattern, memory, size - 1, TESS_WORKSPACE_TOO_SMALL, "must have");
    tess_device_pattern bad = l.listed.pattern;
    bad.capacity = 5;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "capacity is 5");
    bad = l.listed.pattern, bad.block_kv = 2;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "block_kv is 2");
    bad = l.listed.pattern, bad.cut_hi = 7;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "cut_hi is 7");
    bad = l.listed.pattern, bad.form = TESS_BLOCK_ROWS;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "form");
    bad = l.listed.pattern, bad.indices = NULL;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "indices is NULL");
    bad = l.listed.pattern, bad.bits = (const uint64_t *)(const void *)memory;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "bits is given");
    bad = l.listed.pattern, bad.mask = (const uint8_t *)memory;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "mask is given");
    bad = l.listed.pattern, bad.lengths = (const int32_t *)(const void *)(memory + 2);
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "lengths is not aligned");
    for (size_t i = 0; i < size; i++)
        assert_int_equal((unsigned char)memory[i], 0xaa);

    /* Nothing was filled. */
    tess_fill_report report = tess_fill_report_init();
    assert_int_equal(tess_plan_report(plan, memory, &report, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_report(NULL, memory, &report, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_report(host, memory, &report, &error), TESS_INVALID_ARGUMENT);
    tess_arguments a = arguments_of(&t, plan, memory);
    assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "tess_plan_fill"));
    a.image = NULL;
    assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_upload(plan, memory, size, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "tess_plan_fill"));

    device_fill(&l, plan, &image);
    assert_int_equal(tess_plan_report(plan, memory, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_report(plan, memory + 4, &report, &error), TESS_INVALID_ARGUMENT);
    a.image = memory;
    a.image_size--;
    assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_WORKSPACE_TOO_SMALL);
    /* An image of another plan. */
    struct lab_buffer other_image;
    l.listed.pattern.capacity = 5, l.sizes.capacity = 5;
    tess_plan *other = device_plan(&l, &problem, &other_image);
    a = arguments_of(&t, other, memory);
    assert_int_equal(tess_run(other, &a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "has not filled"));
    lab_buffer_free(&other_image);
    tess_plan_free(other);
    tess_plan_free(plan);
    tess_plan_free(host);
    tess_pattern_free(pattern);
    tensors_free(&t);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

/* Zeros of a pattern mean their defaults, but for blocks: these are named. What a plan says of itself. */
static void defaults_and_words(void **state) {
    (void)state;
    static const char *const words[] = {"64 x 64 blocks", "64 x 64 blocks", "64 x 64 blocks",
                                        "64 x 1 blocks", "mask of 64 x 64 blocks"};
    struct device_sizes s = device_small;
    tess_problem problem = device_problem(&s, 16);
    tess_device_pattern p = tess_device_pattern_init();
    tess_plan *plan;
    char text[2000];
    p.n_q = 3, p.n_kv = 40;
    for (int form = TESS_INDICES; form <= TESS_MASK; form++) {
        tess_plan_info info = tess_plan_info_init();
        p.form = (tess_form)form, p.block_q = 0, p.block_kv = 64;
        reserve_refuses(&problem, &p, NULL, TESS_INVALID_ARGUMENT, "pattern", "block_q is 0");
        p.block_q = 64, p.block_kv = 0;
        if (form != TESS_RANGES) {
            reserve_refuses(&problem, &p, NULL, TESS_INVALID_ARGUMENT, "pattern",
                            "block_kv is 0: name it; a list of single keys has 1");
            p.block_kv = 64;
        }
        assert_int_equal(tess_plan_reserve(&plan, &problem, &p, NULL, NULL), TESS_OK);
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        assert_int_equal(info.query_tiles, 1);
        assert_int_equal(info.packed_keys, 0);
        assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
        assert_non_null(strstr(text, words[form]));
        assert_non_null(strstr(text, form == TESS_RANGES ? "capacity 4" : "capacity 1"));
        tess_plan_free(plan);
    }
}

/* A mask is needed by its form, also of a caller whose struct ends before the field. */
static void a_mask_is_needed(void **state) {
    (void)state;
    const tess_problem problem = device_problem(&device_small, 16);
    tess_device_pattern p = tess_device_pattern_init();
    tess_plan *plan;
    p.form = TESS_MASK, p.n_q = 3, p.n_kv = 40, p.block_q = p.block_kv = 64;
    p.struct_size = offsetof(tess_device_pattern, mask);
    assert_int_equal(tess_plan_reserve(&plan, &problem, &p, NULL, NULL), TESS_OK);
    fill_refuses(plan, &p, NULL, 0, TESS_INVALID_ARGUMENT, "mask is NULL, and must be given");
    tess_plan_free(plan);
}

/* Rows of block lists that are padded to a common width: more entries than there are blocks. */
static void block_rows_may_be_padded(void **state) {
    (void)state;
    static const int32_t indices[8] = {0, -1, -1, -1, 0, -1, -1, -1};
    static const int64_t row_ptr[3] = {0, 4, 8};
    struct device_sizes s = device_small;
    s.n_q = 100;
    const tess_problem problem = device_problem(&s, 16);
    tess_device_pattern p = tess_device_pattern_blocks(indices, NULL, 1, 1, 100, 40, 64, 64, 8);
    p.form = TESS_BLOCK_ROWS, p.row_ptr = row_ptr;
    tess_fill_report report = tess_fill_report_init();
    tess_error error = tess_error_init();
    tess_plan *plan;
    if (tess_plan_reserve(&plan, &problem, &p, NULL, &error))
        fail_msg("%s", error.message);
    const size_t size = tess_plan_image_size(plan);
    void *image = aligned_alloc(256, (size + 255) / 256 * 256);
    assert_non_null(image);
    assert_int_equal(tess_plan_fill(plan, &p, image, size, &error, NULL), TESS_OK);
    assert_int_equal(tess_plan_report(plan, image, &report, &error), TESS_OK);
    assert_true(report.faults == 0 && report.overflows == 0 && report.pairs == 2 * 100 * 40);
    free(image);
    tess_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserve_refuses_by_name),  cmocka_unit_test(fill_and_run_refuse_by_name),
        cmocka_unit_test(a_mask_is_needed),         cmocka_unit_test(defaults_and_words),
        cmocka_unit_test(block_rows_may_be_padded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
