/*
 * Stage 3 alone: o = scores v in double precision, with scores set by hand, over types, tails and
 * head ratios; value rows that nobody lists are not read; nothing is written past o.
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
#include "support/stage.h"

#define SEED 60

/* Walks one head's listed scores of query i, handing each to visit. */
typedef void visit_value(void *context, int64_t key, float *value);

static void row_visit(struct stage *s, int64_t b, int64_t h, int64_t i, float *head,
                      visit_value *visit, void *context) {
    const struct bcsr *m = &s->pattern->lists;
    const int64_t list = bcsr_list(m, b, h, s->c.h), row = i / m->block_q, r = i % m->block_q;
    const int64_t r0 = bcsr_row_begin(m, list, row), r1 = bcsr_row_end(m, list, row);
    float *scores =
        head + m->block_kv * ((r0 - bcsr_row_begin(m, list, 0)) * m->block_q + r * (r1 - r0));
    struct tile_walk walk;
    struct tile tile;
    tile_walk_begin(&walk, m, list, row);
    for (; tile_walk_next(&walk, &tile); scores += m->block_kv)
        for (int64_t c = 0; c < m->block_kv; c++) {
            int64_t key = tile.col * m->block_kv + c;
            if (key < m->n_kv && tile_row_bits(m, &tile, r, c, 1))
                visit(context, key, scores + c);
        }
}

static int64_t head_values(const struct stage *s, int64_t b, int64_t h) {
    const struct bcsr *m = &s->pattern->lists;
    const int64_t list = bcsr_list(m, b, h, s->c.h);
    return (bcsr_row_begin(m, list, m->rows) - bcsr_row_begin(m, list, 0)) * m->block_q *
           m->block_kv;
}

static void set_random(void *context, int64_t key, float *value) {
    uint64_t *counter = context;
    (void)key;
    *value = (float)lab_uniform(SEED, 0, ++*counter);
}

/* Scores: 0 where masked, NaN in rows past the queries, else random. */
static void values_fill(struct stage *s) {
    const struct bcsr *m = &s->pattern->lists;
    uint64_t counter = 0;
    float *head = s->x;
    lab_buffer_poison(&s->scores);
    for (int64_t b = 0; b < s->c.b; b++)
        for (int64_t h = 0; h < s->c.h; h++) {
            const int64_t list = bcsr_list(m, b, h, s->c.h);
            for (int64_t row = 0, at = 0; row < m->rows; row++) {
                int64_t width =
                    (bcsr_row_end(m, list, row) - bcsr_row_begin(m, list, row)) * m->block_kv;
                for (int64_t r = 0; r < m->block_q; r++, at += width)
                    if (row * m->block_q + r < m->n_q)
                        memset(head + at, 0, (size_t)width * sizeof(float));
            }
            for (int64_t i = 0; i < m->n_q; i++)
                row_visit(s, b, h, i, head, set_random, &counter);
            head += head_values(s, b, h);
        }
    assert_int_equal(head - s->x, tess_plan_scores_count(s->plan));
}

static void spmm_run(struct stage *s) {
    char why[LAB_WHY];
    const uint64_t before = lab_buffer_hash(&s->scores);
    tess_arguments arguments = tess_arguments_init();
    arguments.v = &s->v.view;
    arguments.o = &s->o.view;
    lab_tensor_poison(&s->o);
    stage_run(s, TESS_STAGE_SPMM, tess_spmm, arguments);
    if (lab_tensor_check(&s->o, "o", why))
        fail_msg("%s", why);
    assert_true(before == lab_buffer_hash(&s->scores));
}

/* One element of o: the sum, and the sum of squares of its terms. */
struct sum {
    const struct stage *s;
    int64_t v; /* element d of key 0's row */
    double total, squares;
    int64_t n;
};

static void add(void *context, int64_t key, float *value) {
    struct sum *sum = context;
    double term = (double)*value * lab_get(sum->s->v.view.data, sum->s->c.type,
                                           sum->v + key * sum->s->v.view.stride[2]);
    sum->total += term;
    sum->squares += term * term;
    sum->n++;
}

static void row_check(struct stage *s, int64_t b, int64_t h, int64_t i, float *head) {
    static const double unit[] = {0x1p-24, 0x1p-11, 0x1p-8}; /* half an ulp of 1, by type */
    const int64_t group = s->c.h / s->c.hkv;
    for (int64_t d = 0; d < s->c.dv; d++) {
        struct sum sum = {.s = s, .v = lab_row(&s->v.view, b, h / group, 0) + d};
        row_visit(s, b, h, i, head, add, &sum);
        double o = lab_get(s->o.view.data, s->c.type, lab_row(&s->o.view, b, h, i) + d);
        double bound = unit[s->c.type] * (fabs(sum.total) + 0x1p-13) +
                       0x1p-22 * sqrt(sum.squares) * (4 + sqrt((double)sum.n) / 16);
        if (!(fabs(o - sum.total) <= bound))
            fail_msg("o[%d][%d][%d][%d] is %g, not %g", (int)b, (int)h, (int)i, (int)d, o,
                     sum.total);
    }
}

static void every_output_is_right(void **state) {
    static const char *const cases[] = {
        "h=2,hkv=1,n=70,dv=16,block=16x16,pattern=window(20,5)+global(2)",
        "h=1,n=200,nkv=140,dv=7,block=128x32,pattern=causal,dtype=f16",
        "h=3,hkv=3,n=50,dv=65,block=3x5,pattern=random(0.4,3),dtype=bf16,layout=bnhd",
        "b=2,h=2,n=90,dv=1,block=1x1,pattern=random(0.2,3),lists=q",
        "h=1,n=300,dv=5,block=192x1,pattern=random(0.3,3),threads=3,layout=padded",
        "h=1,n=40,nkv=333,dv=30,block=8x200,pattern=random(0.6,3)&dilated(90,2)",
        "h=1,n=2,nkv=9000,dv=3,block=70x150,pattern=dense",
        "h=1,n=60,dv=8,block=16x16,pattern=segments(9,20)",
        "h=1,n=9,nkv=70,dv=1023,block=4x4,pattern=dense,dtype=f16,align=2",
    };
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        struct stage s;
        stage_make(&s, cases[n]);
        values_fill(&s);
        spmm_run(&s);
        float *head = s.x;
        for (int64_t b = 0; b < s.c.b; b++)
            for (int64_t h = 0; h < s.c.h; h++) {
                for (int64_t i = 0; i < s.c.n; i++)
                    row_check(&s, b, h, i, head);
                head += head_values(&s, b, h);
            }
        stage_free(&s);
    }
}

static void nan_in_a_weight_reaches_its_row_only(void **state) {
    struct stage s;
    (void)state;
    stage_make(&s, "h=1,n=16,dv=6,block=16x16,pattern=dense");
    values_fill(&s);
    s.x[16 * 5 + 2] = NAN;
    spmm_run(&s);
    for (int64_t i = 0; i < 16; i++)
        for (int64_t d = 0; d < 6; d++) {
            double o = lab_get(s.o.view.data, TESS_F32, lab_row(&s.o.view, 0, 0, i) + d);
            assert_true(i == 5 ? isnan(o) : isfinite(o));
        }
    stage_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_output_is_right),
        cmocka_unit_test(nan_in_a_weight_reaches_its_row_only),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
