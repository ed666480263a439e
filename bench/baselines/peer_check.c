/* Rows of SDDMM and SpMM in double precision. */
#include "baselines/peer_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

enum { ROWS = 8, WEIGHTS_STREAM = 300, ROWS_STREAM = 301 };

void bench_peer_weights(void *values, tess_type type, const struct bench_sparse *m, uint64_t seed) {
    const tess_lists *l = &m->lists;
    memset(values, 0, (size_t)m->n_values * tess_type_size(type));
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t e = l->row_ptr[row]; e < l->row_ptr[row + 1]; e++)
            for (int64_t x = 0; x < l->block_q * l->block_kv; x++)
                lab_put(values, type,
                        bench_sparse_place(m, row, e, x / l->block_kv, x % l->block_kv),
                        lab_uniform(seed, WEIGHTS_STREAM,
                                    (uint64_t)(e * l->block_q * l->block_kv + x)));
}

/* Change by a rounding to the type, at most, relative to the number. */
static double unit(tess_type type) {
    return type == TESS_F32 ? 0x1p-20 : type == TESS_F16 ? 0x1p-10 : 0x1p-7;
}

/* The scores of element row r of block row `row`. */
static int check_scores(const struct bench_peer_kind *kind, const struct bench_sparse *m,
                        const struct lab_setting *s, const void *values, tess_type type,
                        int64_t row, int64_t r, char why[LAB_WHY]) {
    const tess_lists *l = &m->lists;
    const struct lab_case *c = &s->c;
    const int64_t query = row * l->block_q + r;
    const double scale = c->scale < 0 || c->scale > 0 ? c->scale : 1 / sqrt((double)c->d);
    for (int64_t e = l->row_ptr[row]; e < l->row_ptr[row + 1]; e++)
        for (int64_t x = 0; x < l->block_kv; x++) {
            const int64_t key = l->col_idx[e] * l->block_kv + x;
            double sum = 0, squares = 0;
            for (int64_t d = 0; d < c->d; d++) {
                const double term = lab_get(s->q.view.data, c->type, query * c->d + d) *
                                    lab_get(s->k.view.data, c->type, key * c->d + d);
                sum += scale * term;
                squares += scale * term * scale * term;
            }
            const double got = lab_get(values, type, bench_sparse_place(m, row, e, r, x));
            const double bound = unit(type) * fabs(sum) + 0x1p-18 * fmax(1, sqrt(squares));
            if (!(fabs(got - sum) <= bound)) {
                snprintf(why, LAB_WHY, "%s: the score of query %lld and key %lld is %.6g, not %.6g",
                         kind->kernel, (long long)query, (long long)key, got, sum);
                return -1;
            }
        }
    return 0;
}

/* The row of o of that element row, as docs/semantics.md measures one: its error beside the norm of
 * the row, or of what independent errors of the terms would give. */
static int check_outputs(const struct bench_peer_kind *kind, const struct bench_sparse *m,
                         const struct lab_setting *s, const void *weights, const void *o,
                         tess_type type, int64_t row, int64_t r, char why[LAB_WHY]) {
    static const double bounds[] = {[TESS_F32] = 0x1p-19, [TESS_F16] = 1e-3, [TESS_BF16] = 6e-3};
    const tess_lists *l = &m->lists;
    const struct lab_case *c = &s->c;
    const int64_t query = row * l->block_q + r;
    double error2 = 0, want2 = 0, spread2 = 0;
    for (int64_t d = 0; d < c->dv; d++) {
        double sum = 0;
        for (int64_t e = l->row_ptr[row]; e < l->row_ptr[row + 1]; e++)
            for (int64_t x = 0; x < l->block_kv; x++) {
                const int64_t key = l->col_idx[e] * l->block_kv + x;
                const double term = lab_get(weights, c->type, bench_sparse_place(m, row, e, r, x)) *
                                    lab_get(s->v.view.data, c->type, key * c->dv + d);
                sum += term;
                spread2 += term * term;
            }
        const double error = lab_get(o, type, query * c->dv + d) - sum;
        error2 += error * error;
        want2 += sum * sum;
    }
    const double error = sqrt(error2);
    const double bound =
        bounds[c->type] * sqrt(fmax(want2, spread2)) * (1 + 2 / sqrt((double)c->dv));
    if (error <= bound)
        return 0;
    snprintf(why, LAB_WHY, "%s: o of query %lld: error %.3g is past the bound %.3g", kind->kernel,
             (long long)query, error, bound);
    return -1;
}

int bench_peer_check(const struct bench_peer_kind *kind, const struct bench_sparse *m,
                     const struct lab_setting *s, const void *values, const void *o, tess_type type,
                     char why[LAB_WHY]) {
    for (uint64_t x = 0; x < ROWS; x++) {
        const int64_t query = lab_below(s->c.seed, ROWS_STREAM, x, s->c.n);
        const int64_t row = query / m->lists.block_q, r = query % m->lists.block_q;
        if (kind->stage == TESS_STAGE_SDDMM
                ? check_scores(kind, m, s, values, type, row, r, why)
                : check_outputs(kind, m, s, values, o, type, row, r, why))
            return -1;
    }
    return 0;
}
