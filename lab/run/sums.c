/* Column sums of a case. */
#include "lab/run/sums.h"

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

#include <math.h>

enum { STREAM_REFERENCE = 210 };

/* Element i of the reference, about the lse of scores of about 1: of every other head, or of all, within what queries
 * drift by from step to step; of the others further away, and of one query in eight none. */
static double reference_drawn(const struct lab_case *c, int64_t i) {
    const int near = c->sum_near || i / c->n % 2 == 0;
    if (!near && lab_below(c->seed, STREAM_REFERENCE + 1, (uint64_t)i, 8) == 0)
        return -(double)INFINITY;
    return log((double)c->nkv) +
           (near ? 0.5 : 2) * lab_normal(c->seed, STREAM_REFERENCE, (uint64_t)i);
}

int lab_sums_make(struct lab_sums *s, const struct lab_case *c) {
    const int64_t rows[4] = {c->b, c->h, c->n, 1};
    memset(s, 0, sizeof *s);
    if (!c->sum_rows)
        return 0;
    const int64_t groups[4] = {c->b, c->h, (c->n + c->sum_rows - 1) / c->sum_rows, c->nkv};
    if (lab_tensor_make(&s->reference, TESS_F32, rows, c->layout, 4) ||
        lab_tensor_make(&s->sums, c->sum_type, groups, c->layout, 4))
        return -1;
    for (int64_t i = 0; i < c->b * c->h * c->n; i++)
        lab_put(s->reference.view.data, TESS_F32,
                lab_row(&s->reference.view, i / c->n / c->h, i / c->n % c->h, i % c->n),
                reference_drawn(c, i));
    return 0;
}

void lab_sums_free(struct lab_sums *s) {
    lab_tensor_free(&s->reference);
    lab_tensor_free(&s->sums);
    memset(s, 0, sizeof *s);
}
