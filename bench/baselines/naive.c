/* Dense steps on one thread of the CPU. */
#include <math.h>

#include "baselines/gemm.h"

/* Dot products of rows. */
static void product_transposed(const struct bench_gemm *g, const float *a, const float *b,
                               float *c) {
    for (int64_t i = 0; i < g->rows; i++)
        for (int64_t j = 0; j < g->columns; j++) {
            float sum = 0;
            for (int64_t k = 0; k < g->depth; k++)
                sum += a[i * g->row_a + k] * b[j * g->row_b + k];
            c[i * g->row_c + j] = g->alpha * sum;
        }
}

/* Sums of rows of B, so that memory is read in its order. */
static void product(const struct bench_gemm *g, const float *a, const float *b, float *c) {
    for (int64_t i = 0; i < g->rows; i++) {
        for (int64_t j = 0; j < g->columns; j++)
            c[i * g->row_c + j] = 0;
        for (int64_t k = 0; k < g->depth; k++) {
            const float x = g->alpha * a[i * g->row_a + k];
            for (int64_t j = 0; j < g->columns; j++)
                c[i * g->row_c + j] += x * b[k * g->row_b + j];
        }
    }
}

const char *bench_gemm_naive(const struct bench_gemm *g, tess_stream stream) {
    (void)stream;
    for (int64_t p = 0; p < g->count; p++)
        (g->b_transposed ? product_transposed : product)(g, (const float *)g->a + p * g->next_a,
                                                         (const float *)g->b + p * g->next_b,
                                                         (float *)g->c + p * g->next_c);
    return NULL;
}

const char *bench_softmax_naive(const struct bench_softmax *s, tess_stream stream) {
    (void)stream;
    for (int64_t i = 0; i < s->rows; i++) {
        float *x = s->scores + i * s->next, top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < s->columns; j++)
            top = fmaxf(top, x[j]);
        for (int64_t j = 0; j < s->columns; j++)
            sum += x[j] = expf(x[j] - top);
        for (int64_t j = 0; j < s->columns; j++)
            x[j] /= sum;
    }
    return NULL;
}
