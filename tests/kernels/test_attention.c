/*
 * The fused CPU kernel: cases against the oracle at every tile height and number of splits, what
 * non-finite numbers may reach, sameness over threads, and the workspace to the byte. Also the
 * level that TESSERA_ISA forces, and the conversions that all stems store and load with.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "tile/convert.h"
#include "plan/kernels.h"
#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "support/support.h"

#define SEED 20

/* ---- against the oracle ---- */

static void right_within_the_bounds(void **state) {
    (void)state;
    cases_are_right("tests/cases/attention.txt", TESS_CPU);
}

static void shared_inputs(void **state) {
    (void)state;
    shared_inputs_are_right("tests/cases/attention_shared.txt", TESS_CPU);
}

static void extreme_scales(void **state) {
    (void)state;
    extreme_scales_are_right(TESS_CPU);
}

/* ---- one problem, many plans ---- */

/* Runs into o and lse, with a workspace of exactly the plan's size between canaries. Answers how
 * many tiles were split. */
static int64_t run_plan(struct lab_setting *s, int64_t tile_rows, int64_t part_keys,
                        int64_t threads) {
    tess_plan_info info = tess_plan_info_init();
    s->c.tile_rows = tile_rows, s->c.part_keys = part_keys;
    tess_plan *plan = setting_plan(s, NULL, TESS_FUSED, threads);
    assert_int_equal(TESS_OK, tess_plan_describe(plan, &info, NULL));
    setting_run_plan(s, plan);
    tess_plan_free(plan);
    return info.split_tiles;
}

static void every_height_and_split_is_right(void **state) {
    static const int64_t heights[] = {8, 16, 32, 64}, parts[] = {128, 256, 1 << 20};
    struct lab_cases cases = cases_of("tests/cases/attention_heights.txt");
    (void)state;
    for (int64_t i = 0; i < cases.count; i++) {
        struct lab_work w;
        int64_t split = 0;
        work_make(&w, &cases.at[i]);
        for (size_t h = 0; h < 4; h++)
            for (size_t p = 0; p < 3; p++) {
                struct lab_report report;
                split += run_plan(&w.s, heights[h], parts[p], 2);
                lab_compare(&report, &w.oracle, &w.s.o.view, &w.s.lse.view, heights[h]);
                if (!report.ok)
                    case_fails(&w.s.c, TESS_CPU, TESS_FUSED, report.message);
            }
        assert_true(split > 0);
        lab_work_free(&w);
    }
    lab_cases_free(&cases);
}

enum { EQUAL_ROWS = 64, EQUAL_TRIES = 40, EQUAL_DIMS = 256 };

/* The worst for a sum: all terms are alike. The bound of the lse, for one key. */
static void equal_terms_are_summed_well(void **state) {
    static float q[EQUAL_ROWS * EQUAL_DIMS], k[EQUAL_DIMS], v[1], o[EQUAL_ROWS], lse[EQUAL_ROWS];
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    (void)state;
    shape.n_q = EQUAL_ROWS, shape.n_kv = 1;
    shape.block_q = shape.block_kv = EQUAL_ROWS;
    assert_int_equal(tess_pattern_from_spec(&pattern, "dense", &shape, NULL), TESS_OK);
    for (int64_t d = 64; d <= EQUAL_DIMS; d += 64)
        for (int t = 0; t < EQUAL_TRIES; t++) {
            const float term = 1 + (float)t / EQUAL_TRIES;
            for (int64_t i = 0; i < EQUAL_ROWS * d; i++)
                q[i] = 1 + (float)(i / d) / EQUAL_ROWS;
            for (int64_t i = 0; i < d; i++)
                k[i] = term;
            tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, 1, EQUAL_ROWS, d);
            tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, 1, 1, d);
            tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, 1, 1, 1, 1);
            tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, 1, EQUAL_ROWS, 1);
            tess_tensor tl = tess_tensor_bhnd(lse, TESS_F32, 1, 1, EQUAL_ROWS, 1);
            assert_int_equal(tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, &tl, NULL),
                             TESS_OK);
            for (int r = 0; r < EQUAL_ROWS; r++) {
                const double score = sqrt((double)d) * (double)q[r * d] * (double)term;
                assert_true(fabs((double)lse[r] - score) <= 0x1p-21 * score);
            }
        }
    tess_pattern_free(pattern);
}

static void threads_change_no_bit(void **state) {
    static const int64_t threads[] = {2, 3, 8};
    struct lab_setting s;
    (void)state;
    setting_make(&s, "h=2,n=100,nkv=1500,d=20,block=8x8,pattern=random(0.6,3)");
    assert_true(run_plan(&s, 0, 128, 1) > 0);
    uint64_t o = lab_buffer_hash(&s.o.buffer), lse = lab_buffer_hash(&s.lse.buffer);
    for (size_t i = 0; i < 3; i++) {
        run_plan(&s, 0, 128, threads[i]);
        assert_true(o == lab_buffer_hash(&s.o.buffer));
        assert_true(lse == lab_buffer_hash(&s.lse.buffer));
    }
    lab_setting_free(&s);
}

/* ---- non-finite numbers: d = 1, so that scores are q * k ---- */

#define N_KEYS 20
#define N_ROWS 9

static void attend(uint8_t mask[N_ROWS][N_KEYS], const float *q, const float *k, const float *v,
                   float *o, float *lse) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    shape.n_q = N_ROWS;
    shape.n_kv = N_KEYS;
    shape.block_q = shape.block_kv = 4;
    assert_int_equal(TESS_OK, tess_pattern_from_mask(&pattern, &mask[0][0], &shape, &error));
    tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, 1, N_ROWS, 1);
    tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, 1, N_KEYS, 1);
    tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, 1, 1, N_KEYS, 1);
    tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, 1, N_ROWS, 1);
    tess_tensor tl = tess_tensor_bhnd(lse, TESS_F32, 1, 1, N_ROWS, 1);
    if (tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, &tl, &error))
        fail_msg("%s", error.message);
    tess_pattern_free(pattern);
}

/* Rows list key r and key r + 1, but row 3 lists nothing; nobody lists keys from 11 on. */
static void numbers(uint8_t mask[N_ROWS][N_KEYS], float *q, float *k, float *v) {
    memset(mask, 0, N_ROWS * N_KEYS);
    for (int r = 0; r < N_ROWS; r++)
        mask[r][r] = mask[r][r + 1] = r != 3;
    for (int r = 0; r < N_ROWS; r++)
        q[r] = (float)lab_uniform(SEED, 0, (uint64_t)r);
    for (int j = 0; j < N_KEYS; j++) {
        k[j] = (float)lab_normal(SEED, 1, (uint64_t)j);
        v[j] = (float)lab_normal(SEED, 2, (uint64_t)j);
    }
}

static void infinities_reach_their_rows_only(void **state) {
    uint8_t mask[N_ROWS][N_KEYS];
    float q[N_ROWS], k[N_KEYS], v[N_KEYS], o[N_ROWS], lse[N_ROWS], o2[N_ROWS], lse2[N_ROWS];
    (void)state;
    numbers(mask, q, k, v);
    attend(mask, q, k, v, o, lse);
    assert_true(o[3] == 0 && lse[3] == -INFINITY);
    for (int r = 0; r < N_ROWS; r++)
        assert_true(r == 3 || (isfinite(lse[r]) && o[r] != 0));

    k[0] = k[1] = -INFINITY; /* row 0: all -Inf; row 1: only key 2 is left */
    k[6] = INFINITY;         /* rows 5 and 6: NaN */
    k[9] = NAN;              /* row 8 */
    attend(mask, q, k, v, o2, lse2);
    assert_true(o2[0] == 0 && lse2[0] == -INFINITY);
    assert_true(o2[1] == v[2]);
    assert_true(fabsf(lse2[1] - q[1] * k[2]) <= 0x1p-21f * fmaxf(1, fabsf(lse2[1])));
    for (int r = 2; r < N_ROWS; r++) {
        if (r == 5 || r == 6 || r == 8)
            assert_true(isnan(o2[r]) && isnan(lse2[r]));
        else
            assert_true(o2[r] == o[r] && lse2[r] == lse[r]);
    }
}

static void unlisted_keys_change_no_bit(void **state) {
    uint8_t mask[N_ROWS][N_KEYS];
    float q[N_ROWS], k[N_KEYS], v[N_KEYS], o[N_ROWS], lse[N_ROWS], o2[N_ROWS], lse2[N_ROWS];
    (void)state;
    numbers(mask, q, k, v);
    mask[2][2] = mask[1][2] = 0; /* key 2, inside a listed block, is listed by nobody now */
    attend(mask, q, k, v, o, lse);
    k[2] = v[2] = NAN;
    for (int j = 11; j < N_KEYS; j++)
        k[j] = v[j] = j % 2 ? NAN : -INFINITY;
    attend(mask, q, k, v, o2, lse2);
    assert_memory_equal(o, o2, sizeof o);
    assert_memory_equal(lse, lse2, sizeof lse);
}

/* ---- the level ---- */

static void a_forced_level_is_obeyed_or_refused(void **state) {
    uint8_t mask[N_ROWS][N_KEYS];
    float q[N_ROWS], k[N_KEYS], v[N_KEYS], o[N_ROWS], lse[N_ROWS];
    const struct backend *cpu = cpu_kernels();
    const char *given = getenv("TESSERA_ISA"); /* set by a run of these tests at one level */
    char outer[32];
    const int was_given = given != NULL;
    int forced = 0;
    snprintf(outer, sizeof outer, "%s", given ? given : "");
    unsetenv("TESSERA_ISA");
    const char *best = tess_cpu_isa();
    (void)state;
    for (int64_t i = 0; i < cpu->n_kernels; i++) {
        const char *level = strrchr(cpu->kernels[i].name, '_') + 1;
        if (cpu->kernels[i].stage != TESS_STAGE_ATTENTION || cpu->kernels[i].unusable())
            continue;
        setenv("TESSERA_ISA", level, 1);
        assert_string_equal(level, tess_cpu_isa());
        for (int64_t j = 0; j < cpu->n_kernels; j++) {
            const char *other = strrchr(cpu->kernels[j].name, '_') + 1;
            const int pairs = !strcmp(level, "amx") || !strcmp(level, "avx512bf16");
            const int rest = pairs && !strcmp(other, "avx512");
            assert_true(!cpu->kernels[j].unusable() == (rest || !strcmp(level, other)));
        }
        numbers(mask, q, k, v);
        attend(mask, q, k, v, o, lse);
        unsetenv("TESSERA_ISA");
        forced++;
    }
    assert_true(forced >= 1);

    setenv("TESSERA_ISA", "sse9", 1);
    assert_non_null(strstr(tess_cpu_isa(), "none"));
    for (int64_t i = 0; i < cpu->n_kernels; i++)
        assert_non_null(strstr(cpu->kernels[i].unusable(), "TESSERA_ISA"));
    setenv("TESSERA_ISA", "", 1);
    assert_string_equal(best, tess_cpu_isa());
    if (was_given)
        setenv("TESSERA_ISA", outer, 1);
    else
        unsetenv("TESSERA_ISA");
}

/* ---- conversions ---- */

static void all_16_bit_numbers_survive(void **state) {
    (void)state;
    for (uint32_t u = 0; u < 0x10000; u++) {
        uint16_t h = (uint16_t)u;
        double f16 = lab_f16_to_double(h), bf16 = lab_bf16_to_double(h);
        float x = cpu_f16_to_f32(h), y = cpu_bf16_to_f32(h);
        assert_true(isnan(f16) ? isnan(x) : (double)x == f16 && !signbit(x) == !signbit(f16));
        assert_true(isnan(bf16) ? isnan(y) : (double)y == bf16 && !signbit(y) == !signbit(bf16));
        assert_true(isnan(x) ? isnan(lab_f16_to_double(cpu_f32_to_f16(x)))
                             : cpu_f32_to_f16(x) == h);
        assert_true(isnan(y) ? isnan(lab_bf16_to_double(cpu_f32_to_bf16(y)))
                             : cpu_f32_to_bf16(y) == h);
    }
}

/* Each gap between two neighbours: its middle, the f32 on either side of it, and its ends. */
static void rounding_is_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t u = 0; u < 0x10000; u++) {
        float f16 = cpu_f16_to_f32((uint16_t)u), bf16 = cpu_bf16_to_f32((uint16_t)u);
        float next16 = cpu_f16_to_f32((uint16_t)(u + 1));
        float ties[2] = {(u & 0x7fff) < 0x7bff ? f16 / 2 + next16 / 2 : copysignf(65520, f16),
                         cpu_f32_of_bits(cpu_f32_bits(bf16) + 0x8000)};
        for (int t = 0; t < 2; t++) {
            float near[3] = {ties[t], nextafterf(ties[t], -INFINITY),
                             nextafterf(ties[t], INFINITY)};
            for (int n = 0; n < 3; n++) {
                if (isnan(near[n]) || isnan(f16))
                    continue;
                assert_int_equal(lab_double_to_f16((double)near[n]), cpu_f32_to_f16(near[n]));
                assert_int_equal(lab_double_to_bf16((double)near[n]), cpu_f32_to_bf16(near[n]));
            }
        }
    }
}

static void rows_convert_as_elements_do(void **state) {
    static const tess_type types[] = {TESS_F32, TESS_F16, TESS_BF16};
    float in[37], back[37];
    double stored[37];
    uint32_t out[37];
    (void)state;
    for (int t = 0; t < 3; t++) {
        for (uint64_t i = 0; i < 37; i++)
            in[i] = (float)ldexp(lab_normal(SEED, 5, i), (int)(i % 40) - 25);
        cpu_row_from_f32(out, in, types[t], 37);
        cpu_row_to_f32(back, out, types[t], 37);
        lab_get_row(stored, out, types[t], 0, 37);
        for (int i = 0; i < 37; i++) {
            uint32_t expected;
            lab_put(&expected, types[t], 0, (double)in[i]);
            assert_true((double)back[i] == stored[i]);
            assert_true(stored[i] == lab_get(&expected, types[t], 0));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_within_the_bounds),
        cmocka_unit_test(shared_inputs),
        cmocka_unit_test(every_height_and_split_is_right),
        cmocka_unit_test(extreme_scales),
        cmocka_unit_test(equal_terms_are_summed_well),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(infinities_reach_their_rows_only),
        cmocka_unit_test(unlisted_keys_change_no_bit),
        cmocka_unit_test(a_forced_level_is_obeyed_or_refused),
        cmocka_unit_test(all_16_bit_numbers_survive),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(rows_convert_as_elements_do),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
