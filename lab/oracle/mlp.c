/* The MLP in double precision. */
#include "lab/oracle/mlp.h"

#include "lab/fill/half.h"

#include <math.h>
#include <stdlib.h>

static double activate(tess_activation activation, double x) {
    switch (activation) {
    case TESS_GELU:
        return x * erfc(-x / sqrt(2)) / 2;
    case TESS_GELU_TANH:
        return x * (1 + tanh(sqrt(8 / acos(-1)) / 2 * (x + 0.044715 * x * x * x))) / 2;
    case TESS_SILU:
        return x / (1 + exp(-x));
    case TESS_RELU:
        return x < 0 ? 0 : x;
    case TESS_IDENTITY:
        break;
    }
    return x;
}

static double bias_at(const tess_tensor *bias, int64_t i) {
    return bias ? lab_get(bias->data, bias->type, i) : 0;
}

/* Scratch of a row. */
struct row {
    int64_t *columns;
    double *x, *w, *size2, *reach2;
};

static int row_make(struct row *r, int64_t k, int64_t f, int64_t n) {
    const size_t wide = (size_t)(k > n ? k : n);
    *r = (struct row){.columns = calloc((size_t)f, sizeof *r->columns),
                      .x = calloc((size_t)k, sizeof *r->x),
                      .w = calloc(wide, sizeof *r->w),
                      .size2 = calloc((size_t)n, sizeof *r->size2),
                      .reach2 = calloc((size_t)n, sizeof *r->reach2)};
    return r->columns && r->x && r->w && r->size2 && r->reach2 ? 0 : -1;
}

static void row_free(struct row *r) {
    free(r->columns);
    free(r->x);
    free(r->w);
    free(r->size2);
    free(r->reach2);
}

/* h and t of a listed column; both bias and products are counted in t. */
static void column_run(struct lab_mlp_answer *out, const struct lab_mlp_of *given, struct row *r,
                       int64_t at, int64_t b, int64_t f) {
    const double bias = bias_at(given->bias, f);
    double sum = bias, t2 = bias * bias;
    lab_load_row(r->w, given->w1, b, 0, f);
    for (int64_t k = 0; k < given->x->size[3]; k++) {
        const double product = r->x[k] * r->w[k];
        sum += product;
        t2 += product * product;
    }
    out->h[at * out->n_kv + f] = activate(given->activation, sum);
    out->t[at * out->n_kv + f] = sqrt(t2);
}

static int row_run(struct lab_mlp_answer *out, const struct lab_mlp_of *given, struct row *r,
                   int64_t at) {
    const int64_t M = given->x->size[2], N = out->d_v, b = out->place[at] / M,
                  i = out->place[at] % M;
    const int is_delta = given->cache && given->base;
    double *o = out->o + at * N, size2 = 0, reach2 = 0, o2 = 0;
    int64_t n;
    if (tess_pattern_row(given->pattern, b, 0, i, r->columns, out->n_kv, &n, NULL))
        return -1;
    lab_load_row(r->x, given->x, b, 0, i);
    for (int64_t d = 0; d < N; d++) {
        o[d] = is_delta ? 0 : bias_at(given->bias_out, d);
        r->size2[d] = o[d] * o[d], r->reach2[d] = 0;
    }
    for (int64_t c = 0; c < n; c++) {
        const int64_t f = r->columns[c];
        column_run(out, given, r, at, b, f);
        const double h = out->h[at * out->n_kv + f], t = out->t[at * out->n_kv + f];
        const double cached = is_delta ? lab_get(given->cache->data, given->cache->type,
                                                 lab_row(given->cache, b, 0, f) + i)
                                       : 0;
        const double rounded = fabs(h) + (is_delta ? fabs(h - cached) : 0); /* both are */
        lab_load_row(r->w, given->w2, b, 0, f);
        for (int64_t d = 0; d < N; d++) {
            const double w2 = r->w[d] * r->w[d];
            o[d] += (h - cached) * r->w[d];
            r->size2[d] += rounded * rounded * w2;
            r->reach2[d] += t * t * w2;
        }
    }
    const double beta = given->base ? given->beta : 1;
    for (int64_t d = 0; d < N; d++) {
        const double base = given->base ? lab_get(given->base->data, given->base->type,
                                                  lab_row(given->base, b, 0, i) + d)
                                        : 0;
        o[d] = base + beta * o[d];
        const double size = fabs(beta) * sqrt(r->size2[d]) + fabs(base);
        size2 += size * size;
        reach2 += beta * beta * r->reach2[d];
        o2 += o[d] * o[d];
    }
    out->size[at] = fmax(sqrt(o2), sqrt(size2));
    out->reach[at] = sqrt(reach2);
    return 0;
}

int lab_mlp_run(struct lab_mlp_answer *out, const struct lab_mlp_of *given) {
    const int64_t all_rows = given->x->size[0] * given->x->size[2];
    const int64_t rows = given->places ? given->n_places : all_rows;
    const int64_t f = given->w1->size[2], n = given->w2->size[3];
    const size_t all = (size_t)(rows * f);
    struct row r;
    *out = (struct lab_mlp_answer){.rows = rows,
                                   .d_v = n,
                                   .n_kv = f,
                                   .place = calloc((size_t)rows, sizeof *out->place),
                                   .o = calloc((size_t)(rows * n), sizeof(double)),
                                   .size = calloc((size_t)rows, sizeof(double)),
                                   .reach = calloc((size_t)rows, sizeof(double)),
                                   .h = calloc(all, sizeof(double)),
                                   .t = calloc(all, sizeof(double))};
    int failed = row_make(&r, given->x->size[3], f, n);
    failed |= !out->place || !out->o || !out->size || !out->reach || !out->h || !out->t;
    for (size_t i = 0; i < all && !failed; i++)
        out->h[i] = (double)NAN;
    for (int64_t at = 0; at < rows && !failed; at++) {
        out->place[at] = given->places ? given->places[at] : at;
        failed = row_run(out, given, &r, at);
    }
    row_free(&r);
    return failed;
}

void lab_mlp_answer_free(struct lab_mlp_answer *answer) {
    free(answer->place);
    free(answer->o);
    free(answer->size);
    free(answer->reach);
    free(answer->h);
    free(answer->t);
    memset(answer, 0, sizeof *answer);
}
