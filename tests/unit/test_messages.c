/* Messages of refusals: alternatives are told once, ranges of one as one number, and a way out is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tessera.h"

static tess_pattern *pattern_dense(int64_t n_q, int64_t n_kv, int64_t batch, int64_t heads) {
    static unsigned char mask[1024];
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = n_q, shape.n_kv = n_kv, shape.batch = batch, shape.heads = heads;
    memset(mask, 1, sizeof mask);
    assert_true(n_q * n_kv * batch * heads <= (int64_t)sizeof mask);
    assert_int_equal(tess_pattern_from_mask(&pattern, mask, &shape, NULL), TESS_OK);
    return pattern;
}

static tess_problem problem_of(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t n) {
    tess_problem p = tess_problem_init();
    p.batch = batch, p.heads_q = heads_q, p.heads_kv = heads_kv, p.n_q = p.n_kv = n;
    p.d_qk = p.d_v = 8;
    return p;
}

/* Whether a call was refused and its whole message is this. */
static void told(tess_status status, const tess_error *error, const char *message) {
    assert_int_not_equal(status, TESS_OK);
    assert_string_equal(error->message, message);
}

/* A plan of `problem` for dense lists of 4 queries and keys. */
static void lists_are_refused(tess_problem problem, int64_t batch, int64_t heads,
                              const char *message) {
    tess_pattern *pattern = pattern_dense(4, 4, batch, heads);
    tess_device_pattern device = tess_device_pattern_init();
    tess_error error = tess_error_init();
    tess_plan *plan;
    told(tess_plan_create(&plan, &problem, pattern, NULL, &error), &error, message);
    device.n_q = device.n_kv = 4, device.block_q = device.block_kv = 1, device.capacity = 2;
    device.batch = batch, device.heads = heads;
    told(tess_plan_reserve(&plan, &problem, &device, NULL, &error), &error, message);
    tess_pattern_free(pattern);
}

static void alternatives_are_told_once(void **state) {
    (void)state;
    lists_are_refused(problem_of(1, 8, 8, 4), 1, 3,
                      "pattern has lists for 3 heads, should have 1 or 8");
    lists_are_refused(problem_of(1, 8, 1, 4), 1, 3,
                      "pattern has lists for 3 heads, should have 1 or 8");
    lists_are_refused(problem_of(1, 8, 2, 4), 1, 3,
                      "pattern has lists for 3 heads, should have 1, 2 or 8");
    lists_are_refused(problem_of(1, 1, 1, 4), 1, 3, "pattern has lists for 3 heads, should have 1");
    lists_are_refused(problem_of(1, 8, 8, 4), 2, 1,
                      "pattern has lists for 2 batches, should have 1");
    lists_are_refused(problem_of(3, 8, 8, 4), 2, 1,
                      "pattern has lists for 2 batches, should have 1 or 3");
}

static void ranges_of_one_are_one_number(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_dense(1, 1, 1, 1), *other;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error e = tess_error_init();
    int64_t count;
    told(tess_pattern_row(pattern, 0, 0, 5, NULL, 0, &count, &e), &e,
         "query is 5, but the pattern has 0");
    told(tess_pattern_select(&other, pattern, 1, 2, 0, 1, &e), &e,
         "query_begin is 1, but the pattern has 0");
    told(tess_pattern_select(&other, pattern, 0, 3, 0, 1, &e), &e, "query_end is 3, but must be 1");
    shape.n_q = shape.n_kv = shape.block_q = shape.block_kv = 1;
    told(tess_pattern_from_topk(&other, (const int32_t[]){7}, 1, &shape, &e), &e,
         "index 7 is not -1 (padding) or 0");
    tess_pattern_free(pattern);

    const int64_t row_ptr[] = {0, 1}, none_ptr[] = {0, 0}, entry[] = {3};
    const int32_t col[] = {9}, first[] = {0}, band[] = {0, 0};
    tess_lists lists = tess_lists_init();
    lists.batch = lists.heads = lists.n_q = lists.n_kv = lists.block_q = lists.block_kv = 1;
    lists.row_ptr = row_ptr, lists.col_idx = col, lists.n_tiles = 1;
    told(tess_pattern_from_lists(&other, &lists, &e), &e, "block column 9 is not 0");
    lists.col_idx = first, lists.band_entry = entry, lists.band = band, lists.n_bands = 1;
    told(tess_pattern_from_lists(&other, &lists, &e), &e, "tile 3 is not 0");
    lists.row_ptr = none_ptr, lists.n_tiles = 0;
    told(tess_pattern_from_lists(&other, &lists, &e), &e, "tile 3 is not there: n_tiles is 0");
}

static void sizes_of_0_have_a_way_out(void **state) {
    (void)state;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern = pattern_dense(4, 4, 1, 1), *other;
    tess_problem problem = problem_of(1, 1, 1, 0);
    tess_error e = tess_error_init();
    tess_plan *plan;
    float data[8];
    told(tess_pattern_from_spec(&other, "causal", &shape, &e), &e,
         "n_q is 0, but must be 1 ... 2147483647: set it, or leave out what has no queries");
    shape.n_q = -1;
    told(tess_pattern_from_spec(&other, "causal", &shape, &e), &e,
         "n_q is -1, but must be 1 ... 2147483647");
    told(tess_plan_create(&plan, &problem, pattern, NULL, &e), &e,
         "problem: n_q is 0, not in 1 ... 2147483647: set it, or leave the call out");
    const tess_tensor q = tess_tensor_bhnd(data, TESS_F32, 1, 1, 0, 8);
    const tess_tensor k = tess_tensor_bhnd(data, TESS_F32, 1, 1, 1, 8);
    told(tess_attention(TESS_CPU, &q, &k, &k, pattern, &q, NULL, &e), &e,
         "q has 0 rows, not 1 ... 2147483647: of nothing leave the call out");
    tess_pattern_free(pattern);
}

/* A mask [B,1,1,K] of which keys are padding is not one of every query. */
static void a_row_for_all_queries_is_to_be_repeated(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_dense(1, 4, 1, 1);
    const tess_problem problem = problem_of(1, 1, 1, 4);
    tess_error e = tess_error_init();
    tess_plan *plan;
    told(tess_plan_create(&plan, &problem, pattern, NULL, &e), &e,
         "pattern is for 1 x 4, the tensors are 4 queries and 4 keys: a row for all queries, as of "
         "key padding, is to be repeated");
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alternatives_are_told_once),
        cmocka_unit_test(ranges_of_one_are_one_number),
        cmocka_unit_test(sizes_of_0_have_a_way_out),
        cmocka_unit_test(a_row_for_all_queries_is_to_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
