/* Runs of the backward: what each pass is handed, the workspace, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/backward_stand_in.h"

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
    s->plan = plan_created(problem, s->pattern);
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
    const float *scores = seen.stages[1].scores, *gradients = seen.stages[2].scores;
    const struct {
        tess_stage stage;
        const float *q, *k, *v, *o, *scores; /* NULL: not bound */
        int64_t d_qk, d_v;
        int modified, scaled;
    } expected[] = {
        {TESS_STAGE_DELTA, NULL, NULL, NULL, NULL, NULL, QK, DV, 1, 1},
        {TESS_STAGE_SDDMM, m->q, m->k, NULL, NULL, scores, QK, DV, 0, 1},
        {TESS_STAGE_SDDMM, m->d_o, m->v, NULL, NULL, gradients, DV, DV, 0, 0},
        {TESS_STAGE_SOFTMAX_BACKWARD, NULL, NULL, NULL, NULL, scores, QK, DV, 1, 1},
        {TESS_STAGE_SPMM_TRANSPOSED, NULL, NULL, m->d_o, m->d_v, scores, QK, DV, 0, 0},
        {TESS_STAGE_SPMM, NULL, NULL, m->k, m->d_q, gradients, QK, QK, 0, 0},
        {TESS_STAGE_SPMM_TRANSPOSED, NULL, NULL, m->q, m->d_k, gradients, QK, QK, 0, 0},
    };
    assert_int_equal(seen.n, sizeof expected / sizeof *expected);
    assert_true(gradients - scores == s.plan->scores_count);
    for (int i = 0; i < seen.n; i++) {
        const struct kernel_work *a = &seen.runs[i].work;
        const struct stage_operands *o = &seen.stages[i];
        const struct problem *p = &seen.problems[i];
        assert_int_equal(seen.runs[i].kernel->stage, expected[i].stage);
        assert_ptr_equal(o->q.data, expected[i].q);
        assert_ptr_equal(o->k.data, expected[i].k);
        assert_ptr_equal(o->v.data, expected[i].v);
        assert_ptr_equal(o->o.data, expected[i].o);
        assert_ptr_equal(o->scores, expected[i].scores);
        assert_int_equal(p->d_qk, expected[i].d_qk);
        assert_int_equal(p->d_v, expected[i].d_v);
        assert_int_equal(modifiers_any(&p->modifiers), expected[i].modified);
        assert_true((p->scale != 1) == expected[i].scaled);
        assert_ptr_equal(a->bcsr, &s.plan->work.bcsr);
        assert_ptr_equal(a->transposed, &s.plan->key_work.bcsr);
        assert_ptr_equal(a->entries, s.plan->key_work.entries);
        const int keys = expected[i].stage == TESS_STAGE_SPMM_TRANSPOSED;
        assert_ptr_equal(a->schedule, keys ? &s.plan->key_work.schedule : &s.plan->work.schedule);
    }
    const struct gradient_operands *own = &seen.own[0];
    assert_true(own->forward.o.data == m->o && own->d_o.data == m->d_o && own->stats.base);
    assert_ptr_equal(own->forward.scores, scores);
    assert_ptr_equal(own->gradients, gradients);
    assert_ptr_equal(seen.stages[3].gradients, gradients);
    assert_ptr_equal(seen.stages[3].d_alibi, m->d_alibi);
    assert_ptr_equal(seen.stages[3].stats.delta, own->stats.delta);
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
            const struct gradient_operands *a = &seen.own[0];
            char *at = placed(&s, a->stats.base, queries, s.workspace);
            at = placed(&s, a->stats.left, queries, at);
            at = placed(&s, a->stats.delta, queries, at);
            if (cases[c].buffers > 0)
                at = placed(&s, a->forward.scores, scores, at);
            if (cases[c].buffers > 1)
                at = placed(&s, a->gradients, scores, at);
            else
                assert_null(a->gradients);
            placed(&s, seen.runs[i].workspace, s.plan->passes[i].workspace, at);
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
        const struct gradient_operands *a = &seen.own[i];
        assert_int_equal(a->d_k.type, TESS_F32);
        assert_int_equal(a->d_v.type, TESS_BF16);
        assert_int_equal(a->forward.o.type, TESS_F32);
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
    assert_null(seen.own[0].stats.base);
    assert_ptr_equal(seen.own[0].delta.data, s.memory->delta);
    assert_ptr_equal(seen.own[0].forward.o.data, s.memory->o);
    assert_ptr_equal(seen.own[0].forward.o_rest.data, s.memory->o_rest);
    assert_null(seen.own[0].d_q.data);

    s.a.workspace_size = tess_plan_workspace_size(s.plan);
    s.a.o = &(tess_tensor){0}, s.a.o_rest = NULL; /* which nobody looks at */
    expect(&s, TESS_OK, NULL, NULL);
    assert_null(seen.own[0].forward.o.data);
    assert_ptr_equal(seen.own[0].delta.data, s.memory->delta);
    s.a.o = &s.o, s.a.delta = NULL, s.a.o_rest = NULL;
    expect(&s, TESS_INVALID_ARGUMENT, "o_rest", "o_rest is NULL");
    assert_int_equal(tess_delta(s.plan, &s.a, &error, NULL), TESS_INVALID_ARGUMENT);
    s.a.o_rest = &s.o_rest;
    assert_int_equal(tess_delta(s.plan, &s.a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.function, "tess_delta");
    assert_string_equal(error.message, "delta is NULL");
    setting_free(&s);
}

/* Arguments that a run of one operation has no use for are refused in it. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(staged_passes_are_bound), cmocka_unit_test(workspace_is_exact),
        cmocka_unit_test(outputs_may_be_f32),      cmocka_unit_test(delta_stands_for_o),
        cmocka_unit_test(arguments_are_refused),   cmocka_unit_test(the_forward_refuses_them_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
