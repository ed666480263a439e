/* One check of a backward. */
#include "lab/check/checking.h"

#include "lab/fill/half.h"

#include <stdio.h>

/* The gradients that a case may want, in the order of lab_wanted. */
static const struct {
    const char *name;
    int64_t wanted;
    size_t oracle, tensor; /* in lab_gradients and lab_wanted */
    int of_keys, is_array;
} gradients[] = {
    {"dQ", TESS_GRADIENT_Q, offsetof(struct lab_gradients, q), offsetof(struct lab_wanted, d_q), 0,
     0},
    {"dK", TESS_GRADIENT_K, offsetof(struct lab_gradients, k), offsetof(struct lab_wanted, d_k), 1,
     0},
    {"dV", TESS_GRADIENT_V, offsetof(struct lab_gradients, v), offsetof(struct lab_wanted, d_v), 1,
     0},
    {"d_alibi", TESS_GRADIENT_ALIBI, offsetof(struct lab_gradients, alibi),
     offsetof(struct lab_wanted, d_alibi), 0, 1},
    {"d_sink", TESS_GRADIENT_SINK, offsetof(struct lab_gradients, sink),
     offsetof(struct lab_wanted, d_sink), 0, 1},
};
enum { GRADIENTS = sizeof gradients / sizeof *gradients };

/* Keys of a key tile at most. */
static int64_t key_reach(const tess_plan *plan) {
    tess_plan_info info = tess_plan_info_init();
    if (tess_plan_describe(plan, &info, NULL) != TESS_OK || info.tile_keys < 1 ||
        info.tile_keys > 256)
        return 256;
    return info.tile_keys;
}

/* Gradient g of what a run wrote, as a tensor. */
static tess_tensor gradient_view(const struct lab_wanted *wanted, int g, int64_t heads) {
    const char *at = (const char *)wanted + gradients[g].tensor;
    if (gradients[g].is_array)
        return tess_tensor_bhnd(((const struct lab_buffer *)(const void *)at)->data, TESS_F32, 1,
                                heads, 1, 1);
    return ((const struct lab_tensor *)(const void *)at)->view;
}

static int64_t gradient_reach(const tess_plan *plan, int g) {
    return gradients[g].of_keys ? key_reach(plan) : lab_tile_reach(plan);
}

int lab_gradients_accurate(struct lab_report *report, const struct lab_setting *s,
                           const struct lab_wanted *wanted, const struct lab_gradients *oracle,
                           const struct lab_held *held) {
    double worst = 0;
    for (int g = 0; g < GRADIENTS; g++) {
        if (!(held->which & gradients[g].wanted) || !lab_case_wants(&s->c, gradients[g].wanted))
            continue;
        const tess_tensor got = gradient_view(wanted, g, s->c.h);
        const struct lab_gradient_rule rule = {
            s->c.type,
            s->o.view.type,
            s->o.view.type == TESS_F32 || s->c.o_rest,
            s->c.o_rest != 0,
            gradients[g].of_keys ? held->key_reach : held->query_reach,
        };
        const char *expected = (const char *)oracle + gradients[g].oracle;
        lab_compare_gradient(report, gradients[g].name,
                             (const struct lab_gradient *)(const void *)expected, &got, &rule);
        worst = report->worst > worst ? report->worst : worst;
        report->worst = worst;
        if (!report->ok)
            return -1;
    }
    return 0;
}

/* Each gradient that `which` names, as `r` left it. */
static int gradients_accurate(struct lab_outcome *out, const struct lab_work *w,
                              const struct lab_named_run *r, int64_t which) {
    const tess_plan *plan = r->run.planned->plan;
    const struct lab_held held = {which, lab_tile_reach(plan), key_reach(plan)};
    struct lab_report report = {.worst = 0};
    const int failed = lab_gradients_accurate(&report, &w->s, r->run.wanted, &w->gradients, &held);
    if (report.worst > out->worst)
        out->worst = report.worst;
    return failed ? lab_fail(out, "%s: %.280s", r->name, report.message) : 0;
}

/* Rows in whose tiles no NaN is met have the same bits in both. */
static int far_gradients_same(struct lab_outcome *out, const struct lab_work *w,
                              const struct lab_named_run *r) {
    for (int g = 0; g < GRADIENTS; g++) {
        if (gradients[g].is_array || !lab_case_wants(&w->s.c, gradients[g].wanted))
            continue;
        const tess_tensor a = gradient_view(&w->s.wanted, g, 0);
        const tess_tensor b = gradient_view(r->run.wanted, g, 0);
        const char *at = (const char *)&w->gradients + gradients[g].oracle;
        const struct lab_gradient *expected = (const struct lab_gradient *)(const void *)at;
        const size_t element = tess_type_size(a.type), bytes = element * (size_t)a.size[3];
        const int64_t reach = gradient_reach(r->run.planned->plan, g);
        for (int64_t x = 0; x < expected->rows; x++) {
            const int64_t i = x % a.size[2], h = x / a.size[2] % a.size[1],
                          batch = x / a.size[2] / a.size[1];
            const size_t row = (size_t)lab_row(&a, batch, h, i) * element;
            if (!lab_gradient_near(expected, x, a.size[2], reach) &&
                memcmp((const char *)a.data + row, (const char *)b.data + row, bytes) != 0)
                return lab_fail(out, "%s: what its tile does not list changed %s of row %lld",
                                r->name, gradients[g].name, (long long)x);
        }
    }
    return 0;
}

static int gradients_same(struct lab_outcome *out, const struct lab_work *w,
                          const struct lab_named_run *r) {
    char why[LAB_WHY];
    return lab_wanted_same(&w->s.wanted, r->run.wanted, why)
               ? lab_fail(out, "%s: %.280s", r->name, why)
               : 0;
}

/* tess_delta, where the case gives runs its answer. */
static int delta_is_right(struct lab_outcome *out, struct lab_work *w,
                          const struct lab_run *first) {
    struct lab_setting *s = &w->s;
    struct lab_named_run r = {*first, "delta"};
    struct lab_report report;
    if (s->c.given != LAB_GIVEN_DELTA)
        return 0;
    r.run.o = &s->o, r.run.wanted = NULL;
    if (lab_ran(out, &r, lab_run_delta))
        return -1;
    lab_compare_delta(&report, &s->given.d_o.view, &s->o.view, NULL,
                      s->c.d_lse ? &s->given.d_lse.view : NULL, &s->given.delta.view);
    return report.ok ? 0 : lab_fail(out, "%s: %.280s", r.name, report.message);
}

/* The one gradient that the seed draws, by a plan of its own. */
static int one_alone(struct lab_outcome *out, struct lab_work *w, const struct lab_run *first,
                     const tess_problem *asked, const tess_target *target) {
    tess_error error = tess_error_init();
    tess_problem problem = *asked;
    struct lab_planned planned = {0};
    struct lab_named_run r = {*first, gradients[w->s.c.seed % 3].name};
    char name[32];
    problem.gradients = gradients[w->s.c.seed % 3].wanted;
    if (!lab_case_wants(&w->s.c, problem.gradients))
        return 0;
    snprintf(name, sizeof name, "%s alone", r.name);
    struct lab_wanted alone = {0};
    if (problem.gradients == TESS_GRADIENT_Q)
        alone.d_q = w->wanted2.d_q;
    if (problem.gradients == TESS_GRADIENT_K)
        alone.d_k = w->wanted2.d_k;
    if (problem.gradients == TESS_GRADIENT_V)
        alone.d_v = w->wanted2.d_v;
    r.name = name, r.run.planned = &planned, r.run.wanted = &alone;
    int failed = 0;
    if (lab_planned_make(&planned, &problem, w->s.pattern, target, &error) != TESS_OK)
        /* the named kernel may be of a pass that this plan lacks */
        failed = error.status == TESS_UNSUPPORTED && problem.kernel
                     ? 0
                     : lab_fail(out, "%s: the plan: %.250s", name, error.message);
    else
        failed = lab_ran(out, &r, lab_run_whole) ||
                 gradients_accurate(out, w, &r, problem.gradients) ||
                 (problem.gradients == TESS_GRADIENT_Q && gradients_same(out, w, &r));
    lab_planned_free(&planned);
    return failed;
}

void lab_check_backward(struct lab_outcome *out, struct lab_work *w,
                        const struct lab_planned *planned, const struct lab_planned *again,
                        const tess_problem *problem, const tess_target *target) {
    struct lab_setting *s = &w->s;
    const struct lab_run first = lab_setting_run(s, planned);
    struct lab_named_run r = {first, lab_pipeline_name((int)problem->pipeline)};
    const int64_t all = INT64_MAX;
    if (delta_is_right(out, w, &first) || lab_ran(out, &r, lab_run_whole) ||
        gradients_accurate(out, w, &r, all))
        return;
    r.run.wanted = &w->wanted2, r.run.planned = again, r.name = "with other threads";
    if (lab_ran(out, &r, lab_run_whole) || gradients_same(out, w, &r))
        return;
    if (w->k_clean.buffer.base) {
        r.run.planned = planned, r.run.k = &w->k_clean, r.run.v = &w->v_clean;
        r.name = "with clean keys";
        if (lab_ran(out, &r, lab_run_whole) || far_gradients_same(out, w, &r))
            return;
    }
    one_alone(out, w, &first, problem, target);
}
