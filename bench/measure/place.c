/* A case's tensors on the host, and in the memory of a backend. */
#include <stdio.h>

#include "lab/run/setting.h"
#include "measure/backward.h"
#include "measure/layer.h"
#include "measure/lists.h"
#include "measure/mlp.h"

/* Rows that straddle the cache's lines, as those of tensors aligned to 16 bytes and no more do, are
 * fetched in twice as many sectors. Allocators do not place tensors so: only what asks for less gets
 * less. */
static int64_t bench_align(const struct lab_case *c) {
    return c->align < 16 ? c->align : 64;
}

int bench_setting_make(struct bench_setting *s, const struct lab_case *c,
                       const struct bench_method *method, const char *asked, char why[LAB_WHY]) {
    struct lab_case placed = *c;
    placed.align = bench_align(c);
    memset(s, 0, sizeof *s);
    s->lab.c = *c;
    s->asked = asked;
    const char *refusal = method->layer ? bench_layer_refuses(c) : NULL;
    if (!refusal)
        refusal = bench_backward_refuses(c, method);
    if (!refusal)
        refusal = bench_mlp_refuses(c, method);
    if (!refusal)
        refusal = bench_lists_refuses(c, method);
    if (refusal) {
        snprintf(why, LAB_WHY, "%s", refusal);
        return -1;
    }
    const int lacking = lab_setting_make(&s->lab, &placed, why);
    s->lab.c = *c; /* the case as asked: the alignment was the placing's */
    if (!lacking && method->layer && bench_layer_make(s)) {
        snprintf(why, LAB_WHY, "out of memory for the tensors of this case");
        return -1;
    }
    return lacking ? lacking : bench_backward_make(&s->lab, why);
}

void bench_setting_free(struct bench_setting *s) {
    lab_tensor_free(&s->tokens);
    lab_tensor_free(&s->weights);
    lab_setting_free(&s->lab);
    memset(s, 0, sizeof *s);
}

void bench_setting_spoil(struct bench_setting *s, int layer) {
    struct lab_tensor *const projected[] = {&s->lab.q, &s->lab.k, &s->lab.v};
    if (lab_case_backward(&s->lab.c)) {
        bench_backward_spoil(&s->lab.wanted);
        return;
    }
    lab_tensor_poison(&s->lab.o);
    lab_tensor_poison(&s->lab.lse);
    if (s->lab.c.sum_rows)
        lab_tensor_poison(&s->lab.sums.sums);
    for (size_t t = 0; layer && t < sizeof projected / sizeof *projected; t++)
        memcpy(projected[t]->buffer.data, s->tokens.buffer.data, s->tokens.buffer.size);
}

static int place_tensors(struct bench_place *p, const struct bench_setting *s) {
    return lab_mirror_tensor(&p->tensors, lab_cache_q(&s->lab.cache, &s->lab.q), &p->q) ||
           lab_mirror_tensor(&p->tensors, lab_cache_k(&s->lab.cache, &s->lab.k), &p->k) ||
           lab_mirror_tensor(&p->tensors, lab_cache_v(&s->lab.cache, &s->lab.v), &p->v) ||
           lab_mirror_tensor(&p->tensors, &s->lab.o, &p->o) ||
           lab_mirror_tensor(&p->tensors, &s->lab.lse, &p->lse) ||
           (s->lab.c.sum_rows &&
            (lab_mirror_tensor(&p->tensors, &s->lab.sums.reference, &p->reference) ||
             lab_mirror_tensor(&p->tensors, &s->lab.sums.sums, &p->sums))) ||
           (s->tokens.buffer.base && (lab_mirror_tensor(&p->tensors, &s->tokens, &p->tokens) ||
                                      lab_mirror_tensor(&p->tensors, &s->weights, &p->weights)));
}

const char *bench_place_make(struct bench_place *p, const struct bench_setting *s,
                             const tess_plan *plan, tess_backend backend, int scores) {
    tess_arguments a = tess_arguments_init();
    memset(p, 0, sizeof *p);
    lab_mirror_make(&p->tensors, backend);
    if (place_tensors(p, s))
        return p->tensors.why;
    a.q = &p->q, a.k = &p->k, a.v = &p->v, a.o = &p->o, a.lse = &p->lse;
    p->arguments = a;
    if (!plan)
        return NULL;
    a.workspace_size = tess_plan_workspace_size(plan), a.image_size = tess_plan_image_size(plan);
    a.workspace = p->workspace = lab_device_alloc(backend, a.workspace_size);
    if (!a.workspace)
        return "out of memory for the workspace";
    if (a.image_size)
        a.image = p->image = lab_device_alloc(backend, a.image_size);
    if (a.image_size && !a.image)
        return "out of memory for the plan";
    if (scores)
        p->scores = lab_device_alloc(backend, (size_t)tess_plan_scores_count(plan) * sizeof(float));
    if (scores && !p->scores)
        return "out of memory for the scores";
    if (lab_modifiers_place(&s->lab.modifiers, &p->tensors, &a) ||
        lab_cache_place(&s->lab.cache, &p->tensors, p->views, &a) ||
        lab_base_place(&s->lab.base, &p->tensors, p->base, &a))
        return p->tensors.why;
    if (s->lab.cache.v_in_k)
        a.v = NULL;
    if (s->lab.c.sum_rows)
        a.lse_reference = &p->reference, a.column_sums = &p->sums;
    p->arguments = a;
    if (lab_case_mlp(&s->lab.c))
        return bench_mlp_place(p, &s->lab);
    return lab_case_backward(&s->lab.c) ? bench_backward_place(p, &s->lab) : NULL;
}

void bench_place_free(struct bench_place *p) {
    tess_backend backend = p->tensors.backend;
    lab_device_free(backend, p->workspace);
    lab_device_free(backend, p->image);
    lab_device_free(backend, p->scores);
    lab_mirror_free(&p->tensors);
}
