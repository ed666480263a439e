/*
 * Properties of attention whatever the numbers are. A constant V comes back; outputs lie between
 * the smallest and largest V; permuting keys changes nothing. Two halves of the keys merge by their
 * lse to the whole; a list of all blocks is dense attention.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "support/support.h"

static const char *const cases[] = {
    "h=2,hkv=1,n=500,d=24,pattern=longformer(64,7),block=32x32,seed=11",
    "h=2,n=300,nkv=411,d=40,dv=9,pattern=random(0.2,5)+window(30,0),block=16x48,seed=12",
    "b=2,h=2,n=129,d=64,pattern=segments(40,50)&causal,block=8x8,seed=13",
    "h=1,n=2500,d=8,pattern=global(2)+blockdiag(60),block=64x64,seed=14",
};

/* Rows of the output in the order batch, head, query. */
static int64_t rows(const tess_tensor *t) {
    return t->size[0] * t->size[1] * t->size[2];
}

static float *row(const tess_tensor *t, int64_t number) {
    int64_t i = number % t->size[2], h = number / t->size[2] % t->size[1];
    int64_t b = number / t->size[2] / t->size[1];
    return (float *)t->data + lab_row(t, b, h, i);
}

/* Copies of o [rows][d_v] and lse [rows], to set against another run's. */
struct answer {
    float *o, *lse;
};

static struct answer answer_take(const struct lab_setting *s) {
    int64_t n = rows(&s->o.view), d = s->o.view.size[3];
    struct answer a = {malloc((size_t)(n * d) * sizeof(float)), malloc((size_t)n * sizeof(float))};
    assert_non_null(a.o);
    assert_non_null(a.lse);
    for (int64_t r = 0; r < n; r++) {
        memcpy(a.o + r * d, row(&s->o.view, r), (size_t)d * sizeof(float));
        a.lse[r] = *row(&s->lse.view, r);
    }
    return a;
}

static void answer_free(struct answer *a) {
    free(a->o);
    free(a->lse);
}

/* |a - b| <= 1e-5 (1 + |b|): V is standard normal, so errors of f32 arithmetic are far below. */
static void assert_near(const struct lab_setting *s, const struct answer *a,
                        const struct answer *b) {
    int64_t n = rows(&s->o.view), d = s->o.view.size[3];
    for (int64_t r = 0; r < n; r++) {
        if (isinf(b->lse[r]) ? a->lse[r] != b->lse[r]
                             : !(fabsf(a->lse[r] - b->lse[r]) <= 1e-5f * (1 + fabsf(b->lse[r]))))
            fail_msg("%s: lse of row %lld is %g, not %g", s->c.pattern, (long long)r,
                     (double)a->lse[r], (double)b->lse[r]);
        for (int64_t e = r * d; e < (r + 1) * d; e++)
            if (!(fabsf(a->o[e] - b->o[e]) <= 1e-5f * (1 + fabsf(b->o[e]))))
                fail_msg("%s: row %lld has %g, not %g", s->c.pattern, (long long)r, (double)a->o[e],
                         (double)b->o[e]);
    }
}

static void constant_v_comes_back(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        for (int64_t r = 0; r < rows(&s.v.view); r++)
            for (int64_t d = 0; d < s.c.dv; d++)
                row(&s.v.view, r)[d] = 3.25f - (float)d;
        setting_run(&s, NULL, pipeline, 2);
        int64_t full = 0;
        for (int64_t r = 0; r < rows(&s.o.view); r++) {
            int empty = isinf(*row(&s.lse.view, r));
            full += !empty;
            for (int64_t d = 0; d < s.c.dv; d++) {
                float expected = empty ? 0 : 3.25f - (float)d;
                assert_true(fabsf(row(&s.o.view, r)[d] - expected) <= 4e-6f * fabsf(expected));
            }
        }
        assert_true(full > 0);
    }
}

static void outputs_lie_within_v(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        setting_run(&s, NULL, pipeline, 2);
        float low = INFINITY, high = -INFINITY;
        for (int64_t r = 0; r < rows(&s.v.view); r++)
            for (int64_t d = 0; d < s.c.dv; d++) {
                float v = row(&s.v.view, r)[d];
                low = fminf(low, v);
                high = fmaxf(high, v);
            }
        for (int64_t r = 0; r < rows(&s.o.view); r++)
            for (int64_t d = 0; d < s.c.dv; d++) {
                float o = row(&s.o.view, r)[d];
                assert_true(o == 0 || (o >= low - 1e-5f && o <= high + 1e-5f));
            }
    }
}

/* A mask [heads][n][nkv] of the setting's pattern, key j standing at place[j]. */
static uint8_t *mask_of(const struct lab_setting *s, const tess_pattern_info *info,
                        const int64_t *place) {
    int64_t n = info->n_q, nkv = info->n_kv, lists = info->batch * info->heads, count;
    uint8_t *mask = calloc((size_t)(lists * n), (size_t)nkv);
    int64_t *keys = malloc((size_t)nkv * sizeof *keys);
    assert_non_null(mask);
    assert_non_null(keys);
    for (int64_t r = 0; r < lists * n; r++) {
        assert_int_equal(tess_pattern_row(s->pattern, r / n / info->heads, r / n % info->heads,
                                          r % n, keys, nkv, &count, NULL),
                         TESS_OK);
        for (int64_t x = 0; x < count; x++)
            mask[r * nkv + place[keys[x]]] = 1;
    }
    free(keys);
    return mask;
}

static void permuted_keys_change_nothing(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        setting_run(&s, NULL, pipeline, 2);
        struct answer whole = answer_take(&s);

        int64_t nkv = s.c.nkv, *place = malloc((size_t)nkv * sizeof *place);
        assert_non_null(place);
        for (int64_t j = 0; j < nkv; j++)
            place[j] = j;
        for (int64_t j = nkv - 1; j > 0; j--) {
            int64_t other = lab_below(s.c.seed, 77, (uint64_t)j, j + 1), swap = place[j];
            place[j] = place[other];
            place[other] = swap;
        }

        tess_pattern_info info = tess_pattern_info_init();
        assert_int_equal(tess_pattern_describe(s.pattern, &info, NULL), TESS_OK);
        uint8_t *mask = mask_of(&s, &info, place);
        tess_pattern_shape shape = tess_pattern_shape_init();
        shape.n_q = info.n_q;
        shape.n_kv = info.n_kv;
        shape.block_q = info.block_q;
        shape.block_kv = info.block_kv;
        shape.batch = info.batch;
        shape.heads = info.heads;
        tess_pattern *permuted;
        assert_int_equal(tess_pattern_from_mask(&permuted, mask, &shape, NULL), TESS_OK);

        struct lab_setting t;
        setting_make(&t, cases[i_]);
        for (int64_t r = 0; r < rows(&s.k.view); r++) {
            int64_t to = r / nkv * nkv + place[r % nkv];
            memcpy(row(&t.k.view, to), row(&s.k.view, r), (size_t)s.c.d * sizeof(float));
            memcpy(row(&t.v.view, to), row(&s.v.view, r), (size_t)s.c.dv * sizeof(float));
        }
        setting_run(&t, permuted, pipeline, 2);
        struct answer moved = answer_take(&t);
        assert_near(&s, &moved, &whole);

        answer_free(&moved);
        answer_free(&whole);
        lab_setting_free(&t);
        tess_pattern_free(permuted);
        free(mask);
        free(place);
    }
}

/* The setting's pattern, of which only block columns below `middle`, or from it on, are kept. */
static tess_pattern *keys_side(const struct lab_setting *s, const tess_pattern_info *info,
                               int64_t middle, int upper) {
    tess_error error = tess_error_init();
    tess_pattern *side, *part = NULL;
    int64_t rows_of = (info->n_q + info->block_q - 1) / info->block_q;
    int64_t cols = (info->n_kv + info->block_kv - 1) / info->block_kv;
    int64_t first = upper ? middle : 0, count = upper ? cols - middle : middle;
    int64_t *row_ptr = malloc((size_t)(rows_of + 1) * sizeof *row_ptr);
    int32_t *col_idx = malloc((size_t)(rows_of * count) * sizeof *col_idx);
    assert_non_null(row_ptr);
    assert_non_null(col_idx);
    for (int64_t i = 0; i <= rows_of; i++)
        row_ptr[i] = i * count;
    for (int64_t e = 0; e < rows_of * count; e++)
        col_idx[e] = (int32_t)(first + e % count);
    tess_lists lists = tess_lists_init();
    lists.n_q = info->n_q;
    lists.n_kv = info->n_kv;
    lists.block_q = info->block_q;
    lists.block_kv = info->block_kv;
    lists.n_tiles = rows_of * count;
    lists.row_ptr = row_ptr;
    lists.col_idx = col_idx;
    if (tess_pattern_from_lists(&side, &lists, &error) != TESS_OK ||
        tess_pattern_intersection(&part, s->pattern, side, &error) != TESS_OK)
        fail_msg("%s", error.message);
    tess_pattern_free(side);
    free(row_ptr);
    free(col_idx);
    return part;
}

static void two_halves_merge_to_the_whole(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        tess_pattern_info info = tess_pattern_info_init();
        assert_int_equal(tess_pattern_describe(s.pattern, &info, NULL), TESS_OK);
        int64_t middle = info.n_kv / info.block_kv / 2, d = s.c.dv;
        struct answer part[2];
        for (int side = 0; side < 2; side++) {
            tess_pattern *half = keys_side(&s, &info, middle, side);
            setting_run(&s, half, pipeline, 2);
            part[side] = answer_take(&s);
            tess_pattern_free(half);
        }
        for (int64_t r = 0; r < rows(&s.o.view); r++) {
            double a = part[0].lse[r], b = part[1].lse[r], top = fmax(a, b);
            double sum = isinf(top) ? 0 : exp(a - top) + exp(b - top);
            for (int64_t e = r * d; e < (r + 1) * d; e++)
                part[0].o[e] =
                    isinf(top)
                        ? 0
                        : (float)((part[0].o[e] * exp(a - top) + part[1].o[e] * exp(b - top)) /
                                  sum);
            part[0].lse[r] = (float)(isinf(top) ? top : top + log(sum));
        }
        setting_run(&s, NULL, pipeline, 2);
        struct answer whole = answer_take(&s);
        assert_near(&s, &part[0], &whole);
        answer_free(&whole);
        answer_free(&part[0]);
        answer_free(&part[1]);
    }
}

/* A plan whose tiles are split into as many parts as can be, or not at all. */
static struct answer answer_of_parts(struct lab_setting *s, int64_t part_keys,
                                     int64_t *split_tiles) {
    tess_error error = tess_error_init();
    tess_problem problem = lab_case_problem(&s->c, TESS_FUSED);
    tess_plan_info info = tess_plan_info_init();
    tess_plan *plan;
    problem.threads = 3;
    problem.part_keys = part_keys;
    if (tess_plan_create(&plan, &problem, s->pattern, NULL, &error) != TESS_OK)
        fail_msg("%s: %s", s->c.pattern, error.message);
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
    *split_tiles = info.split_tiles;
    setting_run_plan(s, plan);
    tess_plan_free(plan);
    return answer_take(s);
}

static void split_is_unsplit(void **state) {
    (void)state;
    int64_t split = 0, none = 0, tiles;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lab_setting s;
        setting_make(&s, cases[i]);
        struct answer parts = answer_of_parts(&s, 128, &tiles);
        split += tiles;
        struct answer whole = answer_of_parts(&s, INT64_MAX, &tiles);
        none += tiles;
        assert_near(&s, &parts, &whole);
        answer_free(&parts);
        answer_free(&whole);
        lab_setting_free(&s);
    }
    assert_true(split > 0);
    assert_int_equal(none, 0);
}

static void list_of_all_blocks_is_dense(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        tess_pattern_info info = tess_pattern_info_init();
        assert_int_equal(tess_pattern_describe(s.pattern, &info, NULL), TESS_OK);
        tess_pattern_shape shape = tess_pattern_shape_init();
        shape.n_q = info.n_q;
        shape.n_kv = info.n_kv;
        shape.block_q = info.block_q;
        shape.block_kv = info.block_kv;
        tess_pattern *dense, *all;
        assert_int_equal(tess_pattern_from_spec(&dense, "dense", &shape, NULL), TESS_OK);
        tess_lists lists = tess_lists_init();
        assert_int_equal(tess_pattern_lists(dense, &lists, NULL), TESS_OK);
        assert_int_equal(lists.n_bands + lists.n_bitmasks, 0);
        assert_int_equal(tess_pattern_from_lists(&all, &lists, NULL), TESS_OK);

        setting_run(&s, dense, pipeline, 2);
        uint64_t bits = lab_buffer_hash(&s.o.buffer);
        setting_run(&s, all, pipeline, 1);
        assert_true(lab_buffer_hash(&s.o.buffer) == bits);

        /* Element (0, 0, 0, 0) by hand. */
        double sum = 0, value = 0;
        for (int64_t j = 0; j < s.c.nkv; j++) {
            double score = 0;
            for (int64_t x = 0; x < s.c.d; x++)
                score += (double)row(&s.q.view, 0)[x] * row(&s.k.view, j)[x];
            double weight = exp(score / sqrt((double)s.c.d));
            sum += weight;
            value += weight * row(&s.v.view, j)[0];
        }
        assert_true(fabs(row(&s.o.view, 0)[0] - value / sum) <= 1e-5);
        tess_pattern_free(all);
        tess_pattern_free(dense);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_v_comes_back),
        cmocka_unit_test(outputs_lie_within_v),
        cmocka_unit_test(permuted_keys_change_nothing),
        cmocka_unit_test(two_halves_merge_to_the_whole),
        cmocka_unit_test(split_is_unsplit),
        cmocka_unit_test(list_of_all_blocks_is_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
