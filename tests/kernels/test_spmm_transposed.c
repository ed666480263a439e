/*
 * The transposed SpMM alone: probabilities set by hand against sums in double, over blocks, masks, types,
 * head ratios and threads. Rows of queries that list no key are not read. Keys that no query lists are
 * written as 0. Nothing is written past the output.
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

#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "support/stages.h"

#define SEED 61

struct stage {
    struct stages stages;
    struct lab_buffer weights;
    struct lab_tensor v, o; /* [batch, heads_q, n_q, d_v], [batch, heads_kv, n_kv, d_v] */
    float *x;
};

static void weight_set(void *context, const struct stages_element *e) {
    float *x = context;
    x[e->place] = e->listed ? (float)lab_normal(SEED, 0, (uint64_t)e->place) : 0;
}

/* A query that lists no key has NaN. */
static void rows_fill(struct stage *s) {
    const int64_t *size = s->v.view.size;
    for (int64_t b = 0; b < size[0]; b++)
        for (int64_t h = 0; h < size[1]; h++)
            for (int64_t i = 0; i < size[2]; i++) {
                const int listed = stages_lists(&s->stages, b, h, i, 0, s->stages.c.nkv);
                const int64_t at = lab_row(&s->v.view, b, h, i);
                for (int64_t d = 0; d < size[3]; d++)
                    lab_put(s->v.view.data, s->stages.c.type, at + d,
                            listed ? lab_normal(SEED, 1, (uint64_t)(at + d)) : NAN);
            }
}

static void stage_make(struct stage *s, const char *text, tess_type type) {
    stages_make(&s->stages, text);
    const struct lab_case *c = &s->stages.c;
    const int64_t v[4] = {c->b, c->h, c->n, c->dv}, o[4] = {c->b, c->hkv, c->nkv, c->dv};
    assert_int_equal(0, lab_buffer_make(&s->weights, (size_t)s->stages.count * sizeof(float), 64));
    assert_int_equal(0, lab_tensor_make(&s->v, c->type, v, c->layout, c->align));
    const int64_t element = (int64_t)tess_type_size(type);
    assert_int_equal(
        0, lab_tensor_make(&s->o, type, o, c->layout, c->align < element ? element : c->align));
    s->x = (float *)(void *)s->weights.data; /* NaN in rows past the queries */
    stages_each(&s->stages, weight_set, s->x);
    rows_fill(s);
}

static void stage_free(struct stage *s) {
    stages_free(&s->stages);
    lab_buffer_free(&s->weights);
    lab_tensor_free(&s->v);
    lab_tensor_free(&s->o);
}

static void stage_run(struct stage *s, const struct kernel *kernel, int32_t threads) {
    char why[LAB_WHY];
    const uint64_t before = lab_buffer_hash(&s->weights);
    const struct stage_operands operands = {
        .scores = s->x, .v = stages_view(&s->v), .o = stages_view(&s->o)};
    struct kernel_args args = stages_args(&s->stages);
    args.operands = &operands;
    args.work.schedule = &s->stages.columns;
    lab_tensor_poison(&s->o);
    stages_run(kernel, &args, threads);
    if (lab_tensor_check(&s->o, "o", why))
        fail_msg("%s: %s", kernel->name, why);
    assert_true(before == lab_buffer_hash(&s->weights));
}

/* ---- sums in double ---- */

struct sums {
    const struct stage *s;
    double *total, *squares; /* [batch][heads_kv][n_kv][d_v] */
    int64_t *n;              /* [batch][heads_kv][n_kv]: terms */
};

static void term_add(void *context, const struct stages_element *e) {
    const struct sums *to = context;
    const struct lab_case *c = &to->s->stages.c;
    if (!e->listed)
        return;
    const int64_t key = (e->b * c->hkv + e->h / (c->h / c->hkv)) * c->nkv + e->key;
    const int64_t v = lab_row(&to->s->v.view, e->b, e->h, e->i);
    to->n[key]++;
    for (int64_t d = 0; d < c->dv; d++) {
        const double term =
            (double)to->s->x[e->place] * lab_get(to->s->v.view.data, c->type, v + d);
        to->total[key * c->dv + d] += term;
        to->squares[key * c->dv + d] += term * term;
    }
}

static void key_check(const struct sums *sums, const struct kernel *kernel, const char *text,
                      int64_t key) {
    static const double unit[] = {0x1p-24, 0x1p-11, 0x1p-8}; /* half an ulp of 1, by type */
    const struct lab_case *c = &sums->s->stages.c;
    const tess_tensor *o = &sums->s->o.view;
    const int64_t at = lab_row(o, key / c->nkv / c->hkv, key / c->nkv % c->hkv, key % c->nkv);
    for (int64_t d = 0; d < c->dv; d++) {
        const double is = lab_get(o->data, o->type, at + d);
        const double should = sums->total[key * c->dv + d], n = (double)sums->n[key];
        const double bound = unit[o->type] * (fabs(should) + 0x1p-13) +
                             0x1p-22 * sqrt(sums->squares[key * c->dv + d]) * (4 + sqrt(n) / 16);
        if (!(fabs(is - should) <= bound) || (n == 0 && is != 0))
            fail_msg("%s: %s: key %d, dim %d is %g, not %g", kernel->name, text, (int)key, (int)d,
                     is, should);
    }
}

static void outputs_check(const struct stage *s, const struct kernel *kernel, const char *text) {
    const struct lab_case *c = &s->stages.c;
    const size_t keys = (size_t)(c->b * c->hkv * c->nkv), dv = (size_t)c->dv;
    struct sums sums = {s, calloc(keys * dv, sizeof(double)), calloc(keys * dv, sizeof(double)),
                        calloc(keys, sizeof(int64_t))};
    assert_true(sums.total && sums.squares && sums.n);
    stages_each(&s->stages, term_add, &sums);
    for (int64_t key = 0; key < (int64_t)keys; key++)
        key_check(&sums, kernel, text, key);
    free(sums.total);
    free(sums.squares);
    free(sums.n);
}

static const char *const cases[] = {
    "h=2,hkv=1,n=70,dv=16,block=16x16,pattern=window(20,5)+global(2)",
    "h=1,n=200,nkv=140,dv=7,block=128x32,pattern=causal,dtype=f16",
    "h=3,hkv=3,n=50,dv=65,block=3x5,pattern=random(0.4,3),dtype=bf16,layout=bnhd",
    "b=2,h=4,hkv=2,n=90,nkv=75,dv=1,block=1x1,pattern=random(0.2,3),lists=q",
    "h=2,hkv=1,n=300,dv=5,block=192x1,pattern=random(0.3,3),layout=padded",
    "h=6,hkv=2,n=77,nkv=333,dv=30,block=8x200,pattern=random(0.6,3)&dilated(90,2),lists=kv",
    "h=1,n=2,nkv=900,dv=3,block=70x150,pattern=dense",
    "h=1,n=9000,nkv=70,dv=12,block=64x64,pattern=dense",
    "h=2,hkv=2,n=260,dv=64,block=64x64,pattern=random(0.5,1)&causal,dtype=bf16,layout=padded",
    "h=1,n=60,dv=8,block=16x16,pattern=segments(9,20)",
    "h=1,n=70,nkv=9,dv=1023,block=4x4,pattern=dense,dtype=f16,align=2",
    "h=1,n=500,nkv=400,dv=24,block=2x2,pattern=random(0.1,4)",
    "h=2,hkv=1,n=150,dv=33,block=4x90,pattern=summary(5,7)",
    "h=1,n=40,nkv=50,dv=16,block=8x8,pattern=segments(1)",
};

static void every_output_is_right(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (int wide = 0; wide < 2; wide++) {
            struct stage s;
            struct lab_case c;
            char why[LAB_WHY];
            assert_int_equal(0, lab_case_parse(&c, cases[n], why));
            stage_make(&s, cases[n], wide ? TESS_F32 : c.type);
            for (const struct kernel *kernel = NULL;
                 (kernel = stages_kernel(TESS_STAGE_SPMM_TRANSPOSED, kernel));) {
                stage_run(&s, kernel, 2);
                outputs_check(&s, kernel, cases[n]);
            }
            stage_free(&s);
        }
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (const struct kernel *kernel = NULL;
             (kernel = stages_kernel(TESS_STAGE_SPMM_TRANSPOSED, kernel));) {
            struct stage s;
            stage_make(&s, cases[n], TESS_F32);
            stage_run(&s, kernel, 1);
            const uint64_t alone = lab_buffer_hash(&s.o.buffer);
            stage_run(&s, kernel, 5);
            assert_true(alone == lab_buffer_hash(&s.o.buffer));
            stage_free(&s);
        }
}

/* Whether any query of the heads that read key/value head 0 lists a key. */
static int key_listed(const struct stages *s, int64_t key) {
    for (int64_t h = 0; h < s->c.h; h++)
        for (int64_t i = 0; i < s->c.n; i++)
            if (stages_lists(s, 0, h, i, key, key + 1))
                return 1;
    return 0;
}

/* A query of NaN reaches no key of a key tile that does not list it, and no key that nobody lists.
 * Counts those of a tile that does. */
static int64_t nan_is_held(const struct kernel *kernel, const char *text, int64_t head,
                           int64_t query) {
    struct stage s;
    int64_t unlisted = 0;
    stage_make(&s, text, TESS_F32);
    const int64_t block = s.stages.c.block_kv;
    for (int64_t d = 0; d < s.stages.c.dv; d++)
        lab_put(s.v.view.data, TESS_F32, lab_row(&s.v.view, 0, head, query) + d, NAN);
    stage_run(&s, kernel, 1);
    for (int64_t key = 0; key < s.stages.c.nkv; key++) {
        const int64_t tile = key / block * block;
        const int met = stages_lists(&s.stages, 0, head, query, tile, tile + block);
        const double o = lab_get(s.o.view.data, TESS_F32, lab_row(&s.o.view, 0, 0, key));
        if (!key_listed(&s.stages, key)) {
            assert_true(o == 0);
            unlisted += met;
        } else if (stages_lists(&s.stages, 0, head, query, key, key + 1)) {
            assert_true(isnan(o));
        } else if (!met) {
            assert_true(isfinite(o));
        }
    }
    stage_free(&s);
    return unlisted;
}

static void nan_in_a_row_reaches_its_key_tiles_only(void **state) {
    (void)state;
    for (const struct kernel *kernel = NULL;
         (kernel = stages_kernel(TESS_STAGE_SPMM_TRANSPOSED, kernel));) {
        nan_is_held(kernel,
                    "h=2,hkv=1,n=96,nkv=400,dv=6,block=8x16,pattern=random(0.4,7)&dilated(100,3)",
                    1, 21);
        assert_true(nan_is_held(kernel, "h=1,n=60,dv=8,block=16x16,pattern=segments(9,20)", 0, 25) >
                    0);
    }
}

static void nan_in_a_weight_reaches_its_key_only(void **state) {
    (void)state;
    for (const struct kernel *kernel = NULL;
         (kernel = stages_kernel(TESS_STAGE_SPMM_TRANSPOSED, kernel));) {
        struct stage s;
        stage_make(&s, "h=1,n=16,dv=6,block=16x16,pattern=dense", TESS_F32);
        s.x[16 * 2 + 5] = NAN;
        stage_run(&s, kernel, 1);
        for (int64_t key = 0; key < 16; key++)
            for (int64_t d = 0; d < 6; d++) {
                const double o =
                    lab_get(s.o.view.data, TESS_F32, lab_row(&s.o.view, 0, 0, key) + d);
                assert_true(key == 5 ? isnan(o) : isfinite(o));
            }
        stage_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_output_is_right),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(nan_in_a_row_reaches_its_key_tiles_only),
        cmocka_unit_test(nan_in_a_weight_reaches_its_key_only),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
