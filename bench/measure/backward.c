/* The backward in the benchmark. */
#include "measure/backward.h"

#include <stdio.h>

#include "lab/check/check.h"
#include "lab/fill/half.h"
#include "lab/check/identities.h"

static const double MULTIPLICATIONS = 1e8; /* the oracle's, about 0.3 s */

const char *bench_backward_refuses(const struct lab_case *c, const struct bench_method *method) {
    if ((lab_case_caches(c) || lab_case_o_f32(c)) &&
        (method->stages || method->layer || method->baselines))
        return "page, kvtype, vink, rope and out32 are measured whole and alone: take --stages, "
               "--layer and --baseline away";
    if (!lab_case_backward(c))
        return NULL;
    if (method->stages || method->layer || method->baselines)
        return "op=backward is measured whole and alone: take --stages, --layer and --baseline "
               "away";
    return c->o_rest || c->given == LAB_GIVEN_O32
               ? "orest=1 and given=o32 are not measured: leave them out"
               : NULL;
}

/* Runs the case's attention into o and lse. */
static tess_status run_forward(struct lab_setting *s, tess_error *error) {
    struct lab_case c = s->c;
    c.operation = TESS_ATTENTION, c.gradients = 0, c.out32 = 0, c.kernel[0] = '\0';
    tess_problem problem = lab_case_problem(&c, TESS_FUSED);
    tess_arguments a = tess_arguments_init();
    struct lab_mirror mirror;
    tess_plan *plan;
    tess_status status = tess_plan_create(&plan, &problem, s->pattern, NULL, error);
    if (status != TESS_OK)
        return status;
    lab_mirror_make(&mirror, TESS_CPU);
    a.q = &s->q.view, a.k = &s->k.view, a.v = &s->v.view, a.o = &s->o.view, a.lse = &s->lse.view;
    a.workspace_size = tess_plan_workspace_size(plan);
    void *workspace = lab_device_alloc(TESS_CPU, a.workspace_size);
    a.workspace = workspace;
    status = !workspace || lab_modifiers_place(&s->modifiers, &mirror, &a)
                 ? TESS_OUT_OF_MEMORY
                 : tess_run(plan, &a, error, NULL);
    lab_device_free(TESS_CPU, workspace);
    lab_mirror_free(&mirror);
    tess_plan_free(plan);
    return status;
}

/* delta of o as it is. */
static void fill_delta(struct lab_setting *s) {
    const tess_tensor *o = &s->o.view, *d_o = &s->given.d_o.view, *delta = &s->given.delta.view;
    for (int64_t x = 0; x < s->c.b * s->c.h * s->c.n; x++) {
        const int64_t b = x / s->c.n / s->c.h, h = x / s->c.n % s->c.h, i = x % s->c.n;
        double sum = 0;
        if (s->c.d_lse)
            sum -=
                lab_get(s->given.d_lse.view.data, TESS_F32, lab_row(&s->given.d_lse.view, b, h, i));
        for (int64_t d = 0; d < s->c.dv; d++)
            sum += lab_get(o->data, o->type, lab_row(o, b, h, i) + d) *
                   lab_get(d_o->data, d_o->type, lab_row(d_o, b, h, i) + d);
        lab_put(delta->data, TESS_F32, lab_row(delta, b, h, i), sum);
    }
}

int bench_backward_make(struct lab_setting *s, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    if (!lab_case_backward(&s->c))
        return 0;
    const tess_status status = run_forward(s, &error);
    if (status != TESS_OK) {
        snprintf(why, LAB_WHY, "the forward: %.250s",
                 error.message[0] ? error.message : tess_status_text(status));
        return -1;
    }
    if (s->given.delta.buffer.base)
        fill_delta(s);
    return 0;
}

void bench_backward_spoil(struct lab_wanted *w) {
    struct lab_tensor *const tensors[] = {&w->d_q, &w->d_k, &w->d_v};
    struct lab_buffer *const arrays[] = {&w->d_alibi, &w->d_sink};
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
        if (tensors[t]->buffer.base)
            lab_tensor_poison(tensors[t]);
    for (size_t t = 0; t < sizeof arrays / sizeof *arrays; t++)
        if (arrays[t]->base)
            lab_buffer_poison(arrays[t]);
}

const char *bench_backward_place(struct bench_place *p, const struct lab_setting *s) {
    tess_arguments *a = &p->arguments;
    const struct {
        const struct lab_tensor *tensor;
        tess_tensor *view;
        const tess_tensor **slot;
    } all[] = {
        {&s->given.d_o, &p->d_o, &a->d_o},       {&s->given.d_lse, &p->d_lse, &a->d_lse},
        {&s->given.delta, &p->delta, &a->delta}, {&s->wanted.d_q, &p->d_q, &a->d_q},
        {&s->wanted.d_k, &p->d_k, &a->d_k},      {&s->wanted.d_v, &p->d_v, &a->d_v},
    };
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        if (all[t].tensor->buffer.base) {
            if (lab_mirror_tensor(&p->tensors, all[t].tensor, all[t].view))
                return p->tensors.why;
            *all[t].slot = all[t].view;
        }
    if (s->wanted.d_alibi.base)
        a->d_alibi = lab_mirror_add(&p->tensors, &s->wanted.d_alibi);
    if (s->wanted.d_sink.base)
        a->d_sink = lab_mirror_add(&p->tensors, &s->wanted.d_sink);
    if ((s->wanted.d_alibi.base && !a->d_alibi) || (s->wanted.d_sink.base && !a->d_sink))
        return p->tensors.why;
    if (a->delta)
        a->o = NULL;
    return NULL;
}

int bench_backward_check(const struct bench_setting *s, char why[LAB_WHY]) {
    const struct lab_case *c = &s->lab.c;
    const double work =
        (double)(c->b * c->h * c->n) * (double)c->nkv * (double)(3 * c->d + 3 * c->dv);
    const struct lab_held held = {INT64_MAX, 256, 256};
    struct lab_gradients gradients = {0};
    struct lab_report report;
    if (work > MULTIPLICATIONS)
        return lab_identities_hold(&s->lab, why) ? BENCH_FAILED : BENCH_DONE;
    int status = BENCH_DONE;
    if (lab_setting_gradients(&s->lab, s->lab.pattern, &gradients)) {
        snprintf(why, LAB_WHY, "out of memory for the oracle");
        status = BENCH_BAD;
    } else if (lab_gradients_accurate(&report, &s->lab, &s->lab.wanted, &gradients, &held)) {
        memcpy(why, report.message, LAB_WHY);
        status = BENCH_FAILED;
    }
    lab_gradients_free(&gradients);
    return status;
}
