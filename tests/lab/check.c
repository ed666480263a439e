/* One check: run a case between canaries and hold the answer against the oracle. */
#include "check.h"

#include "fill.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- what all runs of a case share ---- */

static int make_tensors(struct lab_work *w) {
    const struct lab_case *c = &w->c;
    const int64_t q[4] = {c->b, c->h, c->n, c->d}, k[4] = {c->b, c->hkv, c->nkv, c->d};
    const int64_t v[4] = {c->b, c->hkv, c->nkv, c->dv}, o[4] = {c->b, c->h, c->n, c->dv};
    const int64_t lse[4] = {c->b, c->h, c->n, 1};
    int clean = c->fill == LAB_FILL_NANK || c->fill == LAB_FILL_NANV;
    const struct {
        struct lab_tensor *tensor;
        const int64_t *size;
        tess_type type;
    } all[] = {
        {&w->q, q, c->type},       {&w->k, k, c->type},       {&w->v, v, c->type},
        {&w->o, o, c->type},       {&w->o2, o, c->type},      {&w->lse, lse, TESS_F32},
        {&w->lse2, lse, TESS_F32}, {&w->k_clean, k, c->type}, {&w->v_clean, v, c->type},
    };
    for (size_t t = 0; t < (clean ? 9 : 7); t++)
        if (lab_tensor_make(all[t].tensor, all[t].type, all[t].size, c->layout,
                            all[t].type == TESS_F32 && c->align < 4 ? 4 : c->align))
            return -1;
    if (clean) {
        struct lab_case plain = *c;
        plain.fill = LAB_FILL_NORMAL;
        lab_fill(&plain, &w->q.view, &w->k_clean.view, &w->v_clean.view);
    }
    lab_fill(c, &w->q.view, &w->k.view, &w->v.view);
    return 0;
}

int lab_work_make(struct lab_work *w, const struct lab_case *c, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    memset(w, 0, sizeof *w);
    w->c = *c;
    tess_status status = lab_case_spec(c, &w->spec, &error);
    if (!status)
        status = lab_case_pattern(c, &w->pattern, &error);
    if (status) {
        snprintf(why, LAB_WHY, "%s", error.message[0] ? error.message : tess_status_text(status));
        return -1;
    }
    if (make_tensors(w) || lab_fill_poison(w->spec, c->h, &w->k.view, &w->v.view) ||
        lab_oracle_run(&w->oracle, &w->q.view, &w->k.view, &w->v.view, w->spec, c->scale, NULL,
                       0)) {
        snprintf(why, LAB_WHY, "out of memory for the tensors of this case");
        return -1;
    }
    return 0;
}

void lab_work_free(struct lab_work *w) {
    struct lab_tensor *const all[] = {&w->q,  &w->k,    &w->v,       &w->o,      &w->lse,
                                      &w->o2, &w->lse2, &w->k_clean, &w->v_clean};
    for (size_t t = 0; t < sizeof all / sizeof all[0]; t++)
        lab_tensor_free(all[t]);
    lab_oracle_free(&w->oracle);
    tess_pattern_free(w->spec);
    tess_pattern_free(w->pattern);
    memset(w, 0, sizeof *w);
}

/* ---- one run ---- */

static int fail(struct lab_outcome *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int fail(struct lab_outcome *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->message, LAB_WHY, format, arguments);
    va_end(arguments);
    out->verdict = LAB_FAILED;
    return -1;
}

/* A run about to be made: into fresh poison, between canaries. */
struct run {
    const tess_plan *plan;
    const struct lab_tensor *k, *v;
    struct lab_tensor *o, *lse; /* lse NULL: none wanted */
    const char *name;           /* for messages */
};

static int guards(struct lab_outcome *out, const struct lab_work *w, const struct run *run,
                  const struct lab_buffer *workspace, const struct lab_buffer *values) {
    char why[LAB_WHY];
    if (lab_tensor_check(&w->q, "q", why) || lab_tensor_check(run->k, "k", why) ||
        lab_tensor_check(run->v, "v", why) || lab_tensor_check(run->o, "o", why) ||
        (run->lse && lab_tensor_check(run->lse, "lse", why)) ||
        lab_buffer_check(workspace, "the workspace", why) ||
        lab_buffer_check(values, "values", why))
        return fail(out, "%s: %.280s", run->name, why);
    return 0;
}

static tess_arguments arguments_of(const struct lab_work *w, const struct run *run,
                                   const struct lab_buffer *workspace) {
    tess_arguments a = tess_arguments_init();
    a.q = &w->q.view, a.k = &run->k->view, a.v = &run->v->view;
    a.o = &run->o->view, a.lse = run->lse ? &run->lse->view : NULL;
    a.workspace = workspace->data, a.workspace_size = workspace->size;
    return a;
}

static uint64_t inputs_hash(const struct lab_work *w, const struct run *run) {
    return lab_buffer_hash(&w->q.buffer) ^ 3 * lab_buffer_hash(&run->k->buffer) ^
           5 * lab_buffer_hash(&run->v->buffer);
}

static void poison_outputs(const struct run *run) {
    lab_tensor_poison(run->o);
    if (run->lse)
        lab_tensor_poison(run->lse);
}

/* tess_run. */
static int run_whole(struct lab_outcome *out, const struct lab_work *w, const struct run *run) {
    tess_error error = tess_error_init();
    struct lab_buffer workspace, none;
    uint64_t before = inputs_hash(w, run);
    int made = !lab_buffer_make(&workspace, tess_plan_workspace_size(run->plan), 64);
    made = !lab_buffer_make(&none, 0, 64) && made;
    poison_outputs(run);
    tess_arguments a = arguments_of(w, run, &workspace);
    int failed = 0;
    if (!made)
        failed = fail(out, "%s: out of memory for the workspace", run->name);
    else if (tess_run(run->plan, &a, &error, NULL) != TESS_OK)
        failed = fail(out, "%s: %s", run->name, error.message);
    else if (inputs_hash(w, run) != before)
        failed = fail(out, "%s: an input was written to", run->name);
    else
        failed = guards(out, w, run, &workspace, &none);
    lab_buffer_free(&workspace);
    lab_buffer_free(&none);
    return failed;
}

static const struct {
    tess_stage stage;
    tess_status (*call)(const tess_plan *, const tess_arguments *, tess_error *, tess_stream);
} stages[] = {{TESS_STAGE_SDDMM, tess_sddmm},
              {TESS_STAGE_SOFTMAX, tess_softmax},
              {TESS_STAGE_SPMM, tess_spmm}};

/* The three stage calls, over values of exactly the size asked for. */
static int run_stages(struct lab_outcome *out, const struct lab_work *w, const struct run *run) {
    tess_error error = tess_error_init();
    struct lab_buffer values;
    size_t count = (size_t)tess_plan_values_count(run->plan);
    if (lab_buffer_make(&values, count * sizeof(float), 64))
        return fail(out, "%s: out of memory for the values", run->name);
    poison_outputs(run);
    int failed = 0;
    for (int s = 0; s < 3 && !failed; s++) {
        struct lab_buffer workspace;
        size_t size = tess_plan_stage_workspace_size(run->plan, stages[s].stage);
        if (lab_buffer_make(&workspace, size, 64)) {
            failed = fail(out, "%s: out of memory for the workspace", run->name);
            break;
        }
        tess_arguments a = arguments_of(w, run, &workspace);
        a.values = (float *)(void *)values.data;
        if (stages[s].call(run->plan, &a, &error, NULL) != TESS_OK)
            failed =
                fail(out, "%s: %s: %s", run->name, tess_stage_name(stages[s].stage), error.message);
        else
            failed = guards(out, w, run, &workspace, &values);
        lab_buffer_free(&workspace);
    }
    lab_buffer_free(&values);
    return failed;
}

/* ---- what is asked of the runs ---- */

/* Rows of a query tile at most. */
static int64_t tile_reach(const tess_plan *plan) {
    tess_plan_info info = tess_plan_info_init();
    if (tess_plan_describe(plan, &info, NULL) != TESS_OK || info.tile_rows < 1 ||
        info.tile_rows > 256)
        return 256;
    return info.tile_rows;
}

static int accurate(struct lab_outcome *out, const struct lab_work *w, const struct run *run) {
    struct lab_report report;
    lab_compare(&report, &w->oracle, &run->o->view, run->lse ? &run->lse->view : NULL,
                tile_reach(run->plan));
    if (report.worst > out->worst)
        out->worst = report.worst;
    return report.ok ? 0 : fail(out, "%s: %.280s", run->name, report.message);
}

static int same_bits(struct lab_outcome *out, const struct lab_work *w, const char *name) {
    char why[LAB_WHY];
    if (lab_tensor_same(&w->o.view, &w->o2.view, "o", why) ||
        lab_tensor_same(&w->lse.view, &w->lse2.view, "lse", why))
        return fail(out, "%s: %.280s", name, why);
    return 0;
}

/* Rows in whose tiles no bad key stands have the same bits in o and o2, lse and lse2. */
static int far_rows_same(struct lab_outcome *out, const struct lab_work *w, const char *name,
                         int64_t reach) {
    size_t element = tess_type_size(w->c.type);
    for (int64_t x = 0; x < w->oracle.rows; x++) {
        const struct lab_place *at = &w->oracle.place[x];
        if (lab_oracle_near(&w->oracle, x, reach, LAB_BAD_K | LAB_BAD_V))
            continue;
        size_t o = (size_t)lab_row(&w->o.view, at->b, at->h, at->i) * element;
        size_t lse = (size_t)lab_row(&w->lse.view, at->b, at->h, at->i) * sizeof(float);
        if (memcmp(w->o.buffer.data + o, w->o2.buffer.data + o, (size_t)w->c.dv * element) ||
            memcmp(w->lse.buffer.data + lse, w->lse2.buffer.data + lse, sizeof(float)))
            return fail(out,
                        "%s: keys that its tile does not list changed batch %lld, head %lld, "
                        "query %lld",
                        name, (long long)at->b, (long long)at->h, (long long)at->i);
    }
    return 0;
}

/* The runs, in order; any failure ends them. `again` is the same plan for other threads. */
static void hold(struct lab_outcome *out, struct lab_work *w, const tess_plan *plan,
                 const tess_plan *again, tess_pipeline pipeline) {
    struct run run = {plan, &w->k, &w->v, &w->o, &w->lse, lab_pipeline_name((int)pipeline)};
    if (run_whole(out, w, &run) || accurate(out, w, &run))
        return;
    run.plan = again, run.o = &w->o2, run.lse = &w->lse2, run.name = "with other threads";
    if (run_whole(out, w, &run) || same_bits(out, w, run.name))
        return;
    run.plan = plan, run.name = "stage by stage";
    if (pipeline == TESS_STAGED && (run_stages(out, w, &run) || same_bits(out, w, run.name)))
        return;
    run.name = "with clean keys";
    if (w->k_clean.buffer.base) {
        run.k = &w->k_clean, run.v = &w->v_clean;
        if (run_whole(out, w, &run) || far_rows_same(out, w, run.name, tile_reach(plan)))
            return;
    }
    run.k = &w->k, run.v = &w->v, run.lse = NULL, run.name = "without an lse";
    if (!run_whole(out, w, &run))
        accurate(out, w, &run);
}

void lab_check(struct lab_outcome *out, struct lab_work *w, tess_backend backend,
               tess_pipeline pipeline, const char *kernel) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = lab_case_problem(&w->c, pipeline);
    tess_plan *plan = NULL, *again = NULL;
    memset(out, 0, sizeof *out);
    if (kernel)
        problem.kernel = kernel;
    tess_status status = tess_target_query(&target, backend, 0, &error);
    if (!status)
        status = tess_plan_create(&plan, &problem, w->pattern, &target, &error);
    problem.threads = problem.threads == 1 ? 3 : 1;
    if (!status)
        status = tess_plan_create(&again, &problem, w->pattern, &target, &error);
    if (status) {
        fail(out, "the plan: %s", error.message);
        if (status == TESS_UNSUPPORTED && problem.kernel)
            out->verdict = LAB_REFUSED;
    } else {
        for (int s = TESS_STAGE_ATTENTION; s <= TESS_STAGE_SPMM; s++)
            out->kernels[s] = tess_plan_kernel(plan, (tess_stage)s);
        hold(out, w, plan, again, pipeline);
    }
    tess_plan_free(plan);
    tess_plan_free(again);
}
