/* Whether an answer is accurate: exactly the table "Accuracy" of docs/semantics.md. */
#include "lab/compare.h"

#include "lab/half.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* The columns of the table, by tess_type. */
static const struct rule {
    double row, tensor;               /* added to e32 */
    double lse, lse_size, floor_size; /* lse * max(1, |ref|, floor_size * M) + lse_size * M */
    double normal, half;              /* the least normal number, half a spacing below it */
} rules[] = {
    [TESS_F32] = {0, 0, 0x1p-21, 0, 1, 0x1p-126, 0x1p-150},
    [TESS_F16] = {1e-3, 5e-4, 1e-4, 0x1p-21, 0, 0x1p-14, 0x1p-25},
    [TESS_BF16] = {6e-3, 3e-3, 1e-4, 0x1p-21, 0, 0x1p-126, 0x1p-134},
};

/* Sums over the whole tensor. */
struct totals {
    double error2, size2, floor2, e32;
    int64_t outputs;
};

static void fail(struct lab_report *report, const char *what, const struct lab_place *at,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));
static void fail(struct lab_report *report, const char *what, const struct lab_place *at,
                 const char *format, ...) {
    if (!report->ok)
        return; /* the first is told */
    report->ok = 0;
    int n = at->b < 0 ? snprintf(report->message, LAB_WHY, "%s: ", what)
                      : snprintf(report->message, LAB_WHY,
                                 "%s of batch %lld, head %lld, query %lld: ", what,
                                 (long long)at->b, (long long)at->h, (long long)at->i);
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
        if (!isfinite(want) == !isfinite(got))
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

/* Second pass: errors against bounds, over the elements that are finite. */
static void sizes(struct lab_report *report, const struct lab_oracle *oracle, int64_t x,
                  const tess_tensor *o, const tess_tensor *lse, struct totals *totals) {
    const struct lab_place *at = &oracle->place[x];
    const struct rule *rule = &rules[o->type];
    double size = oracle->size[x], error2 = 0, want2 = 0, floor2 = 0;
    const double floor = rule->half + (double)(oracle->keys[x] + 1) * 0x1p-149;
    double e32 = 0x1p-22 * (4 + size) * (1 + sqrt((double)oracle->keys[x]) / 64);
    for (int64_t d = 0; d < oracle->d_v; d++) {
        double want = oracle->o[x * oracle->d_v + d];
        double got = lab_get(o->data, o->type, o_index(o, at) + d);
        if (!isfinite(want) || !isfinite(got))
            continue;
        error2 += (got - want) * (got - want);
        want2 += want * want;
        floor2 += fabs(want) < rule->normal && want != 0 ? floor * floor : 0;
        totals->outputs++;
    }
    double r = fmax(sqrt(want2), oracle->spread[x]);
    hold(report, "o", at, sqrt(error2),
         (rule->row + e32) * r * (1 + 2 / sqrt((double)oracle->d_v)) + sqrt(floor2));
    totals->error2 += error2;
    totals->floor2 += floor2;
    totals->size2 += r * r;
    totals->e32 = fmax(totals->e32, e32);
    double want = oracle->lse[x];
    if (lse && isfinite(want))
        hold(report, "lse", at, fabs(lse_got(lse, at) - want),
             rule->lse * fmax(fmax(1, fabs(want)), rule->floor_size * size) +
                 rule->lse_size * size);
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
    if (totals.outputs >= 4096)
        hold(report, "the whole of o", &whole, sqrt(totals.error2),
             (rules[o->type].tensor + totals.e32) * sqrt(totals.size2) + sqrt(totals.floor2));
}
