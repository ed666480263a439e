#include "support/gradient_passes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

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

void row_set(const struct tensor *t, int64_t b, int64_t h, int64_t n, double x) {
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
    assert_int_equal(TESS_OK,
                     strips_make(&r->strips, &r->keys_lists, r->list_of, s->batch * s->heads_kv,
                                 s->heads_q / s->heads_kv, 1, INT64_MAX, &error));
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
                                  .caches = {s->type, s->type, .page_shift = CACHE_WHOLE},
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

void run_make(struct run *r, const struct setting *setting) {
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
    const struct lab_gradients_of in = {.q = &r->q.view,
                                        .k = &r->k.view,
                                        .v = &r->v.view,
                                        .d_o = &r->d_o.view,
                                        .d_lse = s->d_lse ? &r->d_lse.view : NULL,
                                        .pattern = r->pattern,
                                        .scoring = &r->scoring,
                                        .o_type = r->o.view.type};
    assert_int_equal(0, lab_gradients_run(&r->expected, &in));
    r->stats = malloc(3 * (size_t)(s->batch * s->heads_q * s->n_q) * sizeof *r->stats);
    assert_non_null(r->stats);
}

void run_free(struct run *r) {
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
    strips_free(&r->strips);
    lab_oracle_free(&r->oracle);
    lab_gradients_free(&r->expected);
}

/* ---- running ---- */

static const struct kernel *kernel_of(tess_stage stage, const struct problem *p) {
    const struct backend *cpu = cpu_kernels();
    for (int64_t i = 0; i < cpu->n_kernels; i++)
        if (cpu->kernels[i].stage == stage &&
            !cpu->kernels[i].family->refuses(&cpu->kernels[i], p, NULL))
            return &cpu->kernels[i];
    fail_msg("no kernel of stage %d", (int)stage);
    return NULL;
}

int run_may_join(const struct run *r) {
    return kernel_of(TESS_STAGE_GRADIENT_KEYS, &r->problem)->family->joint_rows != 0;
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

void run_passes(struct run *r, int32_t threads, int wanted) {
    const struct setting *s = &r->s;
    const int64_t queries = s->batch * s->heads_q * s->n_q;
    r->problem.threads = threads;
    r->problem.operation = TESS_ATTENTION_BACKWARD;
    r->problem.gradients =
        wanted | (s->alibi ? TESS_GRADIENT_ALIBI : 0) | (s->sink ? TESS_GRADIENT_SINK : 0);
    struct gradient_operands operands = {
        .forward = {.modifiers = {.alibi = s->alibi ? r->alibi : NULL,
                                  .sink = s->sink ? r->sink : NULL,
                                  .seed = s->dropped ? &r->seed : NULL,
                                  .key_positions = s->positions ? r->positions : NULL},
                    .q = view_of(&r->q),
                    .k = view_of(&r->k),
                    .v = view_of(&r->v),
                    .lse = view_of(&r->lse)},
        .d_o = view_of(&r->d_o),
        .d_alibi = s->alibi ? r->d_alibi : NULL,
        .d_sink = s->sink ? r->d_sink : NULL,
        .stats = {r->stats, r->stats + queries, r->stats + 2 * queries}};
    struct kernel_args args = {.function = "test",
                               .problem = &r->problem,
                               .operands = &operands,
                               .work = {.list_of = r->list_of, .seconds = 1}};
    if (s->by_delta)
        operands.delta = view_of(&r->delta);
    else
        operands.forward.o = view_of(&r->o);
    if (s->rest)
        operands.forward.o_rest = view_of(&r->rest);
    if (s->d_lse)
        operands.d_lse = view_of(&r->d_lse);
    if (wanted & TESS_GRADIENT_Q)
        operands.d_q = view_of(&r->d_q);
    if (wanted & TESS_GRADIENT_K)
        operands.d_k = view_of(&r->d_k);
    if (wanted & TESS_GRADIENT_V)
        operands.d_v = view_of(&r->d_v);
    pass_run(&args, TESS_STAGE_DELTA);
    args.work.lists = &r->keys_lists, args.work.schedule = &r->keys, args.work.tile_heads = 1;
    args.work.strips = r->joint && wanted & TESS_GRADIENT_Q ? &r->strips : NULL;
    if (args.work.strips || wanted & (TESS_GRADIENT_K | TESS_GRADIENT_V))
        pass_run(&args, TESS_STAGE_GRADIENT_KEYS);
    args.work.lists = &r->rows_lists, args.work.schedule = &r->rows;
    args.work.tile_heads = s->tile_heads;
    if (r->joint)
        r->problem.gradients &= ~TESS_GRADIENT_Q;
    if (r->problem.gradients & (TESS_GRADIENT_Q | TESS_GRADIENT_ALIBI))
        pass_run(&args, TESS_STAGE_GRADIENT_ROWS);
}
