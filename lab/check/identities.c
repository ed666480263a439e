/* Identities of gradients. */
#include "lab/check/identities.h"

#include "lab/fill/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Errors of rows are independent: a sum over rows errs as the root of the sum of their squares, of which
 * these are shares. Four times what a row may have of the storage type, and what f32 sums leave. */
static const double share[] = {[TESS_F32] = 2e-5, [TESS_F16] = 4e-3, [TESS_BF16] = 2.4e-2};

/* A sum, and the squares of the sizes of its terms. */
struct sum {
    double value, size2;
};

/* Rows x and y of one head, as doubles. */
struct rows {
    double *x, *y;
};

/* sum_i x_i . y_i over the n rows of a head. */
static void products_add(struct sum *sum, const struct rows *r, const tess_tensor *x,
                         const tess_tensor *y, int64_t b, int64_t h) {
    for (int64_t i = 0; i < x->size[2]; i++) {
        double product = 0, x2 = 0, y2 = 0;
        lab_load_row(r->x, x, b, h, i);
        lab_load_row(r->y, y, b, h, i);
        for (int64_t d = 0; d < x->size[3]; d++) {
            product += r->x[d] * r->y[d];
            x2 += r->x[d] * r->x[d], y2 += r->y[d] * r->y[d];
        }
        sum->value += product;
        sum->size2 += x2 * y2;
    }
}

static int scores_agree(const struct lab_setting *s, const struct rows *r, int64_t b, int64_t hk) {
    const int64_t group = s->c.h / s->c.hkv;
    struct sum of_q = {0, 0}, of_k = {0, 0};
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
        products_add(&of_q, r, &s->q.view, &s->wanted.d_q.view, b, h);
    products_add(&of_k, r, &s->k.view, &s->wanted.d_k.view, b, hk);
    return fabs(of_q.value - of_k.value) <= share[s->c.type] * sqrt(of_q.size2 + of_k.size2);
}

/* Column d of sum_j dV_j and of sum_i dO_i. */
static int values_agree(const struct lab_setting *s, const struct rows *r, int64_t b, int64_t hk) {
    const int64_t group = s->c.h / s->c.hkv, dv = s->c.dv;
    tess_pattern_info info = tess_pattern_info_init();
    double *got = calloc((size_t)dv, sizeof *got), size2 = 0;
    int agree = got && tess_pattern_describe(s->pattern, &info, NULL) == TESS_OK;
    for (int64_t j = 0; agree && j < s->c.nkv; j++) {
        lab_load_row(r->x, &s->wanted.d_v.view, b, hk, j);
        for (int64_t d = 0; d < dv; d++)
            got[d] += r->x[d], size2 += r->x[d] * r->x[d];
    }
    for (int64_t h = hk * group; agree && h < (hk + 1) * group; h++)
        for (int64_t i = 0; i < s->c.n; i++) {
            int64_t count = 0;
            tess_pattern_row(s->pattern, info.batch == 1 ? 0 : b, h / (s->c.h / info.heads), i,
                             NULL, 0, &count, NULL);
            lab_load_row(r->x, &s->given.d_o.view, b, h, i);
            for (int64_t d = 0; d < dv && count; d++)
                got[d] -= r->x[d], size2 += r->x[d] * r->x[d];
        }
    for (int64_t d = 0; agree && d < dv; d++)
        agree = fabs(got[d]) <= share[s->c.type] * sqrt(size2);
    free(got);
    return agree;
}

int lab_identities_hold(const struct lab_setting *s, char why[LAB_WHY]) {
    const size_t dim = (size_t)(s->c.d > s->c.dv ? s->c.d : s->c.dv);
    const int of_scores = s->wanted.d_q.buffer.base && s->wanted.d_k.buffer.base;
    const int of_values = s->wanted.d_v.buffer.base && !s->c.sink && !(s->c.dropout > 0);
    int failed = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(| : failed)
    for (int64_t x = 0; x < s->c.b * s->c.hkv; x++) {
        const struct rows r = {malloc(dim * sizeof(double)), malloc(dim * sizeof(double))};
        const int64_t b = x / s->c.hkv, hk = x % s->c.hkv;
        if (!r.x || !r.y || (of_scores && !scores_agree(s, &r, b, hk)))
            failed |= 1;
        else if (of_values && !values_agree(s, &r, b, hk))
            failed |= 2;
        free(r.x);
        free(r.y);
    }
    if (failed)
        snprintf(why, LAB_WHY, "%s",
                 failed & 1 ? "the sums of q dQ and of k dK differ" : "dV does not add up to dO");
    return failed ? -1 : 0;
}
