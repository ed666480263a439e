/* Probes of tessera gradcheck. */
#include "cli/gradcheck_probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "lab/fill/rng.h"

/*
 * With L = sum dO . o + sum dlse lse and a step u of an input, D(h) = L(x + h u) - L(x - h u) is
 *
 *     2 h <g, u> + h^3 c / 3 + ...        so that        8 D(h) - D(2 h) = 12 h <g, u> + O(h^5)
 *
 * The points are rounded to f32: <g, x+ - x-> of what was stored stands for 2 h <g, u>.
 */

enum { STREAM_DIRECTION = 300, STREAM_ELEMENT };

static const double ORACLE_STEP = 0x1p-7, LIBRARY_STEP = 0x1p-4;
static const double ORACLE_LIMIT = 1e-6; /* share of the largest gradient of an input */

static int64_t rows_of(const tess_tensor *t) {
    return t->size[0] * t->size[1] * t->size[2];
}

/* Index of element d of row x. */
static int64_t at(const tess_tensor *t, int64_t x, int64_t d) {
    return x / t->size[2] / t->size[1] * t->stride[0] + x / t->size[2] % t->size[1] * t->stride[1] +
           x % t->size[2] * t->stride[2] + d;
}

static const float *floats(const tess_tensor *t) {
    return t->data;
}

static double longest_row(const tess_tensor *t) {
    double longest = 0;
    for (int64_t x = 0; x < rows_of(t); x++) {
        double sum = 0;
        for (int64_t d = 0; d < t->size[3]; d++)
            sum += pow((double)floats(t)[at(t, x, d)], 2);
        longest = fmax(longest, sqrt(sum));
    }
    return longest;
}

static tess_tensor array_view(const struct lab_buffer *buffer, int64_t heads) {
    return tess_tensor_bhnd(buffer->data, TESS_F32, 1, 1, heads, 1);
}

void gradcheck_inputs(struct gradcheck *c) {
    const struct lab_setting *s = &c->s;
    const struct lab_case *asked = &s->c;
    const double scale = asked->scale != 0 ? fabs(asked->scale) : 1 / sqrt((double)asked->d);
    const double cap = asked->softcap > 0 ? fmax(1, 1 / asked->softcap) : 1;
    const struct gradcheck_input all[GRADCHECK_INPUTS] = {
        {"q", TESS_GRADIENT_Q, NULL, s->q.view, s->wanted.d_q.view, &c->gradients.q,
         scale * cap * longest_row(&s->k.view)},
        {"k", TESS_GRADIENT_K, NULL, s->k.view, s->wanted.d_k.view, &c->gradients.k,
         scale * cap * longest_row(&s->q.view)},
        {"v", TESS_GRADIENT_V, NULL, s->v.view, s->wanted.d_v.view, &c->gradients.v, 1},
        {"alibi", TESS_GRADIENT_ALIBI, NULL, array_view(&s->modifiers.alibi, asked->h),
         array_view(&s->wanted.d_alibi, asked->h), &c->gradients.alibi,
         (double)(asked->n > asked->nkv ? asked->n : asked->nkv)},
        {"sink", TESS_GRADIENT_SINK, NULL, array_view(&s->modifiers.sink, asked->h),
         array_view(&s->wanted.d_sink, asked->h), &c->gradients.sink, 1},
    };
    memcpy(c->inputs, all, sizeof all);
    for (int i = 0; i < GRADCHECK_INPUTS; i++) {
        struct gradcheck_input *in = &c->inputs[i];
        in->data = (float *)(uintptr_t)in->view.data;
        in->reach = fmax(1, in->reach);
    }
}

/* ---- losses ---- */

static double given(const struct lab_tensor *t, int64_t x, int64_t d) {
    return t->buffer.base ? (double)floats(&t->view)[at(&t->view, x, d)] : 0;
}

double gradcheck_loss(struct gradcheck *c) {
    char why[LAB_WHY];
    struct lab_setting *s = &c->s;
    struct lab_run run = lab_setting_run(s, &c->forward);
    run.o = &s->o, run.given = NULL, run.wanted = NULL; /* a forward of a case of the backward */
    double loss = 0;
    if (lab_run_whole(&run, why)) {
        report("gradcheck", "%s", why);
        return (double)NAN;
    }
    for (int64_t x = 0; x < rows_of(&s->o.view); x++) {
        const double lse = given(&s->lse, x, 0);
        for (int64_t d = 0; d < s->c.dv; d++)
            loss += given(&s->given.d_o, x, d) * given(&s->o, x, d);
        loss += isfinite(lse) ? given(&s->given.d_lse, x, 0) * lse : 0;
    }
    return loss;
}

static double oracle_loss(struct gradcheck *c) {
    const struct lab_setting *s = &c->s;
    const struct lab_scoring scoring = lab_modifiers_scoring(&s->modifiers, &s->c);
    struct lab_oracle oracle;
    double loss =
        lab_oracle_run(&oracle, &s->q.view, &s->k.view, &s->v.view, s->pattern, &scoring, NULL, 0)
            ? (double)NAN
            : 0;
    for (int64_t x = 0; x < oracle.rows && !isnan(loss); x++) {
        for (int64_t d = 0; d < oracle.d_v; d++)
            loss += given(&s->given.d_o, x, d) * oracle.o[x * oracle.d_v + d];
        loss += isfinite(oracle.lse[x]) ? given(&s->given.d_lse, x, 0) * oracle.lse[x] : 0;
    }
    lab_oracle_free(&oracle);
    return loss;
}

int gradcheck_noise(struct gradcheck *c) {
    const struct lab_setting *s = &c->s;
    const struct lab_scoring scoring = lab_modifiers_scoring(&s->modifiers, &s->c);
    struct lab_oracle oracle;
    double sum = 0;
    const int failed =
        lab_oracle_run(&oracle, &s->q.view, &s->k.view, &s->v.view, s->pattern, &scoring, NULL, 0);
    for (int64_t x = 0; x < oracle.rows && !failed; x++) {
        double d_o = 0, o = 0;
        const double lse = isfinite(oracle.lse[x]) ? fabs(oracle.lse[x]) : 0;
        const double e32 = 0x1p-22 * (4 + oracle.size[x]) * (1 + sqrt((double)oracle.keys[x]) / 64);
        for (int64_t d = 0; d < oracle.d_v; d++) {
            d_o += pow(given(&s->given.d_o, x, d), 2);
            o += pow(oracle.o[x * oracle.d_v + d], 2);
        }
        sum += d_o * pow(e32 * fmax(sqrt(o), oracle.spread[x]), 2);
        sum += pow(given(&s->given.d_lse, x, 0) * 0x1p-21 * fmax(fmax(1, lse), oracle.size[x]), 2);
    }
    c->noise = sqrt(sum);
    lab_oracle_free(&oracle);
    return failed;
}

/* ---- probes ---- */

/* A step: one element (row and d), or all of an input at once (row -1). */
struct step {
    int64_t row, d, number;
};

/* u of element d of row x; a row of a direction has a length of about 1. */
static double direction(const struct gradcheck *c, const struct gradcheck_input *in,
                        const struct step *step, int64_t x, int64_t d) {
    if (step->row >= 0)
        return x == step->row && d == step->d;
    return lab_normal(c->s.c.seed + (uint64_t)step->number, STREAM_DIRECTION + (uint64_t)in->wanted,
                      (uint64_t)(x * in->view.size[3] + d)) /
           sqrt((double)in->view.size[3]);
}

/* Moves the input from `was` by h u. */
static void move(const struct gradcheck *c, const struct gradcheck_input *in,
                 const struct step *step, const float *was, double h) {
    const int64_t dim = in->view.size[3];
    for (int64_t x = 0; x < rows_of(&in->view); x++)
        for (int64_t d = 0; d < dim; d++)
            in->data[at(&in->view, x, d)] =
                (float)((double)was[x * dim + d] + h * direction(c, in, step, x, d));
}

/* Sums of elements times their gradients, where an input stands now. */
struct slope {
    double oracle, library;
};

static struct slope slope_of(const struct gradcheck_input *in) {
    struct slope sum = {0, 0};
    const int64_t dim = in->view.size[3];
    for (int64_t x = 0; x < rows_of(&in->view); x++)
        for (int64_t d = 0; d < dim; d++) {
            const double value = (double)in->data[at(&in->view, x, d)];
            if (!isfinite(value)) /* a sink of -Inf, which no step moves */
                continue;
            sum.oracle += value * in->gradient->value[x * dim + d];
            sum.library += value * (double)floats(&in->got)[at(&in->got, x, d)];
        }
    return sum;
}

/* Bound of the library's gradient against the oracle's in this direction. */
static double direction_bound(const struct gradcheck *c, const struct gradcheck_input *in,
                              const struct step *step) {
    const struct lab_gradient_rule rule = {TESS_F32, TESS_F32, 1, 0, 0};
    const int64_t dim = in->view.size[3];
    double sum = 0;
    for (int64_t x = 0; x < rows_of(&in->view); x++) {
        double u2 = 0;
        for (int64_t d = 0; d < dim; d++)
            u2 += pow(direction(c, in, step, x, d), 2);
        if (u2 > 0)
            sum += sqrt(u2) * lab_gradient_bound(in->gradient, x, &rule);
    }
    return sum;
}

/* 8 (D(h) - G(h)) - (D(2h) - G(2h)) over 12 h, G being the gradient's own difference: the error of a
 * gradient. *size: the difference itself. */
static double error_of(struct gradcheck *c, const struct gradcheck_input *in,
                       const struct step *step, const float *was, double h,
                       double (*loss)(struct gradcheck *), int library, double *size) {
    double error = 0;
    *size = 0;
    for (int i = 0; i < 4; i++) {
        static const double multiple[] = {1, -1, 2, -2}, weight[] = {8, -8, -1, 1};
        move(c, in, step, was, multiple[i] * h);
        const struct slope slope = slope_of(in);
        const double l = loss(c);
        error += weight[i] * (l - (library ? slope.library : slope.oracle));
        *size += weight[i] * l;
    }
    move(c, in, step, was, 0);
    *size /= 12 * h;
    return fabs(error / (12 * h));
}

/* The worst probe of an input. */
struct worst {
    double ratio, error, bound, size;
    struct step step;
};

static void take(struct worst *worst, double error, double bound, double size,
                 const struct step *step) {
    const double ratio = error / bound;
    if (worst->bound > 0 && (isnan(worst->ratio) || ratio <= worst->ratio))
        return;
    *worst = (struct worst){ratio, error, bound, size, *step};
}

static void tell(struct gradcheck *c, const char *who, const struct gradcheck_input *in,
                 const struct worst *w) {
    const tess_tensor *t = &in->view;
    char place[120] = "a direction of all elements";
    if (w->step.row >= 0 && t->size[3] > 1)
        snprintf(place, sizeof place, "batch %lld, head %lld, row %lld, element %lld",
                 (long long)(w->step.row / t->size[2] / t->size[1]),
                 (long long)(w->step.row / t->size[2] % t->size[1]),
                 (long long)(w->step.row % t->size[2]), (long long)w->step.d);
    else if (w->step.row >= 0)
        snprintf(place, sizeof place, "row %lld", (long long)w->step.row);
    const int passed = w->error <= w->bound;
    printf("  %-14s d_%-6s %s  error/bound %.3g: %.3g of %.3g, difference %.6g, %s\n", who,
           in->name, passed ? "ok    " : "FAILED", w->ratio, w->error, w->bound, w->size, place);
    c->failed |= !passed;
}

static double largest(const struct lab_gradient *g) {
    double most = 0;
    for (int64_t x = 0; x < g->rows * g->dim; x++)
        most = fmax(most, fabs(g->value[x]));
    return most;
}

int gradcheck_probe(struct gradcheck *c, const struct gradcheck_input *in, const char *who) {
    const int64_t rows = rows_of(&in->view), dim = in->view.size[3];
    const int64_t probes = c->elements + c->directions;
    const double limit = ORACLE_LIMIT * largest(in->gradient);
    const double step_size = LIBRARY_STEP / in->reach, oracle_step = ORACLE_STEP / in->reach;
    struct worst of_oracle = {0}, of_library = {0};
    float *was = malloc((size_t)(rows * dim) * sizeof *was);
    if (!was)
        return -1;
    for (int64_t x = 0; x < rows * dim; x++)
        was[x] = in->data[at(&in->view, x / dim, x % dim)];
    for (int64_t p = 0; p < probes; p++) {
        const int64_t e = lab_below(c->s.c.seed, STREAM_ELEMENT, (uint64_t)p, rows * dim);
        const int whole = p >= c->elements;
        struct step step = {e / dim, e % dim, p};
        double length2 = 0, size;
        if (whole)
            step.row = -1;
        for (int64_t x = 0; x < rows * dim; x++)
            length2 += pow(direction(c, in, &step, x / dim, x % dim), 2);
        double error = error_of(c, in, &step, was, oracle_step, oracle_loss, 0, &size);
        take(&of_oracle, error, limit * sqrt(length2) + 0x1p-149, size, &step);
        error = error_of(c, in, &step, was, step_size, gradcheck_loss, 1, &size);
        take(&of_library, error,
             direction_bound(c, in, &step) + limit * sqrt(length2) + 1.5 * c->noise / step_size,
             size, &step);
    }
    free(was);
    if (probes)
        tell(c, "oracle", in, &of_oracle);
    if (probes)
        tell(c, who, in, &of_library);
    return 0;
}
