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
#include "lab/check.h"
#include "lab/fill.h"
#include "lab/half.h"
#include "lab/rng.h"

#define SEED 20

/* ---- against the oracle ---- */

/* The lab runs each between canaries, with two numbers of threads, with and without an lse. */
static void right_within_the_bounds(void **state) {
    static const char *const cases[] = {
        "h=2,hkv=1,n=150,d=64,pattern=dense",
        "h=3,hkv=3,n=131,nkv=70,d=33,dv=1,pattern=causal,dtype=f16",
        "b=2,h=4,hkv=2,n=97,d=1,dv=70,pattern=window(20,3),dtype=bf16,layout=bnhd",
        "h=2,n=200,d=16,block=8x8,pattern=random(0.2,3),lists=kv,layout=padded",
        "h=1,n=260,d=12,block=1x1,pattern=random(0.1,4),align=4",
        "h=1,n=190,d=40,block=3x5,pattern=causal&random(0.5,5),dtype=bf16,align=2",
        "h=1,n=300,d=20,block=192x1,pattern=random(0.3,6),dtype=f16",
        "h=1,n=140,d=6,block=128x32,pattern=dilated(4,9)+global(2),fill=large",
        "h=1,n=140,d=24,block=16x16,pattern=segments(30,1,9),fill=huge",
        "h=1,n=40,d=32,dv=16,dtype=bf16,pattern=dense,fill=large,scale=1e8",
        "h=1,n=90,d=32,dv=16,pattern=dense,fill=extreme",
        "h=1,n=90,d=32,dv=16,dtype=f16,pattern=dense,fill=sink",
        "h=1,n=300,d=32,dtype=bf16,block=8x8,pattern=random(0.5,1),fill=sink,part=128",
        "h=1,n=90,d=24,block=4x4,pattern=strided(5,7),fill=subnormal",
        "h=1,n=120,d=24,block=8x16,pattern=window(9,9),fill=nank",
        "h=1,n=120,d=24,block=8x16,pattern=window(9,9),fill=nanv",
        "h=1,n=120,d=24,block=8x16,pattern=window(9,9),fill=inf",
        /* tiles that compute the listed pairs alone, by sets of 1, 2 and 4 rows */
        "h=1,n=200,nkv=900,d=64,block=1x1,pattern=random(0.1,4),tile=64",
        "h=2,hkv=1,n=150,nkv=2300,d=80,dv=48,block=2x2,pattern=random(0.2,5),tile=64,part=256",
        "h=1,n=131,nkv=1500,d=128,dv=64,dtype=bf16,block=4x4,pattern=random(0.2,6),tile=32",
        "h=1,n=70,nkv=9000,d=64,block=1x1,pattern=random(0.4,8),tile=64,fill=positive",
        "h=1,n=7,nkv=5000,d=48,dv=64,pattern=dense,fill=positive",
        "h=1,n=90,nkv=400,d=64,dtype=f16,block=8x8,pattern=random(0.2,9),tile=64,fill=nank",
        "h=1,n=90,nkv=400,d=64,block=1x1,pattern=random(0.2,9),tile=64,fill=nanv",
        "h=1,n=90,nkv=400,d=64,block=2x1,pattern=random(0.2,9),tile=64,fill=inf",
        "h=1,n=90,nkv=400,d=64,block=2x4,pattern=random(0.2,9),tile=32,fill=extreme",
        /* tiles that hold rows of several heads, in the lanes and not, and of none */
        "h=8,hkv=2,n=150,d=64,block=16x16,pattern=random(0.3,3),lists=kv",
        "b=2,h=4,hkv=1,n=97,nkv=300,d=32,dv=16,dtype=bf16,block=4x4,pattern=random(0.3,4),lists=1",
        "h=12,hkv=2,n=130,d=48,block=1x1,pattern=random(0.1,5),lists=kv,tile=16,layout=bnhd",
        "h=8,hkv=1,n=70,d=20,pattern=causal,lists=1,tile=8,fill=nanv",
        "h=8,hkv=2,n=70,nkv=2000,d=64,block=8x8,pattern=random(0.4,6),lists=1,tile=8,part=512",
        "h=4,hkv=1,n=60,d=64,block=2x2,pattern=random(0.3,7),lists=q,tile=16",
        "h=1,n=20,nkv=40,d=1000,dv=3,pattern=dense,dtype=f16",
        "h=1,n=5,nkv=4500,d=8,dv=1024,pattern=random(0.9,9)",
        "h=1,n=3,nkv=5,d=4096,dv=64,pattern=dense,fill=positive",
        "h=1,n=3,nkv=40000,d=1,dv=64,pattern=dense,fill=positive,part=9223372036854775807",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lab_case c;
        struct lab_work work;
        struct lab_outcome outcome;
        char why[LAB_WHY];
        if (lab_case_parse(&c, cases[i], why) || lab_work_make(&work, &c, why))
            fail_msg("%s: %s", cases[i], why);
        lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, NULL);
        if (outcome.verdict != LAB_PASSED)
            fail_msg("%s: %s", cases[i], outcome.message);
        lab_work_free(&work);
    }
}

/* Inputs that all heads and batches share, by strides of 0. */
static void shared_inputs_are_right(void **state) {
    static const char *const cases[] = {
        "b=2,h=3,n=130,nkv=200,d=32,block=64x64,pattern=random(0.5,1)",
        "b=2,h=4,hkv=2,n=97,nkv=300,d=64,dtype=bf16,block=8x8,pattern=random(0.3,4),lists=kv",
        "h=3,n=130,nkv=200,d=24,dv=40,dtype=f16,block=1x1,pattern=random(0.2,1)",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            struct lab_outcome outcome;
            lab_check_shared(&outcome, cases[i], TESS_CPU, (tess_pipeline)pipeline);
            if (outcome.verdict != LAB_PASSED)
                fail_msg("%s: %s", cases[i], outcome.message);
        }
}

/* ---- one problem, many plans ---- */

struct run {
    tess_pattern *pattern;
    struct lab_tensor q, k, v, o, lse;
    struct lab_oracle oracle;
};

static void run_make(struct run *r, const char *text) {
    struct lab_case c;
    char why[LAB_WHY];
    tess_error error = tess_error_init();
    if (lab_case_parse(&c, text, why))
        fail_msg("%s: %s", text, why);
    if (lab_case_pattern(&c, &r->pattern, &error))
        fail_msg("%s: %s", text, error.message);
    const int64_t q[4] = {c.b, c.h, c.n, c.d}, k[4] = {c.b, c.hkv, c.nkv, c.d};
    const int64_t v[4] = {c.b, c.hkv, c.nkv, c.dv}, o[4] = {c.b, c.h, c.n, c.dv};
    const int64_t lse[4] = {c.b, c.h, c.n, 1};
    assert_int_equal(0, lab_tensor_make(&r->q, c.type, q, LAB_BHND, 16));
    assert_int_equal(0, lab_tensor_make(&r->k, c.type, k, LAB_BHND, 16));
    assert_int_equal(0, lab_tensor_make(&r->v, c.type, v, LAB_BHND, 16));
    assert_int_equal(0, lab_tensor_make(&r->o, c.type, o, LAB_BHND, 16));
    assert_int_equal(0, lab_tensor_make(&r->lse, TESS_F32, lse, LAB_BHND, 16));
    lab_fill(&c, &r->q.view, &r->k.view, &r->v.view);
    assert_int_equal(
        0, lab_oracle_run(&r->oracle, &r->q.view, &r->k.view, &r->v.view, r->pattern, 0, NULL, 0));
}

static void run_free(struct run *r) {
    tess_pattern_free(r->pattern);
    lab_tensor_free(&r->q);
    lab_tensor_free(&r->k);
    lab_tensor_free(&r->v);
    lab_tensor_free(&r->o);
    lab_tensor_free(&r->lse);
    lab_oracle_free(&r->oracle);
}

/* Runs into o and lse, with a workspace of exactly the plan's size between canaries. Answers how
 * many tiles were split. */
static int64_t run_plan(struct run *r, int64_t tile_rows, int64_t part_keys, int64_t threads) {
    char why[LAB_WHY];
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_plan *plan;
    tess_plan_info info = tess_plan_info_init();
    struct lab_buffer workspace;
    assert_int_equal(TESS_OK, tess_problem_from_tensors(&problem, &r->q.view, &r->k.view,
                                                        &r->v.view, &r->o.view, &error));
    problem.tile_rows = tile_rows;
    problem.part_keys = part_keys;
    problem.threads = threads;
    if (tess_plan_create(&plan, &problem, r->pattern, NULL, &error))
        fail_msg("%s", error.message);
    assert_int_equal(TESS_OK, tess_plan_describe(plan, &info, &error));
    assert_int_equal(0, lab_buffer_make(&workspace, tess_plan_workspace_size(plan), 64));
    lab_tensor_poison(&r->o);
    lab_tensor_poison(&r->lse);
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &r->q.view;
    arguments.k = &r->k.view;
    arguments.v = &r->v.view;
    arguments.o = &r->o.view;
    arguments.lse = &r->lse.view;
    arguments.workspace = workspace.data;
    arguments.workspace_size = workspace.size;
    if (tess_run(plan, &arguments, &error, NULL))
        fail_msg("%s", error.message);
    if (lab_buffer_check(&workspace, "workspace", why) || lab_tensor_check(&r->o, "o", why) ||
        lab_tensor_check(&r->lse, "lse", why))
        fail_msg("tile_rows %d, part_keys %d: %s", (int)tile_rows, (int)part_keys, why);
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
    return info.split_tiles;
}

static void every_height_and_split_is_right(void **state) {
    static const char *const cases[] = {
        "h=1,n=70,nkv=1500,d=20,dv=11,pattern=dense,fill=large",
        "h=2,hkv=1,n=66,nkv=1400,d=8,block=8x8,pattern=random(0.5,3)+window(600,0),dtype=f16",
        "h=1,n=40,nkv=900,d=8,block=4x1,pattern=random(0.7,3),dtype=bf16",
    };
    static const int64_t heights[] = {8, 16, 32, 64}, parts[] = {128, 256, 1 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct run r;
        int64_t split = 0;
        run_make(&r, cases[i]);
        for (size_t h = 0; h < 4; h++)
            for (size_t p = 0; p < 3; p++) {
                struct lab_report report;
                split += run_plan(&r, heights[h], parts[p], 2);
                lab_compare(&report, &r.oracle, &r.o.view, &r.lse.view, heights[h]);
                if (!report.ok)
                    fail_msg("%s, tile_rows %d, part_keys %d: %s", cases[i], (int)heights[h],
                             (int)parts[p], report.message);
            }
        assert_true(split > 0);
        run_free(&r);
    }
}

/* Only the product of scale, query and key has to be in range, not that of scale and query. */
static void extreme_scales_are_safe(void **state) {
    static const struct {
        double scale;
        float q, k, score; /* of 4 dims */
    } cases[] = {{1e30, 1e10f, 1e-35f, 4e5f}, {1e30, 1e10f, 0, 0},
                 {1e-30, 1e20f, 1e12f, 400},  {1e-42, 0.5f, 2e38f, 4e-4f},
                 {1, 1e-40f, 1e38f, 0.04f},   {-1e20, 1e19f, 1e-38f, -40}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            float q[4], k[8], v[2] = {3, 5}, o, lse;
            for (int d = 0; d < 4; d++)
                q[d] = cases[i].q, k[d] = cases[i].k, k[4 + d] = 0;
            tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, 1, 1, 4);
            tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, 1, 2, 4);
            tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, 1, 1, 2, 1);
            tess_tensor to = tess_tensor_bhnd(&o, TESS_F32, 1, 1, 1, 1);
            tess_tensor tl = tess_tensor_bhnd(&lse, TESS_F32, 1, 1, 1, 1);
            tess_pattern_shape shape = tess_pattern_shape_init();
            tess_problem problem = tess_problem_init();
            tess_pattern *pattern = NULL;
            tess_plan *plan = NULL;
            shape.n_q = 1, shape.n_kv = 2;
            assert_int_equal(tess_pattern_from_spec(&pattern, "dense", &shape, NULL), TESS_OK);
            assert_int_equal(tess_problem_from_tensors(&problem, &tq, &tk, &tv, &to, NULL),
                             TESS_OK);
            problem.scale = cases[i].scale;
            problem.pipeline = (tess_pipeline)pipeline;
            assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, NULL), TESS_OK);
            tess_arguments a = tess_arguments_init();
            a.q = &tq, a.k = &tk, a.v = &tv, a.o = &to, a.lse = &tl;
            a.workspace_size = tess_plan_workspace_size(plan);
            a.workspace = aligned_alloc(64, a.workspace_size);
            assert_int_equal(tess_run(plan, &a, NULL, NULL), TESS_OK);
            double s = (double)cases[i].score, top = s > 0 ? s : 0;
            double want = top + log(exp(s - top) + exp(-top));
            double weight = exp(s - want);
            assert_true(fabs((double)lse - want) <= 1e-6 * fmax(1, want));
            assert_true(fabs((double)o - (3 * weight + 5 * (1 - weight))) < 1e-5);
            free(a.workspace);
            tess_plan_free(plan);
            tess_pattern_free(pattern);
        }
}

enum { EQUAL_ROWS = 64, EQUAL_TRIES = 40, EQUAL_DIMS = 256 };

/* What is worst for a sum: all terms are alike. The bound of the lse, for one key. */
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
    struct run r;
    (void)state;
    run_make(&r, "h=2,n=100,nkv=1500,d=20,block=8x8,pattern=random(0.6,3)");
    assert_true(run_plan(&r, 0, 128, 1) > 0);
    uint64_t o = lab_buffer_hash(&r.o.buffer), lse = lab_buffer_hash(&r.lse.buffer);
    for (size_t i = 0; i < 3; i++) {
        run_plan(&r, 0, 128, threads[i]);
        assert_true(o == lab_buffer_hash(&r.o.buffer));
        assert_true(lse == lab_buffer_hash(&r.lse.buffer));
    }
    run_free(&r);
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
    const char *given = getenv("TESSERA_ISA"); /* of a run of these tests at one level */
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
        cmocka_unit_test(shared_inputs_are_right),
        cmocka_unit_test(every_height_and_split_is_right),
        cmocka_unit_test(extreme_scales_are_safe),
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
