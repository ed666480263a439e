/* The base of a case. */
#include "lab/run/base.h"

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

enum { STREAM_BASE_O = 210, STREAM_BASE_LSE };
#define EMPTY_OF 7 /* rows of which one is empty */

static int tensor_make(struct lab_tensor *tensor, const struct lab_case *c,
                       const tess_tensor *like) {
    const int64_t element = (int64_t)tess_type_size(like->type);
    return lab_tensor_make(tensor, like->type, like->size, c->layout,
                           c->align < element ? element : c->align);
}

static void fill(const struct lab_base *base, const struct lab_case *c) {
    const tess_tensor *o = &base->o.view, *lse = &base->lse.view;
    const int merges = c->base == TESS_BASE_MERGE;
    const int64_t *n = o->size, rows = n[0] * n[1] * n[2];
#pragma omp parallel for schedule(static) if (rows * n[3] > 10000)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = row / n[2] / n[1], h = row / n[2] % n[1], i = row % n[2];
        const int empty = merges && row % EMPTY_OF == 3;
        const double drawn =
            0.5 * log((double)c->nkv) + 3 * lab_normal(c->seed, STREAM_BASE_LSE, (uint64_t)row);
        for (int64_t d = 0; d < n[3]; d++)
            lab_put(o->data, o->type, lab_row(o, b, h, i) + d,
                    empty ? (double)NAN
                          : lab_normal(c->seed, STREAM_BASE_O, (uint64_t)(row * n[3] + d)));
        if (merges)
            lab_put(lse->data, TESS_F32, lab_row(lse, b, h, i), empty ? -(double)INFINITY : drawn);
    }
}

int lab_base_make(struct lab_base *base, const struct lab_case *c, const tess_tensor *like_o,
                  const tess_tensor *like_lse) {
    static const double betas[] = {1, -1, 0.75};
    memset(base, 0, sizeof *base);
    if (c->base == TESS_BASE_NONE)
        return 0;
    if (tensor_make(&base->o, c, like_o) ||
        (c->base == TESS_BASE_MERGE && tensor_make(&base->lse, c, like_lse)))
        return -1;
    fill(base, c);
    base->basing = (struct lab_basing){.how = c->base,
                                       .beta = c->base == TESS_BASE_ADD ? betas[c->seed % 3] : 0,
                                       .o = &base->o.view,
                                       .lse = &base->lse.view};
    return 0;
}

void lab_base_free(struct lab_base *base) {
    lab_tensor_free(&base->o);
    lab_tensor_free(&base->lse);
    memset(base, 0, sizeof *base);
}

int lab_base_place(const struct lab_base *base, struct lab_mirror *mirror, tess_tensor view[2],
                   tess_arguments *arguments) {
    if (base->o.buffer.base && lab_mirror_tensor(mirror, &base->o, &view[0]))
        return -1;
    if (base->lse.buffer.base && lab_mirror_tensor(mirror, &base->lse, &view[1]))
        return -1;
    arguments->base = base->basing.how, arguments->beta = base->basing.beta;
    arguments->base_o = base->o.buffer.base ? &view[0] : NULL;
    arguments->base_lse = base->lse.buffer.base ? &view[1] : NULL;
    return 0;
}
