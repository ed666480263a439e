/*
 * The CPU's passes of the backward, driven by hand: delta, dK and dV over transposed lists, dQ
 * over lists, against the oracle's gradients; what unlisted rows may reach, and sameness over
 * threads and over what else is wanted. A pass is found in the table, at the level that
 * TESSERA_ISA names.
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

#include "plan/kernels.h"
#include "lab/compare.h"
#include "lab/half.h"
#include "lab/oracle.h"
#include "lab/rng.h"
#include "support/support.h"

/* Zeros are defaults: one batch, one head, f32, blocks of 8, tiles of 64, no parts, dense. */
struct setting {
    const char *spec;
    int64_t batch, heads_q, heads_kv, lists; /* lists: heads of the pattern */
    int64_t n_q, n_kv, d_qk, d_v, block_q, block_kv;
    tess_type type, out;                     /* of inputs, of gradients */
    int o_f32, rest, apart, by_delta, d_lse; /* apart: rows of tensors are not next to each other */
    double scale, softcap;
    int alibi, sink, positions;
    int32_t dropped;
    int32_t tile_rows, tile_keys;
    int64_t tile_heads, part_keys;
    double size, size_k; /* of Q and K; 0: 1 */
    int poison;          /* NaN in whatever nobody lists */
};

enum { THREADS = 8, SLACK = 3 };

struct tensor {
    tess_tensor view;
    size_t bytes;
};

struct run {
    struct setting s;
    struct problem problem;
    tess_pattern *pattern, *transposed;
    struct lists rows_lists, keys_lists;
    struct schedule rows, keys;
    int64_t *list_of;
    struct tensor q, k, v, o, lse, rest, d_o, d_lse, delta, d_q, d_k, d_v;
    float *alibi, *sink, *d_alibi, *d_sink, *stats;
    int32_t *positions;
    uint64_t seed;
    struct lab_scoring scoring;
    struct lab_oracle oracle;
    struct lab_gradients of;
};

/* ---- tensors ---- */

static int64_t place(const tess_tensor *t, int64_t b, int64_t h, int64_t n) {
    return b * t->stride[0] + h * t->stride[1] + n * t->stride[2];
}

static struct tensor tensor_make(const struct setting *s, tess_type type, int64_t heads, int64_t n,
                                 int64_t d) {
    struct tensor t;
    const int64_t row = s->apart ? d + SLACK : d;
    const int64_t count = s->batch * heads * n * row;
    t.bytes = (size_t)count * tess_type_size(type);
    t.view = tess_tensor_bhnd(malloc(t.bytes + 1), type, s->batch, heads, n, d);
    assert_non_null(t.view.data);
    memset(t.view.data, 0xff, t.bytes); /* NaN of every type */
    t.view.stride[0] = heads * n * row;
    t.view.stride[1] = s->apart ? row : n * row; /* apart: [B, N, H, D] */
    t.view.stride[2] = s->apart ? heads * row : row;
    return t;
}

static void tensor_fill(const struct tensor *t, uint64_t stream, double size) {
    const tess_tensor *v = &t->view;
    uint64_t i = 0;
    for (int64_t b = 0; b < v->size[0]; b++)
        for (int64_t h = 0; h < v->size[1]; h++)
            for (int64_t n = 0; n < v->size[2]; n++)
                for (int64_t d = 0; d < v->size[3]; d++)
                    lab_put(v->data, v->type, place(v, b, h, n) + d,
                            size * lab_normal(5, stream, i++));
}

static void row_set(const struct tensor *t, int64_t b, int64_t h, int64_t n, double x) {
    for (int64_t d = 0; d < t->view.size[3]; d++)
        lab_put(t->view.data, t->view.type, place(&t->view, b, h, n) + d, x);
}

static struct view view_of(const struct tensor *t) {
    return (struct view){
        t->view.data, {t->view.stride[0], t->view.stride[1], t->view.stride[2]}, t->view.type};
}

/* ---- the problem ---- */

static void defaults(struct setting *s) {
    int64_t *const ones[] = {&s->batch, &s->heads_q, &s->lists, &s->tile_heads};
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        *ones[i] = *ones[i] ? *ones[i] : 1;
    s->spec = s->spec ? s->spec : "dense";
    s->heads_kv = s->heads_kv ? s->heads_kv : s->heads_q;
    s->n_kv = s->n_kv ? s->n_kv : s->n_q;
    s->d_v = s->d_v ? s->d_v : s->d_qk;
    s->block_q = s->block_q ? s->block_q : 8;
    s->block_kv = s->block_kv ? s->block_kv : s->block_q;
    s->tile_rows = s->tile_rows ? s->tile_rows : 64;
    s->tile_keys = s->tile_keys ? s->tile_keys : 64;
    s->part_keys = s->part_keys ? s->part_keys : INT64_MAX;
    s->size = s->size > 0 ? s->size : 1;
    s->size_k = s->size_k > 0 ? s->size_k : 1;
}

static void schedule_of(struct schedule *out, const struct run *r, const struct lists *lists,
                        int64_t heads, int64_t group) {
    const int64_t n = r->s.batch * heads / group;
    int64_t *keys = calloc((size_t)(n * lists->tiles) + 1, sizeof *keys);
    int64_t *list_of = calloc((size_t)n + 1, sizeof *list_of);
    const struct schedule_rules rules = {.item_cost = 1e-6,
                                         .key_cost = 1e-7,
                                         .workers = 64,
                                         .min_part_keys = r->s.part_keys,
                                         .heads_per_group = n};
    assert_true(keys && list_of);
    for (int64_t x = 0; x < n; x++) {
        list_of[x] = x;
        for (int64_t t = 0; t < lists->tiles; t++)
            for (int64_t h = 0; h < (lists == &r->keys_lists ? group : 1); h++)
                keys[x * lists->tiles + t] +=
                    lists->keys[r->list_of[x * group + h] * lists->tiles + t];
    }
    assert_int_equal(TESS_OK, schedule_make(out, keys, lists->tiles, list_of, n, &rules, NULL));
    free(keys);
    free(list_of);
}

static void lists_make(struct run *r) {
    const struct setting *s = &r->s;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error error = tess_error_init();
    shape.n_q = s->n_q, shape.n_kv = s->n_kv, shape.heads = s->lists;
    shape.block_q = s->block_q, shape.block_kv = s->block_kv;
    if (tess_pattern_from_spec(&r->pattern, s->spec, &shape, &error) ||
        tess_pattern_transpose(&r->transposed, r->pattern, &error))
        fail_msg("%s", error.message);
    const struct bcsr *m = &r->pattern->lists;
    r->list_of = malloc((size_t)(s->batch * s->heads_q) * sizeof *r->list_of);
    assert_non_null(r->list_of);
    for (int64_t x = 0; x < s->batch * s->heads_q; x++)
        r->list_of[x] = bcsr_list(m, x / s->heads_q, x % s->heads_q, s->heads_q);
    assert_int_equal(TESS_OK, lists_pack(&r->rows_lists, m, s->tile_rows, &error));
    assert_int_equal(TESS_OK,
                     lists_pack(&r->keys_lists, &r->transposed->lists, s->tile_keys, &error));
    schedule_of(&r->rows, r, &r->rows_lists, s->heads_q, s->tile_heads);
    schedule_of(&r->keys, r, &r->keys_lists, s->heads_q, s->heads_q / s->heads_kv);
}

static void scoring_make(struct run *r) {
    const struct setting *s = &r->s;
    r->alibi = malloc((size_t)s->heads_q * sizeof *r->alibi);
    r->sink = malloc((size_t)s->heads_q * sizeof *r->sink);
    r->d_alibi = malloc((size_t)s->heads_q * sizeof *r->d_alibi);
    r->d_sink = malloc((size_t)s->heads_q * sizeof *r->d_sink);
    r->positions = malloc((size_t)s->n_kv * sizeof *r->positions);
    assert_true(r->alibi && r->sink && r->d_alibi && r->d_sink && r->positions);
    for (int64_t h = 0; h < s->heads_q; h++) {
        r->alibi[h] = (float)lab_normal(3, 1, (uint64_t)h) / 8;
        r->sink[h] = (float)lab_normal(3, 2, (uint64_t)h) * 2;
    }
    for (int64_t j = 0; j < s->n_kv; j++)
        r->positions[j] = (int32_t)lab_below(3, 3, (uint64_t)j, 100) - 20;
    r->seed = 77;
    const double scale = s->scale < 0 || s->scale > 0 ? s->scale : 1 / sqrt((double)s->d_qk);
    r->scoring = (struct lab_scoring){.scale = scale,
                                      .softcap = s->softcap,
                                      .alibi = s->alibi ? r->alibi : NULL,
                                      .sink = s->sink ? r->sink : NULL,
                                      .dropped = s->dropped,
                                      .seed = r->seed,
                                      .key_positions = s->positions ? r->positions : NULL};
    r->problem = (struct problem){.type = s->type,
                                  .batch = s->batch,
                                  .heads_q = s->heads_q,
                                  .heads_kv = s->heads_kv,
                                  .n_q = s->n_q,
                                  .n_kv = s->n_kv,
                                  .d_qk = s->d_qk,
                                  .d_v = s->d_v,
                                  .scale = scale,
                                  .threads = THREADS,
                                  .modifiers = {.softcap = s->softcap,
                                                .alibi = s->alibi,
                                                .sink = s->sink,
                                                .seed = s->dropped != 0,
                                                .key_positions = s->positions,
                                                .dropped = s->dropped,
                                                .heads = s->heads_q,
                                                .first_position = s->n_kv - s->n_q}};
}

/* o, lse, delta as the oracle has them. An empty row's o is NaN where it is poisoned. */
static void forward_make(struct run *r) {
    const struct setting *s = &r->s;
    assert_int_equal(0, lab_oracle_run(&r->oracle, &r->q.view, &r->k.view, &r->v.view, r->pattern,
                                       &r->scoring, NULL, 0));
    for (int64_t x = 0; x < r->oracle.rows; x++) {
        const struct lab_place *at = &r->oracle.place[x];
        const int64_t to = place(&r->o.view, at->b, at->h, at->i);
        double delta = 0, d_lse = 0;
        if (s->d_lse)
            d_lse =
                lab_get(r->d_lse.view.data, TESS_F32, place(&r->d_lse.view, at->b, at->h, at->i));
        for (int64_t d = 0; d < s->d_v; d++) {
            const double o = r->oracle.keys[x] || !s->poison ? r->oracle.o[x * s->d_v + d] : NAN;
            lab_put(r->o.view.data, r->o.view.type, to + d, o);
            lab_put(r->rest.view.data, s->type, place(&r->rest.view, at->b, at->h, at->i) + d,
                    o - lab_get(r->o.view.data, r->o.view.type, to + d));
            delta += o * lab_get(r->d_o.view.data, s->type,
                                 place(&r->d_o.view, at->b, at->h, at->i) + d);
        }
        row_set(&r->lse, at->b, at->h, at->i, r->oracle.lse[x]);
        row_set(&r->delta, at->b, at->h, at->i, delta - d_lse);
    }
}

/* NaN in queries that list nothing and keys that nobody lists. */
static void poison(const struct run *r) {
    const struct setting *s = &r->s;
    const int64_t group = s->heads_q / s->heads_kv;
    int64_t n, *keys = malloc((size_t)s->n_kv * sizeof *keys);
    char *listed = calloc((size_t)(s->heads_kv * s->n_kv), 1);
    assert_true(keys && listed);
    for (int64_t h = 0; h < s->heads_q; h++)
        for (int64_t i = 0; i < s->n_q; i++) {
            assert_int_equal(TESS_OK, tess_pattern_row(r->pattern, 0, h / (s->heads_q / s->lists),
                                                       i, keys, s->n_kv, &n, NULL));
            for (int64_t e = 0; e < n; e++)
                listed[h / group * s->n_kv + keys[e]] = 1;
            for (int64_t b = 0; n == 0 && b < s->batch; b++) {
                row_set(&r->q, b, h, i, NAN);
                row_set(&r->d_o, b, h, i, NAN);
                row_set(&r->d_lse, b, h, i, NAN);
            }
        }
    for (int64_t x = 0; x < s->heads_kv * s->n_kv; x++)
        for (int64_t b = 0; !listed[x] && b < s->batch; b++) {
            row_set(&r->k, b, x / s->n_kv, x % s->n_kv, NAN);
            row_set(&r->v, b, x / s->n_kv, x % s->n_kv, NAN);
        }
    free(keys);
    free(listed);
}

static void run_make(struct run *r, const struct setting *setting) {
    memset(r, 0, sizeof *r);
    r->s = *setting;
    struct setting *s = &r->s;
    defaults(s);
    r->q = tensor_make(s, s->type, s->heads_q, s->n_q, s->d_qk);
    r->k = tensor_make(s, s->type, s->heads_kv, s->n_kv, s->d_qk);
    r->v = tensor_make(s, s->type, s->heads_kv, s->n_kv, s->d_v);
    r->o = tensor_make(s, s->o_f32 ? TESS_F32 : s->type, s->heads_q, s->n_q, s->d_v);
    r->rest = tensor_make(s, s->type, s->heads_q, s->n_q, s->d_v);
    r->d_o = tensor_make(s, s->type, s->heads_q, s->n_q, s->d_v);
    r->lse = tensor_make(s, TESS_F32, s->heads_q, s->n_q, 1);
    r->d_lse = tensor_make(s, TESS_F32, s->heads_q, s->n_q, 1);
    r->delta = tensor_make(s, TESS_F32, s->heads_q, s->n_q, 1);
    r->d_q = tensor_make(s, s->out, s->heads_q, s->n_q, s->d_qk);
    r->d_k = tensor_make(s, s->out, s->heads_kv, s->n_kv, s->d_qk);
    r->d_v = tensor_make(s, s->out, s->heads_kv, s->n_kv, s->d_v);
    tensor_fill(&r->q, 1, s->size);
    tensor_fill(&r->k, 2, s->size_k);
    tensor_fill(&r->v, 3, 1);
    tensor_fill(&r->d_o, 4, 1);
    tensor_fill(&r->d_lse, 6, 1);
    lists_make(r);
    scoring_make(r);
    if (s->poison)
        poison(r);
    forward_make(r);
    const struct lab_gradients_of of = {
        &r->q.view, &r->k.view, &r->v.view, &r->d_o.view, s->d_lse ? &r->d_lse.view : NULL,
        r->pattern, &r->scoring};
    assert_int_equal(0, lab_gradients_run(&r->of, &of));
    r->stats = malloc(3 * (size_t)(s->batch * s->heads_q * s->n_q) * sizeof *r->stats);
    assert_non_null(r->stats);
}

static void run_free(struct run *r) {
    const struct tensor *const tensors[] = {&r->q,     &r->k,    &r->v,   &r->o,
                                            &r->lse,   &r->rest, &r->d_o, &r->d_lse,
                                            &r->delta, &r->d_q,  &r->d_k, &r->d_v};
    void *const arrays[] = {r->alibi,     r->sink,  r->d_alibi, r->d_sink,
                            r->positions, r->stats, r->list_of};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        free(tensors[i]->view.data);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    tess_pattern_free(r->pattern);
    tess_pattern_free(r->transposed);
    lists_free(&r->rows_lists);
    lists_free(&r->keys_lists);
    schedule_free(&r->rows);
    schedule_free(&r->keys);
    lab_oracle_free(&r->oracle);
    lab_gradients_free(&r->of);
}

/* ---- running ---- */

static const struct kernel *kernel_of(tess_stage stage, const struct problem *p) {
    const struct backend *cpu = cpu_kernels();
    for (int64_t i = 0; i < cpu->n_kernels; i++)
        if (cpu->kernels[i].stage == stage && !cpu->kernels[i].refuses(&cpu->kernels[i], p, NULL))
            return &cpu->kernels[i];
    fail_msg("no kernel of stage %d", (int)stage);
    return NULL;
}

static void pass_run(struct kernel_args *args, tess_stage stage) {
    args->kernel = kernel_of(stage, args->problem);
    const size_t size = args->kernel->workspace(args);
    assert_true(size != SIZE_MAX);
    char *memory = aligned_alloc(64, size + 64);
    assert_non_null(memory);
    memset(memory, 0xff, size); /* NaN */
    memset(memory + size, 0x5a, 64);
    args->workspace = memory;
    assert_int_equal(TESS_OK, args->kernel->run(args, NULL));
    for (int i = 0; i < 64; i++)
        assert_int_equal(memory[size + (size_t)i], 0x5a);
    free(memory);
}

/* Runs all passes; gradients that are not in `wanted` are left out. */
static void run_passes(struct run *r, int32_t threads, int wanted) {
    const struct setting *s = &r->s;
    const int64_t queries = s->batch * s->heads_q * s->n_q;
    r->problem.threads = threads;
    r->problem.operation = TESS_ATTENTION_BACKWARD;
    r->problem.gradients =
        wanted | (s->alibi ? TESS_GRADIENT_ALIBI : 0) | (s->sink ? TESS_GRADIENT_SINK : 0);
    struct kernel_args args = {.function = "test",
                               .problem = &r->problem,
                               .q = view_of(&r->q),
                               .k = view_of(&r->k),
                               .v = view_of(&r->v),
                               .lse = view_of(&r->lse),
                               .d_o = view_of(&r->d_o),
                               .alibi = s->alibi ? r->alibi : NULL,
                               .sink = s->sink ? r->sink : NULL,
                               .seed = s->dropped ? &r->seed : NULL,
                               .key_positions = s->positions ? r->positions : NULL,
                               .d_alibi = s->alibi ? r->d_alibi : NULL,
                               .d_sink = s->sink ? r->d_sink : NULL,
                               .list_of = r->list_of,
                               .seconds = 1};
    args.stats = (struct query_stats){r->stats, r->stats + queries, r->stats + 2 * queries};
    if (s->by_delta)
        args.delta = view_of(&r->delta);
    else
        args.o = view_of(&r->o);
    if (s->rest)
        args.o_rest = view_of(&r->rest);
    if (s->d_lse)
        args.d_lse = view_of(&r->d_lse);
    if (wanted & TESS_GRADIENT_Q)
        args.d_q = view_of(&r->d_q);
    if (wanted & TESS_GRADIENT_K)
        args.d_k = view_of(&r->d_k);
    if (wanted & TESS_GRADIENT_V)
        args.d_v = view_of(&r->d_v);
    pass_run(&args, TESS_STAGE_DELTA);
    args.lists = &r->keys_lists, args.schedule = &r->keys, args.tile_heads = 1;
    if (wanted & (TESS_GRADIENT_K | TESS_GRADIENT_V))
        pass_run(&args, TESS_STAGE_GRADIENT_KEYS);
    args.lists = &r->rows_lists, args.schedule = &r->rows, args.tile_heads = s->tile_heads;
    pass_run(&args, TESS_STAGE_GRADIENT_ROWS);
}

enum { ALL = TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V };

/* ---- against the oracle ---- */

static void setting_is_right(const struct setting *setting) {
    struct run r;
    run_make(&r, setting);
    run_passes(&r, 2, ALL);
    const struct setting *s = &r.s;
    const tess_tensor alibi = tess_tensor_bhnd(r.d_alibi, TESS_F32, 1, s->heads_q, 1, 1);
    const tess_tensor sink = tess_tensor_bhnd(r.d_sink, TESS_F32, 1, s->heads_q, 1, 1);
    const struct {
        const char *name;
        int wanted;
        const struct lab_gradient *gradient;
        const tess_tensor *got;
        int64_t reach;
    } of[] = {{"dQ", 1, &r.of.q, &r.d_q.view, s->tile_rows},
              {"dK", 1, &r.of.k, &r.d_k.view, s->tile_keys},
              {"dV", 1, &r.of.v, &r.d_v.view, s->tile_keys},
              {"d_alibi", s->alibi, &r.of.alibi, &alibi, 1},
              {"d_sink", s->sink, &r.of.sink, &sink, 1}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const struct lab_gradient_rule rule = {
            .type = s->type, .o_exact = s->o_f32 || s->rest || s->by_delta, .reach = of[i].reach};
        struct lab_report report = {.ok = 1};
        if (of[i].wanted)
            lab_compare_gradient(&report, of[i].name, of[i].gradient, of[i].got, &rule);
        if (!report.ok)
            fail_msg("%s: %s, n %d x %d, d %d, %d, blocks %d x %d, type %d", report.message,
                     s->spec, (int)s->n_q, (int)s->n_kv, (int)s->d_qk, (int)s->d_v, (int)s->block_q,
                     (int)s->block_kv, (int)s->type);
    }
    run_free(&r);
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void head_sizes(void **state) {
    static const int64_t dims[][2] = {{1, 1},   {3, 3},    {16, 16},   {33, 20},
                                      {64, 64}, {128, 64}, {200, 200}, {16, 1}};
    (void)state;
    for (size_t i = 0; i < COUNT(dims); i++)
        for (tess_type type = TESS_F32; type <= TESS_BF16; type++)
            setting_is_right(&(struct setting){.n_q = 150,
                                               .n_kv = 170,
                                               .d_qk = dims[i][0],
                                               .d_v = dims[i][1],
                                               .spec = "causal",
                                               .block_q = 16,
                                               .o_f32 = i % 2 == 0,
                                               .type = type,
                                               .out = i % 4 < 2 ? type : TESS_F32});
    setting_is_right(&(struct setting){
        .n_q = 40, .n_kv = 70, .d_qk = 1100, .d_v = 1025, .spec = "random(0.3,1)"});
}

static void patterns(void **state) {
    static const char *const specs[] = {"dense",
                                        "causal",
                                        "window(20,5)",
                                        "random(0.2,3)",
                                        "each(40,70; causal)",
                                        "segments(30,50)",
                                        "dilated(9,3)+global(2)",
                                        "random(0.5,2)&window(30,30)"};
    static const int64_t blocks[][2] = {{1, 1},  {2, 2},   {4, 4},    {8, 8},   {3, 5},
                                        {16, 1}, {32, 64}, {128, 64}, {64, 128}};
    (void)state;
    for (size_t i = 0; i < COUNT(specs); i++)
        for (size_t b = 0; b < COUNT(blocks); b++)
            for (int fit = 0; fit < 2; fit++) /* for tiles that compute listed pairs alone */
                setting_is_right(&(struct setting){.n_q = 190,
                                                   .n_kv = 205,
                                                   .d_qk = fit ? 32 : 24,
                                                   .d_v = 16,
                                                   .heads_q = 2,
                                                   .lists = 2,
                                                   .spec = specs[i],
                                                   .block_q = blocks[b][0],
                                                   .block_kv = blocks[b][1],
                                                   .poison = 1,
                                                   .type = (tess_type)((i + b) % 3),
                                                   .o_f32 = i % 3 == 0,
                                                   .part_keys = i % 2 ? 128 : 0});
}

/* Few pairs of each tile, over lists so long that sums are folded. */
static void listed_pairs_alone(void **state) {
    static const int64_t blocks[] = {1, 2, 4};
    (void)state;
    for (size_t b = 0; b < COUNT(blocks); b++)
        for (int64_t parts = 0; parts <= 512; parts += 512)
            setting_is_right(&(struct setting){.heads_q = 2,
                                               .heads_kv = 1,
                                               .n_q = 900,
                                               .n_kv = 1100,
                                               .d_qk = b == 1 ? 64 : 16,
                                               .d_v = b == 2 ? 80 : 16,
                                               .spec = "random(0.3,4)",
                                               .block_q = blocks[b],
                                               .type = (tess_type)(((int64_t)b + parts / 512) % 3),
                                               .o_f32 = 1,
                                               .sink = 1,
                                               .d_lse = 1,
                                               .part_keys = parts});
}

static void heads_and_tiles(void **state) {
    static const int64_t heads[][4] = {{4, 2, 1, 2}, {8, 2, 2, 4}, {8, 1, 8, 1}, {4, 4, 4, 1}};
    static const int32_t tiles[][2] = {{16, 64}, {8, 8}, {1, 1}, {16, 33}, {4, 16}};
    (void)state;
    for (size_t h = 0; h < COUNT(heads); h++)
        for (size_t t = 0; t < COUNT(tiles); t++)
            for (int apart = 0; apart < 2; apart++)
                setting_is_right(&(struct setting){.batch = 2,
                                                   .heads_q = heads[h][0],
                                                   .heads_kv = heads[h][1],
                                                   .lists = heads[h][2],
                                                   .tile_heads = heads[h][3],
                                                   .n_q = 60,
                                                   .n_kv = 45,
                                                   .d_qk = apart ? 20 : 32,
                                                   .spec = "random(0.4,7)&window(40,40)",
                                                   .block_q = 4,
                                                   .tile_rows = tiles[t][0],
                                                   .tile_keys = tiles[t][1],
                                                   .apart = apart,
                                                   .poison = 1,
                                                   .type = (tess_type)(t % 3),
                                                   .out = (tess_type)(t % 3),
                                                   .part_keys = 128});
}

static void modifiers(void **state) {
    static const struct setting of[] = {
        {.softcap = 2},
        {.softcap = 0.3},
        {.alibi = 1},
        {.alibi = 1, .positions = 1},
        {.sink = 1},
        {.dropped = 20000},
        {.dropped = 20000, .positions = 1},
        {.d_lse = 1},
        {.d_lse = 1, .by_delta = 1},
        {.sink = 1, .d_lse = 1, .by_delta = 1},
        {.rest = 1},
        {.scale = -0.4},
        {.softcap = 1.5, .alibi = 1, .sink = 1, .dropped = 9000, .d_lse = 1},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(of); i++)
        for (int wide = 0; wide < 2; wide++)
            for (tess_type type = TESS_F32; type <= TESS_BF16; type++) {
                struct setting s = of[i];
                s.batch = 2, s.heads_q = 4, s.heads_kv = 2, s.tile_heads = 2, s.tile_rows = 16;
                s.n_q = 90, s.n_kv = 120, s.d_qk = 32, s.d_v = 20, s.type = type;
                s.spec = wide ? "causal" : "random(0.3,5)";
                s.block_q = wide ? 32 : 2;
                s.o_f32 = !s.rest;
                s.part_keys = 128;
                setting_is_right(&s);
            }
}

static void long_lists_and_splits(void **state) {
    (void)state;
    for (int64_t parts = 0; parts <= 256; parts += 128)
        setting_is_right(&(struct setting){.n_q = 1300,
                                           .n_kv = 1200,
                                           .d_qk = parts ? 64 : 20,
                                           .spec = parts ? "dense" : "causal",
                                           .block_q = 64,
                                           .part_keys = parts});
}

static void outputs_in_f32(void **state) {
    (void)state;
    for (tess_type type = TESS_F32; type <= TESS_BF16; type++)
        setting_is_right(&(struct setting){
            .n_q = 70, .d_qk = 40, .spec = "causal", .type = type, .o_f32 = 1, .out = TESS_F32});
    setting_is_right(&(struct setting){.n_q = 70, .d_qk = 40, .type = TESS_BF16, .out = TESS_BF16});
    setting_is_right(&(struct setting){.n_q = 70, .d_qk = 40, .type = TESS_F16, .out = TESS_F16});
}

/* Scaled queries that leave the range in which they are kept as they are. */
static void extreme_queries(void **state) {
    static const double sizes[] = {0x1p-60, 0x1p-40, 0x1p106};
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int sparse = 0; sparse < 2; sparse++)
            setting_is_right(&(struct setting){.n_q = 70,
                                               .d_qk = 32,
                                               .size = sizes[i],
                                               .size_k = 0.5 / sizes[i],
                                               .scale = 0.5,
                                               .spec = sparse ? "random(0.3,4)" : "causal",
                                               .block_q = sparse ? 1 : 8});
}

/* ---- bits ---- */

static uint64_t bits_of(const struct tensor *t) {
    uint64_t hash = 1;
    for (size_t i = 0; i < t->bytes; i++)
        hash = lab_mix(hash + ((unsigned char *)t->view.data)[i]);
    return hash;
}

static const struct setting for_bits = {.heads_q = 4,
                                        .heads_kv = 2,
                                        .n_q = 300,
                                        .n_kv = 700,
                                        .d_qk = 24,
                                        .spec = "random(0.5,3)",
                                        .part_keys = 128,
                                        .alibi = 1,
                                        .sink = 1,
                                        .dropped = 3000};

static void threads_change_no_bit(void **state) {
    struct run r;
    (void)state;
    run_make(&r, &for_bits);
    run_passes(&r, 1, ALL);
    assert_true(r.rows.n_merges > 0 && r.keys.n_merges > 0);
    const uint64_t q = bits_of(&r.d_q), k = bits_of(&r.d_k), v = bits_of(&r.d_v);
    float alibi[4], sink[4];
    memcpy(alibi, r.d_alibi, sizeof alibi);
    memcpy(sink, r.d_sink, sizeof sink);
    for (int32_t threads = 2; threads <= THREADS; threads++) {
        run_passes(&r, threads, ALL);
        assert_true(q == bits_of(&r.d_q) && k == bits_of(&r.d_k) && v == bits_of(&r.d_v));
        assert_memory_equal(alibi, r.d_alibi, sizeof alibi);
        assert_memory_equal(sink, r.d_sink, sizeof sink);
    }
    run_free(&r);
}

static void what_else_is_wanted_changes_no_bit(void **state) {
    struct run r;
    (void)state;
    run_make(&r, &for_bits);
    run_passes(&r, 2, ALL);
    const struct tensor *const of[] = {&r.d_q, &r.d_k, &r.d_v};
    const uint64_t bits[] = {bits_of(of[0]), bits_of(of[1]), bits_of(of[2])};
    const float alibi = r.d_alibi[1];
    for (int wanted = 0; wanted < ALL; wanted++) {
        uint64_t poisoned = 0;
        r.d_alibi[1] = 0;
        for (int g = 0; g < 3; g++) {
            memset(of[g]->view.data, 0xff, of[g]->bytes);
            poisoned = wanted >> g & 1 ? poisoned : bits_of(of[g]);
        }
        run_passes(&r, 2, wanted);
        assert_true(r.d_alibi[1] == alibi);
        for (int g = 0; g < 3; g++)
            if (wanted >> g & 1)
                assert_true(bits_of(of[g]) == bits[g]);
            else
                assert_int_not_equal(bits_of(of[g]), bits[g]);
        (void)poisoned;
    }
    run_free(&r);
}

/* A query that counts as empty, whatever it lists, gives and gets nothing. */
static void infinite_lse_is_empty(void **state) {
    struct run r;
    (void)state;
    run_make(&r, &(struct setting){.n_q = 30, .d_qk = 8, .spec = "window(5,5)"});
    for (int64_t i = 3; i < 30; i += 13) {
        row_set(&r.lse, 0, 0, i, i % 2 ? INFINITY : -INFINITY);
        row_set(&r.q, 0, 0, i, NAN);
        row_set(&r.d_o, 0, 0, i, NAN);
        row_set(&r.o, 0, 0, i, NAN);
    }
    run_passes(&r, 1, ALL);
    for (int64_t i = 0; i < 30; i++)
        for (int d = 0; d < 8; d++) {
            const float d_q = ((float *)r.d_q.view.data)[i * 8 + d];
            assert_true(i % 13 == 3 ? d_q == 0 : isfinite(d_q));
            assert_true(isfinite(((float *)r.d_k.view.data)[i * 8 + d]));
            assert_true(isfinite(((float *)r.d_v.view.data)[i * 8 + d]));
        }
    run_free(&r);
}

/* NaN in a row that a tile lists reaches the tiles that meet it, and no others. */
static void numbers_stay_in_their_tiles(void **state) {
    enum { N = 64, D = 8, TILE = 16 };
    struct run r;
    (void)state;
    run_make(&r,
             &(struct setting){
                 .n_q = N, .d_qk = D, .spec = "window(3,3)", .tile_rows = TILE, .tile_keys = TILE});
    run_passes(&r, 1, ALL);
    const uint64_t before = bits_of(&r.d_q);
    float *const d_q = r.d_q.view.data, *const d_k = r.d_k.view.data, *const d_v = r.d_v.view.data;
    float q[N * D], k[N * D], v[N * D];
    memcpy(q, d_q, sizeof q), memcpy(k, d_k, sizeof k), memcpy(v, d_v, sizeof v);
    row_set(&r.d_o, 0, 0, 40, NAN);
    row_set(&r.v, 0, 0, 5, NAN);
    run_passes(&r, 1, ALL);
    assert_true(before != bits_of(&r.d_q));
    for (int i = 0; i < N * D; i++) {
        const int row = i / D, tile = row / TILE;
        if (row > 8 && row != 40)
            assert_true(tile == 0 || tile == 2 || d_q[i] == q[i]);
        assert_true(tile == 0 || tile == 2 || (d_k[i] == k[i] && d_v[i] == v[i]));
    }
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_sizes),
        cmocka_unit_test(patterns),
        cmocka_unit_test(listed_pairs_alone),
        cmocka_unit_test(heads_and_tiles),
        cmocka_unit_test(modifiers),
        cmocka_unit_test(long_lists_and_splits),
        cmocka_unit_test(outputs_in_f32),
        cmocka_unit_test(extreme_queries),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(what_else_is_wanted_changes_no_bit),
        cmocka_unit_test(infinite_lse_is_empty),
        cmocka_unit_test(numbers_stay_in_their_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
