/* See basing.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "support/basing.h"

/* A dense case, and plans of a list of its keys, of the others, and of all. The others' runs have no sink. */
struct basing {
    struct lab_work w;
    struct lab_base base;
    struct lab_planned list, others, all;
    tess_backend backend;
};

/* A list of a third of the keys, and of none in one row of eight. */
static void masks_make(uint8_t *list, uint8_t *others, const struct lab_case *c) {
    for (int64_t x = 0; x < c->n * c->nkv; x++) {
        list[x] = x / c->nkv % 8 != 5 && lab_uniform(c->seed, 300, (uint64_t)x) < 0.33;
        others[x] = !list[x];
    }
}

static void planned_make(struct lab_planned *p, const struct basing *b, const uint8_t *mask,
                         int sink) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = lab_case_problem(&b->w.s.c, TESS_FUSED);
    tess_pattern_shape shape = lab_case_shape(&b->w.s.c);
    tess_pattern *pattern = NULL;
    shape.batch = shape.heads = 1;
    problem.sink = sink;
    if (mask)
        assert_int_equal(tess_pattern_from_mask(&pattern, mask, &shape, &error), TESS_OK);
    assert_int_equal(tess_target_query(&target, b->backend, -1, &error), TESS_OK);
    if (lab_planned_make(p, &problem, mask ? pattern : b->w.s.pattern, &target, &error))
        fail_msg("%s", error.message);
    tess_pattern_free(pattern);
}

static void basing_make(struct basing *b, const char *text, tess_type type, tess_backend backend) {
    struct lab_case c = case_of(text);
    c.type = type;
    work_make(&b->w, &c);
    b->backend = backend;
    uint8_t *list = malloc((size_t)(c.n * c.nkv)), *others = malloc((size_t)(c.n * c.nkv));
    assert_non_null(list);
    assert_non_null(others);
    masks_make(list, others, &c);
    planned_make(&b->list, b, list, c.sink != 0);
    planned_make(&b->others, b, others, 0);
    planned_make(&b->all, b, NULL, c.sink != 0);
    free(list);
    free(others);
    memset(&b->base, 0, sizeof b->base);
    assert_int_equal(lab_setting_again(&b->w.s, &b->w.s.o, &b->base.o), 0);
    assert_int_equal(lab_setting_again(&b->w.s, &b->w.s.lse, &b->base.lse), 0);
    b->base.basing = (struct lab_basing){.how = TESS_BASE_MERGE};
}

static void basing_free(struct basing *b) {
    lab_planned_free(&b->list);
    lab_planned_free(&b->others);
    lab_planned_free(&b->all);
    lab_tensor_free(&b->base.o);
    lab_tensor_free(&b->base.lse);
    lab_work_free(&b->w);
}

/* base NULL: none. Without a sink the case's modifiers are not given. */
static struct lab_run run_of(struct basing *b, const struct lab_planned *planned,
                             const struct lab_base *base, struct lab_tensor *o,
                             struct lab_tensor *lse) {
    struct lab_run run = lab_setting_run(&b->w.s, planned);
    run.o = o, run.lse = lse, run.base = base;
    if (planned == &b->others)
        run.modifiers = NULL;
    return run;
}

static void run(struct basing *b, const struct lab_planned *planned, const struct lab_base *base,
                struct lab_tensor *o, struct lab_tensor *lse) {
    char why[LAB_WHY];
    const struct lab_run r = run_of(b, planned, base, o, lse);
    if (lab_run_whole(&r, why))
        fail_msg("%s", why);
}

/* Into the memory of the base's o, which this changes. */
static void run_in_place(struct basing *b, struct lab_tensor *lse) {
    tess_error error = tess_error_init();
    struct lab_sight sight;
    struct lab_buffer workspace = setting_workspace(b->list.plan);
    const struct lab_run r = run_of(b, &b->list, &b->base, &b->w.o2, lse);
    if (lab_run_place(&sight, &r, &workspace))
        fail_msg("%s", sight.mirror.why);
    sight.arguments.o = sight.arguments.base_o;
    if (tess_run(b->list.plan, &sight.arguments, &error, NULL))
        fail_msg("%s: %s", error.argument, error.message);
    assert_null(lab_mirror_fetch(&sight.mirror));
    lab_mirror_free(&sight.mirror);
    lab_buffer_free(&workspace);
}

static double element(const struct lab_tensor *t, const struct lab_place *at, int64_t d) {
    return lab_get(t->view.data, t->view.type, lab_row(&t->view, at->b, at->h, at->i) + d);
}

static void assert_same(const struct lab_tensor *a, const struct lab_tensor *b, const char *what) {
    char why[LAB_WHY];
    if (lab_tensor_same(&a->view, &b->view, what, why))
        fail_msg("%s", why);
}

static const char *const cases[] = {
    "h=2,hkv=1,n=130,d=64,pattern=dense",
    "b=2,h=2,n=50,nkv=200,d=40,dv=72,pattern=dense,layout=padded,block=16x16,sink=1",
    "h=4,hkv=1,n=9,nkv=600,d=128,pattern=dense,block=1x1,split=128,lists=kv,sink=1",
    "h=1,n=40,nkv=500,d=320,pattern=dense,split=128,layout=bnhd,sink=1",
};
#define CASES (sizeof cases / sizeof *cases)

/* ---- a list and its complement ---- */

static void empty_rows_are_the_base(const struct basing *b) {
    for (int64_t x = 0; x < b->w.oracle.rows; x++) {
        const struct lab_place *at = &b->w.oracle.place[x];
        for (int64_t d = 0; d < b->w.s.c.dv && at->i % 8 == 5; d++)
            assert_true(element(&b->w.s.o, at, d) == element(&b->base.o, at, d));
    }
}

static void complement_joins(const char *text, tess_type type, tess_backend backend) {
    struct basing b;
    struct lab_report report;
    basing_make(&b, text, type, backend);
    run(&b, &b.others, NULL, &b.base.o, &b.base.lse);
    run(&b, &b.list, &b.base, &b.w.s.o, &b.w.s.lse);
    lab_compare(&report, &b.w.oracle, &b.w.s.o.view, &b.w.s.lse.view, 256);
    if (!report.ok)
        fail_msg("%s, %s: %s", text, tess_type_name(type), report.message);
    if (!b.w.s.c.sink)
        empty_rows_are_the_base(&b);
    run_in_place(&b, &b.w.lse2);
    assert_same(&b.base.o, &b.w.s.o, "o in the base's place");
    assert_same(&b.w.lse2, &b.w.s.lse, "lse in the base's place");
    basing_free(&b);
}

void lists_join_their_complements(tess_backend backend) {
    for (size_t i = 0; i < CASES; i++)
        for (int type = TESS_F32; type <= TESS_BF16; type++)
            complement_joins(cases[i], (tess_type)type, backend);
}

/* ---- deltas ---- */

/* Error of an element of a type, as a part of it, when it is rounded once. */
static double rounding(tess_type type) {
    return type == TESS_F32 ? 0x1p-23 : type == TESS_F16 ? 0x1p-11 : 0x1p-8;
}

/* The list's own o is the same in both runs: what is cached is rounded, and the sum. */
static void added(struct basing *b, const struct lab_tensor *dense) {
    const double one = rounding(b->w.s.c.type);
    const struct lab_base whole = {.o = *dense, .basing = {.how = TESS_BASE_ADD, .beta = -1}};
    struct lab_base cached = {.basing = {.how = TESS_BASE_ADD}};
    assert_int_equal(lab_setting_again(&b->w.s, &b->w.s.o, &cached.o), 0);
    run(b, &b->list, &whole, &cached.o, NULL);
    run(b, &b->list, &cached, &b->w.s.o, NULL);
    for (int64_t x = 0; x < b->w.oracle.rows; x++)
        for (int64_t d = 0; d < b->w.s.c.dv; d++) {
            const struct lab_place *at = &b->w.oracle.place[x];
            const double was = element(dense, at, d), kept = element(&cached.o, at, d);
            assert_true(fabs(element(&b->w.s.o, at, d) - was) <=
                        one * (fabs(was) + fabs(kept)) + 0x1p-24);
        }
    lab_tensor_free(&cached.o);
}

static void unmerge(const struct basing *b, const struct lab_tensor *o,
                    const struct lab_tensor *lse, const struct lab_tensor *kept,
                    const struct lab_tensor *lse_kept) {
    const struct lab_tensor *const given[] = {o, lse, kept, lse_kept, &b->base.o, &b->base.lse};
    tess_error error = tess_error_init();
    struct lab_mirror mirror;
    tess_tensor t[6];
    lab_mirror_make(&mirror, b->backend);
    for (int i = 0; i < 6; i++)
        assert_int_equal(lab_mirror_tensor(&mirror, given[i], &t[i]), 0);
    if (tess_unmerge(b->backend, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &error, NULL))
        fail_msg("%s: %s", error.argument, error.message);
    assert_null(lab_mirror_fetch(&mirror));
    lab_mirror_free(&mirror);
}

/* Both o that are taken apart, what is left and what is joined again are rounded once each. */
static void merged(struct basing *b, const struct lab_tensor *dense, const struct lab_tensor *lse) {
    const double one = rounding(b->w.s.c.type);
    struct lab_tensor *const kept = &b->w.o2, *const lse_kept = &b->w.lse2;
    run(b, &b->list, NULL, kept, lse_kept);
    unmerge(b, dense, lse, kept, lse_kept);
    run(b, &b->list, &b->base, &b->w.s.o, &b->w.s.lse);
    for (int64_t x = 0; x < b->w.oracle.rows; x++) {
        const struct lab_place *at = &b->w.oracle.place[x];
        const double whole = element(lse, at, 0), w = exp(element(lse_kept, at, 0) - whole);
        const int none = isinf(element(&b->base.lse, at, 0)) != 0;
        const double part = none ? 0x1p-12 : one;
        assert_true(fabs(element(&b->w.s.lse, at, 0) - whole) <=
                    (none ? 0x1p-11 : 0x1p-20 * fmax(1, fabs(whole))));
        for (int64_t d = 0; d < b->w.s.c.dv; d++) {
            const double was = element(dense, at, d);
            assert_true(fabs(element(&b->w.s.o, at, d) - was) <=
                        (one + part) * (fabs(was) + w * fabs(element(kept, at, d)) +
                                        (1 - w) * fabs(element(&b->base.o, at, d))) +
                            0x1p-20);
        }
    }
}

void deltas_are_dense_when_cached(tess_backend backend) {
    for (size_t i = 0; i < CASES; i++)
        for (int type = TESS_F32; type <= TESS_BF16; type++) {
            struct basing b;
            struct lab_tensor dense, lse;
            basing_make(&b, cases[i], (tess_type)type, backend);
            assert_int_equal(lab_setting_again(&b.w.s, &b.w.s.o, &dense), 0);
            assert_int_equal(lab_setting_again(&b.w.s, &b.w.s.lse, &lse), 0);
            run(&b, &b.all, NULL, &dense, &lse);
            added(&b, &dense);
            if (!b.w.s.c.sink) /* an o with a sink is no part of another */
                merged(&b, &dense, &lse);
            lab_tensor_free(&dense);
            lab_tensor_free(&lse);
            basing_free(&b);
        }
}
