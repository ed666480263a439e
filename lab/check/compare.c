/* Whether an answer is accurate: exactly the table "Accuracy" of docs/semantics.md. */
#include "lab/check/compare.h"

#include "lab/fill/half.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Half a spacing of a weight times its scale, and the deviation of o's own rounding: 2^-bits sqrt(1 + 1/3). */
#define SCALED(bits) (1.1547005383792515 / (1 << (bits)))

/* The columns of the table, by tess_type. */
static const struct rule {
    double row, tensor;               /* added to e32 */
    double scaled;                    /* tensor's, where weights are rounded times scales of V */
    double lse, lse_size, floor_size; /* lse * max(1, |ref|, floor_size * M) + lse_size * M */
    double normal, half;              /* the least normal number, half a spacing below it */
    double near, past; /* sizes that may round to Inf, and that do, by the reference */
    double rest;       /* most that o + o_rest lacks of an element of o: two roundings */
} rules[] = {
    [TESS_F32] = {0, 0, 0, 0x1p-21, 0, 1, 0x1p-126, 0x1p-150, 0x1.f8p127, 0x1.ffffffp127, 0},
    [TESS_F16] = {1e-3, 5e-4, SCALED(11), 1e-4, 0x1p-21, 0, 0x1p-14, 0x1p-25, 0x1.f8p15, 0x1.ffep15,
                  0x1p-22},
    [TESS_BF16] = {6e-3, 3e-3, SCALED(8), 1e-4, 0x1p-21, 0, 0x1p-126, 0x1p-134, 0x1.f8p127,
                   0x1.ffp127, 0x1p-16},
};

/* Whether an element is Inf because its type ends, or ends near the reference. */
static int overflows(double got, double want, tess_type type) {
    return isinf(got) && fabs(want) >= rules[type].near && signbit(got) == signbit(want);
}

/* Whether an element is held to its bound. */
static int is_held(double got, double want, tess_type type) {
    return isfinite(want) && (isfinite(got) || overflows(got, want, type));
}

/* Inf errs by what the reference lacks of a number that rounds to it. */
static double error_of(double got, double want, tess_type type) {
    return isinf(got) ? fmax(0, rules[type].past - fabs(want)) : got - want;
}

/* Sums over the whole tensor. */
struct totals {
    double error2, size2, floor2, drift2, e32;
    int64_t outputs; /* outputs that are not 0: no other errs */
};

static void fail(struct lab_report *report, const char *what, const struct lab_place *at,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));
static void fail(struct lab_report *report, const char *what, const struct lab_place *at,
                 const char *format, ...) {
    if (!report->ok)
        return; /* the first is told */
    report->ok = 0;
    int n = at->b < 0
                ? snprintf(report->message, LAB_WHY, "%s: ", what)
                : snprintf(report->message, LAB_WHY, "%s of batch %lld, head %lld, %s %lld: ", what,
                           (long long)at->b, (long long)at->h,
                           strcmp(what, "dK") && strcmp(what, "dV") ? "query" : "key",
                           (long long)at->i);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report->message + n, (size_t)(LAB_WHY - n), format, arguments);
    va_end(arguments);
}

static void hold(struct lab_report *report, const char *what, const struct lab_place *at,
                 double error, double bound) {
    double ratio = error > 0 ? error / bound : 0;
    if (ratio > report->worst || isnan(ratio)) {
        report->worst = ratio;
        report->place = *at;
    }
    if (!(error <= bound))
        fail(report, what, at, "error %.3g is past the bound %.3g", error, bound);
}

static double lse_got(const tess_tensor *lse, const struct lab_place *at) {
    return lab_get(lse->data, TESS_F32,
                   at->b * lse->stride[0] + at->h * lse->stride[1] + at->i * lse->stride[2]);
}

static int64_t o_index(const tess_tensor *o, const struct lab_place *at) {
    return at->b * o->stride[0] + at->h * o->stride[1] + at->i * o->stride[2];
}

/* First pass: what is finite where. */
static void positions(struct lab_report *report, const struct lab_oracle *oracle, int64_t x,
                      const tess_tensor *o, const tess_tensor *lse, int64_t reach) {
    const struct lab_place *at = &oracle->place[x];
    for (int64_t d = 0; d < oracle->d_v; d++) {
        double want = oracle->o[x * oracle->d_v + d];
        double got = lab_get(o->data, o->type, o_index(o, at) + d);
        if (!isfinite(want) == !isfinite(got) ||
            (!oracle->is_mean && overflows(got, want, o->type)))
            continue;
        int empty = oracle->lse[x] == -(double)INFINITY; /* 0, whatever stands in the tile */
        if (isfinite(want) && !empty && lab_oracle_near(oracle, x, reach, LAB_BAD_V))
            continue;
        if (isfinite(got) && oracle->drops &&
            (oracle->lists_bad[x] & (LAB_BAD_V | LAB_MET_V)) == LAB_BAD_V)
            continue; /* a weight of 0 need not meet its value where all others are dropped */
        fail(report, "o", at, "element %lld is %.9g, the oracle has %.9g", (long long)d, got, want);
        return;
    }
    if (!lse)
        return;
    double want = oracle->lse[x], got = lse_got(lse, at);
    if (want == -(double)INFINITY ? !(got == want) : !isfinite(want) != !isfinite(got))
        fail(report, "lse", at, "it is %.9g, the oracle has %.9g", got, want);
}

/* The column of the coarser of two types: that of o, and that which weights may be rounded to. */
static const struct rule *bound_rule(const struct lab_oracle *oracle, const tess_tensor *o) {
    const struct rule *of_o = &rules[o->type], *of_weights = &rules[oracle->type];
    return of_weights->row > of_o->row ? of_weights : of_o;
}

void lab_rounds(struct lab_oracle *oracle, const tess_plan *plan) {
    static const struct {
        const char *word;
        tess_type type;
    } kernels[] = {{"_decode_f32_f16_", TESS_F16}, {"_decode_f32_bf16_", TESS_BF16}};
    const char *kernel = tess_plan_kernel(plan, TESS_STAGE_ATTENTION);
    for (size_t k = 0; kernel && k < sizeof kernels / sizeof *kernels; k++)
        if (strstr(kernel, kernels[k].word))
            oracle->type = kernels[k].type;
}

/* Second pass: errors against bounds, over the elements that are finite. */
static void sizes(struct lab_report *report, const struct lab_oracle *oracle, int64_t x,
                  const tess_tensor *o, const tess_tensor *lse, struct totals *totals) {
    const struct lab_place *at = &oracle->place[x];
    const struct rule *rule = bound_rule(oracle, o);
    double size = oracle->size[x], error2 = 0, want2 = 0, floor2 = 0;
    const double floor = rules[o->type].half + (double)(oracle->keys[x] + 1) * 0x1p-149;
    double e32 = 0x1p-22 * (4 + size) * (1 + sqrt((double)oracle->keys[x]) / 64);
    for (int64_t d = 0; d < oracle->d_v; d++) {
        double want = oracle->o[x * oracle->d_v + d];
        double got = lab_get(o->data, o->type, o_index(o, at) + d);
        if (!is_held(got, want, o->type))
            continue;
        const double error = error_of(got, want, o->type);
        error2 += error * error;
        want2 += want * want;
        floor2 += fabs(want) < rules[o->type].normal && want != 0 ? floor * floor : 0;
        floor2 += oracle->faint[x] * oracle->faint[x];
        totals->outputs += want != 0;
    }
    double r = fmax(sqrt(want2), oracle->spread[x]);
    hold(report, "o", at, sqrt(error2),
         ((rule->row + e32) * r + oracle->drift[x]) * (1 + 2 / sqrt((double)oracle->d_v)) +
             sqrt(floor2));
    totals->error2 += error2;
    totals->floor2 += floor2;
    totals->size2 += r * r;
    totals->drift2 += oracle->drift[x] * oracle->drift[x];
    totals->e32 = fmax(totals->e32, e32);
    double want = oracle->lse[x];
    if (lse && isfinite(want))
        hold(report, "lse", at, fabs(lse_got(lse, at) - want),
             rule->lse * fmax(fmax(1, fabs(want)), rule->floor_size * size) +
                 rule->lse_size * size + oracle->lse_drift[x]);
}

void lab_compare(struct lab_report *report, const struct lab_oracle *oracle, const tess_tensor *o,
                 const tess_tensor *lse, int64_t reach) {
    const struct lab_place whole = {-1, -1, -1};
    struct totals totals = {0};
    memset(report, 0, sizeof *report);
    report->ok = 1;
    report->place = whole;
    for (int64_t x = 0; x < oracle->rows && report->ok; x++)
        positions(report, oracle, x, o, lse, reach);
    if (!report->ok) {
        report->worst = (double)INFINITY;
        return;
    }
    for (int64_t x = 0; x < oracle->rows; x++)
        sizes(report, oracle, x, o, lse, &totals);
    const struct rule *rule = bound_rule(oracle, o);
    if (totals.outputs >= 4096)
        hold(report, "the whole of o", &whole, sqrt(totals.error2),
             ((oracle->scales ? rule->scaled : rule->tensor) + totals.e32) * sqrt(totals.size2) +
                 sqrt(totals.drift2) + sqrt(totals.floor2));
}

/* ---- gradients ---- */

/* M up to which gradients are promised: weights are recomputed from lse in f32, and past it an error of
 * a score is no longer a small one of its weight. */
#define GRADIENT_RANGE 0x1p18

int lab_gradient_near(const struct lab_gradient *g, int64_t x, int64_t n, int64_t reach) {
    const int64_t first = x / n * n, i = x - first;
    const int64_t from = i < reach ? 0 : i - reach + 1, to = n - i < reach ? n : i + reach;
    for (int64_t y = from; y < to; y++)
        if (g->size[first + y].bad)
            return 1;
    return 0;
}

static struct lab_place place_of(const tess_tensor *t, int64_t x) {
    return (struct lab_place){x / t->size[2] / t->size[1], x / t->size[2] % t->size[1],
                              x % t->size[2]};
}

/* Whether elements of row x may be NaN or Inf, as NaN and Inf of inputs may reach them. A query without
 * keys has zeros, whatever stands in its tile. */
static int may_be_nan(const struct lab_gradient *g, int64_t x, const tess_tensor *got,
                      int64_t reach) {
    return g->size[x].m > GRADIENT_RANGE ||
           (!g->size[x].empty && lab_gradient_near(g, x, got->size[2], reach));
}

/* First pass: what is finite where. */
static void gradient_positions(struct lab_report *report, const char *name,
                               const struct lab_gradient *g, int64_t x, const tess_tensor *got,
                               int64_t reach) {
    const struct lab_place at = place_of(got, x);
    for (int64_t d = 0; d < g->dim; d++) {
        const double want = g->value[x * g->dim + d];
        const double is = lab_get(got->data, got->type, o_index(got, &at) + d);
        const int is_nan = g->size[x].bad == LAB_IS_NAN;
        if (isfinite(is) ? !is_nan
                         : is_nan || overflows(is, want, got->type) || may_be_nan(g, x, got, reach))
            continue;
        fail(report, name, &at, "element %lld is %.9g, the oracle has %.9g", (long long)d, is,
             want);
        return;
    }
}

/* Sizes that c multiplies, and that e32 alone does. */
struct parts {
    double kept, single, e32;
    double drift; /* X, and what o_rest lost */
};

static struct parts parts_of(const struct lab_gradient *g, int64_t x, double want,
                             const struct lab_gradient_rule *rule) {
    const struct lab_gradient_size *s = &g->size[x];
    const double r = fmax(want, s->a);
    return (struct parts){rule->o_exact ? r : r + s->b, (rule->o_exact ? s->b : 0) + s->w,
                          0x1p-22 * (4 + s->m) * (1 + sqrt((double)s->terms) / 64),
                          s->x + (rule->o_rest ? rules[rule->o_type].rest * s->b : 0)};
}

static double bound_of(const struct parts *p, const struct lab_gradient *g, tess_type type) {
    return ((rules[type].row + p->e32) * p->kept + p->e32 * p->single + p->drift) *
           (1 + 2 / sqrt((double)g->dim));
}

/* Errors that are no less than a type's smallest number: weights, products, and elements of o and o_rest. */
static double least_of(const struct lab_gradient *g, int64_t x,
                       const struct lab_gradient_rule *rule) {
    return g->size[x].least + g->size[x].of_o * rules[rule->o_type].half;
}

double lab_gradient_bound(const struct lab_gradient *g, int64_t x,
                          const struct lab_gradient_rule *rule) {
    double want2 = 0;
    for (int64_t d = 0; d < g->dim; d++)
        want2 += g->value[x * g->dim + d] * g->value[x * g->dim + d];
    const struct parts p = parts_of(g, x, sqrt(want2), rule);
    return bound_of(&p, g, rule->type) + least_of(g, x, rule);
}

/* Sums over a whole gradient. */
struct gradient_totals {
    double error2, size2, floor2, e32; /* size2: of all that c multiplies */
    double single2;                    /* terms that e32 alone multiplies */
    double drift2;
    int64_t outputs;
};

static void gradient_sizes(struct lab_report *report, const char *name,
                           const struct lab_gradient *g, int64_t x, const tess_tensor *got,
                           const struct lab_gradient_rule *rule, struct gradient_totals *totals) {
    const struct lab_place at = place_of(got, x);
    const struct lab_gradient_size *s = &g->size[x];
    const struct rule *type = &rules[got->type];
    const double floor = type->half + (double)(s->terms + 1) * 0x1p-149;
    double error2 = 0, want2 = 0, floor2 = 0;
    if ((s->bad && !s->empty) || s->m > GRADIENT_RANGE)
        return;
    for (int64_t d = 0; d < g->dim; d++) {
        const double want = g->value[x * g->dim + d];
        const double is = lab_get(got->data, got->type, o_index(got, &at) + d);
        if (!is_held(is, want, got->type))
            continue;
        const double error = error_of(is, want, got->type);
        error2 += error * error;
        want2 += want * want;
        floor2 += fabs(want) < type->normal && want != 0 ? floor * floor : 0;
        totals->outputs += want != 0;
    }
    const struct parts p = parts_of(g, x, sqrt(want2), rule);
    const double least = least_of(g, x, rule) + sqrt(floor2);
    hold(report, name, &at, sqrt(error2), bound_of(&p, g, rule->type) + least);
    totals->error2 += error2;
    totals->floor2 += least * least;
    totals->size2 += p.kept * p.kept;
    totals->single2 += p.single * p.single;
    totals->drift2 += p.drift * p.drift;
    totals->e32 = fmax(totals->e32, p.e32);
}

void lab_compare_gradient(struct lab_report *report, const char *name, const struct lab_gradient *g,
                          const tess_tensor *got, const struct lab_gradient_rule *rule) {
    const struct lab_place whole = {-1, -1, -1};
    struct gradient_totals totals = {0};
    char what[32];
    memset(report, 0, sizeof *report);
    report->ok = 1;
    report->place = whole;
    for (int64_t x = 0; x < g->rows && report->ok; x++)
        gradient_positions(report, name, g, x, got, rule->reach);
    if (!report->ok) {
        report->worst = (double)INFINITY;
        return;
    }
    for (int64_t x = 0; x < g->rows; x++)
        gradient_sizes(report, name, g, x, got, rule, &totals);
    snprintf(what, sizeof what, "the whole of %s", name);
    if (totals.outputs >= 4096)
        hold(report, what, &whole, sqrt(totals.error2),
             (rules[rule->type].tensor + totals.e32) * sqrt(totals.size2) +
                 totals.e32 * sqrt(totals.single2) + sqrt(totals.drift2) + sqrt(totals.floor2));
}

void lab_compare_delta(struct lab_report *report, const tess_tensor *d_o, const tess_tensor *o,
                       const tess_tensor *o_rest, const tess_tensor *d_lse,
                       const tess_tensor *delta) {
    memset(report, 0, sizeof *report);
    report->ok = 1;
    const int64_t rows = o->size[0] * o->size[1] * o->size[2];
    for (int64_t x = 0; x < rows; x++) {
        const struct lab_place at = place_of(o, x);
        double want = d_lse ? -lse_got(d_lse, &at) : 0, size = fabs(want);
        for (int64_t d = 0; d < o->size[3]; d++) {
            const double rest =
                o_rest ? lab_get(o_rest->data, o_rest->type, o_index(o_rest, &at) + d) : 0;
            const double term = lab_get(d_o->data, d_o->type, o_index(d_o, &at) + d) *
                                (lab_get(o->data, o->type, o_index(o, &at) + d) + rest);
            want += term;
            size += fabs(term);
        }
        if (isfinite(size))
            hold(report, "delta", &at, fabs(lse_got(delta, &at) - want), 0x1p-22 * size + 0x1p-149);
    }
}

/* ---- column sums ---- */

void lab_compare_sums(struct lab_report *report, const struct lab_column_sums *oracle,
                      const tess_tensor *got) {
    memset(report, 0, sizeof *report);
    report->ok = 1;
    const int64_t n = got->size[3], rows = got->size[0] * got->size[1] * got->size[2];
    for (int64_t x = 0; x < rows; x++) {
        const struct lab_place at = place_of(got, x);
        for (int64_t j = 0; j < n && !oracle->loose[x]; j++) {
            const double want = oracle->value[x * n + j];
            const double stored = got->type == TESS_BF16 ? 0x1p-8 * want : 0;
            hold(report, "a column sum", &at,
                 fabs(lab_get(got->data, got->type, o_index(got, &at) + j) - want),
                 oracle->bound[x * n + j] + stored);
        }
    }
}
