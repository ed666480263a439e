/* Dense steps on the CPU: products of OpenBLAS's threads (OMP_NUM_THREADS sets how many), and a
 * softmax of as many. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "baselines/openblas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/library.h"

static struct {
    int tried;
    const char *why; /* reason why OpenBLAS cannot be used */
    char words[BENCH_LIBRARY_WHY];
    struct bench_openblas entry;
} openblas;

/* A library older than the processor takes it for one of 2004, and is then five times slower. It is
 * therefore told which kernels to take, unless OPENBLAS_CORETYPE says so. */
static void name_core(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 0);
    else if (__builtin_cpu_supports("avx2"))
        setenv("OPENBLAS_CORETYPE", "HASWELL", 0);
#endif
}

static const char *load(void) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so", NULL};
    const struct bench_entry entries[] = {
        {"cblas_sgemm", &openblas.entry.sgemm},
        {"openblas_set_num_threads", &openblas.entry.set_threads},
    };
    name_core();
    return bench_library_load(names, entries, sizeof entries / sizeof *entries, openblas.words);
}

const char *bench_openblas_load(struct bench_openblas *out) {
    if (!openblas.tried) {
        openblas.tried = 1;
        openblas.why = load();
    }
    *out = openblas.entry;
    return openblas.why;
}

const char *bench_gemm_openblas(const struct bench_gemm *g, tess_stream stream) {
    struct bench_openblas blas;
    const char *why = bench_openblas_load(&blas);
    (void)stream;
    for (int64_t p = 0; p < g->count && !why; p++)
        blas.sgemm(BLAS_ROW_MAJOR, BLAS_AS_IT_IS, g->b_transposed ? BLAS_TRANSPOSED : BLAS_AS_IT_IS,
                   (int)g->rows, (int)g->columns, (int)g->depth, g->alpha,
                   (const float *)g->a + p * g->next_a, (int)g->row_a,
                   (const float *)g->b + p * g->next_b, (int)g->row_b, 0,
                   (float *)g->c + p * g->next_c, (int)g->row_c);
    return why;
}

/* ---- the softmax between the products ---- */

/* Compiled for what the processor has, so that this stage is no handicap of the products. */
#if defined(__x86_64__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

/* x = e^(x - top); answers the sum. 2^y by rounding y and a polynomial of degree 6, a minimax fit
 * on [-1/2, 1/2]; y stays above -126, where such a weight no longer counts. */
CLONES static float row_weigh(float *x, int64_t n, float top) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        const float z = (x[j] - top) * 1.44269504f, y = z > -126 ? z : -126;
        const float t = y + 12582912.0f; /* 1.5 * 2^23: the integer is in its low bits */
        const float r = y - (t - 12582912.0f);
        float p = 0.000155946778f;
        p = p * r + 0.00134066434f;
        p = p * r + 0.00961769279f;
        p = p * r + 0.0555031039f;
        p = p * r + 0.240226522f;
        p = p * r + 0.693147242f;
        p = p * r + 1.0f;
        int32_t bits, shift;
        memcpy(&bits, &p, sizeof bits);
        memcpy(&shift, &t, sizeof shift);
        bits += (int32_t)((uint32_t)shift << 23);
        memcpy(&p, &bits, sizeof p);
        x[j] = p;
        sum += p;
    }
    return sum;
}

CLONES static float row_top(const float *x, int64_t n) {
    enum { LANES = 32 };
    float lane[LANES], top = -INFINITY;
    int64_t j = 0;
    for (int i = 0; i < LANES; i++)
        lane[i] = top;
    for (; j + LANES <= n; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] = x[j + i] > lane[i] ? x[j + i] : lane[i];
    for (int i = 0; i < LANES; i++)
        top = lane[i] > top ? lane[i] : top;
    for (; j < n; j++)
        top = x[j] > top ? x[j] : top;
    return top;
}

CLONES static void row_scale(float *x, int64_t n, float factor) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        x[j] *= factor;
}

void bench_softmax_row(float *x, int64_t n) {
    row_scale(x, n, 1 / row_weigh(x, n, row_top(x, n)));
}

const char *bench_softmax_host(const struct bench_softmax *s, tess_stream stream) {
    (void)stream;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s->rows; i++)
        bench_softmax_row(s->scores + i * s->next, s->columns);
    return NULL;
}
