/* See merging.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "lab/memory/mirror.h"
#include "lab/fill/rng.h"
#include "support/merging.h"

/* An o and its lse, on the host and in the backend's memory. */
struct result {
    struct lab_tensor o, lse;
    struct lab_mirror mirror;
    tess_tensor o_there, lse_there;
};

static void result_make(struct result *r, tess_backend backend, tess_type type,
                        const int64_t size[4], enum lab_layout layout) {
    const int64_t of_lse[4] = {size[0], size[1], size[2], 1};
    lab_mirror_make(&r->mirror, backend);
    assert_int_equal(lab_tensor_make(&r->o, type, size, layout, 16), 0);
    assert_int_equal(lab_tensor_make(&r->lse, TESS_F32, of_lse, layout, 16), 0);
    assert_int_equal(lab_mirror_tensor(&r->mirror, &r->o, &r->o_there), 0);
    assert_int_equal(lab_mirror_tensor(&r->mirror, &r->lse, &r->lse_there), 0);
}

static void result_free(struct result *r) {
    lab_mirror_free(&r->mirror);
    lab_tensor_free(&r->o);
    lab_tensor_free(&r->lse);
}

static void result_fetch(struct result *r) {
    char why[LAB_WHY];
    assert_null(lab_mirror_fetch(&r->mirror));
    if (lab_tensor_check(&r->o, "o_out", why) || lab_tensor_check(&r->lse, "lse_out", why))
        fail_msg("%s", why);
}

enum { MOST_PARTS = 6 };

/* Merges parts[order[...]] into the o of one result and the lse of another, or no lse. */
static void merge(tess_backend backend, const struct result *parts, const int *order, int n,
                  struct result *to, struct result *to_lse) {
    const tess_tensor *o[MOST_PARTS], *lse[MOST_PARTS];
    tess_error error = tess_error_init();
    for (int i = 0; i < n; i++)
        o[i] = &parts[order[i]].o_there, lse[i] = &parts[order[i]].lse_there;
    if (tess_merge(backend, n, o, lse, &to->o_there, to_lse ? &to_lse->lse_there : NULL, &error,
                   NULL) != TESS_OK)
        fail_msg("%s: %s", error.argument, error.message);
    result_fetch(to);
    if (to_lse)
        result_fetch(to_lse);
}

static void assert_same(const struct lab_tensor *a, const struct lab_tensor *b, const char *what) {
    char why[LAB_WHY];
    if (lab_tensor_same(&a->view, &b->view, what, why))
        fail_msg("%s", why);
}

/* b holds what a does, rounded to its type. */
static void assert_rounded(const struct lab_tensor *a, const struct lab_tensor *b) {
    const int64_t *n = a->view.size;
    for (int64_t r = 0; r < n[0] * n[1] * n[2]; r++)
        for (int64_t d = 0; d < n[3]; d++) {
            const int64_t at[3] = {r / n[2] / n[1], r / n[2] % n[1], r % n[2]};
            uint32_t want = 0, got = 0;
            lab_put(
                &want, b->view.type, 0,
                lab_get(a->view.data, a->view.type, lab_row(&a->view, at[0], at[1], at[2]) + d));
            memcpy(&got,
                   (const char *)b->view.data + (lab_row(&b->view, at[0], at[1], at[2]) + d) *
                                                    (int64_t)tess_type_size(b->view.type),
                   tess_type_size(b->view.type));
            assert_int_equal(want, got);
        }
}

/* ---- parts of the keys ---- */

enum { CUTS = 5 };

/* Rows first ... end - 1 of each head of K or V. */
static tess_tensor rows_of(const tess_tensor *t, int64_t first, int64_t end) {
    tess_tensor part = *t;
    part.data = (char *)t->data + first * t->stride[2] * (int64_t)tess_type_size(t->type);
    part.size[2] = end - first;
    return part;
}

static void join(const struct lab_case *c, tess_backend backend) {
    const int64_t cut[CUTS + 1] = {0, 1, c->nkv / 7, c->nkv / 3, c->nkv - 9, c->nkv};
    static const int in_order[CUTS] = {0, 1, 2, 3, 4};
    const int64_t size[4] = {c->b, c->h, c->n, c->dv};
    struct lab_work w;
    struct lab_mirror inputs;
    struct lab_report report;
    struct result parts[CUTS], whole, exact;
    tess_tensor q, k, v;
    work_make(&w, c);
    lab_mirror_make(&inputs, backend);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.q, &q), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.k, &k), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.v, &v), 0);
    for (int p = 0; p < CUTS; p++) {
        const tess_tensor keys = rows_of(&k, cut[p], cut[p + 1]);
        const tess_tensor values = rows_of(&v, cut[p], cut[p + 1]);
        tess_pattern *pattern;
        tess_error error = tess_error_init();
        result_make(&parts[p], backend, c->type, size, c->layout);
        assert_int_equal(
            tess_pattern_select(&pattern, w.s.pattern, 0, c->n, cut[p], cut[p + 1], &error),
            TESS_OK);
        if (tess_attention(backend, &q, &keys, &values, pattern, &parts[p].o_there,
                           &parts[p].lse_there, &error) != TESS_OK)
            fail_msg("%s", error.message);
        tess_pattern_free(pattern);
    }
    result_make(&whole, backend, c->type, size, c->layout);
    result_make(&exact, backend, TESS_F32, size, LAB_BHND);
    merge(backend, parts, in_order, CUTS, &whole, &whole);
    merge(backend, parts, in_order, CUTS, &exact, NULL);
    assert_rounded(&exact.o, &whole.o);
    lab_compare(&report, &w.oracle, &whole.o.view, &whole.lse.view, 256);
    if (!report.ok)
        fail_msg("%s of %s: %s", c->pattern, tess_type_name(c->type), report.message);
    for (int p = 0; p < CUTS; p++)
        result_free(&parts[p]);
    result_free(&whole);
    result_free(&exact);
    lab_mirror_free(&inputs);
    lab_work_free(&w);
}

void parts_join_to_the_whole(tess_backend backend) {
    static const char *const cases[] = {
        "h=2,hkv=1,n=200,d=64,pattern=causal,block=32x32",
        "b=2,h=2,n=129,nkv=300,d=40,dv=72,pattern=random(0.3,5)+window(20,3),block=8x16,"
        "layout=padded",
        "h=3,n=257,d=16,dv=300,pattern=longformer(64,4),block=16x16,layout=bnhd",
        "h=1,n=90,d=24,dv=1,pattern=blockdiag(30),block=1x1",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int type = TESS_F32; type <= TESS_BF16; type++) {
            struct lab_case c = case_of(cases[i]);
            c.type = (tess_type)type;
            join(&c, backend);
        }
}

/* ---- rows of every kind ---- */

/* Kinds of rows; of those that are alike but for one part, that is part row % parts. */
enum kind { ONE_EMPTY, ALL_EMPTY, ONE_INFINITE, ONE_NAN, FAR_APART, PLAIN, KINDS };

/* The lse of part p of a row; an empty part's o stays NaN, as its canary is. */
static double lse_of(int64_t row, int p, int parts) {
    const enum kind kind = (enum kind)(row % KINDS);
    const double draw = 2 * lab_uniform(5, (uint64_t)p, (uint64_t)row) - 1;
    const int one = row / KINDS % parts == p;
    if (kind == ALL_EMPTY || (kind == ONE_EMPTY && one))
        return -(double)INFINITY;
    if (kind == ONE_INFINITE && one)
        return (double)INFINITY;
    if (kind == ONE_NAN && one)
        return (double)NAN;
    return draw * (kind == FAR_APART ? 3e4 : 10);
}

static void part_fill(struct result *r, int p, int parts) {
    const int64_t *n = r->o.view.size;
    for (int64_t row = 0; row < n[0] * n[1] * n[2]; row++) {
        const int64_t b = row / n[2] / n[1], h = row / n[2] % n[1], i = row % n[2];
        const double lse = lse_of(row, p, parts);
        lab_put(r->lse.view.data, TESS_F32, lab_row(&r->lse.view, b, h, i), lse);
        for (int64_t d = 0; d < n[3] && lse != -(double)INFINITY; d++)
            lab_put(r->o.view.data, r->o.view.type, lab_row(&r->o.view, b, h, i) + d,
                    lab_normal(6, (uint64_t)p, (uint64_t)(row * n[3] + d)));
    }
    assert_null(lab_mirror_send(&r->mirror));
}

/* Error of an element of a type, as a part of it, when it is rounded once. */
static double rounding(tess_type type) {
    return type == TESS_F32 ? 0x1p-24 : type == TESS_F16 ? 0x1p-11 : 0x1p-8;
}

static double element(const struct lab_tensor *t, const int64_t at[3], int64_t d) {
    return lab_get(t->view.data, t->view.type, lab_row(&t->view, at[0], at[1], at[2]) + d);
}

static void row_holds(const struct result *parts, int n, const struct result *out, int64_t row) {
    const int64_t *size = out->o.view.size;
    const int64_t at[3] = {row / size[2] / size[1], row / size[2] % size[1], row % size[2]};
    const enum kind kind = (enum kind)(row % KINDS);
    double top = -(double)INFINITY, l = 0;
    for (int p = 0; p < n; p++)
        top = fmax(top, element(&parts[p].lse, at, 0));
    for (int p = 0; p < n && kind != ALL_EMPTY; p++)
        l += exp(element(&parts[p].lse, at, 0) - top);
    const double lse = element(&out->lse, at, 0), wanted = top + log(l);
    if (kind == ALL_EMPTY)
        assert_true(lse == -(double)INFINITY);
    else if (kind == ONE_INFINITE || kind == ONE_NAN)
        assert_true(isnan(lse));
    else
        assert_true(fabs(lse - wanted) <= 0x1p-21 * fmax(1, fabs(wanted)));
    for (int64_t d = 0; d < size[3]; d++) {
        const double got = element(&out->o, at, d);
        double sum = 0, large = 0;
        for (int p = 0; p < n && l > 0; p++) {
            const double weight = exp(element(&parts[p].lse, at, 0) - top) / l;
            const double term = weight > 0 ? weight * element(&parts[p].o, at, d) : 0;
            sum += term, large += fabs(term);
        }
        if (kind == ALL_EMPTY)
            assert_true(got == 0);
        else if (kind == ONE_INFINITE || kind == ONE_NAN)
            assert_true(isnan(got));
        else
            assert_true(fabs(got - sum) <=
                        0x1p-20 * large + rounding(out->o.view.type) * fabs(sum) + 0x1p-25);
    }
}

static void merges_of(tess_backend backend, tess_type in, tess_type type, const int64_t size[4]) {
    enum { PARTS = MOST_PARTS - 1 }; /* and one that is empty in all rows */
    static const int orders[][MOST_PARTS] = {
        {0, 1, 2, 3, 4, 5}, {4, 3, 2, 1, 0}, {0, 1, 5, 2, 3, 4}};
    struct result parts[MOST_PARTS], out, again;
    for (int p = 0; p <= PARTS; p++) {
        result_make(&parts[p], backend, in, size, (enum lab_layout)(p % 3));
        if (p < PARTS)
            part_fill(&parts[p], p, PARTS);
    }
    struct result *empty = &parts[PARTS];
    for (size_t i = 0; i < empty->lse.buffer.size / sizeof(float); i++)
        lab_put(empty->lse.buffer.data, TESS_F32, (int64_t)i, -(double)INFINITY);
    assert_null(lab_mirror_send(&empty->mirror));
    result_make(&out, backend, type, size, LAB_PADDED);
    result_make(&again, backend, type, size, LAB_BNHD);

    merge(backend, parts, orders[1], PARTS, &out, &out);
    for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++)
        row_holds(parts, PARTS, &out, row);
    merge(backend, parts, orders[0], PARTS, &out, &out);
    for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++)
        row_holds(parts, PARTS, &out, row);
    merge(backend, parts, orders[0], PARTS, &again, NULL);
    assert_same(&again.o, &out.o, "o without lse");
    merge(backend, parts, orders[2], MOST_PARTS, &again, &again);
    assert_same(&again.o, &out.o, "o with an empty part");
    assert_same(&again.lse, &out.lse, "lse with an empty part");
    if (in == type)
        merge(backend, parts, orders[0], PARTS, &parts[1], &parts[2]);
    else
        merge(backend, parts, orders[0], PARTS, &again, &parts[2]);
    assert_same(in == type ? &parts[1].o : &again.o, &out.o, "o in a part's place");
    assert_same(&parts[2].lse, &out.lse, "lse in a part's place");
    for (int p = 0; p <= PARTS; p++)
        result_free(&parts[p]);
    result_free(&out);
    result_free(&again);
}

void merges_are_right(tess_backend backend) {
    static const int64_t sizes[][4] = {
        {2, 3, 41, 17}, {1, 2, 90, 64}, {3, 1, 30, 1}, {1, 1, 25, 600}};
    for (int in = TESS_F32; in <= TESS_BF16; in++)
        for (int type = TESS_F32; type <= TESS_BF16; type++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                merges_of(backend, (tess_type)in, (tess_type)type, sizes[i]);
}

/* ---- what is left ---- */

/* Kinds of rows: of a share that is kept, and at the ends. */
enum rest {
    NOTHING_KEPT,
    LITTLE_KEPT,
    HALF_KEPT,
    NEARLY_ALL_KEPT,
    ALL_KEPT,
    MORE_KEPT,
    NO_WHOLE,
    NEITHER,
    WHOLE_INFINITE,
    KEPT_NAN,
    RESTS
};

static void rest_fill(struct result *whole, struct result *kept) {
    static const double left[RESTS] = {1, 0.99, 0.5, 0x1p-10, 0, -0.01};
    const int64_t *n = whole->o.view.size;
    for (int64_t row = 0; row < n[0] * n[1] * n[2]; row++) {
        const int64_t b = row / n[2] / n[1], h = row / n[2] % n[1], i = row % n[2];
        const enum rest kind = (enum rest)(row % RESTS);
        double lse = 4 * lab_normal(9, 0, (uint64_t)row), part = lse + log1p(-left[kind]);
        if (kind == NO_WHOLE || kind == NEITHER)
            lse = -(double)INFINITY;
        if (kind == WHOLE_INFINITE)
            lse = (double)INFINITY;
        if (kind == NEITHER)
            part = -(double)INFINITY;
        if (kind == KEPT_NAN)
            part = (double)NAN;
        lab_put(whole->lse.view.data, TESS_F32, lab_row(&whole->lse.view, b, h, i), lse);
        lab_put(kept->lse.view.data, TESS_F32, lab_row(&kept->lse.view, b, h, i), part);
        for (int64_t d = 0; d < n[3]; d++) { /* an empty part's o stays NaN */
            if (lse != -(double)INFINITY)
                lab_put(whole->o.view.data, whole->o.view.type,
                        lab_row(&whole->o.view, b, h, i) + d,
                        lab_normal(9, 1, (uint64_t)(row * n[3] + d)));
            if (part != -(double)INFINITY)
                lab_put(kept->o.view.data, kept->o.view.type, lab_row(&kept->o.view, b, h, i) + d,
                        lab_normal(9, 2, (uint64_t)(row * n[3] + d)));
        }
    }
    assert_null(lab_mirror_send(&whole->mirror));
    assert_null(lab_mirror_send(&kept->mirror));
}

static void rest_holds(const struct result *whole, const struct result *kept,
                       const struct result *rest, int64_t row) {
    const int64_t *size = rest->o.view.size;
    const int64_t at[3] = {row / size[2] / size[1], row / size[2] % size[1], row % size[2]};
    const enum rest kind = (enum rest)(row % RESTS);
    const double lse = element(&whole->lse, at, 0), less = element(&kept->lse, at, 0) - lse;
    const double left = -expm1(less), got = element(&rest->lse, at, 0);
    const int none = kind == ALL_KEPT || kind == MORE_KEPT || kind == NO_WHOLE || kind == NEITHER;
    const int wrong = kind == WHOLE_INFINITE || kind == KEPT_NAN;
    if (none)
        assert_true(got == -(double)INFINITY);
    else if (wrong)
        assert_true(isnan(got));
    else
        assert_true(fabs(got - lse - log(left)) <= 0x1p-21 * fmax(1, fabs(lse)) + 0x1p-21 / left);
    for (int64_t d = 0; d < size[3]; d++) {
        const double o = element(&rest->o, at, d), x = element(&whole->o, at, d);
        const double y = kind == NOTHING_KEPT ? 0 : exp(less) * element(&kept->o, at, d);
        if (none)
            assert_true(o == 0);
        else if (wrong)
            assert_true(isnan(o));
        else
            assert_true(fabs(o - (x - y) / left) <= 0x1p-20 * (fabs(x) + fabs(y)) / left / left +
                                                        rounding(rest->o.view.type) * fabs(o) +
                                                        0x1p-25);
    }
}

static void unmerge(tess_backend backend, struct result *whole, struct result *kept,
                    struct result *to, struct result *to_lse) {
    tess_error error = tess_error_init();
    if (tess_unmerge(backend, &whole->o_there, &whole->lse_there, &kept->o_there, &kept->lse_there,
                     &to->o_there, to_lse ? &to_lse->lse_there : NULL, &error, NULL) != TESS_OK)
        fail_msg("%s: %s", error.argument, error.message);
    result_fetch(to);
    if (to_lse)
        result_fetch(to_lse);
}

/* The rest, an f32, and the kept give the whole again where something is left of it. */
static void rest_joins(tess_backend backend, struct result *kept, struct result *rest,
                       const struct result *whole) {
    static const int both[] = {0, 1};
    struct result parts[2], again;
    const int64_t *size = whole->o.view.size;
    result_make(&again, backend, TESS_F32, size, LAB_BHND);
    parts[0] = *kept, parts[1] = *rest;
    merge(backend, parts, both, 2, &again, &again);
    for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++) {
        const int64_t at[3] = {row / size[2] / size[1], row / size[2] % size[1], row % size[2]};
        const enum rest kind = (enum rest)(row % RESTS);
        const double lse = element(&whole->lse, at, 0);
        if (kind > NEARLY_ALL_KEPT)
            continue;
        assert_true(fabs(element(&again.lse, at, 0) - lse) <= 0x1p-20 * fmax(1, fabs(lse)));
        for (int64_t d = 0; d < size[3]; d++)
            assert_true(fabs(element(&again.o, at, d) - element(&whole->o, at, d)) <= 0x1p-16);
    }
    result_free(&again);
}

static void rests_of(tess_backend backend, tess_type in, tess_type type, const int64_t size[4]) {
    struct result whole, kept, rest, again;
    result_make(&whole, backend, in, size, LAB_BHND);
    result_make(&kept, backend, in, size, LAB_BNHD);
    result_make(&rest, backend, type, size, LAB_PADDED);
    result_make(&again, backend, type, size, LAB_BHND);
    rest_fill(&whole, &kept);
    unmerge(backend, &whole, &kept, &rest, &rest);
    for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++)
        rest_holds(&whole, &kept, &rest, row);
    unmerge(backend, &whole, &kept, &again, NULL);
    assert_same(&again.o, &rest.o, "o without lse");
    if (in == TESS_F32 && type == TESS_F32)
        rest_joins(backend, &kept, &rest, &whole);
    unmerge(backend, &whole, &kept, in == type ? &kept : &again, &whole);
    assert_same(in == type ? &kept.o : &again.o, &rest.o, "o in the kept part's place");
    assert_same(&whole.lse, &rest.lse, "lse in the whole's place");
    result_free(&whole);
    result_free(&kept);
    result_free(&rest);
    result_free(&again);
}

void rests_are_right(tess_backend backend) {
    static const int64_t sizes[][4] = {
        {2, 3, 41, 17}, {1, 2, 90, 64}, {1, 2, 33, 128}, {3, 1, 30, 1}, {1, 1, 25, 600}};
    for (int in = TESS_F32; in <= TESS_BF16; in++)
        for (int type = TESS_F32; type <= TESS_BF16; type++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                rests_of(backend, (tess_type)in, (tess_type)type, sizes[i]);
}

/* ---- one part ---- */

void equal_parts_are_one(tess_backend backend, int64_t parts) {
    static const int64_t size[4] = {1, 2, 3, 4};
    const tess_tensor **o = malloc((size_t)parts * sizeof *o);
    const tess_tensor **lse = malloc((size_t)parts * sizeof *lse);
    struct result one, out;
    assert_non_null(o);
    assert_non_null(lse);
    result_make(&one, backend, TESS_F32, size, LAB_BHND);
    result_make(&out, backend, TESS_F32, size, LAB_BHND);
    for (int64_t e = 0; e < 24; e++)
        lab_put(one.o.view.data, TESS_F32, e, lab_normal(8, 0, (uint64_t)e));
    for (int64_t row = 0; row < 6; row++)
        lab_put(one.lse.view.data, TESS_F32, row, 3 * lab_normal(8, 1, (uint64_t)row));
    assert_null(lab_mirror_send(&one.mirror));
    for (int64_t p = 0; p < parts; p++)
        o[p] = &one.o_there, lse[p] = &one.lse_there;
    assert_int_equal(tess_merge(backend, parts, o, lse, &out.o_there, &out.lse_there, NULL, NULL),
                     TESS_OK);
    result_fetch(&out);
    for (int64_t e = 0; e < 24; e++) {
        const double was = lab_get(one.o.view.data, TESS_F32, e);
        assert_true(fabs(lab_get(out.o.view.data, TESS_F32, e) - was) <= 0x1p-20 * fabs(was));
    }
    for (int64_t row = 0; row < 6; row++) {
        const double wanted = lab_get(one.lse.view.data, TESS_F32, row) + log((double)parts);
        const double got = lab_get(out.lse.view.data, TESS_F32, row);
        assert_true(fabs(got - wanted) <= 0x1p-21 * fmax(1, fabs(wanted)));
    }
    result_free(&one);
    result_free(&out);
    free(o);
    free(lse);
}
