/* Tensors of an MLP's case. */
#include "lab/run/mlp.h"

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

#include <math.h>
#include <stdlib.h>

enum { STREAM_BIAS = 220, STREAM_BIAS_OUT, STREAM_CACHE };

static int bias_make(struct lab_tensor *bias, const struct lab_case *c, int64_t n,
                     uint64_t stream) {
    const tess_type type = c->biases & LAB_BIAS_F32 ? TESS_F32 : c->type;
    if (lab_tensor_make(bias, type, (const int64_t[4]){1, 1, 1, n}, LAB_BHND,
                        (int64_t)tess_type_size(type)))
        return -1;
    for (int64_t i = 0; i < n; i++)
        lab_put(bias->view.data, type, i, lab_normal(c->seed, stream, (uint64_t)i));
    return 0;
}

static int cache_make(struct lab_tensor *cache, const struct lab_case *c) {
    const int64_t size[4] = {c->b, 1, c->nkv, c->n};
    return lab_tensor_make(cache, c->type, size, c->layout, c->align);
}

/* Values where a query lists the column; elsewhere the canary stays, a NaN. */
static int cache_fill(const struct lab_tensor *cache, const struct lab_case *c,
                      const tess_pattern *pattern) {
    int64_t *columns = malloc((size_t)c->nkv * sizeof *columns), n = 0;
    int failed = !columns;
    for (int64_t row = 0; row < c->b * c->n && !failed; row++) {
        const int64_t b = row / c->n, i = row % c->n;
        failed = tess_pattern_row(pattern, b, 0, i, columns, c->nkv, &n, NULL) != TESS_OK;
        for (int64_t j = 0; j < n && !failed; j++)
            lab_put(cache->view.data, c->type, lab_row(&cache->view, b, 0, columns[j]) + i,
                    lab_normal(c->seed, STREAM_CACHE, (uint64_t)(row * c->nkv + columns[j])));
    }
    free(columns);
    return failed;
}

int lab_mlp_make(struct lab_mlp *mlp, const struct lab_case *c, const tess_pattern *pattern) {
    memset(mlp, 0, sizeof *mlp);
    if (c->operation != TESS_MLP)
        return 0;
    if ((c->biases & LAB_BIAS_HIDDEN && bias_make(&mlp->bias, c, c->nkv, STREAM_BIAS)) ||
        (c->biases & LAB_BIAS_OUT && bias_make(&mlp->bias_out, c, c->dv, STREAM_BIAS_OUT)))
        return -1;
    if (c->cache == LAB_CACHE_NONE)
        return 0;
    if (cache_make(&mlp->cache, c) || cache_make(&mlp->before, c))
        return -1;
    return c->cache == LAB_CACHE_DELTA ? cache_fill(&mlp->before, c, pattern) : 0;
}

void lab_mlp_free(struct lab_mlp *mlp) {
    struct lab_tensor *const all[] = {&mlp->bias, &mlp->bias_out, &mlp->cache, &mlp->before};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        lab_tensor_free(all[t]);
    memset(mlp, 0, sizeof *mlp);
}

void lab_mlp_reset(const struct lab_mlp *mlp) {
    if (mlp->cache.buffer.base)
        memcpy(mlp->cache.buffer.data, mlp->before.buffer.data, mlp->cache.buffer.size);
}
