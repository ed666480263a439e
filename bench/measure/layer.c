/* Projections. */
#include "measure/layer.h"

#include <math.h>
#include <stdio.h>

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

enum { WEIGHTS_STREAM = 100, CHECKED_ROWS = 4 };

const char *bench_layer_refuses(const struct lab_case *c) {
    if (c->type != TESS_F32 || c->layout != LAB_BHND)
        return "--layer: dtype=f32 and layout=bhnd are needed";
    if (c->b != 1 || c->h != 1 || c->nkv != c->n || c->dv != c->d)
        return "--layer: one batch and head, nkv = n and dv = d are needed";
    if (c->backend != TESS_CUDA)
        return "--layer: backend=cuda is needed";
    return NULL;
}

int bench_layer_make(struct bench_setting *s) {
    const int64_t tokens[4] = {1, 1, s->lab.c.n, s->lab.c.d},
                  weights[4] = {1, 3, s->lab.c.d, s->lab.c.d};
    if (lab_tensor_make(&s->tokens, TESS_F32, tokens, LAB_BHND, 16) ||
        lab_tensor_make(&s->weights, TESS_F32, weights, LAB_BHND, 16))
        return -1;
    memcpy(s->tokens.buffer.data, s->lab.q.buffer.data, s->lab.q.buffer.size);
    const double size = 1 / sqrt((double)s->lab.c.d); /* elements of Q, K and V are then about 1 */
    for (int64_t i = 0; i < 3 * s->lab.c.d * s->lab.c.d; i++)
        lab_put(s->weights.buffer.data, TESS_F32, i,
                size * lab_normal(s->lab.c.seed, WEIGHTS_STREAM, (uint64_t)i));
    return 0;
}

const char *bench_layer_project(const struct bench_place *p, bench_gemm_function *gemm,
                                tess_stream stream) {
    const int64_t n = p->q.size[2], d = p->q.size[3];
    void *const out[] = {p->q.data, p->k.data, p->v.data};
    const char *why = NULL;
    for (int i = 0; i < 3 && !why; i++) {
        const struct bench_gemm g = {.rows = n,
                                     .columns = d,
                                     .depth = d,
                                     .a = p->tokens.data,
                                     .b = (const float *)p->weights.data + i * d * d,
                                     .c = out[i],
                                     .row_a = d,
                                     .row_b = d,
                                     .row_c = d,
                                     .count = 1,
                                     .alpha = 1};
        why = gemm(&g, stream);
    }
    return why;
}

static int check_projection(const struct bench_setting *s, char name, const float *w,
                            const float *projected, char why[LAB_WHY]) {
    const int64_t n = s->lab.c.n, d = s->lab.c.d;
    const float *x = s->tokens.view.data;
    for (int64_t r = 0; r < CHECKED_ROWS; r++) {
        const int64_t i = r * (n - 1) / (CHECKED_ROWS - 1);
        for (int64_t j = 0; j < d; j++) {
            double sum = 0, squares = 0;
            for (int64_t k = 0; k < d; k++) {
                const double term = (double)x[i * d + k] * (double)w[k * d + j];
                sum += term;
                squares += term * term;
            }
            const double error = fabs((double)projected[i * d + j] - sum);
            if (!(error <= 1e-5 * fmax(fabs(sum), sqrt(squares)))) {
                snprintf(why, LAB_WHY, "%c of token %lld, element %lld is not its projection", name,
                         (long long)i, (long long)j);
                return -1;
            }
        }
    }
    return 0;
}

int bench_layer_check(const struct bench_setting *s, char why[LAB_WHY]) {
    const float *w = s->weights.view.data;
    const int64_t size = s->lab.c.d * s->lab.c.d;
    return check_projection(s, 'Q', w, s->lab.q.view.data, why) ||
                   check_projection(s, 'K', w + size, s->lab.k.view.data, why) ||
                   check_projection(s, 'V', w + 2 * size, s->lab.v.view.data, why)
               ? -1
               : 0;
}
