#include "support/modified.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/half.h"
#include "lab/philox.h"
#include "lab/run.h"

static tess_target target_of(tess_backend backend) {
    tess_target target = tess_target_init();
    assert_int_equal(tess_target_query(&target, backend, -1, NULL), TESS_OK);
    return target;
}

/* Runs into s->o and s->lse. 0 where no kernel takes the case. */
static int runs(struct lab_setting *s, tess_backend backend, tess_pipeline pipeline,
                int64_t threads) {
    const tess_target target = target_of(backend);
    struct lab_planned planned;
    char why[LAB_WHY] = "";
    tess_error error = tess_error_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    problem.threads = threads;
    const tess_status status = lab_planned_make(&planned, &problem, s->pattern, &target, &error);
    if (status && status != TESS_UNSUPPORTED)
        fail_msg("%s: %s", s->c.pattern, error.message);
    const struct lab_run run = {.planned = &planned,
                                .q = &s->q,
                                .k = &s->k,
                                .v = &s->v,
                                .o = &s->o,
                                .lse = &s->lse,
                                .modifiers = &s->modifiers};
    if (!status && lab_run_whole(&run, why))
        fail_msg("%s: %s", s->c.pattern, why);
    lab_planned_free(&planned);
    return !status;
}

/* ---- dropout's words ---- */

/* The library's bits: V is the identity, so that outputs are weights. */
static void identity(struct lab_setting *s) {
    const tess_tensor *v = &s->v.view;
    for (int64_t b = 0; b < v->size[0]; b++)
        for (int64_t h = 0; h < v->size[1]; h++)
            for (int64_t j = 0; j < v->size[2]; j++)
                for (int64_t d = 0; d < v->size[3]; d++)
                    lab_put(v->data, v->type, lab_row(v, b, h, j) + d, d == j);
}

static void bits_are_of_the_words(struct lab_setting *s) {
    const tess_tensor *o = &s->o.view;
    uint64_t seed;
    memcpy(&seed, s->modifiers.seed.data, sizeof seed);
    for (int64_t b = 0; b < s->c.b; b++)
        for (int64_t h = 0; h < s->c.h; h++)
            for (int64_t i = 0; i < s->c.n; i++)
                for (int64_t j = 0; j < s->c.nkv; j++) {
                    const double weight = lab_get(o->data, o->type, lab_row(o, b, h, i) + j);
                    const uint32_t word =
                        lab_draw(seed, (uint32_t)(b * s->c.h + h), (uint32_t)i, (uint32_t)j);
                    if ((weight > 0) != (word >= (uint32_t)lround(s->c.dropout * 65536)))
                        fail_msg("%s: batch %d, head %d, query %d, key %d is %g, its word is %u",
                                 s->c.pattern, (int)b, (int)h, (int)i, (int)j, weight,
                                 (unsigned)word);
                }
}

void every_way_drops_the_same(tess_backend backend) {
    static const char *const cases[] = {
        "b=2,h=2,n=75,nkv=150,d=16,dv=150,dropout=0.3",
        "h=1,n=150,nkv=150,d=16,dv=160,dropout=0.7,block=1x1",
        "b=2,h=8,hkv=2,n=3,nkv=300,d=16,dv=304,dropout=0.3", /* heads share a tile */
        "h=4,hkv=2,n=1,nkv=300,d=16,dv=304,dropout=0.3",
        "b=2,h=2,n=75,nkv=128,d=64,dv=128,dropout=0.3,dtype=bf16",
        "h=2,n=300,nkv=64,d=64,dropout=0.5,dtype=f16,block=128x64",
        "h=3,n=200,nkv=128,d=128,dropout=0.5,dtype=bf16,block=8x8",
        "h=3,n=200,nkv=128,d=128,dropout=0.5,dtype=f16,block=4x4",
        "h=3,n=96,nkv=192,d=192,dropout=0.5,dtype=f16,block=32x16",
        "h=8,hkv=1,n=17,nkv=64,d=64,dropout=0.5,dtype=bf16,block=8x16",
        "h=2,n=70,nkv=400,d=512,dropout=0.5,dtype=bf16",
        "h=2,n=70,nkv=400,d=768,dropout=0.5,dtype=f16",
    };
    static const int64_t heights[] = {0, 8, 16, 32, 64, 128}, parts[] = {0, 128};
    enum { HEIGHTS = sizeof heights / sizeof *heights };
    for (size_t x = 0; x < sizeof cases / sizeof *cases; x++)
        for (size_t y = 0; y < 2 * HEIGHTS; y++) {
            struct lab_setting s;
            setting_make(&s, cases[x]);
            s.c.tile_rows = heights[y % HEIGHTS], s.c.part_keys = parts[y / HEIGHTS];
            identity(&s);
            if (runs(&s, backend, TESS_FUSED, 1 + (int64_t)y % 3))
                bits_are_of_the_words(&s);
            else
                assert_true(s.c.tile_rows != 0);
            if (y == 0) {
                assert_true(runs(&s, backend, TESS_STAGED, 2));
                bits_are_of_the_words(&s);
            }
            lab_setting_free(&s);
        }
}

/* ---- slices of a whole problem ---- */

static tess_tensor cut(const tess_tensor *whole, const int64_t first[3], const int64_t size[3]) {
    tess_tensor t = *whole;
    t.data = (char *)t.data +
             lab_row(whole, first[0], first[1], first[2]) * (int64_t)tess_type_size(t.type);
    memcpy(t.size, size, 3 * sizeof *size);
    return t;
}

/* A tensor of the setting where the mirror has it, cut. */
static tess_tensor cut_there(struct lab_mirror *mirror, const struct lab_tensor *whole,
                             const int64_t first[3], const int64_t size[3]) {
    tess_tensor there;
    assert_int_equal(lab_mirror_tensor(mirror, whole, &there), 0);
    return cut(&there, first, size);
}

void slice_run(struct lab_setting *s, const struct slice *at, tess_backend backend,
               tess_pipeline pipeline) {
    const tess_target target = target_of(backend);
    tess_error error = tess_error_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_arguments a = tess_arguments_init();
    tess_pattern *pattern;
    struct lab_planned planned;
    struct lab_mirror mirror;
    struct lab_buffer workspace, positions;
    const int64_t rows[3] = {at->b, at->h, at->i}, some[3] = {at->batches, at->heads, at->queries};
    const int64_t key[3] = {at->b, at->h, at->j}, keys[3] = {at->batches, at->heads, at->keys};
    problem.batch = at->batches, problem.heads_q = problem.heads_kv = at->heads;
    problem.n_q = at->queries, problem.n_kv = at->keys;
    problem.batch_offset = at->b, problem.head_offset = at->h, problem.query_offset = at->i;
    problem.whole_heads_q = s->c.h, problem.whole_n_q = s->c.n, problem.whole_n_kv = s->c.nkv;
    problem.alignment = 4;
    problem.key_positions = at->positions != NULL;
    problem.key_offset = at->positions ? 0 : at->j;
    shape.n_q = at->queries, shape.n_kv = at->keys;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, &error));
    if (lab_planned_make(&planned, &problem, pattern, &target, &error))
        fail_msg("%s", error.message);
    workspace = setting_workspace(planned.plan);
    assert_int_equal(lab_buffer_make(&positions, (size_t)at->keys * sizeof *at->positions, 4), 0);
    if (at->positions)
        memcpy(positions.data, at->positions, positions.size);
    lab_mirror_make(&mirror, backend);
    const tess_tensor q = cut_there(&mirror, &s->q, rows, some);
    const tess_tensor o = cut_there(&mirror, &s->o, rows, some);
    const tess_tensor lse = cut_there(&mirror, &s->lse, rows, some);
    const tess_tensor k = cut_there(&mirror, &s->k, key, keys);
    const tess_tensor v = cut_there(&mirror, &s->v, key, keys);
    assert_int_equal(lab_modifiers_place(&s->modifiers, &mirror, &a), 0);
    a.q = &q, a.k = &k, a.v = &v, a.o = &o, a.lse = &lse;
    a.alibi = a.alibi ? a.alibi + at->h : NULL;
    a.sink = a.sink ? a.sink + at->h : NULL;
    if (at->positions)
        a.key_positions = lab_mirror_add(&mirror, &positions);
    a.workspace = lab_mirror_add(&mirror, &workspace), a.workspace_size = workspace.size;
    a.image = planned.place, a.image_size = planned.image.size;
    if (tess_run(planned.plan, &a, &error, NULL))
        fail_msg("%s", error.message);
    assert_null(lab_mirror_fetch(&mirror));
    lab_mirror_free(&mirror);
    lab_buffer_free(&positions);
    lab_buffer_free(&workspace);
    lab_planned_free(&planned);
    tess_pattern_free(pattern);
}

/* A slice against the oracle, which is told where the slice lies. position: p_0 less than by default. */
static void slice_is_right(const struct lab_setting *s, const struct slice *at) {
    struct lab_scoring scoring = lab_modifiers_scoring(&s->modifiers, &s->c);
    const int64_t rows[3] = {at->b, at->h, at->i}, some[3] = {at->batches, at->heads, at->queries};
    const int64_t key[3] = {at->b, at->h, at->j}, keys[3] = {at->batches, at->heads, at->keys};
    const tess_tensor q = cut(&s->q.view, rows, some), o = cut(&s->o.view, rows, some);
    const tess_tensor lse = cut(&s->lse.view, rows, some);
    const tess_tensor k = cut(&s->k.view, key, keys), v = cut(&s->v.view, key, keys);
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
void slices_are_of_the_whole(tess_backend backend) {
    enum { N = 80, KEYS = 90, FIRST = 21 };
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting s;
        float whole[2 * 4 * N * 32], lse[2 * 4 * N];
        setting_make(&s, "b=2,h=4,n=80,nkv=120,d=32,alibi=1,sink=1,softcap=9,dropout=0.3");
        slice_run(&s, &(struct slice){0, 2, 0, 4, 0, N, FIRST, KEYS, NULL}, backend,
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
                      backend, (tess_pipeline)pipeline);
        }
        for (size_t x = 0; x < sizeof whole / sizeof *whole; x++)
            assert_true(fabsf(whole[x] - ((float *)s.o.view.data)[x]) < 2e-5F);
        for (size_t x = 0; x < sizeof lse / sizeof *lse; x++)
            assert_true(fabsf(lse[x] - ((float *)s.lse.view.data)[x]) < 2e-5F);
        lab_setting_free(&s);
    }
}

/* Keys in another order, each with its position. */
void positions_may_be_given(tess_backend backend) {
    enum { N = 40, KEYS = 100 };
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
        assert_true(runs(&s, backend, (tess_pipeline)pipeline, 1));
        slice_run(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position}, backend,
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
        slice_run(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position}, backend,
                  (tess_pipeline)pipeline);
        slice_is_right(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position});
        lab_setting_free(&s);
        lab_setting_free(&turned);
    }
}

/* ---- ends ---- */

static int is_near(float x, float y, double near) {
    return x == y || fabs((double)x - (double)y) <= near * fmax(1, fabs((double)x));
}

void sinks_stand_at_their_ends(tess_backend backend) {
    static const float sinks[] = {-INFINITY, INFINITY, NAN, 1e30F, -1e30F};
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting plain, s;
        setting_make(&plain, "h=5,n=20,nkv=30,d=16,pattern=segments(10,5)");
        setting_make(&s, "h=5,n=20,nkv=30,d=16,pattern=segments(10,5),sink=1");
        memcpy(s.modifiers.sink.data, sinks, sizeof sinks);
        assert_true(runs(&plain, backend, (tess_pipeline)pipeline, 1));
        assert_true(runs(&s, backend, (tess_pipeline)pipeline, 1));
        /* CUDA's softmax of sinks is a kernel of its own, which adds up in another order. */
        const double near = backend == TESS_CUDA && pipeline == TESS_STAGED ? 1e-6 : 0;
        for (int64_t x = 0; x < 5 * 20; x++)
            assert_true(
                is_near(((float *)plain.lse.view.data)[x], ((float *)s.lse.view.data)[x], near));
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
                        assert_true(is_near(is, was, near));
                }
        lab_setting_free(&plain);
        lab_setting_free(&s);
    }
}
