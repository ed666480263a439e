/* Pooled blocks, their scores, and columns as bytes, bits and lists: on the CPU, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/pooling.h"

static void blocks_are_pooled(void **state) {
    (void)state;
    pools_are_right(TESS_CPU);
}
static void pooled_keys_grow(void **state) {
    (void)state;
    pools_follow_a_growing_cache(TESS_CPU);
}
static void blocks_are_scored(void **state) {
    (void)state;
    scores_are_right(TESS_CPU);
}
static void columns_keep_what_they_list(void **state) {
    (void)state;
    columns_are_right(TESS_CPU);
}

/* ---- refusals ---- */

static void refused(tess_status status, const tess_error *error, const char *argument,
                    const char *words) {
    assert_int_equal(status, TESS_INVALID_ARGUMENT);
    assert_string_equal(error->argument, argument);
    if (!strstr(error->message, words))
        fail_msg("'%s' does not say '%s'", error->message, words);
}

static void pools_refuse_by_name(void **state) {
    static float data[8 * 16], out[4 * 32];
    tess_tensor x = tess_tensor_bhnd(data, TESS_F32, 1, 1, 8, 16);
    tess_tensor pooled = tess_tensor_bhnd(out, TESS_F32, 1, 1, 4, 16);
    tess_pooling p = tess_pooling_init();
    tess_error e = tess_error_init();
    (void)state;
    refused(tess_pool(TESS_CPU, NULL, &x, &pooled, &e, NULL), &e, "pooling", "NULL");
    refused(tess_pool(TESS_CPU, &p, &x, &pooled, &e, NULL), &e, "pooling", "block is 0");
    p.block = 2, p.mode = (tess_pool_mode)3;
    refused(tess_pool(TESS_CPU, &p, &x, &pooled, &e, NULL), &e, "pooling", "mode");
    p.mode = TESS_POOL_MIN_MAX;
    refused(tess_pool(TESS_CPU, &p, &x, &pooled, &e, NULL), &e, "pooled", "32");
    p.mode = TESS_POOL_MEAN, p.lengths = (const int32_t *)(const void *)((char *)out + 1);
    refused(tess_pool(TESS_CPU, &p, &x, &pooled, &e, NULL), &e, "pooling", "lengths");
    p.lengths = NULL, p.block = 3;
    refused(tess_pool(TESS_CPU, &p, &x, &pooled, &e, NULL), &e, "pooled", "3");
    p.block = 2;
    assert_int_equal(tess_pool(TESS_CPU, &p, &x, &pooled, &e, NULL), TESS_OK);
}

static void scores_refuse_by_name(void **state) {
    static float q[4 * 3 * 8], k[2 * 5 * 8], s[4 * 3 * 5];
    tess_tensor of_q = tess_tensor_bhnd(q, TESS_F32, 1, 4, 3, 8);
    tess_tensor of_k = tess_tensor_bhnd(k, TESS_F32, 1, 2, 5, 8);
    tess_tensor to = tess_tensor_bhnd(s, TESS_F32, 1, 4, 3, 5), bad = to;
    tess_scoring p = tess_scoring_init();
    tess_error e = tess_error_init();
    (void)state;
    bad.size[1] = 3;
    refused(tess_pool_score(TESS_CPU, &p, &of_q, &of_k, &bad, &e, NULL), &e, "scores", "3 heads");
    bad = to, bad.type = TESS_F16;
    refused(tess_pool_score(TESS_CPU, &p, &of_q, &of_k, &bad, &e, NULL), &e, "scores", "f32");
    p.bounds = 1;
    refused(tess_pool_score(TESS_CPU, &p, &of_q, &of_k, &to, &e, NULL), &e, "k", "16");
    p.bounds = 2;
    refused(tess_pool_score(TESS_CPU, &p, &of_q, &of_k, &to, &e, NULL), &e, "scoring", "bounds");
    p.bounds = 0, p.block_kv = 4, p.n_kv = 16;
    refused(tess_pool_score(TESS_CPU, &p, &of_q, &of_k, &to, &e, NULL), &e, "scoring",
            "n_kv is 16");
    p.n_kv = 17;
    assert_int_equal(tess_pool_score(TESS_CPU, &p, &of_q, &of_k, &to, &e, NULL), TESS_OK);
}

static void columns_refuse_by_name(void **state) {
    uint8_t bytes[12] = {0};
    uint64_t bits[2] = {0};
    tess_columns from = tess_columns_init(), to = from;
    tess_error e = tess_error_init();
    (void)state;
    from.rows = to.rows = 2, from.columns = to.columns = 6, to.bits = bits;
    refused(tess_columns_convert(TESS_CPU, &from, &to, &e, NULL), &e, "from", "one of bytes");
    from.bytes = bytes, from.bits = bits;
    refused(tess_columns_convert(TESS_CPU, &from, &to, &e, NULL), &e, "from", "one of bytes");
    from.bits = NULL, to.bits = NULL;
    refused(tess_columns_convert(TESS_CPU, &from, &to, &e, NULL), &e, "to", "no array");
    to.bits = bits, to.rows = 1;
    refused(tess_columns_convert(TESS_CPU, &from, &to, &e, NULL), &e, "to", "rows");
    to.rows = 0;
    refused(tess_columns_convert(TESS_CPU, &from, &to, &e, NULL), &e, "to", "rows is not in");
    to.rows = 2;
    assert_int_equal(tess_columns_convert(TESS_CPU, &from, &to, &e, NULL), TESS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_pooled),      cmocka_unit_test(pooled_keys_grow),
        cmocka_unit_test(blocks_are_scored),      cmocka_unit_test(columns_keep_what_they_list),
        cmocka_unit_test(pools_refuse_by_name),   cmocka_unit_test(scores_refuse_by_name),
        cmocka_unit_test(columns_refuse_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
