/* Sampled rows. */
#include "measure/sample.h"

#include <stdio.h>

#include "lab/check/compare.h"
#include "lab/fill/rng.h"

enum { LEAST_ROWS = 4, SAMPLE_STREAM = 200, REACH = 256 };
static const double MULTIPLICATIONS = 2e8; /* the oracle's, about 0.2 s */

int bench_sample_make(struct lab_oracle *oracle, const struct bench_setting *s,
                      const tess_pattern *pattern) {
    const struct lab_case *c = &s->lab.c;
    struct lab_place places[BENCH_SAMPLE_ROWS];
    double rows = MULTIPLICATIONS / ((double)c->nkv * (double)(c->d + c->dv));
    int64_t count = rows > BENCH_SAMPLE_ROWS ? BENCH_SAMPLE_ROWS
                    : rows < LEAST_ROWS      ? LEAST_ROWS
                                             : (int64_t)rows;
    for (int64_t x = 0; x < count; x++) {
        uint64_t draw = 3 * (uint64_t)x;
        places[x].b = lab_below(c->seed, SAMPLE_STREAM, draw, c->b);
        places[x].h = lab_below(c->seed, SAMPLE_STREAM, draw + 1, c->h);
        places[x].i = lab_below(c->seed, SAMPLE_STREAM, draw + 2, c->n);
    }
    const struct lab_scoring scoring = lab_setting_scoring(&s->lab);
    places[0] = (struct lab_place){c->b - 1, c->h - 1, c->n - 1};
    places[1] = (struct lab_place){0, 0, 0};
    return lab_oracle_run(oracle, &s->lab.q.view, &lab_cache_k(&s->lab.cache, &s->lab.k)->view,
                          &lab_cache_v(&s->lab.cache, &s->lab.v)->view, pattern, &scoring, places,
                          count);
}

int bench_sample_check(const struct lab_oracle *oracle, const struct bench_setting *s, int lse,
                       char why[LAB_WHY]) {
    struct lab_report report;
    lab_compare(&report, oracle, &s->lab.o.view, lse ? &s->lab.lse.view : NULL, REACH);
    if (!report.ok)
        snprintf(why, LAB_WHY, "%s", report.message);
    return report.ok ? 0 : -1;
}
