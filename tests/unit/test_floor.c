/* The limits that `tessera bench` sets its times beside. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "measure/floor.h"
#include "measure/peak.h"

/* 2 batches of 4 query heads and 2 key/value heads, bf16: Q has 1.28e6 bytes, K 0.48e6, V 0.24e6, O
 * 0.64e6. */
static tess_problem problem_of(void) {
    tess_problem p = tess_problem_init();
    p.batch = 2, p.heads_q = 4, p.heads_kv = 2;
    p.n_q = 1000, p.n_kv = 750, p.d_qk = 80, p.d_v = 40;
    p.type = TESS_BF16;
    return p;
}

static const struct bench_amounts amounts = {
    .pairs = 1000000, .tiles = 10000, .scores = 1250000, .keys = 500000, .bytes = 2640000};
static const struct bench_limits limits = {
    .measured = 1, .copy_gbs = 1, .cache_gbs = 1, .matmul_tflops = {1e6, 1e6, 1e6}};

static void assert_near(double value, double wanted) {
    assert_true(fabs(value - wanted) <= 1e-9 * wanted);
}

static void test_bytes(void **state) {
    (void)state;
    const tess_problem p = problem_of();
    assert_near(bench_floor_bytes(&p, TESS_STAGE_ATTENTION, &amounts), 2.64e6 + 4e4);
    assert_near(bench_floor_bytes(&p, TESS_STAGE_SDDMM, &amounts), 1.76e6 + 5e6 + 4e4);
    assert_near(bench_floor_bytes(&p, TESS_STAGE_SOFTMAX, &amounts), 1e7);
    assert_near(bench_floor_bytes(&p, TESS_STAGE_SPMM, &amounts), 5e6 + 0.88e6 + 4e4);
}

/* Each limit in turn is the slowest. */
static void test_slowest(void **state) {
    (void)state;
    const tess_problem p = problem_of();
    struct bench_limits l = limits;
    struct bench_amounts a = amounts;
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_ATTENTION, &a), 1e-6 * 500000 * 120 * 2);
    a.keys = 0;
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_ATTENTION, &a), 2.68);
    l.matmul_tflops[TESS_BF16] = 0.01;
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_ATTENTION, &a), 2e-9 * 120 * 1e6 / 0.01);
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_SDDMM, &a), 2e-9 * 80 * 1e6 / 0.01);
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_SPMM, &a), 2e-9 * 40 * 1e6 / 0.01);
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_SOFTMAX, &a), 10);
}

/* Bytes that a cache keeps need not cross memory. */
static void test_kept(void **state) {
    (void)state;
    const tess_problem p = problem_of();
    struct bench_limits l = limits;
    l.cache_gbs = INFINITY, l.copy_gbs = NAN;
    l.matmul_tflops[TESS_BF16] = 1;
    l.kept = 2680000;
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_ATTENTION, &amounts), 2e-9 * 120 * 1e6);
    l.kept--;
    assert_true(isnan(bench_floor_ms(&l, &p, TESS_STAGE_ATTENTION, &amounts)));
    l.copy_gbs = 1;
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_ATTENTION, &amounts), 2.68);
    l.kept = INT64_MAX;
    assert_true(bench_floor_ms(&l, &p, TESS_STAGE_SOFTMAX, &amounts) == 0);
}

static void test_unknown(void **state) {
    (void)state;
    const tess_problem p = problem_of();
    struct bench_limits l = limits;
    l.matmul_tflops[TESS_BF16] = NAN;
    assert_true(isnan(bench_floor_ms(&l, &p, TESS_STAGE_SDDMM, &amounts)));
    assert_near(bench_floor_ms(&l, &p, TESS_STAGE_SOFTMAX, &amounts), 10);
}

/* A memory slower than 0.1 GB/s, or faster than 10 TB/s, is one that was not measured. */
static void test_copy(void **state) {
    (void)state;
    const double gbs = bench_peak_copy_gbs(2);
    assert_true(isnan(gbs) || (gbs > 0.1 && gbs < 1e4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),   cmocka_unit_test(test_slowest), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_unknown), cmocka_unit_test(test_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
