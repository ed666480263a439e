/* Parameters that the host hands to decode kernels: places of rows and scales of a cache, in bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/plans.h"
#include "host/decode.h"

enum { BATCH_STRIDE = 70000, HEAD_STRIDE = 9000, ROW_STRIDE = 640 };

/* The parameters of a cache of 256 dims of K and 128 of V; rows, scales and the image lie nowhere. */
static struct decode_params params_of(const struct caches *caches, const int32_t *table) {
    static const struct lists lists = {.tile_rows = 1, .tiles = 3};
    static const struct filled_image image = {.units = 12};
    static const tess_target target = {.multiprocessors = 7};
    const struct problem problem = {.type = TESS_BF16,
                                    .batch = 2,
                                    .heads_q = 2,
                                    .heads_kv = 1,
                                    .n_q = 3,
                                    .n_kv = 64,
                                    .d_qk = 256,
                                    .d_v = 128,
                                    .scale = 1,
                                    .alignment = 16,
                                    .caches = *caches};
    const struct view rows = {.stride = {BATCH_STRIDE, HEAD_STRIDE, ROW_STRIDE}};
    const struct view scale = {.stride = {600, 300, 5}, .type = TESS_F32};
    const struct attention_operands operands = {.k = rows,
                                                .v = rows,
                                                .k_scale = scale,
                                                .v_scale = scale,
                                                .page_table = table,
                                                .pages = 9,
                                                .table_stride = 4};
    const struct kernel_args args = {.problem = &problem,
                                     .target = &target,
                                     .operands = &operands,
                                     .work = {.lists = &lists, .tile_heads = 1, .filled = &image}};
    return decode_params_of(&args);
}

static void layout_is(const struct decode_layout *l, int64_t batch, int64_t page, int64_t head,
                      int64_t row, int32_t size) {
    assert_int_equal(l->batch, batch);
    assert_int_equal(l->page, page);
    assert_int_equal(l->head, head);
    assert_int_equal(l->row, row);
    assert_int_equal(l->size, size);
}

/* 16-bit rows that are not paged: batches, no pages, no scales. */
static void rows_have_batches(void **state) {
    (void)state;
    const struct caches caches = {
        .k_type = TESS_BF16, .v_type = TESS_BF16, .page_shift = CACHE_WHOLE};
    const struct decode_params p = params_of(&caches, NULL);
    layout_is(&p.k.rows, 2 * BATCH_STRIDE, 0, 2 * HEAD_STRIDE, 2 * ROW_STRIDE, 512);
    layout_is(&p.v.rows, 2 * BATCH_STRIDE, 0, 2 * HEAD_STRIDE, 2 * ROW_STRIDE, 256);
    assert_true(!p.k.eight_bit && !p.v.eight_bit && !p.k.scales && !p.v.scales);
    assert_true(!p.stored && !p.v_late && !p.table);
    assert_int_equal(p.packs, 4);
    assert_int_equal(p.multiprocessors, 7);
}

/* 8-bit rows in pages: pages, no batches; scales of groups of dims for K, one a row for V. */
static void pages_have_no_batches(void **state) {
    (void)state;
    const int32_t table[8] = {0};
    const struct caches caches = {.k_type = TESS_E4M3,
                                  .v_type = TESS_E5M2,
                                  .page_shift = 4,
                                  .k_scale = TESS_SCALE_GROUP,
                                  .v_scale = TESS_SCALE_TOKEN,
                                  .k_group = DECODE_SCALE_DIMS,
                                  .v_group = 128};
    const struct decode_params p = params_of(&caches, table);
    layout_is(&p.k.rows, 0, BATCH_STRIDE, HEAD_STRIDE, ROW_STRIDE, 256);
    layout_is(&p.v.rows, 0, BATCH_STRIDE, HEAD_STRIDE, ROW_STRIDE, 128);
    layout_is(&p.k.scale, 0, 4 * 600, 4 * 300, 4 * 5, 4 * 2);
    layout_is(&p.v.scale, 0, 4 * 600, 4 * 300, 4 * 5, 4);
    assert_int_equal(p.k.eight_bit, TESS_E4M3);
    assert_int_equal(p.v.eight_bit, TESS_E5M2);
    assert_true(p.k.scales == 2 && p.v.scales == 1 && p.stored && !p.v_late);
    assert_true(p.table == table && p.columns == 4 && p.pages == 9 && p.shift == 4);
}

/* One scale of V for a tensor or a head multiplies o; scales by group count V's dims, not K's. */
static void scales_of_values_come_late_or_by_group(void **state) {
    (void)state;
    struct caches caches = {.k_type = TESS_BF16, .v_type = TESS_E4M3, .page_shift = CACHE_WHOLE};
    for (int scale = TESS_SCALE_NONE; scale <= TESS_SCALE_GROUP; scale++) {
        caches.v_scale = (tess_scaling)scale;
        caches.v_group = 64;
        const struct decode_params p = params_of(&caches, NULL);
        assert_int_equal(p.v_late, scale == TESS_SCALE_TENSOR || scale == TESS_SCALE_HEAD);
        assert_int_equal(p.v.scales, scale == TESS_SCALE_NONE    ? 0
                                     : scale == TESS_SCALE_GROUP ? 2
                                                                 : 1);
        assert_true(p.stored && !p.k.eight_bit && p.k.scales == 0);
    }
}

/* Plans for a Hopper, which need no device, and what they say of an image of NULL. */
static void plans_say_which_lists_need_no_image(void **state) {
    (void)state;
    static const struct {
        int64_t heads, n_q, block_q, block_kv, k;
        int32_t architecture;
        tess_type type;
        int direct;
    } cases[] = {
        {16, 8, 1, 1, 2048, 90, TESS_BF16, 1},   {16, 1, 1, 1, 8192, 90, TESS_F16, 1},
        {16, 1, 64, 64, 32, 90, TESS_BF16, 1}, /* one query of a block row */
        {16, 1, 1, 1, 65536, 90, TESS_BF16, 1},  {4, 1, 1, 0, 4, 90, TESS_BF16, 1}, /* ranges */
        {16, 8, 1, 1, 2048, 80, TESS_BF16, 0}, /* launches that do not overlap */
        {16, 8, 1, 1, 2048, 90, TESS_F32, 0},    {128, 8, 1, 1, 2048, 90, TESS_BF16, 0},
        {16, 300, 1, 1, 2048, 90, TESS_BF16, 0}, /* a second round of a few CTAs */
        {16, 300, 1, 1, 1024, 90, TESS_BF16, 1}, /* which is short */
        {16, 64, 8, 1, 2048, 90, TESS_BF16, 0},  /* tiles of several queries */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(cases[i].architecture, 232448);
        tess_problem p = tess_problem_init();
        tess_plan_info info = tess_plan_info_init();
        tess_plan *plan = NULL;
        const int64_t n_kv = 1 << 19;
        tess_device_pattern lists = tess_device_pattern_blocks(
            NULL, NULL, 1, 1, cases[i].n_q, n_kv, cases[i].block_q, cases[i].block_kv, cases[i].k);
        lists.form = cases[i].block_kv ? TESS_INDICES : TESS_RANGES;
        if (cases[i].type == TESS_F32)
            p.k_type = p.v_type = TESS_BF16;
        p.type = cases[i].type, p.heads_q = cases[i].heads, p.heads_kv = 1;
        p.batch = 1, p.n_q = cases[i].n_q, p.n_kv = n_kv, p.d_qk = p.d_v = 128;
        tess_error error = tess_error_init();
        if (tess_plan_reserve(&plan, &p, &lists, &target, &error) != TESS_OK)
            fail_msg("case %zu: %s", i, error.message);
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        if (info.fill_run_direct != cases[i].direct)
            fail_msg("case %zu: fill_run_direct is %d", i, (int)info.fill_run_direct);
        tess_plan_free(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_say_which_lists_need_no_image),
        cmocka_unit_test(rows_have_batches),
        cmocka_unit_test(pages_have_no_batches),
        cmocka_unit_test(scales_of_values_come_late_or_by_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
