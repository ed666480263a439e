/* tessera gradcheck: gradients against central differences of the forward. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/reference.h"
#include "lab/check.h"
#include "lab/device.h"
#include "lab/rng.h"
#include "lab/run.h"

/*
 * With L = sum dO . o + sum dlse lse and a step u of an input, D(h) = L(x + h u) - L(x - h u) is
 *
 *     2 h <g, u> + h^3 c / 3 + ...        so that        8 D(h) - D(2 h) = 12 h <g, u> + O(h^5)
 *
 * The points are rounded to f32: <g, x+ - x-> of what was stored stands for 2 h <g, u>.
 */

enum { KEY_ELEMENTS = 'e', KEY_DIRECTIONS = 'd', KEY_BACKEND = 'b', KEY_PIPELINE = 'p' };
enum { STREAM_DIRECTION = 300, STREAM_ELEMENT };

static const double ORACLE_STEP = 0x1p-7, LIBRARY_STEP = 0x1p-4;
static const double ORACLE_LIMIT = 1e-6; /* of the largest gradient of an input */
static const double MULTIPLICATIONS =
    2e7; /* of one run of the oracle, of which there are hundreds */

struct options {
    const char *text, *backend, *pipeline;
    int64_t elements, directions; /* of each input */
};

static const struct argp_option option_table[] = {
    {"backend", KEY_BACKEND, "NAME", 0, "cpu or cuda; the case's, or cpu", 0},
    {"pipeline", KEY_PIPELINE, "NAME", 0, "fused or staged; the case's, or both", 0},
    {"elements", KEY_ELEMENTS, "N", 0, "Elements of each input that are moved alone (default 12)",
     0},
    {"directions", KEY_DIRECTIONS, "N", 0,
     "Random directions in which each input is moved (default 4)", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case KEY_BACKEND:
        return argument_once(&o->backend, argument, "gradcheck", "backend");
    case KEY_PIPELINE:
        return argument_once(&o->pipeline, argument, "gradcheck", "pipeline");
    case KEY_ELEMENTS:
        return argument_number(&o->elements, argument, 0, 1000000, "gradcheck", "elements");
    case KEY_DIRECTIONS:
        return argument_number(&o->directions, argument, 0, 1000000, "gradcheck", "directions");
    case ARGP_KEY_ARG:
        return argument_once(&o->text, argument, "gradcheck", "CASE");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- inputs that have a gradient ---- */

/* An input in f32, by rows, and where its gradients are. */
struct input {
    const char *name;
    int64_t wanted; /* TESS_GRADIENT_... */
    float *data;
    tess_tensor view;                    /* of data; an array is [1, 1, heads, 1] */
    tess_tensor got;                     /* the library's gradient, in the same shape */
    const struct lab_gradient *gradient; /* the oracle's */
    double reach; /* how far a score moves with a step of 1 of a row, or less than 1 */
};
enum { INPUTS = 5 };

struct check {
    const struct options *options;
    struct lab_setting s;
    struct lab_planned forward, backward;
    struct lab_gradients gradients;
    struct input inputs[INPUTS];
    double noise; /* of L, from what the forward may err */
    double worst; /* error over bound */
    int failed;
};

static int64_t rows_of(const tess_tensor *t) {
    return t->size[0] * t->size[1] * t->size[2];
}

/* Where element d of row x stands. */
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

/* Those that the case wants gradients of. */
static void inputs_make(struct check *c) {
    const struct lab_setting *s = &c->s;
    const struct lab_case *of = &s->c;
    const double scale = of->scale != 0 ? fabs(of->scale) : 1 / sqrt((double)of->d);
    const double cap = of->softcap > 0 ? fmax(1, 1 / of->softcap) : 1;
    const struct input all[INPUTS] = {
        {"q", TESS_GRADIENT_Q, NULL, s->q.view, s->wanted.d_q.view, &c->gradients.q,
         scale * cap * longest_row(&s->k.view)},
        {"k", TESS_GRADIENT_K, NULL, s->k.view, s->wanted.d_k.view, &c->gradients.k,
         scale * cap * longest_row(&s->q.view)},
        {"v", TESS_GRADIENT_V, NULL, s->v.view, s->wanted.d_v.view, &c->gradients.v, 1},
        {"alibi", TESS_GRADIENT_ALIBI, NULL, array_view(&s->modifiers.alibi, of->h),
         array_view(&s->wanted.d_alibi, of->h), &c->gradients.alibi,
         (double)(of->n > of->nkv ? of->n : of->nkv)},
        {"sink", TESS_GRADIENT_SINK, NULL, array_view(&s->modifiers.sink, of->h),
         array_view(&s->wanted.d_sink, of->h), &c->gradients.sink, 1},
    };
    memcpy(c->inputs, all, sizeof all);
    for (int i = 0; i < INPUTS; i++) {
        struct input *in = &c->inputs[i];
        in->data = (float *)(uintptr_t)in->view.data;
        in->reach = fmax(1, in->reach);
    }
}

/* ---- losses ---- */

static double given(const struct lab_tensor *t, int64_t x, int64_t d) {
    return t->buffer.base ? (double)floats(&t->view)[at(&t->view, x, d)] : 0;
}

/* Of the forward that the library has for this plan. NAN, and a line: it does not run. */
static double library_loss(struct check *c) {
    char why[LAB_WHY];
    struct lab_setting *s = &c->s;
    const struct lab_run run = {.planned = &c->forward,
                                .q = &s->q,
                                .k = &s->k,
                                .v = &s->v,
                                .o = &s->o,
                                .lse = &s->lse,
                                .modifiers = &s->modifiers};
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

static double oracle_loss(struct check *c) {
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

/* What the forward may err in L, its rows being independent: the bounds of docs/semantics.md. */
static int measure_noise(struct check *c) {
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
static double direction(const struct check *c, const struct input *in, const struct step *step,
                        int64_t x, int64_t d) {
    if (step->row >= 0)
        return x == step->row && d == step->d;
    return lab_normal(c->s.c.seed + (uint64_t)step->number, STREAM_DIRECTION + (uint64_t)in->wanted,
                      (uint64_t)(x * in->view.size[3] + d)) /
           sqrt((double)in->view.size[3]);
}

/* Moves the input from `was` by h u. */
static void move(const struct check *c, const struct input *in, const struct step *step,
                 const float *was, double h) {
    const int64_t dim = in->view.size[3];
    for (int64_t x = 0; x < rows_of(&in->view); x++)
        for (int64_t d = 0; d < dim; d++)
            in->data[at(&in->view, x, d)] =
                (float)((double)was[x * dim + d] + h * direction(c, in, step, x, d));
}

/* Row x of where the input stands now, added to `sum` times its gradients: the oracle's and the
 * library's. bound: of what the library's may differ. */
struct slope {
    double oracle, library;
};

static struct slope slope_of(const struct input *in) {
    struct slope sum = {0, 0};
    const int64_t dim = in->view.size[3];
    for (int64_t x = 0; x < rows_of(&in->view); x++)
        for (int64_t d = 0; d < dim; d++) {
            const double here = (double)in->data[at(&in->view, x, d)];
            if (!isfinite(here)) /* a sink of -Inf, which no step moves */
                continue;
            sum.oracle += here * in->gradient->value[x * dim + d];
            sum.library += here * (double)floats(&in->got)[at(&in->got, x, d)];
        }
    return sum;
}

/* What the library's gradient may differ from the oracle's in this direction. */
static double direction_bound(const struct check *c, const struct input *in,
                              const struct step *step) {
    const struct lab_gradient_rule rule = {TESS_F32, 1, 0};
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
static double error_of(struct check *c, const struct input *in, const struct step *step,
                       const float *was, double h, double (*loss)(struct check *), int library,
                       double *size) {
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

static void tell(struct check *c, const char *who, const struct input *in, const struct worst *w) {
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

static int probe(struct check *c, const struct input *in, const char *who) {
    const int64_t rows = rows_of(&in->view), dim = in->view.size[3];
    const int64_t probes = c->options->elements + c->options->directions;
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
        const int whole = p >= c->options->elements;
        struct step step = {e / dim, e % dim, p};
        double length2 = 0, size;
        if (whole)
            step.row = -1;
        for (int64_t x = 0; x < rows * dim; x++)
            length2 += pow(direction(c, in, &step, x / dim, x % dim), 2);
        double error = error_of(c, in, &step, was, oracle_step, oracle_loss, 0, &size);
        take(&of_oracle, error, limit * sqrt(length2) + 0x1p-149, size, &step);
        error = error_of(c, in, &step, was, step_size, library_loss, 1, &size);
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

/* ---- one backend and pipeline ---- */

static tess_status plans_make(struct check *c, tess_backend backend, tess_pipeline pipeline,
                              tess_error *error) {
    tess_target target = tess_target_init();
    tess_problem backward = lab_case_problem(&c->s.c, pipeline), forward = backward;
    forward.operation = TESS_ATTENTION, forward.gradients = 0, forward.kernel = NULL;
    tess_status status = tess_target_query(&target, backend, 0, error);
    if (status == TESS_OK)
        status = lab_planned_make(&c->forward, &forward, c->s.pattern, &target, error);
    if (status == TESS_OK)
        status = lab_planned_make(&c->backward, &backward, c->s.pattern, &target, error);
    return status;
}

/* o and lse of the forward, then gradients. 0, or -1 and why. */
static int gradients_run(struct check *c, char why[LAB_WHY]) {
    struct lab_setting *s = &c->s;
    struct lab_run run = {.planned = &c->backward,
                          .q = &s->q,
                          .k = &s->k,
                          .v = &s->v,
                          .o = &s->o,
                          .lse = &s->lse,
                          .modifiers = &s->modifiers,
                          .given = &s->given};
    if (isnan(library_loss(c))) {
        snprintf(why, LAB_WHY, "the forward gives no finite loss");
        return -1;
    }
    if (s->c.given == LAB_GIVEN_DELTA && lab_run_delta(&run, why))
        return -1;
    if (s->c.given == LAB_GIVEN_DELTA)
        run.o = NULL;
    run.wanted = &s->wanted;
    return lab_run_whole(&run, why);
}

static int check_pipeline(struct check *c, tess_backend backend, tess_pipeline pipeline) {
    char why[LAB_WHY], who[32];
    tess_error error = tess_error_init();
    int status = EXIT_DONE;
    snprintf(who, sizeof who, "%s %s", tess_backend_name(backend), lab_pipeline_name(pipeline));
    if (plans_make(c, backend, pipeline, &error) != TESS_OK)
        status = report("gradcheck", "%s: %s", who, error.message);
    else if (gradients_run(c, why))
        status = report("gradcheck", "%s: %s", who, why);
    for (int i = 0; i < INPUTS && status == EXIT_DONE; i++)
        if (lab_case_wants(&c->s.c, c->inputs[i].wanted) && probe(c, &c->inputs[i], who))
            status = report("gradcheck", "out of memory");
    lab_planned_free(&c->forward);
    lab_planned_free(&c->backward);
    return status;
}

static int check_all(struct check *c) {
    char text[LAB_CASE_TEXT];
    const struct lab_case *of = &c->s.c;
    const int backend = of->backend == LAB_ANY ? TESS_CPU : of->backend;
    int status = EXIT_DONE;
    lab_case_print(of, text);
    printf("gradcheck %s\n", text);
    for (int p = TESS_FUSED; p <= TESS_STAGED && status == EXIT_DONE; p++)
        if (of->pipeline == LAB_ANY || of->pipeline == p)
            status = check_pipeline(c, (tess_backend)backend, (tess_pipeline)p);
    return status != EXIT_DONE ? status : c->failed ? EXIT_CHECK_FAILED : EXIT_DONE;
}

/* ---- the case ---- */

/* Options take the place of the case's keys. */
static int named(int *value, const char *option, const char *text, const char *const names[2]) {
    for (int i = 0; text && i < 2; i++)
        if (strcmp(text, names[i]) == 0) {
            *value = i;
            return EXIT_DONE;
        }
    return text ? report("gradcheck", "--%s %s: %s or %s is needed", option, text, names[0],
                         names[1])
                : EXIT_DONE;
}

static const char *refuses(const struct lab_case *c) {
    const double work = (double)(c->b * c->h * c->n) * (double)c->nkv * (double)(c->d + c->dv);
    if (c->type != TESS_F32)
        return "dtype=f32 is needed, as differences of 16-bit outputs are those of their rounding";
    if (c->o_rest)
        return "orest=1: an o in f32 has no rest, leave it out";
    if (c->fill != LAB_FILL_NORMAL && c->fill != LAB_FILL_POSITIVE)
        return "fill=normal or fill=positive is needed";
    return work > MULTIPLICATIONS
               ? "the case is too large: b*h*n*nkv*(d+dv) up to 2e7 is quick enough"
               : NULL;
}

static int case_read(struct lab_case *c, const struct options *o) {
    static const char *const backends[] = {"cpu", "cuda"}, *const pipelines[] = {"fused", "staged"};
    char text[LAB_CASE_TEXT], why[LAB_WHY];
    if (!o->text)
        return report("gradcheck", "a case is needed, e.g. h=2,n=40,d=16,pattern=causal");
    snprintf(text, sizeof text, "%.600s%s", o->text, strstr(o->text, "op=") ? "" : ",op=backward");
    if (lab_case_parse(c, text, why) != 0)
        return report("gradcheck", "%s", why);
    if (named(&c->backend, "backend", o->backend, backends) ||
        named(&c->pipeline, "pipeline", o->pipeline, pipelines))
        return EXIT_BAD;
    if (!lab_case_backward(c))
        return report("gradcheck", "op=backward is what is checked");
    if (refuses(c))
        return report("gradcheck", "%s", refuses(c));
    return lab_device_case(c, why) ? report("gradcheck", "%s", why) : EXIT_DONE;
}

int gradcheck_main(int argc, char **argv) {
    static const struct argp argp = {option_table,
                                     parse,
                                     "CASE",
                                     "Compares the library's gradients with central differences of "
                                     "its own forward in f32, and the "
                                     "oracle's with those of the oracle."
                                     "\vBoth elements and random directions are moved. Prints the "
                                     "worst of each input. Exit status: "
                                     "0 all within their bounds, 1 some are not, 2 bad use.",
                                     NULL,
                                     reference_case_filter,
                                     NULL};
    struct options options = {.elements = 12, .directions = 4};
    struct check check = {.options = &options};
    struct lab_case c;
    char why[LAB_WHY];
    int status = arguments_parse(&argp, "gradcheck", argc, argv, &options);
    if (status == EXIT_DONE && options.elements + options.directions == 0)
        status = report("gradcheck", "--elements 0 --directions 0 leaves nothing to check");
    if (status == EXIT_DONE)
        status = case_read(&c, &options);
    if (status != EXIT_DONE)
        return status;
    if (lab_setting_make(&check.s, &c, why))
        status = report("gradcheck", "%s", why);
    else if (lab_setting_gradients(&check.s, check.s.pattern, &check.gradients) ||
             measure_noise(&check))
        status = report("gradcheck", "out of memory for the oracle");
    if (status == EXIT_DONE) {
        inputs_make(&check);
        status = check_all(&check);
    }
    lab_gradients_free(&check.gradients);
    lab_setting_free(&check.s);
    return status;
}
