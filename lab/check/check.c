/* One check: run a case between canaries and hold the answer against the oracle. */
#include "lab/check/check.h"

#include "lab/check/checking.h"
#include "lab/fill/fill.h"
#include "lab/fill/half.h"
#include "lab/lists/source.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- what all runs of a case share ---- */

/* Makes what a work has beyond its setting. 0, or -1: no memory. */
static int make_rest(struct lab_work *w) {
    struct lab_setting *s = &w->s;
    if (lab_setting_again(s, &s->o, &w->o2) || lab_setting_again(s, &s->lse, &w->lse2))
        return -1;
    if (s->c.fill == LAB_FILL_NANK || s->c.fill == LAB_FILL_NANV) {
        struct lab_case plain = s->c;
        plain.fill = LAB_FILL_NORMAL;
        if (lab_setting_again(s, &s->k, &w->k_clean) || lab_setting_again(s, &s->v, &w->v_clean))
            return -1;
        lab_fill(&plain, &s->q.view, &w->k_clean.view, &w->v_clean.view);
        lab_fill(&s->c, &s->q.view, &s->k.view, &s->v.view); /* Q again: it may differ */
    }
    /* A row that is not listed may lie where a listed one does. */
    const int of_queries = lab_case_backward(&s->c) && !s->c.q0, of_keys = !s->c.k0 && !s->c.v0;
    if ((lab_case_backward(&s->c) && lab_wanted_make(&w->wanted2, &s->c)) ||
        (of_queries && lab_fill_poison_queries(w->spec, &s->q.view)) ||
        (of_keys && lab_fill_poison(w->spec, s->c.h, &s->k.view, &s->v.view)))
        return -1;
    lab_cache_store(&s->cache, &s->q.view, &s->k.view, &s->v.view);
    return lab_work_answer(w);
}

int lab_work_make(struct lab_work *w, const struct lab_case *c, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    memset(w, 0, sizeof *w);
    tess_status status = lab_case_spec(c, &w->spec, &error);
    if (status) {
        snprintf(why, LAB_WHY, "%s", error.message[0] ? error.message : tess_status_text(status));
        return -1;
    }
    if (lab_setting_make(&w->s, c, why))
        return -1;
    if (make_rest(w)) {
        snprintf(why, LAB_WHY, "out of memory for the tensors of this case");
        return -1;
    }
    return 0;
}

int lab_work_answer(struct lab_work *w) {
    struct lab_setting *s = &w->s;
    const struct lab_scoring scoring = lab_setting_scoring(s);
    lab_oracle_free(&w->oracle);
    lab_gradients_free(&w->gradients);
    if (lab_case_mlp(&s->c))
        return lab_setting_mlp(s, w->spec, NULL, 0, &w->mlp);
    if (lab_oracle_run(&w->oracle, &s->q.view, &lab_cache_k(&s->cache, &s->k)->view,
                       &lab_cache_v(&s->cache, &s->v)->view, w->spec, &scoring, NULL, 0))
        return -1;
    lab_column_sums_free(&w->sums);
    const struct lab_sums_of sums = {&s->q.view,
                                     &lab_cache_k(&s->cache, &s->k)->view,
                                     &s->sums.reference.view,
                                     w->spec,
                                     &scoring,
                                     s->c.sum_rows};
    if (s->c.sum_rows && lab_column_sums_run(&w->sums, &sums))
        return -1;
    if (!lab_case_backward(&s->c))
        return 0;
    lab_given_answer(&s->given, &w->oracle, &s->o, &s->lse);
    return lab_setting_gradients(s, w->spec, &w->gradients);
}

void lab_work_free(struct lab_work *w) {
    struct lab_tensor *const all[] = {&w->o2, &w->lse2, &w->k_clean, &w->v_clean};
    for (size_t t = 0; t < sizeof all / sizeof all[0]; t++)
        lab_tensor_free(all[t]);
    lab_oracle_free(&w->oracle);
    lab_column_sums_free(&w->sums);
    lab_mlp_answer_free(&w->mlp);
    lab_wanted_free(&w->wanted2);
    lab_gradients_free(&w->gradients);
    tess_pattern_free(w->spec);
    lab_setting_free(&w->s);
    memset(w, 0, sizeof *w);
}

/* ---- runs by name ---- */

int lab_fail(struct lab_outcome *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->message, LAB_WHY, format, arguments);
    va_end(arguments);
    out->verdict = LAB_FAILED;
    return -1;
}

int lab_ran(struct lab_outcome *out, const struct lab_named_run *r,
            int (*way)(const struct lab_run *, char *)) {
    char why[LAB_WHY];
    return way(&r->run, why) ? lab_fail(out, "%s: %.280s", r->name, why) : 0;
}

/* ---- what is asked of the runs ---- */

int64_t lab_tile_reach(const tess_plan *plan) {
    tess_plan_info info = tess_plan_info_init();
    if (tess_plan_describe(plan, &info, NULL) != TESS_OK || info.tile_rows < 1 ||
        info.tile_rows > 256)
        return 256;
    return info.tile_rows;
}

static int accurate(struct lab_outcome *out, const struct lab_work *w,
                    const struct lab_named_run *r) {
    struct lab_report report;
    struct lab_oracle oracle = w->oracle;
    lab_rounds(&oracle, r->run.planned->plan);
    lab_compare(&report, &oracle, &r->run.o->view, r->run.lse ? &r->run.lse->view : NULL,
                lab_tile_reach(r->run.planned->plan));
    if (report.ok && w->s.c.sum_rows && r->run.k == &w->s.k) {
        const double worst = report.worst;
        lab_compare_sums(&report, &w->sums, &r->run.sums->sums.view);
        report.worst = report.worst > worst ? report.worst : worst;
    }
    if (report.worst > out->worst)
        out->worst = report.worst;
    return report.ok ? 0 : lab_fail(out, "%s: %.280s", r->name, report.message);
}

static int same_bits(struct lab_outcome *out, const struct lab_work *w, const char *name) {
    char why[LAB_WHY];
    if (lab_tensor_same(&w->s.o.view, &w->o2.view, "o", why) ||
        lab_tensor_same(&w->s.lse.view, &w->lse2.view, "lse", why))
        return lab_fail(out, "%s: %.280s", name, why);
    return 0;
}

/* Rows in whose tiles no bad key stands have the same bits in o and o2, lse and lse2. */
static int far_rows_same(struct lab_outcome *out, const struct lab_work *w, const char *name,
                         int64_t reach) {
    size_t element = tess_type_size(w->s.o.view.type);
    for (int64_t x = 0; x < w->oracle.rows; x++) {
        const struct lab_place *at = &w->oracle.place[x];
        if (lab_oracle_near(&w->oracle, x, reach, LAB_BAD_K | LAB_BAD_V))
            continue;
        size_t o = (size_t)lab_row(&w->s.o.view, at->b, at->h, at->i) * element;
        size_t lse = (size_t)lab_row(&w->s.lse.view, at->b, at->h, at->i) * sizeof(float);
        if (memcmp(w->s.o.buffer.data + o, w->o2.buffer.data + o, (size_t)w->s.c.dv * element) ||
            memcmp(w->s.lse.buffer.data + lse, w->lse2.buffer.data + lse, sizeof(float)))
            return lab_fail(out,
                            "%s: keys that its tile does not list changed batch %lld, head %lld, "
                            "query %lld",
                            name, (long long)at->b, (long long)at->h, (long long)at->i);
    }
    return 0;
}

/* Runs into o2 and lse2 that must give the bits of the first: by a plan for other threads, stage by stage,
 * and on a device by another stream and as a graph. */
static int same_again(struct lab_outcome *out, struct lab_work *w, const struct lab_run *first,
                      const struct lab_planned *again, tess_pipeline pipeline) {
    int device = first->planned->backend != TESS_CPU;
    const uint64_t sums = lab_buffer_hash(&w->s.sums.sums.buffer);
    const struct {
        const char *name;
        const struct lab_planned *planned;
        enum lab_launch launch;
        int asked, stages;
    } ways[] = {
        {device ? "repeated" : "with other threads", again, LAB_PLAIN, 1, 0},
        {"stage by stage", first->planned, LAB_PLAIN, pipeline == TESS_STAGED, 1},
        {"on another stream", first->planned, LAB_STREAM, device, 0},
        {"replayed as a graph", first->planned, LAB_GRAPH, device, 0},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct lab_named_run r = {*first, ways[i].name};
        r.run.planned = ways[i].planned, r.run.launch = ways[i].launch;
        r.run.o = &w->o2, r.run.lse = &w->lse2;
        if (ways[i].asked && (lab_ran(out, &r, ways[i].stages ? lab_run_stages : lab_run_whole) ||
                              same_bits(out, w, r.name)))
            return -1;
        if (lab_buffer_hash(&w->s.sums.sums.buffer) != sums)
            return lab_fail(out, "%s: other bits of column sums", r.name);
    }
    return 0;
}

/* A run that reads distinct lists itself, where the plan does: to rounding, in an order of its own. */
static int directly(struct lab_outcome *out, struct lab_work *w, const struct lab_run *first) {
    struct lab_named_run r = {*first, "without an image"};
    tess_plan_info info = tess_plan_info_init();
    if (tess_plan_describe(first->planned->plan, &info, NULL) != TESS_OK || !info.fill_run_direct ||
        !(first->planned->lists.promises & TESS_DISTINCT))
        return 0;
    r.run.launch = LAB_DIRECT;
    r.run.o = &w->o2, r.run.lse = &w->lse2;
    return lab_ran(out, &r, lab_run_whole) || accurate(out, w, &r);
}

/* The runs, in order; any failure ends them. */
static void hold(struct lab_outcome *out, struct lab_work *w, const struct lab_planned *planned,
                 const struct lab_planned *again, tess_pipeline pipeline) {
    const struct lab_run first = lab_setting_run(&w->s, planned);
    struct lab_named_run r = {first, lab_pipeline_name((int)pipeline)};
    if (lab_ran(out, &r, lab_run_whole) || accurate(out, w, &r) ||
        same_again(out, w, &first, again, pipeline) || directly(out, w, &first))
        return;
    r.name = "with clean keys";
    r.run.o = &w->o2, r.run.lse = &w->lse2;
    if (w->k_clean.buffer.base) {
        r.run.k = &w->k_clean, r.run.v = &w->v_clean;
        if (lab_ran(out, &r, lab_run_whole) ||
            far_rows_same(out, w, r.name, lab_tile_reach(planned->plan)))
            return;
    }
    r.run.k = &w->s.k, r.run.v = &w->s.v, r.run.lse = NULL, r.name = "without an lse";
    if (!lab_ran(out, &r, lab_run_whole))
        accurate(out, w, &r);
}

/* A kernel that no table of this build names is a slip, not a refusal. */
static int kernel_exists(const char *name) {
    tess_kernel_info info = tess_kernel_info_init();
    for (int64_t k = 0; k < tess_kernel_count(); k++)
        if (tess_kernel_describe(k, &info, NULL) == TESS_OK && strcmp(info.name, name) == 0)
            return 1;
    return 0;
}

static tess_status make_planned(struct lab_planned *planned, const tess_problem *problem,
                                const struct lab_setting *s, const tess_target *target,
                                tess_error *error) {
    return lab_case_listed(&s->c) ? lab_planned_reserve(planned, problem, &s->listed, target, error)
                                  : lab_planned_make(planned, problem, s->pattern, target, error);
}

/* Checks the fill's report, with lists on the device: it tells what is listed. */
static int reports(struct lab_outcome *out, const struct lab_work *w,
                   const struct lab_planned *planned) {
    tess_error error = tess_error_init();
    tess_fill_report report = tess_fill_report_init();
    tess_pattern_info info = tess_pattern_info_init();
    const struct lab_case *c = &w->s.c;
    tess_fill_report right;
    if (!planned->listed)
        return 0;
    if (tess_plan_report(planned->plan, planned->image.data, &report, &error) ||
        tess_pattern_describe(w->spec, &info, &error))
        return lab_fail(out, "the report: %s", error.message);
    if (lab_listed_report(planned->listed, &right))
        return lab_fail(out, "the report: out of memory");
    const struct {
        const char *what;
        int64_t told, listed;
    } counts[] = {{"pairs", report.pairs, info.pairs * (c->b / info.batch) * (c->h / info.heads)},
                  {"faults", report.faults, right.faults},
                  {"overflows", report.overflows, right.overflows},
                  {"as the first fault's kind", report.first_fault, right.first_fault},
                  {"as its batch", report.batch, right.batch},
                  {"as its head", report.head, right.head},
                  {"as its row", report.row, right.row},
                  {"as its position", report.position, right.position}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].told != counts[i].listed)
            return lab_fail(out, "the fill tells of %lld %s, not of %lld",
                            (long long)counts[i].told, counts[i].what, (long long)counts[i].listed);
    return 0;
}

void lab_check(struct lab_outcome *out, struct lab_work *w, tess_backend backend,
               tess_pipeline pipeline, const char *kernel) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = lab_case_problem(&w->s.c, pipeline);
    struct lab_planned planned = {0}, again = {0};
    memset(out, 0, sizeof *out);
    if (kernel)
        problem.kernel = kernel;
    tess_status status = tess_target_query(&target, backend, 0, &error);
    if (!status)
        status = make_planned(&planned, &problem, &w->s, &target, &error);
    tess_problem other = problem;
    other.threads = problem.threads == 1 ? 3 : 1;
    if (!status)
        status = make_planned(&again, &other, &w->s, &target, &error);
    if (status) {
        lab_fail(out, "the plan: %s", error.message[0] ? error.message : tess_status_text(status));
        if (status == TESS_UNSUPPORTED && problem.kernel && kernel_exists(problem.kernel))
            out->verdict = LAB_REFUSED;
    } else if (!reports(out, w, &planned)) {
        for (int s = 0; s < LAB_STAGES; s++)
            out->kernels[s] = tess_plan_kernel(planned.plan, (tess_stage)s);
        if (lab_case_backward(&w->s.c))
            lab_check_backward(out, w, &planned, &again, &problem, &target);
        else if (lab_case_mlp(&w->s.c))
            lab_check_mlp(out, w, &planned, &again);
        else
            hold(out, w, &planned, &again, pipeline);
    }
    lab_planned_free(&planned);
    lab_planned_free(&again);
}

/* ---- inputs that heads and batches share ---- */

/* The first batch's first head for all. */
static int share(struct lab_tensor *tensor, const struct lab_case *c) {
    const tess_tensor *all = &tensor->view;
    const int64_t size[4] = {1, 1, all->size[2], all->size[3]};
    const size_t element = tess_type_size(all->type), row = element * (size_t)size[3];
    struct lab_tensor one;
    if (lab_tensor_make(&one, all->type, size, LAB_BHND, c->align))
        return -1;
    for (int64_t i = 0; i < size[2]; i++)
        memcpy(one.buffer.data + (size_t)i * row,
               tensor->buffer.data + (size_t)lab_row(all, 0, 0, i) * element, row);
    memcpy(one.view.size, all->size, sizeof all->size);
    one.view.stride[0] = one.view.stride[1] = 0;
    lab_tensor_free(tensor);
    *tensor = one;
    return 0;
}

void lab_check_shared(struct lab_outcome *out, const struct lab_case *c, tess_backend backend,
                      tess_pipeline pipeline) {
    static const struct {
        const char *name;
        int q, k, v;
    } inputs[] = {{"q", 1, 0, 0}, {"k", 0, 1, 0}, {"v", 0, 0, 1}, {"q, k and v", 1, 1, 1}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        struct lab_work w = {0};
        char why[LAB_WHY] = "out of memory for the tensors of this case";
        memset(out, 0, sizeof *out);
        if (lab_work_make(&w, c, why) || (inputs[i].q && share(&w.s.q, c)) ||
            (inputs[i].k && share(&w.s.k, c)) || (inputs[i].v && share(&w.s.v, c)) ||
            lab_work_answer(&w))
            lab_fail(out, "%.280s", why);
        else
            lab_check(out, &w, backend, pipeline, NULL);
        lab_work_free(&w);
        if (out->verdict != LAB_PASSED) {
            char message[LAB_WHY];
            memcpy(message, out->message, sizeof message);
            snprintf(out->message, LAB_WHY, "shared %s: %.280s", inputs[i].name, message);
            return;
        }
    }
}
