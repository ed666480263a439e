/*
 * Stage 1 alone: every score of the BCSR layout, found by the pattern's own arrays, against dot products
 * in double precision. Masked elements and columns past the keys are -Inf. Rows past the queries are never
 * touched, and keys that no query lists are not read.
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
#include "support/stage.h"

static void sddmm_run(struct stage *s) {
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &s->q.view;
    arguments.k = &s->k.view;
    lab_buffer_poison(&s->scores);
    stage_run(s, TESS_STAGE_SDDMM, tess_sddmm, arguments);
}

/* The score of query i and key j of query head h, and its size. */
static double score(const struct stage *s, int64_t b, int64_t h, int64_t i, int64_t j,
                    double *size) {
    const struct lab_case *c = &s->c;
    int64_t q = lab_row(&s->q.view, b, h, i), k = lab_row(&s->k.view, b, h / (c->h / c->hkv), j);
    double scale = c->scale != 0 ? c->scale : 1 / sqrt((double)c->d), dot = 0, qq = 0, kk = 0;
    for (int64_t d = 0; d < c->d; d++) {
        double x = lab_get(s->q.view.data, c->type, q + d);
        double y = lab_get(s->k.view.data, c->type, k + d);
        dot += x * y;
        qq += x * x;
        kk += y * y;
    }
    *size = fabs(scale) * sqrt(qq * kk);
    return scale * dot;
}

/* Holds one block row of one head against the reference; answers how many scores it has. */
static int64_t block_row_check(const struct stage *s, int64_t b, int64_t h, int64_t row,
                               const float *scores) {
    const struct bcsr *m = &s->pattern->lists;
    const int64_t list = bcsr_list(m, b, h, s->c.h);
    const int64_t tiles = bcsr_row_end(m, list, row) - bcsr_row_begin(m, list, row);
    uint32_t canary;
    memcpy(&canary, s->scores.base, sizeof canary);
    struct tile_walk walk;
    struct tile tile;
    tile_walk_begin(&walk, m, list, row);
    for (int64_t e = 0; tile_walk_next(&walk, &tile); e++)
        for (int64_t r = 0; r < m->block_q; r++)
            for (int64_t c = 0; c < m->block_kv; c++) {
                const float x = scores[m->block_kv * (r * tiles + e) + c];
                int64_t i = row * m->block_q + r, j = tile.col * m->block_kv + c;
                uint32_t bits;
                double size;
                memcpy(&bits, &x, sizeof bits);
                if (i >= m->n_q)
                    assert_int_equal(canary, bits);
                else if (j >= m->n_kv || !tile_row_bits(m, &tile, r, c, 1))
                    assert_true(x == -INFINITY);
                else {
                    double expected = score(s, b, h, i, j, &size);
                    assert_true(fabs((double)x - expected) <= 0x1p-21 * (fabs(expected) + size));
                }
            }
    return tiles * m->block_q * m->block_kv;
}

static void every_value_is_right(void **state) {
    static const char *const cases[] = {
        "h=2,hkv=1,n=70,d=16,block=16x16,pattern=window(20,5)+global(2)",
        "h=1,n=200,nkv=140,d=7,block=128x32,pattern=causal,dtype=f16,scale=-2",
        "h=3,hkv=3,n=50,d=64,block=3x5,pattern=random(0.4,3),dtype=bf16,layout=bnhd",
        "b=2,h=2,n=90,d=1,block=1x1,pattern=random(0.2,3),lists=q",
        "h=1,n=300,d=5,block=192x1,pattern=random(0.3,3),threads=3,layout=padded",
        "h=1,n=40,nkv=333,d=30,block=8x200,pattern=random(0.6,3)&dilated(90,2)",
        "h=1,n=70,d=3,block=70x150,pattern=dense",
        "h=1,n=60,d=8,block=16x16,pattern=segments(9,20)",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stage s;
        stage_make(&s, cases[i]);
        sddmm_run(&s);
        const float *scores = (const float *)(const void *)s.scores.data;
        int64_t at = 0;
        for (int64_t b = 0; b < s.c.b; b++)
            for (int64_t h = 0; h < s.c.h; h++)
                for (int64_t row = 0; row < s.pattern->lists.rows; row++)
                    at += block_row_check(&s, b, h, row, scores + at);
        assert_int_equal(at, tess_plan_scores_count(s.plan));
        stage_free(&s);
    }
}

static void nan_in_a_listed_key_reaches_its_rows_only(void **state) {
    struct stage s;
    float *scores;
    (void)state;
    stage_make(&s, "h=1,n=16,d=3,block=16x16,pattern=causal");
    lab_put(s.k.view.data, TESS_F32, lab_row(&s.k.view, 0, 0, 10) + 1, NAN);
    sddmm_run(&s);
    scores = (float *)(void *)s.scores.data;
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) {
            if (c > r)
                assert_true(scores[16 * r + c] == -INFINITY);
            else
                assert_true(c == 10 ? isnan(scores[16 * r + c]) : isfinite(scores[16 * r + c]));
        }
    stage_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_is_right),
        cmocka_unit_test(nan_in_a_listed_key_reaches_its_rows_only),
    };
    printf("seed 0, in the cases\n");
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
