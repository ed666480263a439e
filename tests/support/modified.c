#include "support/modified.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/fill/half.h"
#include "lab/fill/philox.h"
#include "lab/run/run.h"

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
    const struct lab_run run = lab_setting_run(s, &planned);
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
    tess_tensor placed;
    assert_int_equal(lab_mirror_tensor(mirror, whole, &placed), 0);
    return cut(&placed, first, size);
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
    tess_tensor d_o, d_q, d_k, d_v;
    if (lab_case_backward(&s->c)) {
        d_o = cut_there(&mirror, &s->given.d_o, rows, some);
        d_q = cut_there(&mirror, &s->wanted.d_q, rows, some);
        d_k = cut_there(&mirror, &s->wanted.d_k, key, keys);
        d_v = cut_there(&mirror, &s->wanted.d_v, key, keys);
        a.d_o = &d_o, a.d_q = &d_q, a.d_k = &d_k, a.d_v = &d_v;
    }
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

/* The answers of the setting so far, to be compared with those of another way. */
struct answers {
    double *o, *lse;
};

static struct answers answers_keep(const struct lab_setting *s) {
    const int64_t rows = s->c.b * s->c.h * s->c.n, outputs = rows * s->c.dv;
    struct answers a = {malloc((size_t)outputs * sizeof *a.o),
                        malloc((size_t)rows * sizeof *a.lse)};
    assert_non_null(a.o);
    assert_non_null(a.lse);
    for (int64_t x = 0; x < outputs; x++)
        a.o[x] = lab_get(s->o.view.data, s->c.type, x);
    for (int64_t x = 0; x < rows; x++)
        a.lse[x] = ((float *)s->lse.view.data)[x];
    return a;
}

/* Frees what was kept. Outputs of the two ways may be rounded apart: 2^-8 of bf16, 2^-11 of f16. */
static void answers_are_those(struct answers *was, const struct lab_setting *s) {
    static const double near[] = {[TESS_F32] = 2e-5, [TESS_F16] = 0x1p-10, [TESS_BF16] = 0x1p-7};
    const int64_t rows = s->c.b * s->c.h * s->c.n;
    for (int64_t x = 0; x < rows * s->c.dv; x++)
        assert_true(fabs(was->o[x] - lab_get(s->o.view.data, s->c.type, x)) <=
                    near[s->c.type] * fmax(1, fabs(was->o[x])));
    for (int64_t x = 0; x < rows; x++)
        assert_true(fabs(was->lse[x] - (double)((float *)s->lse.view.data)[x]) < 2e-5);
    free(was->o);
    free(was->lse);
}

/* Runs of slices over keys first ... first + keys - 1 answer what one run over these keys of all rows
 * does. On Hopper 64 and 128 dims of 16 bits have kernels of their own. */
void slices_are_of_the_whole(tess_backend backend) {
    enum { N = 80, KEYS = 90, FIRST = 21 };
    static const char *const types[] = {"d=32", "d=64,dtype=bf16", "d=128,dtype=f16"};
    for (int x = 0; x < 6; x++) {
        const tess_pipeline pipeline = x % 2 ? TESS_STAGED : TESS_FUSED;
        struct lab_setting s;
        char text[128];
        snprintf(text, sizeof text, "b=2,h=4,n=80,nkv=120,alibi=1,sink=1,softcap=9,dropout=0.3,%s",
                 types[x / 2]);
        setting_make(&s, text);
        slice_run(&s, &(struct slice){0, 2, 0, 4, 0, N, FIRST, KEYS, NULL}, backend, pipeline);
        slice_is_right(&s, &(struct slice){0, 2, 0, 4, 0, N, FIRST, KEYS, NULL});
        struct answers whole = answers_keep(&s);
        lab_tensor_poison(&s.o);
        lab_tensor_poison(&s.lse);
        for (int part = 0; part < 8; part++) {
            const int64_t b = part / 4, h = part / 2 % 2 * 3, i = part % 2 * 37;
            slice_run(&s,
                      &(struct slice){b, 1, h, h ? 1 : 3, i, i ? N - 37 : 37, FIRST, KEYS, NULL},
                      backend, pipeline);
        }
        answers_are_those(&whole, &s);
        lab_setting_free(&s);
    }
}

/* Row `to` of a tensor becomes row `from` of another of the same kind. */
static void row_copy(struct lab_tensor *t, int64_t h, int64_t to, const struct lab_tensor *other,
                     int64_t from) {
    const int64_t size = (int64_t)tess_type_size(t->view.type);
    memcpy((char *)t->view.data + lab_row(&t->view, 0, h, to) * size,
           (const char *)other->view.data + lab_row(&other->view, 0, h, from) * size,
           (size_t)(t->view.size[3] * size));
}

/* Keys in another order, each with its position. */
void positions_may_be_given(tess_backend backend) {
    enum { N = 40, KEYS = 100 };
    static const char *const types[] = {"d=32", "d=64,dtype=bf16", "d=128,dtype=f16"};
    for (int x = 0; x < 6; x++) {
        const tess_pipeline pipeline = x % 2 ? TESS_STAGED : TESS_FUSED;
        struct lab_setting s, turned;
        int32_t position[KEYS];
        char text[128];
        snprintf(text, sizeof text, "h=2,n=40,nkv=100,alibi=1,dropout=0.3,%s", types[x / 2]);
        setting_make(&s, text);
        setting_make(&turned, text);
        for (int32_t j = 0; j < KEYS; j++) {
            position[j] = j * 37 % KEYS;
            for (int64_t h = 0; h < 2; h++) {
                row_copy(&turned.k, h, j, &s.k, position[j]);
                row_copy(&turned.v, h, j, &s.v, position[j]);
            }
        }
        assert_true(runs(&s, backend, pipeline, 1));
        struct answers whole = answers_keep(&s);
        slice_run(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position}, backend, pipeline);
        slice_is_right(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position});
        answers_are_those(&whole, &turned);
        for (int32_t j = 0; j < KEYS; j++) /* any number will do */
            position[j] = j % 3 == 0 ? -j * 1000 : j % 3 == 1 ? INT32_MAX - j : j;
        slice_run(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position}, backend, pipeline);
        slice_is_right(&turned, &(struct slice){0, 1, 0, 2, 0, N, 0, KEYS, position});
        lab_setting_free(&s);
        lab_setting_free(&turned);
    }
}

/* ---- gradients of slices ---- */

/* Rows of a gradient from `first` on, against those of the oracle's gradient of the whole. */
static void gradient_slice_is_right(const char *name, const struct lab_gradient *whole,
                                    const struct lab_tensor *wrote, const int64_t first[3],
                                    const int64_t size[3], tess_type type) {
    const tess_tensor got = cut(&wrote->view, first, size);
    const int64_t *all = wrote->view.size, rows = size[0] * size[1] * size[2];
    const size_t bytes = (size_t)whole->dim * sizeof *whole->value;
    struct lab_gradient part = {rows, whole->dim, malloc((size_t)rows * bytes),
                                malloc((size_t)rows * sizeof *part.size)};
    struct lab_report report;
    assert_non_null(part.value);
    assert_non_null(part.size);
    for (int64_t x = 0; x < rows; x++) {
        const int64_t b = first[0] + x / size[2] / size[1], h = first[1] + x / size[2] % size[1];
        const int64_t row = (b * all[1] + h) * all[2] + first[2] + x % size[2];
        memcpy(part.value + x * whole->dim, whole->value + row * whole->dim, bytes);
        part.size[x] = whole->size[row];
    }
    lab_compare_gradient(&report, name, &part, &got,
                         &(struct lab_gradient_rule){type, type, 0, 0, 256});
    if (!report.ok)
        fail_msg("%s", report.message);
    free(part.value);
    free(part.size);
}

/* With the o and lse of the whole, some keys have their gradients of all queries, and some queries theirs of
 * all keys, wherever a problem says that it lies. */
void gradients_of_slices_are_of_the_whole(tess_backend backend) {
    enum { N = 80, KEYS = 120, FIRST = 21, SOME = 90, QUERY = 37 };
    static const char *const types[] = {"d=32", "d=64,dtype=bf16", "d=128,dtype=bf16",
                                        "d=128,dtype=f16"};
    int32_t positions[SOME];
    for (int32_t j = 0; j < SOME; j++)
        positions[j] = FIRST + j;
    const struct slice slices[] = {
        {0, 2, 1, 3, 0, N, FIRST, SOME, NULL},
        {1, 1, 0, 4, 0, N, FIRST, SOME, positions},
        {0, 2, 1, 2, QUERY, N - QUERY, 0, KEYS, NULL},
    };
    for (size_t x = 0; x < 2 * sizeof types / sizeof *types; x++) {
        struct lab_work w;
        char text[160];
        snprintf(text, sizeof text,
                 "b=2,h=4,n=80,nkv=120,op=backward,alibi=1,sink=1,softcap=9,dropout=0.3,%s",
                 types[x / 2]);
        const struct lab_case c = case_of(text);
        work_make(&w, &c);
        assert_int_equal(lab_work_answer(&w), 0);
        for (size_t y = 0; y < sizeof slices / sizeof *slices; y++) {
            const struct slice *at = &slices[y];
            const int64_t row[3] = {at->b, at->h, at->i};
            const int64_t rows[3] = {at->batches, at->heads, at->queries};
            const int64_t key[3] = {at->b, at->h, at->j};
            const int64_t keys[3] = {at->batches, at->heads, at->keys};
            slice_run(&w.s, at, backend, x % 2 ? TESS_STAGED : TESS_FUSED);
            if (at->keys == KEYS) {
                gradient_slice_is_right("dQ", &w.gradients.q, &w.s.wanted.d_q, row, rows, c.type);
                continue;
            }
            gradient_slice_is_right("dK", &w.gradients.k, &w.s.wanted.d_k, key, keys, c.type);
            gradient_slice_is_right("dV", &w.gradients.v, &w.s.wanted.d_v, key, keys, c.type);
        }
        lab_work_free(&w);
    }
}

/* ---- ends ---- */

static int is_near(double x, double y, double near) {
    return x == y || fabs(x - y) <= near * fmax(1, fabs(x));
}

void sinks_stand_at_their_ends(tess_backend backend) {
    static const float sinks[] = {-INFINITY, INFINITY, NAN, 1e30F, -1e30F};
    static const char *const types[] = {"d=16", "d=64,dtype=bf16", "d=128,dtype=f16"};
    enum { HEADS = 5, N = 20 };
    for (int x = 0; x < 6; x++) {
        const tess_pipeline pipeline = x % 2 ? TESS_STAGED : TESS_FUSED;
        struct lab_setting plain, s;
        char text[128];
        snprintf(text, sizeof text, "h=5,n=20,nkv=30,pattern=segments(10,5),%s", types[x / 2]);
        setting_make(&plain, text);
        snprintf(text, sizeof text, "h=5,n=20,nkv=30,pattern=segments(10,5),sink=1,%s",
                 types[x / 2]);
        setting_make(&s, text);
        memcpy(s.modifiers.sink.data, sinks, sizeof sinks);
        assert_true(runs(&plain, backend, pipeline, 1));
        assert_true(runs(&s, backend, pipeline, 1));
        /* CUDA's softmax of sinks is a kernel of its own, which adds up in another order. */
        const int apart = backend == TESS_CUDA && pipeline == TESS_STAGED;
        const double near = apart ? 1e-6 : 0, rounded = apart && x > 1 ? 0x1p-8 : near;
        for (int64_t r = 0; r < HEADS * N; r++) {
            const double lse = ((float *)plain.lse.view.data)[r];
            assert_true(is_near(lse, ((float *)s.lse.view.data)[r], near));
            for (int64_t d = 0; d < s.c.dv; d++) {
                const double was = lab_get(plain.o.view.data, s.c.type, r * s.c.dv + d);
                const double is = lab_get(s.o.view.data, s.c.type, r * s.c.dv + d);
                if (isinf(lse) || r / N == 1 || r / N == 3)
                    assert_true(is == 0);
                else if (r / N == 2)
                    assert_true(isnan(is));
                else
                    assert_true(is_near(was, is, rounded));
            }
        }
        lab_setting_free(&plain);
        lab_setting_free(&s);
    }
}
