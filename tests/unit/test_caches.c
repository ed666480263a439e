/*
 * Keys and values as caches hold them, on the CPU: cases against the oracle, every code of 8 bits, lengths
 * that end within a page, and what is refused, on both backends.
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

#include "lab/fill/fill.h"
#include "lab/fill/half.h"
#include "support/device_run.h"
#include "support/plans.h"
#include "tile/convert.h"

static void right_within_the_bounds(void **state) {
    (void)state;
    cases_are_right("tests/cases/caches.txt", TESS_CPU);
}

/* ---- codes ---- */

/* The definition: sign, exponent and mantissa, each in its own way. */
static double code(uint8_t bits, int mantissa_bits, int bias, int ieee) {
    const int exponent = (bits & 0x7f) >> mantissa_bits,
              mantissa = bits & ((1 << mantissa_bits) - 1);
    const int last = (0x7f >> mantissa_bits);
    const double part = ldexp(mantissa, -mantissa_bits);
    double x = exponent ? ldexp(1 + part, exponent - bias) : ldexp(part, 1 - bias);
    if (ieee && exponent == last)
        x = mantissa ? (double)NAN : (double)INFINITY;
    if (!ieee && (bits & 0x7f) == 0x7f)
        x = (double)NAN;
    return bits & 0x80 ? -x : x;
}

static void same_number(double a, double b) {
    assert_int_equal(isnan(a), isnan(b));
    if (!isnan(a)) {
        assert_true(a <= b && a >= b);
        assert_int_equal(signbit(a) != 0, signbit(b) != 0);
    }
}

static void every_code_is_its_number(void **state) {
    (void)state;
    for (int i = 0; i < 256; i++) {
        const uint8_t bits = (uint8_t)i;
        const double e4m3 = code(bits, 3, 7, 0), e5m2 = code(bits, 2, 15, 1);
        same_number(lab_e4m3_to_double(bits), e4m3);
        same_number(lab_e5m2_to_double(bits), e5m2);
        same_number((double)cpu_e4m3_to_f32(bits), e4m3);
        same_number((double)cpu_e5m2_to_f32(bits), e5m2);
        if (!isnan(e4m3))
            assert_int_equal(lab_double_to_e4m3(e4m3), bits);
        if (!isnan(e5m2))
            assert_int_equal(lab_double_to_e5m2(e5m2), bits);
    }
    same_number(lab_e4m3_to_double(0x7e), 448);
    same_number(lab_e5m2_to_double(0x7b), 57344);
    assert_int_equal(lab_double_to_e4m3(1.0625), 0x38); /* halfway, to even */
    assert_int_equal(lab_double_to_e4m3(1e9) & 0x7f, 0x7f);
    assert_int_equal(lab_double_to_e5m2(1e9), 0x7c);
}

static int lists_key(const tess_pattern *pattern, int64_t query, int64_t key) {
    int64_t keys[64], n;
    assert_int_equal(tess_pattern_row(pattern, 0, 0, query, keys, 64, &n, NULL), TESS_OK);
    for (int64_t x = 0; x < n; x++)
        if (keys[x] == key)
            return 1;
    return 0;
}

/* NaN and Inf reach the rows that list them, and no others. */
static void codes_that_are_no_numbers_stay_in_their_rows(void **state) {
    (void)state;
    static const int32_t rows[3][DEVICE_PADDING] = {
        {0, 12, 37, 20, 4, -1}, {1, 9, 30, 39, 2, -1}, {37, 3, 11, 25, 8, -1}};
    const struct device_sizes s = device_small;
    tess_problem p = device_problem(&s, 16);
    p.k_type = TESS_E5M2, p.v_type = TESS_E4M3;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    device_lists_make(&l, &s, 3);
    memcpy(l.listed.indices.data, rows, sizeof rows);
    device_lists_expect(&l);
    tensors_make(&t, &p, 3);
    uint8_t *k = t.k.view.data, *v = t.v.view.data;
    k[t.k.view.stride[2] * 37] = 0x7c;    /* Inf: queries 0 and 2 list it */
    v[t.v.view.stride[2] * 9 + 3] = 0x7f; /* NaN: query 1 does */
    tess_pattern *pattern = device_lists_pattern(&l);
    assert_true(lists_key(pattern, 0, 37) && !lists_key(pattern, 1, 37));
    assert_true(lists_key(pattern, 1, 9) && !lists_key(pattern, 0, 9));
    tess_plan *plan = device_plan(&l, &p, &image);
    device_fill(&l, plan, &image);
    const tess_arguments a = arguments_of(&t, plan, device_image(&image));
    run(&t, plan, &a);
    hold(&t, pattern, NULL, 3);
    tess_pattern_free(pattern);
    tess_plan_free(plan);
    tensors_free(&t);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

/* ---- lengths and pages ---- */

/* One plan, one pool: a cache that grows by a key a step. Pages that today's keys do not reach are bad
 * numbers in the table; rows of the last page behind today's length are NaN. */
static void a_cache_grows_within_its_pages(void **state) {
    (void)state;
    enum { PAGE = 4, CAPACITY = 40, STEPS = 41 };
    const struct device_sizes s = {.form = TESS_RANGES,
                                   .batch = 1,
                                   .heads_q = 4,
                                   .heads_kv = 2,
                                   .list_batch = 1,
                                   .list_heads = 1,
                                   .n_q = 1,
                                   .n_kv = CAPACITY,
                                   .block_q = 1,
                                   .block_kv = 1,
                                   .capacity = 1,
                                   .lengths = 1};
    tess_problem p = device_problem(&s, 16);
    p.page_size = PAGE, p.k_type = TESS_E4M3, p.v_type = TESS_F16, p.k_scale = TESS_SCALE_TOKEN;
    struct device_lists l;
    struct lab_buffer image;
    device_lists_make(&l, &s, 5);
    int32_t *range = (int32_t *)(void *)l.listed.indices.data,
            *length = (int32_t *)(void *)l.listed.lengths.data;
    range[0] = 0, range[1] = -1;
    tess_plan *plan = device_plan(&l, &p, &image);
    for (int32_t today = 0; today < STEPS; today++) {
        struct tensors t;
        tensors_make(&t, &p, 11);
        *length = today;
        device_lists_expect(&l);
        int32_t *table = (int32_t *)(void *)t.cache.table.data;
        for (int32_t c = 0; c < CAPACITY / PAGE; c++)
            table[c] = c * PAGE < today ? (3 * c + 1) % 10 : c % 2 ? -1 : 1 << 30;
        tess_pattern *pattern = device_lists_pattern(&l);
        assert_int_equal(lab_fill_poison(pattern, s.heads_q, &t.k.view, &t.v.view), 0);
        tensors_store(&t);
        device_fill(&l, plan, &image);
        const tess_arguments a = arguments_of(&t, plan, device_image(&image));
        run(&t, plan, &a);
        hold(&t, pattern, NULL, (uint64_t)today);
        tess_pattern_free(pattern);
        tensors_free(&t);
    }
    tess_plan_free(plan);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

/* Values in keys: the bits of the same values in a tensor of their own. */
static void values_in_keys_have_the_bits_of_values_apart(void **state) {
    (void)state;
    tess_problem p = device_problem(&device_small, 32);
    struct device_lists l;
    uint64_t bits[2];
    p.d_v = 16, p.type = TESS_BF16;
    device_lists_make(&l, &device_small, 9);
    for (int apart = 0; apart < 2; apart++) {
        struct lab_buffer image;
        struct tensors t;
        p.v_in_k = 1;
        tensors_make(&t, &p, 21); /* v is the first dims of k */
        p.v_in_k = !apart, t.cache.v_in_k = !apart;
        tess_plan *plan = device_plan(&l, &p, &image);
        device_fill(&l, plan, &image);
        const tess_arguments a = arguments_of(&t, plan, device_image(&image));
        run(&t, plan, &a);
        bits[apart] = bits_of(&t);
        tess_plan_free(plan);
        tensors_free(&t);
        lab_buffer_free(&image);
    }
    assert_true(bits[0] == bits[1]);
    device_lists_free(&l);
}

/* A page table whose rows are parts of longer ones has the bits of one that is dense. */
static void rows_of_a_page_table_may_be_apart(void **state) {
    (void)state;
    enum { PAGE = 4, COLUMNS = 10, APART = 13 };
    struct device_sizes s = device_small;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    int32_t dense[2 * COLUMNS], apart[2 * APART];
    s.batch = 2;
    tess_problem p = device_problem(&s, 16);
    p.page_size = PAGE;
    device_lists_make(&l, &s, 3);
    tensors_make(&t, &p, 4);
    for (int i = 0; i < 2 * APART; i++)
        apart[i] = -1; /* no key of what names no page is listed */
    for (int i = 0; i < 2 * COLUMNS; i++)
        apart[i / COLUMNS * APART + i % COLUMNS] = dense[i] = (7 * i + 3) % (2 * COLUMNS);
    tess_plan *plan = device_plan(&l, &p, &image);
    device_fill(&l, plan, &image);
    const struct {
        const int32_t *table;
        int64_t stride;
    } tables[] = {{dense, 0}, {dense, COLUMNS}, {apart, APART}};
    uint64_t bits[3];
    for (size_t i = 0; i < 3; i++) {
        tess_arguments a = arguments_of(&t, plan, device_image(&image));
        a.page_table = tables[i].table, a.page_table_stride = tables[i].stride;
        run(&t, plan, &a);
        bits[i] = bits_of(&t);
        assert_true(bits[i] == bits[0]);
    }
    tess_plan_free(plan);
    tensors_free(&t);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

/* ---- what is refused ---- */

static tess_problem plain(void) {
    tess_problem p = tess_problem_init();
    p.type = TESS_F16;
    p.batch = 1, p.heads_q = 4, p.heads_kv = 2, p.n_q = 8, p.n_kv = 64, p.d_qk = 64, p.d_v = 32;
    return p;
}

static void problems_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *words;
        int64_t page, v_in_k, d_v, group;
        tess_type k, v;
        tess_scaling k_scale, v_scale;
    } wrong[] = {
        {"page_size", .page = 3},
        {"page_size", .page = 8192},
        {"page_size", .page = -4},
        {"v_in_k is not", .v_in_k = 2},
        {"d_v is above", .v_in_k = 1, .d_v = 65},
        {"the keys' type", .v_in_k = 1, .v = TESS_E4M3},
        {"the keys' type", .v_in_k = 1, .k = TESS_E4M3, .v_scale = TESS_SCALE_HEAD},
        {"v_type is not 0", .k = (tess_type)5},
        {"v_type is not 0", .v = (tess_type)-1},
        {"16 bits", .k = TESS_BF16},
        {"go with TESS_E4M3", .k_scale = TESS_SCALE_TOKEN},
        {"go with TESS_E4M3", .k = TESS_E4M3, .v_scale = TESS_SCALE_TENSOR},
        {"one of TESS_SCALE", .k = TESS_E4M3, .k_scale = (tess_scaling)5},
        {"does not divide", .k = TESS_E4M3, .k_scale = TESS_SCALE_GROUP},
        {"does not divide", .v = TESS_E5M2, .v_scale = TESS_SCALE_GROUP, .group = 24},
        {"scale_group is neg", .k = TESS_E4M3, .k_scale = TESS_SCALE_GROUP, .group = -8},
        {"scale_group is given", .k = TESS_E4M3, .k_scale = TESS_SCALE_TOKEN, .group = 32},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_problem p = plain();
        p.page_size = wrong[i].page, p.v_in_k = wrong[i].v_in_k, p.scale_group = wrong[i].group;
        p.d_v = wrong[i].d_v ? wrong[i].d_v : p.d_v;
        p.k_type = wrong[i].k, p.v_type = wrong[i].v;
        p.k_scale = wrong[i].k_scale, p.v_scale = wrong[i].v_scale;
        plan_refuses(&p, NULL, TESS_INVALID_ARGUMENT, wrong[i].words);
    }
    tess_problem p = plain();
    p.type = TESS_E4M3;
    plan_refuses(&p, NULL, TESS_INVALID_ARGUMENT, "type is not TESS_F32");
}

/* Caches are computed by the fused pipeline alone, and by no backward. */
static void other_pipelines_refuse_caches(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++) {
        static const char *const words[] = {"page_size", "v_in_k", "k_type or v_type"};
        tess_problem p = plain();
        p.page_size = which == 0 ? 16 : 0, p.v_in_k = which == 1;
        p.v_type = which == 2 ? TESS_E5M2 : TESS_F32;
        p.pipeline = TESS_STAGED;
        plan_refuses(&p, NULL, TESS_UNSUPPORTED, words[which]);
        plan_refuses(&p, NULL, TESS_UNSUPPORTED, "staged");
        p.pipeline = TESS_FUSED, p.operation = TESS_ATTENTION_BACKWARD;
        plan_refuses(&p, NULL, TESS_UNSUPPORTED, words[which]);
        plan_refuses(&p, NULL, TESS_UNSUPPORTED, "backward");
    }
}

/* On CUDA, whose kernels of host lists read rows of q's type. */
static void cuda_refuses_caches_of_host_lists(void **state) {
    (void)state;
    const tess_target target = cuda_target(90, 232448);
    for (int which = 0; which < 3; which++) {
        tess_problem p = plain();
        p.page_size = which == 0 ? 16 : 0;
        p.k_type = which == 1 ? TESS_E4M3 : TESS_F32, p.v_type = which == 2 ? TESS_E5M2 : TESS_F32;
        plan_refuses(&p, &target, TESS_UNSUPPORTED, "page_size, k_type and v_type");
    }
}

/* Decode takes them, and says what it does not: rows of 8 bits that are not whole pieces, K and V of two
 * types of 16 bits. */
static void cuda_decode_takes_caches(void **state) {
    (void)state;
    const tess_target target = cuda_target(90, 232448);
    const struct {
        tess_type type, k, v;
        tess_scaling k_scale, v_scale;
        int64_t d_v;
        const char *refused; /* NULL: taken */
    } cases[] = {
        {TESS_F16, TESS_E4M3, TESS_E5M2, TESS_SCALE_TOKEN, TESS_SCALE_HEAD, 128, NULL},
        {TESS_BF16, TESS_E4M3, TESS_E4M3, TESS_SCALE_GROUP, TESS_SCALE_GROUP, 128, NULL},
        {TESS_BF16, TESS_F32, TESS_E4M3, TESS_SCALE_NONE, TESS_SCALE_TOKEN, 64, NULL},
        {TESS_BF16, TESS_F32, TESS_E4M3, TESS_SCALE_NONE, TESS_SCALE_NONE, 8, "16 bytes"},
        {TESS_F16, TESS_F32, TESS_E4M3, TESS_SCALE_NONE, TESS_SCALE_TOKEN, 64, "bf16 alone"},
        {TESS_F32, TESS_BF16, TESS_BF16, TESS_SCALE_NONE, TESS_SCALE_NONE, 64, NULL},
        {TESS_F32, TESS_F16, TESS_E4M3, TESS_SCALE_NONE, TESS_SCALE_HEAD, 64, NULL},
        {TESS_F32, TESS_E4M3, TESS_E4M3, TESS_SCALE_TOKEN, TESS_SCALE_TOKEN, 64, NULL},
        {TESS_F32, TESS_E4M3, TESS_E4M3, TESS_SCALE_TOKEN, TESS_SCALE_NONE, 8, "16 bytes"},
        {TESS_F32, TESS_F16, TESS_BF16, TESS_SCALE_NONE, TESS_SCALE_NONE, 64, "16 or 8 bits"},
        {TESS_F32, TESS_F32, TESS_F32, TESS_SCALE_NONE, TESS_SCALE_NONE, 64, "16 or 8 bits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem p = device_problem(&device_small, 128);
        tess_device_pattern d = tess_device_pattern_init();
        tess_error error = tess_error_init();
        tess_plan *plan;
        d.n_q = 3, d.n_kv = 40, d.block_q = d.block_kv = 1, d.capacity = 6;
        p.page_size = 16, p.alignment = 16, p.type = cases[i].type, p.d_v = cases[i].d_v;
        p.k_type = cases[i].k, p.v_type = cases[i].v;
        p.k_scale = cases[i].k_scale, p.v_scale = cases[i].v_scale;
        const tess_status status = tess_plan_reserve(&plan, &p, &d, &target, &error);
        const int taken = !status && strstr(tess_plan_kernel(plan, TESS_STAGE_ATTENTION), "decode");
        if (cases[i].refused
                ? status != TESS_UNSUPPORTED || !strstr(error.message, cases[i].refused)
                : !taken)
            fail_msg("%d: %d, '%s'", (int)i, (int)status, error.message);
        tess_plan_free(plan);
    }
}

static void run_refuses(const struct tensors *t, const tess_plan *plan, const tess_arguments *a,
                        const char *argument) {
    tess_error error = tess_error_init();
    const uint64_t bits = bits_of(t);
    assert_int_equal(tess_run(plan, a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, argument);
    assert_true(bits_of(t) == bits);
}

static void runs_are_refused_by_name(void **state) {
    (void)state;
    tess_problem p = device_problem(&device_small, 32);
    p.page_size = 4, p.k_type = p.v_type = TESS_E4M3;
    p.k_scale = TESS_SCALE_TOKEN, p.v_scale = TESS_SCALE_HEAD;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    device_lists_make(&l, &device_small, 1);
    tensors_make(&t, &p, 1);
    tess_plan *plan = device_plan(&l, &p, &image);
    device_fill(&l, plan, &image);
    const tess_arguments good = arguments_of(&t, plan, device_image(&image));
    tess_arguments a = good;
    a.page_table = NULL;
    run_refuses(&t, plan, &a, "page_table");
    a.page_table = (const int32_t *)(const void *)((const char *)good.page_table + 2);
    run_refuses(&t, plan, &a, "page_table");
    a = good, a.page_table_stride = 9; /* a table's rows have 10 */
    run_refuses(&t, plan, &a, "page_table_stride");
    a.page_table_stride = -10;
    run_refuses(&t, plan, &a, "page_table_stride");
    a.page_table_stride = INT64_MAX / 4;
    run_refuses(&t, plan, &a, "page_table_stride");
    a = good, a.k_scale = NULL;
    run_refuses(&t, plan, &a, "k_scale");
    a = good, a.v_scale = good.k_scale;
    run_refuses(&t, plan, &a, "v_scale");
    a = good, a.k = &t.q.view;
    run_refuses(&t, plan, &a, "k");
    tess_tensor more = *good.v;
    more.size[0]++;
    a = good, a.v = &more;
    run_refuses(&t, plan, &a, "v");
    more = *good.k, more.size[0] = INT64_C(1) << 30;
    a = good, a.k = &more;
    run_refuses(&t, plan, &a, "k");
    assert_int_equal(tess_run(plan, &good, NULL, NULL), TESS_OK);
    tess_plan_free(plan);
    lab_buffer_free(&image);

    tensors_free(&t);

    p = device_problem(&device_small, 32), p.v_in_k = 1; /* bare does not declare V in K */
    tensors_make(&t, &p, 1);
    plan = device_plan(&l, &p, &image);
    device_fill(&l, plan, &image);
    const tess_arguments in_keys = arguments_of(&t, plan, device_image(&image));
    a = in_keys, a.v = &t.v.view;
    run_refuses(&t, plan, &a, "v");
    a = in_keys, a.page_table = (const int32_t *)t.k.view.data;
    run_refuses(&t, plan, &a, "page_table");
    a = in_keys, a.page_table_stride = 10;
    run_refuses(&t, plan, &a, "page_table_stride");
    a = in_keys, a.k_scale = &t.lse.view;
    run_refuses(&t, plan, &a, "k_scale");
    assert_int_equal(tess_run(plan, &in_keys, NULL, NULL), TESS_OK);
    tess_plan_free(plan);
    lab_buffer_free(&image);
    tensors_free(&t);
    device_lists_free(&l);
}

/* K that is given as pages, where the problem has none: the message says so. Other slips are told plainly. */
static void pages_of_a_problem_without_are_recognised(void **state) {
    (void)state;
    static float data[64 * 2 * 16 * 8];
    const struct {
        int64_t size[4];
        int hint;
    } cases[] = {{{64, 2, 16, 8}, 1}, /* [pages, heads_kv, page_size, dims] */
                 {{64, 2, 15, 8}, 0}, /* no page has so many rows */
                 {{64, 1, 16, 8}, 0}, /* other heads */
                 {{2, 2, 16, 8}, 0}}; /* fewer keys */
    const tess_tensor q = tess_tensor_bhnd(data, TESS_F32, 2, 2, 1, 8);
    const tess_tensor o = tess_tensor_bhnd(data, TESS_F32, 2, 2, 1, 8);
    tess_problem p = tess_problem_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    tess_plan *plan;
    p.batch = 2, p.heads_q = p.heads_kv = 2, p.n_q = 1, p.n_kv = 200, p.d_qk = p.d_v = 8;
    shape.n_q = 1, shape.n_kv = 200;
    assert_int_equal(tess_pattern_from_spec(&pattern, "dense", &shape, NULL), TESS_OK);
    assert_int_equal(tess_plan_create(&plan, &p, pattern, NULL, NULL), TESS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *n = cases[i].size;
        const tess_tensor k = tess_tensor_bhnd(data, TESS_F32, n[0], n[1], n[2], n[3]);
        tess_arguments a = tess_arguments_init();
        tess_error error = tess_error_init();
        a.q = &q, a.k = &k, a.v = &k, a.o = &o;
        assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, "k");
        assert_int_equal(strstr(error.message, "is K paged? set page_size") != NULL, cases[i].hint);
    }
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

/* Tensors of other types make a problem of their types. */
static void problems_take_types_from_tensors(void **state) {
    (void)state;
    float q[64] = {0};
    uint16_t k[64] = {0};
    uint8_t v[64] = {0};
    const tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, 1, 4, 16);
    const tess_tensor tk = tess_tensor_bhnd(k, TESS_BF16, 1, 1, 4, 16);
    const tess_tensor tv = tess_tensor_bhnd(v, TESS_E5M2, 1, 1, 4, 16);
    tess_problem p = tess_problem_init();
    assert_int_equal(tess_problem_from_tensors(&p, &tq, &tk, &tv, NULL, NULL), TESS_OK);
    assert_int_equal(p.type, TESS_F32);
    assert_int_equal(p.k_type, TESS_BF16);
    assert_int_equal(p.v_type, TESS_E5M2);
    assert_int_equal(tess_problem_from_tensors(&p, &tv, &tk, &tv, NULL, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_problem_from_tensors(&p, &tq, &tq, &tq, NULL, NULL), TESS_OK);
    assert_int_equal(p.k_type, 0);
    assert_int_equal(p.v_type, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_within_the_bounds),
        cmocka_unit_test(every_code_is_its_number),
        cmocka_unit_test(codes_that_are_no_numbers_stay_in_their_rows),
        cmocka_unit_test(a_cache_grows_within_its_pages),
        cmocka_unit_test(values_in_keys_have_the_bits_of_values_apart),
        cmocka_unit_test(rows_of_a_page_table_may_be_apart),
        cmocka_unit_test(problems_are_refused_by_name),
        cmocka_unit_test(other_pipelines_refuse_caches),
        cmocka_unit_test(cuda_refuses_caches_of_host_lists),
        cmocka_unit_test(cuda_decode_takes_caches),
        cmocka_unit_test(runs_are_refused_by_name),
        cmocka_unit_test(pages_of_a_problem_without_are_recognised),
        cmocka_unit_test(problems_take_types_from_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
