/* Bytes that a run moves at least, and predictions that memory bounds. */
#include "support/plans.h"

/* Decode of one query a sequence over all of its keys. */
static tess_problem decode_problem(int64_t sequences, int64_t heads_kv, int64_t n_kv) {
    tess_problem p = tess_problem_init();
    p.batch = sequences, p.heads_q = 32, p.heads_kv = heads_kv, p.n_q = 1, p.n_kv = n_kv;
    p.d_qk = p.d_v = 128, p.type = TESS_BF16, p.alignment = 16;
    return p;
}

static double bytes_whole(const tess_problem *p) {
    const int64_t d = p->d_qk + p->d_v;
    return 2.0 * (double)(p->batch * (p->heads_q * p->n_q + p->heads_kv * p->n_kv) * d);
}

static tess_target target_of(double memory_rate) {
    tess_target target = cuda_target(90, 232448);
    target.cache_size = 50 << 20, target.memory_rate = (int64_t)memory_rate;
    return target;
}

static tess_plan_info described(const tess_plan *plan) {
    tess_plan_info info = tess_plan_info_init();
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
    assert_true(info.predicted_seconds == tess_plan_predict(plan, -1));
    return info;
}

/* An H100's memory, an H200's, and one that is not told: then the fastest beside the architecture. */
static void no_dense_decode_is_faster_than_memory(void **state) {
    (void)state;
    static const struct {
        double told, rate;
    } memories[] = {{3.35e12, 3.35e12}, {4.8e12, 4.8e12}, {0, 4.9e12}};
    cuda_table_needed();
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        for (int64_t heads_kv = 1; heads_kv <= 32; heads_kv *= 8) {
            const tess_target target = target_of(memories[i].told);
            const tess_problem problem = decode_problem(64, heads_kv, 8192);
            tess_pattern *pattern = make("dense", (const int64_t[]){1, 8192, 64, 64}, 1, 1);
            tess_device_pattern lists =
                tess_device_pattern_blocks(NULL, NULL, 64, 1, 1, 8192, 1, 64, 128);
            tess_plan *plan;
            assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
            assert_true((double)described(plan).bytes == bytes_whole(&problem));
            assert_true(tess_plan_predict(plan, -1) >= bytes_whole(&problem) / memories[i].rate);
            tess_plan_free(plan);
            assert_int_equal(tess_plan_reserve(&plan, &problem, &lists, &target, NULL), TESS_OK);
            assert_true((double)described(plan).bytes == bytes_whole(&problem));
            assert_true(tess_plan_predict(plan, -1) >= bytes_whole(&problem) / memories[i].rate);
            tess_plan_free(plan);
            tess_pattern_free(pattern);
        }
}

/* Whether a list names a block: of a row, or -1 any row; of a column, or -1 any. */
static int names(const tess_lists *m, int64_t list, int64_t row, int64_t column) {
    const int64_t rows = (m->n_q + m->block_q - 1) / m->block_q;
    const int64_t *ptr = m->row_ptr + list * (rows + 1);
    for (int64_t i = row < 0 ? 0 : row; i < (row < 0 ? rows : row + 1); i++)
        for (int64_t e = ptr[i]; e < ptr[i + 1]; e++)
            if (column < 0 || m->col_idx[e] == column)
                return 1;
    return 0;
}

/* Keys that no query lists, and queries that list none, are not read; heads that share keys read them once. */
static void what_is_not_listed_is_not_read(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t batch, heads; /* lists */
        double keys, queries; /* read, over 2 batches of 4 heads on 2; 0: counted below */
    } cases[] = {{"dense", 1, 1, 4 * 96, 8 * 96},        {"causal", 1, 1, 4 * 96, 8 * 96},
                 {"segments(40)", 1, 1, 4 * 48, 8 * 48}, {"random(0.1,1)", 2, 4, 0, 0},
                 {"random(0.1,2)", 1, 4, 0, 0},          {"random(0.1,3)", 2, 2, 0, 0},
                 {"random(0.1,4)", 2, 1, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t shape[4] = {96, 96, 16, 16}, heads = cases[i].heads;
        tess_pattern *pattern = make(cases[i].spec, shape, cases[i].batch, heads);
        const tess_problem problem = problem_make(96); /* f32 of 16 and 8 dims */
        const tess_lists m = lists_of(pattern);
        tess_plan *plan = plan_created(&problem, pattern);
        double keys = cases[i].keys, queries = cases[i].queries;
        for (int64_t bh = 0; bh < 8 && !cases[i].keys; bh++) {
            const int64_t list = (m.batch == 1 ? 0 : bh / 4 * heads) + bh % 4 / (4 / heads);
            for (int64_t block = 0; block < 6; block++) {
                /* the group's other head, where this is its second */
                const int64_t other = bh % 2 && heads == 4 ? list - 1 : list;
                const int read =
                    bh % 2 == 0 ? 0 : names(&m, list, -1, block) || names(&m, other, -1, block);
                keys += 16 * read;
                queries += 16 * names(&m, list, block, -1);
            }
        }
        assert_true((double)described(plan).bytes ==
                    4 * (keys * (16 + 8) + queries * 16 + 8 * 96 * 8));
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* V in K is read with K, elements of 8 bits are as short as they are. */
static void caches_are_read_as_they_are(void **state) {
    (void)state;
    tess_problem problem = decode_problem(2, 1, 640);
    tess_device_pattern lists = tess_device_pattern_topk(NULL, NULL, 2, 1, 1, 640, 64);
    const double keys = 2 * 64, heads = 2 * 32;
    tess_plan *plan;
    problem.d_qk = 576, problem.d_v = 512, problem.v_in_k = 1;
    assert_int_equal(tess_plan_reserve(&plan, &problem, &lists, NULL, NULL), TESS_OK);
    assert_true((double)described(plan).bytes == 2 * (keys * 576 + heads * (576 + 512)));
    tess_plan_free(plan);
    problem.v_in_k = 0, problem.d_qk = problem.d_v = 128,
    problem.k_type = problem.v_type = TESS_E4M3;
    assert_int_equal(tess_plan_reserve(&plan, &problem, &lists, NULL, NULL), TESS_OK);
    assert_true((double)described(plan).bytes == keys * 256 + 2 * heads * 256);
    tess_plan_free(plan);
}

/* Fills of fewer keys are predicted to take less, down to a launch and items without keys. */
static void reserved_predictions_follow_the_keys(void **state) {
    (void)state;
    const tess_target target = target_of(4.8e12);
    const tess_problem problem = decode_problem(8, 8, 65536);
    tess_device_pattern lists = tess_device_pattern_blocks(NULL, NULL, 8, 8, 1, 65536, 1, 64, 1024);
    tess_plan *plan;
    char text[16384];
    cuda_table_needed();
    assert_int_equal(tess_plan_reserve(&plan, &problem, &lists, &target, NULL), TESS_OK);
    const int64_t tiles = described(plan).query_tiles;
    double longer = tess_plan_predict(plan, -1);
    assert_true(longer == tess_plan_predict(plan, 65536 * tiles));
    for (int64_t keys = 32768; keys > 0; keys /= 2) {
        const double seconds = tess_plan_predict(plan, keys * tiles);
        assert_true(seconds < longer);
        longer = seconds;
    }
    assert_true(tess_plan_predict(plan, 0) > 0);
    assert_true(tess_plan_predict(NULL, 0) == 0);
    assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "  keys      65536 of a query tile, "));
    assert_non_null(strstr(text, " at capacity\n"));
    tess_plan_free(plan);
}

/* A rate is not negative. */
static void negative_rates_are_refused(void **state) {
    (void)state;
    const tess_problem problem = problem_make(64);
    const tess_target target = target_of(-1);
    cuda_table_needed();
    plan_refuses(&problem, &target, TESS_INVALID_ARGUMENT, "memory_rate is negative");
}

/* Callers compiled before the memory's rate and the bytes: their structs are shorter, and end there. */
static void shorter_structs_are_taken(void **state) {
    (void)state;
    const tess_problem problem = decode_problem(1, 1, 512);
    tess_target target = target_of(1), cpu = tess_target_init();
    tess_plan_info info = tess_plan_info_init();
    tess_pattern *pattern = make("dense", (const int64_t[]){1, 512, 64, 64}, 1, 1);
    tess_plan *plan;
    cuda_table_needed();
    target.struct_size = cpu.struct_size = offsetof(tess_target, memory_rate);
    assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
    assert_true(tess_plan_predict(plan, -1) < 1); /* by the architecture, not by a byte a second */
    info.struct_size = offsetof(tess_plan_info, bytes), info.bytes = -7, cpu.memory_rate = -7;
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
    assert_int_equal(tess_target_query(&cpu, TESS_CPU, -1, NULL), TESS_OK);
    assert_true(info.bytes == -7 && cpu.memory_rate == -7 && info.tile_rows > 0);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_dense_decode_is_faster_than_memory),
        cmocka_unit_test(what_is_not_listed_is_not_read),
        cmocka_unit_test(caches_are_read_as_they_are),
        cmocka_unit_test(reserved_predictions_follow_the_keys),
        cmocka_unit_test(negative_rates_are_refused),
        cmocka_unit_test(shorter_structs_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
