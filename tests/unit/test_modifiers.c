/*
 * Score modifiers on the CPU: cases against the oracle, the words of dropout, slices of a whole
 * problem, sinks at their ends, what is off, and what is refused.
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

#include "lab/philox.h"
#include "lab/rng.h"
#include "support/support.h"

static void right_within_the_bounds(void **state) {
    (void)state;
    cases_are_right("tests/cases/modifiers.txt", TESS_CPU);
}

/* ---- dropout's words ---- */

/* Of the authors' table of known answers, for seven rounds. */
static void philox_is_philox(void **state) {
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t c[4];
        memcpy(c, known[i].counter, sizeof c);
        lab_philox(c, (uint64_t)known[i].key[1] << 32 | known[i].key[0]);
        assert_memory_equal(c, known[i].words, sizeof c);
    }
}

/* As many are kept as ought to be, to 4 sigma, in all and by words of a call. */
static void the_rate_is_kept(void **state) {
    static const int64_t dropped[] = {1, 655, 6554, 32768, 65535};
    enum { N = 1024 };
    (void)state;
    for (size_t t = 0; t < sizeof dropped / sizeof *dropped; t++) {
        const double p = (double)dropped[t] / 65536;
        int64_t lost[9] = {0};
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t j = 0; j < N; j++) {
                const int drops = lab_draw(7 + t, 3, i, j) < (uint32_t)dropped[t];
                lost[8] += drops;
                lost[4 * (i / 8 % 2) + 2 * (j / 8 % 2) + j % 2] += drops;
            }
        for (int w = 0; w <= 8; w++) {
            const double n = w == 8 ? N * N : N * N / 8;
            assert_true(fabs((double)lost[w] - n * p) <= 4 * sqrt(n * p * (1 - p)));
        }
    }
}

/* The library's bits: V is the identity, so that outputs are weights. */
static void identity(struct lab_setting *s) {
    const tess_tensor *v = &s->v.view;
    for (int64_t b = 0; b < v->size[0]; b++)
        for (int64_t h = 0; h < v->size[1]; h++)
            for (int64_t j = 0; j < v->size[2]; j++)
                for (int64_t d = 0; d < v->size[3]; d++)
                    ((float *)v->data)[lab_row(v, b, h, j) + d] = d == j;
}

static void bits_are_of_the_words(struct lab_setting *s) {
    const tess_tensor *o = &s->o.view;
    uint64_t seed;
    memcpy(&seed, s->modifiers.seed.data, sizeof seed);
    for (int64_t b = 0; b < s->c.b; b++)
        for (int64_t h = 0; h < s->c.h; h++)
            for (int64_t i = 0; i < s->c.n; i++)
                for (int64_t j = 0; j < s->c.nkv; j++) {
                    const float weight = ((const float *)o->data)[lab_row(o, b, h, i) + j];
                    const uint32_t word =
                        lab_draw(seed, (uint32_t)(b * s->c.h + h), (uint32_t)i, (uint32_t)j);
                    if ((weight > 0) != (word >= (uint32_t)lround(s->c.dropout * 65536)))
                        fail_msg("%s: batch %d, head %d, query %d, key %d is %g, its word is %u",
                                 s->c.kernel, (int)b, (int)h, (int)i, (int)j, (double)weight,
                                 (unsigned)word);
                }
}

static void every_way_drops_the_same(void **state) {
    static const char *const cases[] = {
        "b=2,h=2,n=75,nkv=150,d=16,dv=150,dropout=0.3",
        "h=1,n=150,nkv=150,d=16,dv=160,dropout=0.7,block=1x1",
        "b=2,h=8,hkv=2,n=3,nkv=300,d=16,dv=304,dropout=0.3", /* heads share a tile */
        "h=4,hkv=2,n=1,nkv=300,d=16,dv=304,dropout=0.3",
    };
    static const int64_t heights[] = {0, 8, 16, 32, 64}, parts[] = {0, 128};
    (void)state;
    for (size_t x = 0; x < sizeof cases / sizeof *cases; x++)
        for (size_t y = 0; y < 10; y++) {
            struct lab_setting s;
            setting_make(&s, cases[x]);
            s.c.tile_rows = heights[y % 5], s.c.part_keys = parts[y / 5];
            identity(&s);
            setting_run(&s, NULL, TESS_FUSED, 1 + (int64_t)y % 3);
            bits_are_of_the_words(&s);
            if (y == 0) {
                setting_run(&s, NULL, TESS_STAGED, 2);
                bits_are_of_the_words(&s);
            }
            lab_setting_free(&s);
        }
}

/* ---- slices of a whole problem ---- */

/* Runs over views of the setting's tensors. keys: of a pattern, dense, for the slice. */
struct slice {
    int64_t b, batches, h, heads, i, queries, j, keys;
    const int32_t *positions; /* NULL: of contiguous keys */
};

static tess_tensor cut(const struct lab_tensor *whole, const int64_t first[3],
                       const int64_t size[3]) {
    tess_tensor t = whole->view;
    t.data = (char *)t.data +
             lab_row(&whole->view, first[0], first[1], first[2]) * (int64_t)tess_type_size(t.type);
    memcpy(t.size, size, 3 * sizeof *size);
    return t;
}

static void slice_run(struct lab_setting *s, const struct slice *at, tess_pipeline pipeline) {
    tess_error error = tess_error_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    tess_plan *plan;
    const int64_t rows[3] = {at->b, at->h, at->i}, some[3] = {at->batches, at->heads, at->queries};
    const int64_t key[3] = {at->b, at->h, at->j}, keys[3] = {at->batches, at->heads, at->keys};
    tess_tensor q = cut(&s->q, rows, some), o = cut(&s->o, rows, some);
    tess_tensor lse = cut(&s->lse, rows, some), k = cut(&s->k, key, keys),
                v = cut(&s->v, key, keys);
    problem.batch = at->batches, problem.heads_q = problem.heads_kv = at->heads;
    problem.n_q = at->queries, problem.n_kv = at->keys;
    problem.batch_offset = at->b, problem.head_offset = at->h, problem.query_offset = at->i;
    problem.whole_heads_q = s->c.h, problem.whole_n_q = s->c.n, problem.whole_n_kv = s->c.nkv;
    problem.alignment = 4;
    problem.key_positions = at->positions != NULL;
    problem.key_offset = at->positions ? 0 : at->j;
    shape.n_q = at->queries, shape.n_kv = at->keys;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, &error));
    if (tess_plan_create(&plan, &problem, pattern, NULL, &error))
        fail_msg("%s", error.message);
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments a = setting_arguments(s, &workspace);
    a.q = &q, a.k = &k, a.v = &v, a.o = &o, a.lse = &lse;
    a.alibi = a.alibi ? a.alibi + at->h : NULL;
    a.sink = a.sink ? a.sink + at->h : NULL;
    a.key_positions = at->positions;
    if (tess_run(plan, &a, &error, NULL))
        fail_msg("%s", error.message);
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

/* A slice against the oracle, which is told where the slice lies. position: p_0 less than by default. */
static void slice_is_right(const struct lab_setting *s, const struct slice *at) {
    struct lab_scoring scoring = lab_modifiers_scoring(&s->modifiers, &s->c);
    const int64_t rows[3] = {at->b, at->h, at->i}, some[3] = {at->batches, at->heads, at->queries};
    const int64_t key[3] = {at->b, at->h, at->j}, keys[3] = {at->batches, at->heads, at->keys};
    const tess_tensor q = cut(&s->q, rows, some), o = cut(&s->o, rows, some);
    const tess_tensor lse = cut(&s->lse, rows, some);
    const tess_tensor k = cut(&s->k, key, keys), v = cut(&s->v, key, keys);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    struct lab_oracle oracle;
    struct lab_report report;
    scoring.alibi = scoring.alibi ? scoring.alibi + at->h : NULL;
    scoring.sink = scoring.sink ? scoring.sink + at->h : NULL;
    scoring.first_head = at->b * s->c.h + at->h, scoring.heads = s->c.h;
    scoring.first_query = at->i, scoring.first_key = at->j;
    scoring.position = at->i + s->c.nkv - s->c.n - (at->keys - at->queries);
    scoring.key_positions = at->positions;
    shape.n_q = at->queries, shape.n_kv = at->keys;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, NULL));
    assert_int_equal(0, lab_oracle_run(&oracle, &q, &k, &v, pattern, &scoring, NULL, 0));
    lab_compare(&report, &oracle, &o, &lse, 256);
    if (!report.ok)
        fail_msg("%s", report.message);
    lab_oracle_free(&oracle);
    tess_pattern_free(pattern);
}

/* Runs of slices over keys first ... first + keys - 1 answer what one run over these keys of all rows
 * does. */
static void slices_are_of_the_whole(void **state) {
    enum { N = 80, KEYS = 90, FIRST = 21 };
    (void)state;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting s;
        float whole[2 * 4 * N * 32], lse[2 * 4 * N];
        setting_make(&s, "b=2,h=4,n=80,nkv=120,d=32,alibi=1,sink=1,softcap=9,dropout=0.3");
        slice_run(&s, &(struct slice){0, 2, 0, 4, 0, N, FIRST, KEYS, NULL},
                  (tess_pipeline)pipeline);
        slice_is_right(&s, &(struct slice){0, 2, 0, 4, 0, N, FIRST, KEYS, NULL});
        memcpy(whole, s.o.view.data, sizeof whole);
        memcpy(lse, s.lse.view.data, sizeof lse);
        lab_tensor_poison(&s.o);
        lab_tensor_poison(&s.lse);
        for (int part = 0; part < 8; part++) {
            const int64_t b = part / 4, h = part / 2 % 2 * 3, i = part % 2 * 37;
            slice_run(&s,
                      &(struct slice){b, 1, h, h ? 1 : 3, i, i ? N - 37 : 37, FIRST, KEYS, NULL},
                      (tess_pipeline)pipeline);
        }
        for (size_t x = 0; x < sizeof whole / sizeof *whole; x++)
            assert_true(fabsf(whole[x] - ((float *)s.o.view.data)[x]) < 2e-5F);
        for (size_t x = 0; x < sizeof lse / sizeof *lse; x++)
            assert_true(fabsf(lse[x] - ((float *)s.lse.view.data)[x]) < 2e-5F);
        lab_setting_free(&s);
    }
}

/* Keys in another order, each with its position. */
static void positions_may_be_given(void **state) {
    enum { N = 40, KEYS = 100 };
    (void)state;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting s, turned;
        int32_t position[KEYS];
        setting_make(&s, "h=2,n=40,nkv=100,d=32,alibi=1,dropout=0.3");
        setting_make(&turned, "h=2,n=40,nkv=100,d=32,alibi=1,dropout=0.3");
        for (int32_t j = 0; j < KEYS; j++) {
            position[j] = j * 37 % KEYS;
            for (int64_t h = 0; h < 2; h++) {
                memcpy((float *)turned.k.view.data + (h * KEYS + j) * 32,
                       (float *)s.k.view.data + (h * KEYS + position[j]) * 32, 32 * sizeof(float));
                memcpy((float *)turned.v.view.data + (h * KEYS + j) * 32,
                       (float *)s.v.view.data + (h * KEYS + position[j]) * 32, 32 * sizeof(float));
            }
        }
        setting_run(&s, NULL, (tess_pipeline)pipeline, 1);
        slice_run(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position},
                  (tess_pipeline)pipeline);
        slice_is_right(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position});
        for (int64_t x = 0; x < 2 * N * 32; x++)
            assert_true(fabsf(((float *)s.o.view.data)[x] - ((float *)turned.o.view.data)[x]) <
                        2e-5F);
        for (int64_t x = 0; x < 2 * N; x++)
            assert_true(fabsf(((float *)s.lse.view.data)[x] - ((float *)turned.lse.view.data)[x]) <
                        2e-5F);
        for (int32_t j = 0; j < KEYS; j++) /* any number will do */
            position[j] = j % 3 == 0 ? -j * 1000 : j % 3 == 1 ? INT32_MAX - j : j;
        slice_run(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position},
                  (tess_pipeline)pipeline);
        slice_is_right(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position});
        lab_setting_free(&s);
        lab_setting_free(&turned);
    }
}

/* ---- ends ---- */

static void sinks_at_their_ends(void **state) {
    static const float sinks[] = {-INFINITY, INFINITY, NAN, 1e30F, -1e30F};
    (void)state;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting plain, s;
        setting_make(&plain, "h=5,n=20,nkv=30,d=16,pattern=segments(10,5)");
        setting_make(&s, "h=5,n=20,nkv=30,d=16,pattern=segments(10,5),sink=1");
        memcpy(s.modifiers.sink.data, sinks, sizeof sinks);
        setting_run(&plain, NULL, (tess_pipeline)pipeline, 1);
        setting_run(&s, NULL, (tess_pipeline)pipeline, 1);
        assert_memory_equal(plain.lse.view.data, s.lse.view.data, 5 * 20 * sizeof(float));
        for (int64_t h = 0; h < 5; h++)
            for (int64_t i = 0; i < 20; i++)
                for (int64_t d = 0; d < 16; d++) {
                    const float was = ((float *)plain.o.view.data)[(h * 20 + i) * 16 + d];
                    const float is = ((float *)s.o.view.data)[(h * 20 + i) * 16 + d];
                    const int empty = isinf(((float *)plain.lse.view.data)[h * 20 + i]);
                    if (empty || h == 1 || h == 3)
                        assert_true(is == 0);
                    else if (h == 2)
                        assert_true(isnan(is));
                    else
                        assert_true(is == was);
                }
        lab_setting_free(&plain);
        lab_setting_free(&s);
    }
}

/* A problem that modifies nothing runs as if there were no modifiers, wherever it says that it lies. */
static void what_is_off_changes_no_bit(void **state) {
    (void)state;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting s;
        setting_make(&s, "h=2,n=80,nkv=120,d=32");
        setting_run(&s, NULL, (tess_pipeline)pipeline, 1);
        const uint64_t o = lab_buffer_hash(&s.o.buffer), lse = lab_buffer_hash(&s.lse.buffer);
        lab_tensor_poison(&s.o);
        lab_tensor_poison(&s.lse);
        struct lab_setting of = s; /* a slice of 9 heads, 100 queries and 150 keys */
        of.c.h = of.c.hkv = 9, of.c.n = 100, of.c.nkv = 150;
        slice_run(&of, &(struct slice){0, 1, 0, 2, 0, 80, 0, 120, NULL}, (tess_pipeline)pipeline);
        assert_true(o == lab_buffer_hash(&s.o.buffer) && lse == lab_buffer_hash(&s.lse.buffer));
        lab_setting_free(&s);
    }
}

/* ---- what is refused ---- */

static void problems_are_refused(void **state) {
    static const struct {
        const char *words;
        tess_problem set;
    } faults[] = {
        {"softcap", {.softcap = -1}},
        {"softcap", {.softcap = (double)NAN}},
        {"softcap", {.softcap = (double)INFINITY}},
        {"softcap", {.softcap = 0x1p65}},
        {"softcap", {.softcap = 0x1p-65}},
        {"alibi", {.alibi = 2}},
        {"alibi", {.alibi = -1}},
        {"sink", {.sink = 2}},
        {"dropout", {.dropout = 1}},
        {"dropout", {.dropout = -0.1}},
        {"dropout", {.dropout = (double)NAN}},
        {"dropout", {.dropout = 0.99999}},
        {"key_positions", {.key_positions = 2}},
        {"key_offset is given beside", {.key_positions = 1, .key_offset = 1}},
        {"offset of its batches", {.batch_offset = -1}},
        {"offset of its batches", {.batch_offset = INT64_C(1) << 32}},
        {"offset of its query heads is 1, not 0 ... 0", {.head_offset = 1}},
        {"offset of its query heads", {.head_offset = INT64_MAX, .whole_heads_q = 4}},
        {"has -1 query heads, not 2 ...", {.whole_heads_q = -1}},
        {"offset of its queries", {.query_offset = 1}},
        {"offset of its queries is -1, not 0 ... 90", {.query_offset = -1, .whole_n_q = 100}},
        {"has 5 queries", {.whole_n_q = 5}},
        {"has 2147483648 queries", {.whole_n_q = INT64_C(1) << 31}},
        {"offset of its keys", {.key_offset = 1}},
        {"keys, not 10 ...", {.whole_n_kv = INT64_MIN}},
    };
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    (void)state;
    shape.n_q = 10;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, NULL));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        tess_error error = tess_error_init();
        tess_problem p = faults[i].set;
        tess_plan *plan;
        p.struct_size = sizeof p;
        p.batch = 1, p.heads_q = p.heads_kv = 2, p.n_q = p.n_kv = 10, p.d_qk = p.d_v = 8;
        assert_int_equal(TESS_INVALID_ARGUMENT, tess_plan_create(&plan, &p, pattern, NULL, &error));
        if (!strstr(error.message, faults[i].words))
            fail_msg("fault %d: '%s' does not say %s", (int)i, error.message, faults[i].words);
    }
    tess_pattern_free(pattern);
}

static void arguments_are_refused(void **state) {
    static const struct {
        const char *name, *of;
    } arrays[] = {{"alibi", "alibi=1"}, {"sink", "sink=1"}, {"seed", "dropout=0.5"}};
    (void)state;
    for (int a = 0; a < 3; a++) {
        struct lab_setting plain, s;
        char text[LAB_CASE_TEXT];
        tess_error error = tess_error_init();
        snprintf(text, sizeof text, "h=2,n=10,d=8,%s", arrays[a].of);
        setting_make(&plain, "h=2,n=10,d=8");
        setting_make(&s, text);
        tess_plan *without = setting_plan(&plain, NULL, TESS_FUSED, 1);
        tess_plan *with = setting_plan(&s, NULL, TESS_FUSED, 1);
        struct lab_buffer workspace = setting_workspace(with);
        tess_arguments given = setting_arguments(&s, &workspace);
        assert_int_equal(TESS_INVALID_ARGUMENT, tess_run(without, &given, &error, NULL));
        assert_string_equal(error.argument, arrays[a].name);
        const char *const at = a == 0   ? (const char *)given.alibi
                               : a == 1 ? (const char *)given.sink
                                        : (const char *)given.seed;
        for (int misaligned = 0; misaligned < 2; misaligned++) {
            const void *bad = misaligned ? at + 2 : NULL;
            if (a == 0)
                given.alibi = bad;
            else if (a == 1)
                given.sink = bad;
            else
                given.seed = bad;
            error = tess_error_init();
            assert_int_equal(TESS_INVALID_ARGUMENT, tess_run(with, &given, &error, NULL));
            assert_string_equal(error.argument, arrays[a].name);
        }
        lab_buffer_free(&workspace);
        tess_plan_free(with);
        tess_plan_free(without);
        lab_setting_free(&plain);
        lab_setting_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_within_the_bounds), cmocka_unit_test(philox_is_philox),
        cmocka_unit_test(the_rate_is_kept),        cmocka_unit_test(every_way_drops_the_same),
        cmocka_unit_test(slices_are_of_the_whole), cmocka_unit_test(positions_may_be_given),
        cmocka_unit_test(sinks_at_their_ends),     cmocka_unit_test(what_is_off_changes_no_bit),
        cmocka_unit_test(problems_are_refused),    cmocka_unit_test(arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
