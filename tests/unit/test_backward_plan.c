/*
 * Plans of the backward: passes, lists in both orientations, schedules, workspace, refusals, words.
 * Kernels that only look at what they are handed stand in for the CPU's, by --wrap=backend_get.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "support/plans.h"

const struct backend *__real_backend_get(tess_backend backend);
const struct backend *__wrap_backend_get(tess_backend backend);

enum { MOST_RUNS = 16, PASS_BYTES = 192 };

/* What the stand-in has seen: the arguments of each pass, in order. */
static struct {
    struct kernel_args runs[MOST_RUNS];
    struct problem problems[MOST_RUNS];
    int n;
} seen;

static const char *unusable(void) {
    return NULL;
}

static const char *refuses(const struct kernel *kernel, const struct problem *problem,
                           const tess_target *target) {
    (void)kernel, (void)problem, (void)target;
    return NULL;
}

/* Each stage another size, so that the largest is told from the last. */
static size_t workspace(const struct kernel_args *args) {
    return PASS_BYTES * (size_t)(1 + (args->kernel->stage * 5) % 9);
}

static tess_status run(const struct kernel_args *args, tess_error *error) {
    (void)error;
    assert_true(seen.n < MOST_RUNS);
    seen.problems[seen.n] = *args->problem;
    seen.runs[seen.n++] = *args;
    return TESS_OK;
}

static const struct tiling row_tiles = {.rows = (const int32_t[]){16, 32, 64, 0}, .gqa_rows = 64};
static const struct tiling key_tiles = {.rows = (const int32_t[]){16, 32, 64, 0}};

#define STAND_IN(its_stage, its_name, its_tiling)                                                  \
    {                                                                                              \
        .name = its_name, .stage = its_stage, .tiling = its_tiling, .unusable = unusable,          \
        .refuses = refuses, .workspace = workspace, .run = run, .cost = {                          \
            .item = 1e-6,                                                                          \
            .key_row_dim = 1e-11,                                                                  \
            .key_dim = 1e-10                                                                       \
        }                                                                                          \
    }
static const struct kernel kernels[] = {
    STAND_IN(TESS_STAGE_ATTENTION, "attention", &row_tiles),
    STAND_IN(TESS_STAGE_SDDMM, "sddmm", NULL),
    STAND_IN(TESS_STAGE_SOFTMAX, "softmax", NULL),
    STAND_IN(TESS_STAGE_SPMM, "spmm", NULL),
    STAND_IN(TESS_STAGE_DELTA, "delta", NULL),
    STAND_IN(TESS_STAGE_GRADIENT_KEYS, "gradient_keys", &key_tiles),
    STAND_IN(TESS_STAGE_GRADIENT_ROWS, "gradient_rows", &row_tiles),
    STAND_IN(TESS_STAGE_SOFTMAX_BACKWARD, "softmax_backward", NULL),
    STAND_IN(TESS_STAGE_SPMM_TRANSPOSED, "spmm_transposed", NULL),
};

const struct backend *__wrap_backend_get(tess_backend backend) {
    static struct backend other;
    assert_int_equal(backend, TESS_CPU);
    other = *__real_backend_get(TESS_CPU);
    other.kernels = kernels;
    other.n_kernels = sizeof kernels / sizeof *kernels;
    return &other;
}

static tess_problem backward_make(int64_t n, tess_pipeline pipeline, int64_t gradients) {
    tess_problem p = problem_make(n);
    p.operation = TESS_ATTENTION_BACKWARD, p.pipeline = pipeline, p.gradients = gradients;
    p.alibi = (gradients & TESS_GRADIENT_ALIBI) != 0;
    p.sink = (gradients & TESS_GRADIENT_SINK) != 0;
    return p;
}

static tess_plan *plan_of(const tess_problem *problem, const tess_pattern *pattern) {
    tess_error error = tess_error_init();
    tess_plan *plan = NULL;
    if (tess_plan_create(&plan, problem, pattern, NULL, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* A plan has the passes that its gradients need, and no others. */
static void passes_are_those_wanted(void **state) {
    enum {
        Q = TESS_GRADIENT_Q,
        K = TESS_GRADIENT_K,
        V = TESS_GRADIENT_V,
        ALIBI = TESS_GRADIENT_ALIBI,
        SINK = TESS_GRADIENT_SINK
    };
    static const struct {
        tess_pipeline pipeline;
        int64_t gradients;
        const char *stages;
    } cases[] = {
        {TESS_FUSED, 0, "delta gradient_keys gradient_rows "},
        {TESS_FUSED, Q | K | V, "delta gradient_keys gradient_rows "},
        {TESS_FUSED, Q, "delta gradient_rows "},
        {TESS_FUSED, K, "delta gradient_keys "},
        {TESS_FUSED, V, "delta gradient_keys "},
        {TESS_FUSED, ALIBI, "delta gradient_rows "},
        {TESS_FUSED, SINK, "delta "},
        {TESS_STAGED, 0,
         "delta sddmm sddmm softmax_backward spmm_transposed spmm spmm_transposed "},
        {TESS_STAGED, Q, "delta sddmm sddmm softmax_backward spmm "},
        {TESS_STAGED, K, "delta sddmm sddmm softmax_backward spmm_transposed "},
        {TESS_STAGED, V, "delta sddmm softmax_backward spmm_transposed "},
        {TESS_STAGED, ALIBI, "delta sddmm sddmm softmax_backward "},
        {TESS_STAGED, SINK, "delta "},
    };
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const tess_problem problem = backward_make(100, cases[c].pipeline, cases[c].gradients);
        tess_plan *plan = plan_of(&problem, pattern);
        char stages[256] = "";
        double seconds = 0;
        size_t largest = 0;
        for (const struct pass *p = plan->passes; p < plan->passes + plan->n_passes; p++) {
            strcat(strcat(stages, tess_stage_name(p->stage)), " ");
            seconds += p->seconds;
            assert_true(p->seconds > 0);
            largest = p->workspace > largest ? p->workspace : largest;
            assert_non_null(tess_plan_kernel(plan, p->stage));
        }
        assert_string_equal(stages, cases[c].stages);
        assert_true(plan->predicted_seconds == seconds);
        assert_true(tess_plan_workspace_size(plan) >= largest);
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

/* ---- lists ---- */

/* Tiles of the transposed pattern that a staged plan keeps are the pattern's, each in its place. */
static void transposed_tiles_have_their_places(void **state) {
    static const struct {
        const char *spec;
        int64_t n[4]; /* n_q, n_kv, block_q, block_kv */
        int64_t heads;
    } cases[] = {
        {"causal", {100, 100, 16, 16}, 1},
        {"random(0.3,1)+window(5,0)", {61, 90, 8, 16}, 4},
        {"dilated(5,3)+global(2)", {40, 70, 16, 8}, 2},
        {"random(0.02,3)", {90, 61, 1, 1}, 2},
        {"random(0,1)", {64, 64, 16, 16}, 1}, /* nothing */
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_pattern *pattern = make(cases[c].spec, cases[c].n, 1, cases[c].heads);
        tess_problem problem = backward_make(cases[c].n[0], TESS_STAGED, TESS_GRADIENT_K);
        problem.n_kv = cases[c].n[1];
        tess_plan *plan = plan_of(&problem, pattern);
        const struct bcsr *m = &plan->work.bcsr, *t = &plan->key_work.bcsr;
        const int64_t lists = m->batch * m->heads;
        int64_t met = 0;
        assert_int_equal(t->n_tiles, m->n_tiles);
        assert_int_equal(t->n_q, m->n_kv);
        assert_int_equal(t->block_q, m->block_kv);
        for (int64_t l = 0; l < lists; l++)
            for (int64_t row = 0; row < t->rows; row++)
                for (int64_t e = bcsr_row_begin(t, l, row); e < bcsr_row_end(t, l, row); e++) {
                    const int64_t at = plan->key_work.entries[e], of = t->col_idx[e];
                    struct tile turned, tile;
                    assert_in_range(at, bcsr_row_begin(m, l, of), bcsr_row_end(m, l, of) - 1);
                    assert_int_equal(m->col_idx[at], row);
                    tile_at(t, e, &turned);
                    tile_at(m, at, &tile);
                    for (int64_t r = 0; r < bcsr_row_height(t, row); r++)
                        for (int64_t k = 0; k < bcsr_row_height(m, of); k++)
                            assert_int_equal(tile_row_bits(t, &turned, r, k, 1),
                                             tile_row_bits(m, &tile, k, r, 1));
                    met++;
                }
        assert_int_equal(met, m->n_tiles);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Whether any key of the tile is listed by query i of the pattern's list `list`. */
static int key_tile_lists(const tess_pattern *pattern, int64_t list, int64_t first, int64_t end,
                          int64_t i) {
    int64_t keys[128], n;
    assert_int_equal(tess_pattern_row(pattern, list / pattern->lists.heads,
                                      list % pattern->lists.heads, i, keys, 128, &n, NULL),
                     TESS_OK);
    for (int64_t k = 0; k < n; k++)
        if (keys[k] >= first && keys[k] < end)
            return 1;
    return 0;
}

/* A key tile's items are its parts, each once; together they have the queries of all heads of a group,
 * and a tile that nobody lists has one as well. */
static void every_key_tile_has_its_items(void **state) {
    static const struct {
        const char *spec;
        int64_t heads, part; /* lists of a batch; queries of a part at least */
    } cases[] = {{"causal", 1, INT64_MAX},
                 {"window(3,0)&global(40)", 4, INT64_MAX}, /* keys that nobody lists */
                 {"random(0.4,1)", 2, 1},
                 {"global(1)", 1, 1}}; /* one long key tile */
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_pattern *pattern = pattern_make(cases[c].spec, 100, 8, 2, cases[c].heads);
        tess_problem problem = backward_make(100, TESS_FUSED, 0);
        problem.part_keys = cases[c].part, problem.tile_rows = 16;
        tess_plan *plan = plan_of(&problem, pattern);
        const struct lists *l = &plan->key_work.lists;
        const struct schedule *s = &plan->key_work.schedule;
        const int64_t heads = problem.batch * problem.heads_kv, tiles = l->tiles;
        int32_t *parts = calloc((size_t)(heads * tiles), sizeof *parts);
        int64_t queries = 0, met = 0;
        tess_plan_info info = tess_plan_info_init();
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        assert_int_equal(info.tile_keys, 16);
        assert_int_equal(plan->key_work.tile_heads, 1);
        for (int64_t list = 0; list < l->n_lists; list++)
            for (int64_t t = 0; t < tiles; t++)
                for (int64_t i = 0; i < 100; i++)
                    queries += key_tile_lists(pattern, list, l->tile_row[t], l->tile_row[t + 1], i);
        assert_int_equal(info.packed_queries, queries);
        for (int64_t n = 0; n < s->n_items; n++) {
            const struct work_item *item = &s->items[n];
            int64_t all = 0, begin, end;
            assert_in_range(item->batch_head, 0, heads - 1);
            for (int64_t h = 0; h < 2; h++)
                all += l->keys[plan->list_of[item->batch_head * 2 + h] * tiles + item->tile];
            schedule_part(all, item->part, item->parts, &begin, &end);
            met += end - begin;
            parts[item->batch_head * tiles + item->tile] += 1;
            assert_true(item->parts == 1 || (item->slot >= 0 && item->slot < s->n_slots));
        }
        for (int64_t n = 0; n < s->n_items; n++)
            assert_int_equal(parts[s->items[n].batch_head * tiles + s->items[n].tile],
                             s->items[n].parts);
        for (int64_t i = 0; i < heads * tiles; i++)
            assert_true(parts[i] > 0);
        assert_int_equal(met, queries * (problem.batch * problem.heads_q / l->n_lists));
        assert_int_equal(info.work_items, plan->work.schedule.n_items + s->n_items);
        assert_int_equal(info.split_tiles, plan->work.schedule.n_merges + s->n_merges);
        free(parts);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* The longest key tile of each group comes first, and its length is that of all heads: the first head of
 * one group sees the keys from its queries on, the second of the other those up to them. */
static void groups_are_summed(void **state) {
    enum { BLOCKS = 6 };
    uint8_t blocks[4][BLOCKS][BLOCKS] = {0};
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern = NULL;
    (void)state;
    for (int i = 0; i < BLOCKS; i++)
        for (int j = i; j < BLOCKS; j++)
            blocks[0][i][j] = blocks[3][j][i] = 1;
    shape.n_q = 16 * BLOCKS, shape.block_q = shape.block_kv = 16, shape.heads = 4;
    assert_int_equal(tess_pattern_from_blocks(&pattern, &blocks[0][0][0], &shape, NULL), TESS_OK);
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        tess_problem problem = backward_make(16 * BLOCKS, (tess_pipeline)pipeline, TESS_GRADIENT_K);
        problem.tile_rows = pipeline == TESS_FUSED ? 16 : 0;
        tess_plan *plan = plan_of(&problem, pattern);
        const struct schedule *s = &plan->key_work.schedule;
        assert_int_equal(s->n_items, 2 * 2 * BLOCKS);
        for (int64_t i = 0; i < 4; i++)
            assert_int_equal(s->items[i].tile, s->items[i].batch_head % 2 ? 0 : BLOCKS - 1);
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

/* ---- runs ---- */

enum { N = 64, B = 2, HQ = 4, HKV = 2, QK = 16, DV = 8 };

/* Arguments of a run, whose tensors have memory of their own. */
struct setting {
    tess_problem problem;
    tess_pattern *pattern;
    tess_plan *plan;
    struct tensors {
        float q[B * HQ * N * QK], k[B * HKV * N * QK], v[B * HKV * N * DV];
        float o[B * HQ * N * DV], lse[B * HQ * N], o_rest[B * HQ * N * DV];
        float d_o[B * HQ * N * DV], d_lse[B * HQ * N], delta[B * HQ * N];
        float d_q[B * HQ * N * QK], d_k[B * HKV * N * QK], d_v[B * HKV * N * DV];
        float alibi[HQ], sink[HQ], d_alibi[HQ], d_sink[HQ];
    } * memory;
    tess_tensor q, k, v, o, lse, o_rest, d_o, d_lse, delta, d_q, d_k, d_v;
    void *workspace;
    tess_arguments a;
};

static void setting_make(struct setting *s, const tess_problem *problem) {
    *s = (struct setting){.problem = *problem, .a = tess_arguments_init()};
    const tess_type t = problem->type;
    const int64_t gradients = problem->gradients ? problem->gradients : 7;
    s->pattern = pattern_make("causal", N, 16, 1, 1);
    s->plan = plan_of(problem, s->pattern);
    s->memory = aligned_alloc(64, (sizeof *s->memory + 63) / 64 * 64);
    assert_non_null(s->memory);
    struct tensors *m = s->memory;
    s->q = tess_tensor_bhnd(m->q, t, B, HQ, N, QK);
    s->k = tess_tensor_bhnd(m->k, t, B, HKV, N, QK);
    s->v = tess_tensor_bhnd(m->v, t, B, HKV, N, DV);
    s->o = tess_tensor_bhnd(m->o, t, B, HQ, N, DV);
    s->o_rest = tess_tensor_bhnd(m->o_rest, t, B, HQ, N, DV);
    s->lse = tess_tensor_bhnd(m->lse, TESS_F32, B, HQ, N, 1);
    s->d_o = tess_tensor_bhnd(m->d_o, t, B, HQ, N, DV);
    s->d_lse = tess_tensor_bhnd(m->d_lse, TESS_F32, B, HQ, N, 1);
    s->delta = tess_tensor_bhnd(m->delta, TESS_F32, B, HQ, N, 1);
    s->d_q = tess_tensor_bhnd(m->d_q, t, B, HQ, N, QK);
    s->d_k = tess_tensor_bhnd(m->d_k, t, B, HKV, N, QK);
    s->d_v = tess_tensor_bhnd(m->d_v, t, B, HKV, N, DV);
    s->a.q = &s->q, s->a.k = &s->k, s->a.v = &s->v, s->a.o = &s->o, s->a.lse = &s->lse;
    s->a.d_o = &s->d_o;
    s->a.d_q = gradients & TESS_GRADIENT_Q ? &s->d_q : NULL;
    s->a.d_k = gradients & TESS_GRADIENT_K ? &s->d_k : NULL;
    s->a.d_v = gradients & TESS_GRADIENT_V ? &s->d_v : NULL;
    s->a.d_alibi = gradients & TESS_GRADIENT_ALIBI ? m->d_alibi : NULL;
    s->a.d_sink = gradients & TESS_GRADIENT_SINK ? m->d_sink : NULL;
    s->a.alibi = problem->alibi ? m->alibi : NULL;
    s->a.sink = problem->sink ? m->sink : NULL;
    s->a.o_rest = problem->o_rest ? &s->o_rest : NULL;
    s->a.workspace_size = tess_plan_workspace_size(s->plan);
    s->workspace = s->a.workspace = aligned_alloc(64, s->a.workspace_size);
    assert_non_null(s->workspace);
    memset(&seen, 0, sizeof seen);
}

static void setting_free(struct setting *s) {
    tess_plan_free(s->plan);
    tess_pattern_free(s->pattern);
    free(s->memory);
    free(s->workspace);
}

static void expect(struct setting *s, tess_status status, const char *argument, const char *words) {
    tess_error error = tess_error_init();
    seen.n = 0;
    assert_int_equal(tess_run(s->plan, &s->a, &error, NULL), status);
    if (!status)
        return;
    assert_int_equal(seen.n, 0);
    assert_string_equal(error.function, "tess_run");
    assert_string_equal(error.argument, argument);
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
}

/* The passes of a staged run are those of the forward with other operands, dims and scores. */
static void staged_passes_are_bound(void **state) {
    (void)state;
    struct setting s;
    tess_problem problem = backward_make(N, TESS_STAGED, 31);
    problem.softcap = 20;
    setting_make(&s, &problem);
    expect(&s, TESS_OK, NULL, NULL);
    const struct tensors *m = s.memory;
    const float *scores = seen.runs[1].scores, *gradients = seen.runs[2].scores;
    const struct {
        tess_stage stage;
        const float *q, *k, *v, *o, *scores; /* q or v NULL: whatever they are */
        int64_t d_qk, d_v;
        int modified, scaled;
    } of[] = {
        {TESS_STAGE_DELTA, m->q, m->k, m->v, m->o, scores, QK, DV, 1, 1},
        {TESS_STAGE_SDDMM, m->q, m->k, NULL, NULL, scores, QK, DV, 0, 1},
        {TESS_STAGE_SDDMM, m->d_o, m->v, NULL, NULL, gradients, DV, DV, 0, 0},
        {TESS_STAGE_SOFTMAX_BACKWARD, NULL, NULL, NULL, NULL, scores, QK, DV, 1, 1},
        {TESS_STAGE_SPMM_TRANSPOSED, NULL, NULL, m->d_o, m->d_v, scores, QK, DV, 0, 0},
        {TESS_STAGE_SPMM, NULL, NULL, m->k, m->d_q, gradients, QK, QK, 0, 0},
        {TESS_STAGE_SPMM_TRANSPOSED, NULL, NULL, m->q, m->d_k, gradients, QK, QK, 0, 0},
    };
    assert_int_equal(seen.n, sizeof of / sizeof *of);
    assert_true(gradients - scores == s.plan->scores_count);
    for (int i = 0; i < seen.n; i++) {
        const struct kernel_args *a = &seen.runs[i];
        const struct problem *p = &seen.problems[i];
        assert_int_equal(a->kernel->stage, of[i].stage);
        assert_true(!of[i].q || a->q.data == of[i].q);
        assert_true(!of[i].k || a->k.data == of[i].k);
        assert_true(!of[i].v || a->v.data == of[i].v);
        assert_true(!of[i].o || a->o.data == of[i].o);
        assert_ptr_equal(a->scores, of[i].scores);
        assert_ptr_equal(a->gradients, gradients);
        assert_int_equal(p->d_qk, of[i].d_qk);
        assert_int_equal(p->d_v, of[i].d_v);
        assert_int_equal(modifiers_any(&p->modifiers), of[i].modified);
        assert_true((p->scale != 1) == of[i].scaled);
        assert_ptr_equal(a->bcsr, &s.plan->work.bcsr);
        assert_ptr_equal(a->transposed, &s.plan->key_work.bcsr);
        assert_ptr_equal(a->entries, s.plan->key_work.entries);
        const int keys = of[i].stage == TESS_STAGE_SPMM_TRANSPOSED;
        assert_ptr_equal(a->schedule, keys ? &s.plan->key_work.schedule : &s.plan->work.schedule);
    }
    setting_free(&s);
}

/* Whether n bytes at p lie within the workspace, and behind `after`. */
static char *placed(const struct setting *s, const void *p, size_t n, char *after) {
    char *begin = s->workspace, *at = begin + ((const char *)p - begin);
    assert_true(at >= after && at + n <= begin + s->a.workspace_size);
    return at + n;
}

/* The workspace holds what lives from pass to pass, then the largest pass, and not a byte more. */
static void workspace_is_exact(void **state) {
    static const struct {
        tess_pipeline pipeline;
        int64_t gradients;
        int buffers;
    } cases[] = {{TESS_FUSED, 0, 0},
                 {TESS_FUSED, TESS_GRADIENT_Q, 0},
                 {TESS_STAGED, 0, 2},
                 {TESS_STAGED, TESS_GRADIENT_V, 1},
                 {TESS_STAGED, TESS_GRADIENT_ALIBI, 2}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct setting s;
        const tess_problem problem = backward_make(N, cases[c].pipeline, cases[c].gradients);
        setting_make(&s, &problem);
        expect(&s, TESS_OK, NULL, NULL);
        const size_t queries = sizeof(float) * B * HQ * N;
        const size_t scores = sizeof(float) * (size_t)s.plan->scores_count;
        size_t largest = 0;
        for (int i = 0; i < seen.n; i++) {
            const struct kernel_args *a = &seen.runs[i];
            char *at = placed(&s, a->stats.base, queries, s.workspace);
            at = placed(&s, a->stats.left, queries, at);
            at = placed(&s, a->stats.delta, queries, at);
            if (cases[c].buffers > 0)
                at = placed(&s, seen.runs[1].scores, scores, at);
            if (cases[c].buffers > 1)
                at = placed(&s, a->gradients, scores, at);
            else
                assert_null(a->gradients);
            placed(&s, a->workspace, s.plan->passes[i].workspace, at);
            largest = largest > s.plan->passes[i].workspace ? largest : s.plan->passes[i].workspace;
        }
        const size_t rounded = (scores + 63) / 64 * 64 * (size_t)cases[c].buffers;
        assert_int_equal(s.a.workspace_size, 3 * queries + rounded + largest);
        s.a.workspace_size--;
        expect(&s, TESS_WORKSPACE_TOO_SMALL, "workspace", "bytes and must have");
        setting_free(&s);
    }
}

/* A fused run gives every pass the tensors as they are, with their types. */
static void outputs_may_be_f32(void **state) {
    (void)state;
    struct setting s;
    tess_problem problem = backward_make(N, TESS_FUSED, 31);
    problem.type = TESS_BF16;
    setting_make(&s, &problem);
    s.d_k.type = TESS_F32, s.o.type = TESS_F32;
    expect(&s, TESS_OK, NULL, NULL);
    assert_int_equal(seen.n, 3);
    for (int i = 0; i < seen.n; i++) {
        const struct kernel_args *a = &seen.runs[i];
        assert_int_equal(a->d_k.type, TESS_F32);
        assert_int_equal(a->d_v.type, TESS_BF16);
        assert_int_equal(a->o.type, TESS_F32);
        assert_ptr_equal(a->d_sink, s.memory->d_sink);
        assert_ptr_equal(a->d_alibi, s.memory->d_alibi);
    }
    s.d_q.type = TESS_F16;
    expect(&s, TESS_INVALID_ARGUMENT, "d_q", "d_q has type f16, should be bf16 or f32");
    s.d_q.type = TESS_BF16, s.d_o.type = TESS_F32;
    expect(&s, TESS_INVALID_ARGUMENT, "d_o", "d_o has type f32, should be bf16");
    setting_free(&s);
}

/* tess_delta runs one pass, which has no stats and a delta to write; a run that is given delta does
 * not look at o. */
static void delta_stands_for_o(void **state) {
    (void)state;
    struct setting s;
    tess_error error = tess_error_init();
    tess_problem problem = backward_make(N, TESS_STAGED, 0);
    problem.o_rest = 1;
    setting_make(&s, &problem);
    s.a.delta = &s.delta, s.a.d_lse = &s.d_lse;
    s.a.workspace_size = tess_plan_stage_workspace_size(s.plan, TESS_STAGE_DELTA);
    assert_int_equal(tess_delta(s.plan, &s.a, &error, NULL), TESS_OK);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.runs[0].kernel->stage, TESS_STAGE_DELTA);
    assert_null(seen.runs[0].stats.base);
    assert_ptr_equal(seen.runs[0].delta.data, s.memory->delta);
    assert_ptr_equal(seen.runs[0].o.data, s.memory->o);
    assert_ptr_equal(seen.runs[0].o_rest.data, s.memory->o_rest);
    assert_null(seen.runs[0].d_q.data);

    s.a.workspace_size = tess_plan_workspace_size(s.plan);
    s.a.o = &(tess_tensor){0}, s.a.o_rest = NULL; /* which nobody looks at */
    expect(&s, TESS_OK, NULL, NULL);
    assert_null(seen.runs[0].o.data);
    assert_ptr_equal(seen.runs[0].delta.data, s.memory->delta);
    s.a.o = &s.o, s.a.delta = NULL, s.a.o_rest = NULL;
    expect(&s, TESS_INVALID_ARGUMENT, "o_rest", "o_rest is NULL");
    assert_int_equal(tess_delta(s.plan, &s.a, &error, NULL), TESS_INVALID_ARGUMENT);
    s.a.o_rest = &s.o_rest;
    assert_int_equal(tess_delta(s.plan, &s.a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.function, "tess_delta");
    assert_string_equal(error.message, "delta is NULL");
    setting_free(&s);
}

/* ---- refusals ---- */

static void problems_are_refused(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 64, 16, 1, 1);
    const tess_problem good = backward_make(64, TESS_FUSED, 0);
    static const tess_status invalid = TESS_INVALID_ARGUMENT;
    tess_problem p = good;
    p.operation = (tess_operation)2;
    refuse(p, pattern, invalid, "operation is not TESS_ATTENTION or TESS_ATTENTION_BACKWARD");
    p = good, p.gradients = 32;
    refuse(p, pattern, invalid, "gradients has bits beside those of TESS_GRADIENT_...");
    p = good, p.gradients = -1;
    refuse(p, pattern, invalid, "gradients has bits");
    p = good, p.gradients = TESS_GRADIENT_ALIBI;
    refuse(p, pattern, invalid, "the gradient of ALiBi's slopes is asked for, and alibi is 0");
    p = good, p.gradients = TESS_GRADIENT_SINK | TESS_GRADIENT_Q;
    refuse(p, pattern, invalid, "the gradient of the sinks is asked for, and sink is 0");
    p = good, p.spill_size = -1;
    refuse(p, pattern, invalid, "spill_size is negative");
    p = good, p.o_rest = 2;
    refuse(p, pattern, invalid, "o_rest is not 0 or 1");
    p = problem_make(64), p.gradients = TESS_GRADIENT_Q;
    refuse(p, pattern, invalid, "operation is not TESS_ATTENTION_BACKWARD");
    p = problem_make(64), p.spill_size = 1;
    refuse(p, pattern, invalid, "operation is not TESS_ATTENTION_BACKWARD");
    p = good, p.tile_rows = 48;
    refuse(p, pattern, TESS_UNSUPPORTED, "no query tiles of 48 rows");
    p = good, p.kernel = "softmax_backward";
    refuse(p, pattern, TESS_UNSUPPORTED, "which the chosen pipeline does not contain");
    p = good, p.gradients = TESS_GRADIENT_K, p.kernel = "gradient_rows";
    refuse(p, pattern, TESS_UNSUPPORTED, "which the chosen pipeline does not contain");
    tess_pattern_free(pattern);
}

/* What a run of one operation has no use for is refused in it. */
static void arguments_are_refused(void **state) {
    (void)state;
    struct setting s;
    tess_problem problem = backward_make(N, TESS_FUSED, TESS_GRADIENT_Q);
    setting_make(&s, &problem);
    const tess_arguments good = s.a;
    const char *const undeclared = "is given, and the plan's problem does not declare it";
    const tess_status invalid = TESS_INVALID_ARGUMENT;
    expect(&s, TESS_OK, NULL, NULL);
    s.a.d_k = &s.d_k;
    expect(&s, invalid, "d_k", undeclared);
    s.a = good, s.a.d_v = &s.d_v;
    expect(&s, invalid, "d_v", undeclared);
    s.a = good, s.a.d_alibi = s.memory->d_alibi;
    expect(&s, invalid, "d_alibi", undeclared);
    s.a = good, s.a.d_sink = s.memory->d_sink;
    expect(&s, invalid, "d_sink", undeclared);
    s.a = good, s.a.o_rest = &s.o_rest;
    expect(&s, invalid, "o_rest", undeclared);
    s.a = good, s.a.d_q = NULL;
    expect(&s, invalid, "d_q", "d_q is NULL");
    s.a = good, s.a.o = NULL;
    expect(&s, invalid, "o", "o is NULL");
    s.a = good, s.a.lse = NULL;
    expect(&s, invalid, "lse", "lse is NULL");
    s.a = good, s.a.d_o = NULL;
    expect(&s, invalid, "d_o", "d_o is NULL");
    s.a = good, s.d_o.size[3]--;
    expect(&s, invalid, "d_o", "d_o has 7 dims, should have 8");
    s.d_o.size[3]++, s.d_q.stride[2] = 0;
    expect(&s, invalid, "d_q", "elements of an output overlap");
    s.d_q.stride[2] = QK, s.d_q.data = s.memory->q;
    expect(&s, invalid, "d_q", "outputs overlap nothing");
    s.d_q.data = s.memory->d_q, s.d_lse.type = TESS_BF16, s.a.d_lse = &s.d_lse;
    expect(&s, invalid, "d_lse", "d_lse has type bf16, should be f32");
    s.d_lse.type = TESS_F32, s.o.data = s.memory->q; /* inputs may overlap */
    expect(&s, TESS_OK, NULL, NULL);
    tess_error error = tess_error_init();
    assert_int_equal(tess_sddmm(s.plan, &s.a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.message, "the plan's operation is not TESS_ATTENTION");
    setting_free(&s);

    problem = backward_make(N, TESS_FUSED, TESS_GRADIENT_ALIBI | TESS_GRADIENT_SINK);
    setting_make(&s, &problem);
    expect(&s, TESS_OK, NULL, NULL);
    s.a.d_sink = NULL;
    expect(&s, invalid, "d_sink", "d_sink is NULL");
    s.a.d_sink = s.memory->d_alibi;
    expect(&s, invalid, "d_alibi", "outputs overlap nothing");
    setting_free(&s);
}

/* The forward has no use for what the backward reads and writes. */
static void the_forward_refuses_them_all(void **state) {
    (void)state;
    struct setting s;
    const tess_problem problem = problem_make(N);
    setting_make(&s, &problem);
    s.a.d_o = s.a.d_q = s.a.d_k = s.a.d_v = NULL;
    expect(&s, TESS_OK, NULL, NULL);
    const tess_tensor **const given[] = {&s.a.d_o, &s.a.d_lse, &s.a.delta, &s.a.d_q,
                                         &s.a.d_k, &s.a.d_v,   &s.a.o_rest};
    static const char *const names[] = {"d_o", "d_lse", "delta", "d_q", "d_k", "d_v", "o_rest"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *given[i] = &s.o;
        expect(&s, TESS_INVALID_ARGUMENT, names[i], "does not declare it");
        *given[i] = NULL;
    }
    s.a.d_alibi = s.memory->d_alibi;
    expect(&s, TESS_INVALID_ARGUMENT, "d_alibi", "does not declare it");
    tess_error error = tess_error_init();
    assert_int_equal(tess_delta(s.plan, &s.a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.message, "the plan's operation is not TESS_ATTENTION_BACKWARD");
    setting_free(&s);
}

/* ---- words ---- */

static void printed(const tess_plan *plan, char *text, size_t size) {
    assert_true(tess_plan_print(plan, text, size) < size);
}

/* A plan says what it computes, by which passes, and both of its lists. */
static void plans_are_printed(void **state) {
    static const char *const fused[] = {"fused backward of attention on cpu\n",
                                        "  gradients q k v\n",
                                        "  kernel    delta: delta\n",
                                        "  kernel    gradient_keys: gradient_keys\n",
                                        "  kernel    gradient_rows: gradient_rows\n",
                                        "  tile      ",
                                        " query tiles, ",
                                        " packed keys: ",
                                        "  key tile  ",
                                        " key tiles, ",
                                        " packed queries: ",
                                        ", over keys\n",
                                        "% of the computed pairs"};
    static const char *const staged[] = {
        "staged backward of attention on cpu\n", "  gradients alibi\n",
        "  kernel    sddmm: sddmm, scores of q and k\n",
        "  kernel    sddmm: sddmm, gradients of d_o and v\n", " floats between the stages\n"};
    char text[4096];
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    tess_problem problem = backward_make(100, TESS_FUSED, 0);
    tess_plan *plan = plan_of(&problem, pattern);
    printed(plan, text, sizeof text);
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++)
        if (!strstr(text, fused[i]))
            fail_msg("'%s' is not in\n%s", fused[i], text);
    tess_plan_free(plan);
    problem = backward_make(100, TESS_STAGED, TESS_GRADIENT_ALIBI);
    plan = plan_of(&problem, pattern);
    printed(plan, text, sizeof text);
    for (size_t i = 0; i < sizeof staged / sizeof *staged; i++)
        if (!strstr(text, staged[i]))
            fail_msg("'%s' is not in\n%s", staged[i], text);
    assert_null(strstr(text, "key tile"));
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

/* A name forces the kernel of its stage, and no other. */
static void names_force_their_stage(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    tess_problem problem = backward_make(100, TESS_FUSED, 0);
    problem.kernel = "gradient_keys";
    tess_plan *plan = plan_of(&problem, pattern);
    assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_KEYS), "gradient_keys");
    assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_ROWS), "gradient_rows");
    assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_DELTA), "delta");
    assert_null(tess_plan_kernel(plan, TESS_STAGE_ATTENTION));
    assert_int_equal(tess_plan_scores_count(plan), 0);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

/* Callers of version 0.1 know neither the backward's fields nor those of a plan's key tiles. */
static void old_structs_are_accepted(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    tess_problem problem = problem_make(100);
    tess_plan_info info = tess_plan_info_init();
    problem.struct_size = offsetof(tess_problem, operation);
    problem.operation = (tess_operation)77, problem.o_rest = 77; /* not looked at */
    tess_plan *plan = plan_of(&problem, pattern);
    info.struct_size = offsetof(tess_plan_info, tile_keys), info.tile_keys = 77;
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
    assert_true(info.work_items > 0 && info.tile_keys == 77);
    info.struct_size--;
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_INVALID_ARGUMENT);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_those_wanted),
        cmocka_unit_test(transposed_tiles_have_their_places),
        cmocka_unit_test(every_key_tile_has_its_items),
        cmocka_unit_test(groups_are_summed),
        cmocka_unit_test(staged_passes_are_bound),
        cmocka_unit_test(workspace_is_exact),
        cmocka_unit_test(outputs_may_be_f32),
        cmocka_unit_test(delta_stands_for_o),
        cmocka_unit_test(problems_are_refused),
        cmocka_unit_test(arguments_are_refused),
        cmocka_unit_test(the_forward_refuses_them_all),
        cmocka_unit_test(plans_are_printed),
        cmocka_unit_test(names_force_their_stage),
        cmocka_unit_test(old_structs_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
