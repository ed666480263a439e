/* An MLP in the benchmark. */
#include "measure/mlp.h"

#include <stdio.h>

#include "lab/check/check.h"
#include "lab/fill/rng.h"

enum { ROWS = 64, LEAST_ROWS = 2, SAMPLE_STREAM = 201 };
static const double MULTIPLICATIONS = 2e8; /* the oracle's, about 0.2 s */

const char *bench_mlp_refuses(const struct lab_case *c, const struct bench_method *method) {
    return lab_case_mlp(c) && (method->stages || method->layer || method->baselines)
               ? "op=mlp is measured whole and alone: take --stages, --layer and --baseline away"
               : NULL;
}

const char *bench_mlp_place(struct bench_place *p, const struct lab_setting *s) {
    const struct {
        const struct lab_tensor *tensor;
        const tess_tensor **argument;
    } all[BENCH_MLP_TENSORS] = {{&s->mlp.bias, &p->arguments.bias},
                                {&s->mlp.bias_out, &p->arguments.bias_out},
                                {&s->mlp.cache, &p->arguments.activations}};
    lab_mlp_reset(&s->mlp);
    p->arguments.lse = NULL;
    for (int i = 0; i < BENCH_MLP_TENSORS; i++) {
        if (!all[i].tensor->buffer.base)
            continue;
        if (lab_mirror_tensor(&p->tensors, all[i].tensor, &p->mlp[i]))
            return p->tensors.why;
        *all[i].argument = &p->mlp[i];
    }
    return NULL;
}

int bench_mlp_check(const struct bench_setting *s, char why[LAB_WHY]) {
    const struct lab_case *c = &s->lab.c;
    const double rows = MULTIPLICATIONS / ((double)c->nkv * (double)(c->d + c->dv));
    const int64_t n = rows > ROWS ? ROWS : rows < LEAST_ROWS ? LEAST_ROWS : (int64_t)rows;
    struct lab_mlp_answer answer;
    struct lab_report report = {.ok = 0};
    int64_t places[ROWS];
    for (int64_t x = 0; x < n; x++)
        places[x] =
            x ? lab_below(c->seed, SAMPLE_STREAM, (uint64_t)x, c->b * c->n) : c->b * c->n - 1;
    const int lacking = lab_setting_mlp(&s->lab, s->lab.pattern, places, n, &answer);
    if (!lacking)
        lab_compare_mlp(&report, &s->lab, &answer, &s->lab.o.view);
    snprintf(why, LAB_WHY, "%s", lacking ? "out of memory for the oracle" : report.message);
    lab_mlp_answer_free(&answer);
    return lacking ? BENCH_BAD : report.ok ? BENCH_DONE : BENCH_FAILED;
}
