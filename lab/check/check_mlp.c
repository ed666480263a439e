/* One check of an MLP. */
#include "lab/check/checking.h"

#include "lab/fill/half.h"

#include <math.h>
#include <stdio.h>

/* The bounds of docs/semantics.md, "MLP", by tess_type. */
static const struct {
    double row;     /* c */
    double element; /* a unit in the last place of an activation */
    double floor;   /* spacing of subnormal numbers */
} rules[] = {[TESS_F32] = {0, 0, 0x1p-149},
             [TESS_F16] = {1e-3, 0x1p-10, 0x1p-24},
             [TESS_BF16] = {6e-3, 0x1p-7, 0x1p-133}};

static double e_of(const struct lab_setting *s) {
    return 0x1p-22 * (4 + sqrt((double)s->c.d) / 64);
}

static void report_fail(struct lab_report *report, const char *what, int64_t b, int64_t i,
                        double error, double bound) {
    if (report->ok)
        snprintf(report->message, LAB_WHY, "%s of batch %lld, row %lld: error %.3g is past %.3g",
                 what, (long long)b, (long long)i, error, bound);
    report->ok = 0;
}

static void hold(struct lab_report *report, const char *what, int64_t b, int64_t i, double error,
                 double bound) {
    const double ratio = error > 0 || isnan(error) ? error / bound : 0;
    if (ratio > report->worst || isnan(ratio))
        report->worst = ratio, report->place = (struct lab_place){b, 0, i};
    if (!(error <= bound))
        report_fail(report, what, b, i, error, bound);
}

static void row_compare(struct lab_report *report, const struct lab_setting *s,
                        const struct lab_mlp_answer *answer, const tess_tensor *o, int64_t at) {
    const int64_t M = o->size[2], N = o->size[3];
    const int64_t b = answer->place[at] / M, i = answer->place[at] % M;
    const double e = e_of(s), c = rules[s->c.type].row;
    double error2 = 0;
    for (int64_t d = 0; d < N; d++) {
        const double got = lab_get(o->data, o->type, lab_row(o, b, 0, i) + d);
        const double error = got - answer->o[at * N + d];
        error2 += error * error;
    }
    hold(report, "o", b, i, sqrt(error2),
         ((c + e) * answer->size[at] + e * answer->reach[at]) * (1 + 2 / sqrt((double)N)) +
             sqrt((double)N) * rules[s->c.type].floor);
}

/* The cache has h of listed columns, and what it had in others. */
static void cache_compare(struct lab_report *report, const struct lab_setting *s,
                          const struct lab_mlp_answer *answer, const struct lab_mlp *mlp,
                          int64_t at) {
    const tess_tensor *now = &mlp->cache.view, *before = &mlp->before.view;
    const int64_t M = now->size[3], b = answer->place[at] / M, i = answer->place[at] % M;
    const size_t size = tess_type_size(now->type);
    const double e = e_of(s);
    for (int64_t f = 0; f < answer->n_kv; f++) {
        const int64_t place = lab_row(now, b, 0, f) + i;
        const double want = answer->h[at * answer->n_kv + f],
                     got = lab_get(now->data, now->type, place);
        if (!isnan(want))
            hold(report, "an activation", b, i, fabs(got - want),
                 rules[s->c.type].element * fabs(want) +
                     4 * e * (fabs(want) + answer->t[at * answer->n_kv + f]) +
                     rules[s->c.type].floor);
        else if (memcmp((char *)now->data + (size_t)place * size,
                        (char *)before->data + (size_t)place * size, size) != 0)
            report_fail(report, "an activation that is not listed", b, i, (double)INFINITY, 0);
    }
}

void lab_compare_mlp(struct lab_report *report, const struct lab_setting *s,
                     const struct lab_mlp_answer *answer, const tess_tensor *o) {
    *report = (struct lab_report){.ok = 1, .place = {-1, -1, -1}};
    for (int64_t at = 0; at < answer->rows; at++) {
        row_compare(report, s, answer, o, at);
        if (s->mlp.cache.buffer.base)
            cache_compare(report, s, answer, &s->mlp, at);
    }
}

static int accurate(struct lab_outcome *out, const struct lab_work *w,
                    const struct lab_named_run *r) {
    struct lab_report report;
    lab_compare_mlp(&report, &w->s, &w->mlp, &r->run.o->view);
    if (report.worst > out->worst)
        out->worst = report.worst;
    return report.ok ? 0 : lab_fail(out, "%s: %.280s", r->name, report.message);
}

/* A delta right after a run that wrote the cache, from that run's o: exactly zero. The graph of another way is
 * replayed twice, and so does it by itself. */
static int nothing_again(struct lab_outcome *out, struct lab_work *w, const struct lab_run *first) {
    struct lab_named_run r = {*first, "a delta again"};
    struct lab_base base = w->s.base;
    base.o = w->s.o, base.basing.how = TESS_BASE_ADD, base.basing.beta = 1;
    r.run.base = &base, r.run.o = &w->o2, r.run.keeps_cache = 1;
    if (lab_ran(out, &r, lab_run_whole))
        return -1;
    const tess_tensor *a = &w->s.o.view, *b = &w->o2.view;
    for (int64_t row = 0; row < a->size[0] * a->size[2]; row++)
        for (int64_t d = 0; d < a->size[3]; d++) {
            const int64_t at = lab_row(a, row / a->size[2], 0, row % a->size[2]) + d;
            const double was = lab_get(a->data, a->type, at), is = lab_get(b->data, b->type, at);
            if (is < was || is > was)
                return lab_fail(out, "%s: o of row %lld is %.9g, was %.9g", r.name, (long long)row,
                                is, was);
        }
    return 0;
}

/* Runs into o2 that must give the bits of the first. A graph's second replay finds another cache. */
static int same_again(struct lab_outcome *out, struct lab_work *w, const struct lab_run *first,
                      const struct lab_planned *again) {
    const int device = first->planned->backend != TESS_CPU;
    const struct {
        const char *name;
        const struct lab_planned *planned;
        enum lab_launch launch;
        int asked;
    } ways[] = {
        {device ? "repeated" : "with other threads", again, LAB_PLAIN, 1},
        {"on another stream", first->planned, LAB_STREAM, device},
        {"replayed as a graph", first->planned, LAB_GRAPH,
         device && w->s.c.cache != LAB_CACHE_DELTA},
    };
    const uint64_t cache = lab_buffer_hash(&w->s.mlp.cache.buffer);
    char why[LAB_WHY];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct lab_named_run r = {*first, ways[i].name};
        r.run.planned = ways[i].planned, r.run.launch = ways[i].launch, r.run.o = &w->o2;
        if (!ways[i].asked)
            continue;
        if (lab_ran(out, &r, lab_run_whole))
            return -1;
        if (lab_tensor_same(&w->s.o.view, &w->o2.view, "o", why))
            return lab_fail(out, "%s: %.280s", r.name, why);
        if (lab_buffer_hash(&w->s.mlp.cache.buffer) != cache)
            return lab_fail(out, "%s: other bits of cached activations", r.name);
    }
    return 0;
}

void lab_check_mlp(struct lab_outcome *out, struct lab_work *w, const struct lab_planned *planned,
                   const struct lab_planned *again) {
    const struct lab_run first = lab_setting_run(&w->s, planned);
    const struct lab_named_run r = {first, "fused"};
    if (lab_ran(out, &r, lab_run_whole) || accurate(out, w, &r) ||
        same_again(out, w, &first, again))
        return;
    if (w->s.c.cache != LAB_CACHE_NONE)
        nothing_again(out, w, &first);
}
