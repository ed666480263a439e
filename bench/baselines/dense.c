/* Dense attention, heads in turn where their scores do not fit together, and always on the CPU,
 * which may have less memory. */
#include "baselines/dense.h"

#include <math.h>

#include "lab/device/device.h"

static const size_t SCORES_SIZE = (size_t)16 << 30;

static const struct bench_dense_kind kinds[] = {
    {"naive_cpu", "naive_cpu", TESS_CPU, 1, bench_gemm_naive, bench_softmax_naive},
    {"openblas", "dense_openblas", TESS_CPU, 1, bench_gemm_openblas, bench_softmax_host},
    {"naive_gpu", "naive_gpu", TESS_CUDA, 1, bench_gemm_small_tiles, bench_softmax_device},
    {"tiled", "dense_tiled", TESS_CUDA, 1, bench_gemm_tiled, bench_softmax_device},
    {"cublas", "dense_cublas", TESS_CUDA, 0, bench_gemm_cublas, bench_softmax_device},
};

const struct bench_dense_kind *bench_dense_kind(int number) {
    return number < (int)(sizeof kinds / sizeof *kinds) ? &kinds[number] : NULL;
}

const char *bench_dense_refuses(const struct bench_dense_kind *kind, const struct lab_case *c) {
    if (kind->f32_only && c->type != TESS_F32)
        return "f32 only";
    if (c->layout != LAB_BHND)
        return "layout=bhnd only";
    if (lab_case_modifies(c))
        return "no score modifiers";
    if (kind->backend == TESS_CUDA && c->nkv > BENCH_SOFTMAX_COLUMNS)
        return "more than 32768 keys";
    return lab_device_available(kind->backend) ? NULL : "no device";
}

const char *bench_dense_make(struct bench_dense *d, const struct bench_dense_kind *kind,
                             const struct lab_case *c, const tess_arguments *at) {
    const int64_t group = c->h / c->hkv;
    const size_t one = (size_t)group * (size_t)c->n * (size_t)c->nkv * sizeof(float);
    memset(d, 0, sizeof *d);
    d->kind = kind, d->c = c, d->at = at;
    d->at_once = kind->backend == TESS_CUDA && one < SCORES_SIZE
                     ? (int64_t)(SCORES_SIZE / one) * group
                     : group;
    if (d->at_once > c->b * c->h)
        d->at_once = c->b * c->h;
    d->scores = lab_device_alloc(kind->backend, (size_t)(d->at_once / group) * one);
    return d->scores ? NULL : "out of memory for the scores";
}

void bench_dense_free(struct bench_dense *d) {
    if (d->kind)
        lab_device_free(d->kind->backend, d->scores);
    memset(d, 0, sizeof *d);
}

/* The product of each of `count` heads from `first` on; g is that of head 0. Query heads that share
 * a matrix of K or V take it with stride 0. */
static const char *of_heads(const struct bench_dense *d, struct bench_gemm g, int64_t first,
                            int64_t count, tess_stream stream) {
    const int64_t group = d->c->h / d->c->hkv, step = group == 1 ? count : group;
    const size_t size = tess_type_size(g.type), size_c = tess_type_size(g.type_c);
    const int64_t next_b = g.next_b;
    const char *a = g.a, *b = g.b, *why = NULL;
    char *c = g.c;
    g.count = step;
    g.next_b = group == 1 ? next_b : 0;
    for (int64_t x = first; x < first + count && !why; x += step) {
        g.a = a + (size_t)(x * g.next_a) * size;
        g.b = b + (size_t)(x / group * next_b) * size;
        g.c = c + (size_t)(x * g.next_c) * size_c;
        why = d->kind->gemm(&g, stream);
    }
    return why;
}

static const char *run_scores(const struct bench_dense *d, int64_t first, int64_t count,
                              tess_stream stream) {
    const struct lab_case *c = d->c;
    const struct bench_gemm g = {
        .rows = c->n,
        .columns = c->nkv,
        .depth = c->d,
        .b_transposed = 1,
        .a = d->at->q->data,
        .b = d->at->k->data,
        .c = d->scores - first * c->n * c->nkv, /* place where head 0 would be */
        .row_a = c->d,
        .row_b = c->d,
        .row_c = c->nkv,
        .next_a = c->n * c->d,
        .next_b = c->nkv * c->d,
        .next_c = c->n * c->nkv,
        .alpha = (float)(c->scale < 0 || c->scale > 0 ? c->scale : 1 / sqrt((double)c->d)),
        .type = c->type,
        .type_c = TESS_F32,
    };
    return of_heads(d, g, first, count, stream);
}

static const char *run_softmax(const struct bench_dense *d, int64_t first, int64_t count,
                               tess_stream stream) {
    const struct lab_case *c = d->c;
    const struct bench_softmax s = {d->scores, count * c->n, c->nkv, c->nkv, c->type};
    (void)first;
    return d->kind->softmax(&s, stream);
}

static const char *run_values(const struct bench_dense *d, int64_t first, int64_t count,
                              tess_stream stream) {
    const struct lab_case *c = d->c;
    const int64_t row = c->nkv * (int64_t)(sizeof(float) / tess_type_size(c->type));
    const struct bench_gemm g = {
        .rows = c->n,
        .columns = c->dv,
        .depth = c->nkv,
        .a = d->scores - first * c->n * c->nkv,
        .b = d->at->v->data,
        .c = d->at->o->data,
        .row_a = row,
        .row_b = c->dv,
        .row_c = c->dv,
        .next_a = c->n * row,
        .next_b = c->nkv * c->dv,
        .next_c = c->n * c->dv,
        .alpha = 1,
        .type = c->type,
        .type_c = c->type,
    };
    return of_heads(d, g, first, count, stream);
}

const char *bench_dense_run(void *dense, tess_stream stream) {
    static const char *(*const steps[BENCH_DENSE_STEPS])(
        const struct bench_dense *, int64_t, int64_t, tess_stream) = {run_scores, run_softmax,
                                                                      run_values};
    const struct bench_dense *d = dense;
    const int64_t heads = d->c->b * d->c->h;
    const char *why = NULL;
    for (int64_t first = 0; first < heads && !why; first += d->at_once) {
        const int64_t left = heads - first, count = left < d->at_once ? left : d->at_once;
        for (int i = 0; i < BENCH_DENSE_STEPS && !why; i++)
            if (d->steps >> i & 1)
                why = steps[i](d, first, count, stream);
    }
    return why;
}
