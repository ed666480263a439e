/*
 * Block rows, taken by whichever thread is free. Scores of a block row stand side by side in a strip, one
 * product for each tile. After the softmax of the strip's rows, P of each tile is multiplied with the
 * tile's V and added up in the output.
 */
#include "baselines/blocks.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

const char *bench_blocks_make(struct bench_blocks *b, const struct lab_case *c,
                              const tess_pattern *pattern, const tess_arguments *at) {
    memset(b, 0, sizeof *b);
    b->c = c, b->at = at, b->lists = tess_lists_init();
    if (c->type != TESS_F32)
        return "f32 only";
    if (c->layout != LAB_BHND)
        return "layout=bhnd only";
    if (lab_case_modifies(c))
        return "no score modifiers";
    if (tess_pattern_lists(pattern, &b->lists, NULL) != TESS_OK)
        return "the pattern has no lists";
    const tess_lists *l = &b->lists;
    if (l->n_bands || l->n_bitmasks || l->n_q % l->block_q || l->n_kv % l->block_kv)
        return "whole and full tiles only";
    const char *why = bench_openblas_load(&b->openblas);
    if (why)
        return why;
    const int64_t rows = l->n_q / l->block_q;
    int64_t most = 0; /* tiles of a block row */
    for (int64_t i = 0; i < l->batch * l->heads * (rows + 1); i++) {
        const int64_t tiles = i % (rows + 1) < rows ? l->row_ptr[i + 1] - l->row_ptr[i] : 0;
        most = tiles > most ? tiles : most;
    }
    b->threads = c->threads > 0 ? (int)c->threads : omp_get_max_threads();
    b->row = most * l->block_kv;
    b->strip = l->block_q * b->row;
    b->strips = malloc((size_t)b->threads * (size_t)b->strip * sizeof *b->strips + 1);
    return b->strips ? NULL : "out of memory for the scores";
}

void bench_blocks_free(struct bench_blocks *b) {
    free(b->strips);
    memset(b, 0, sizeof *b);
}

/* One block row of one head. */
static void block_row(const struct bench_blocks *b, int64_t head, int64_t number, float *strip) {
    const struct lab_case *c = b->c;
    const tess_lists *l = &b->lists;
    const int64_t rows = l->n_q / l->block_q, batch = head / c->h, h = head % c->h;
    const int64_t list = (l->batch == 1 ? 0 : batch) * l->heads + h / (c->h / l->heads);
    const int64_t kv = batch * c->hkv + h / (c->h / c->hkv);
    const int64_t *ptr = l->row_ptr + list * (rows + 1) + number;
    const int64_t first = head * l->n_q + number * l->block_q;
    const int bq = (int)l->block_q, bk = (int)l->block_kv, d = (int)c->d, dv = (int)c->dv;
    const float scale = (float)(c->scale < 0 || c->scale > 0 ? c->scale : 1 / sqrt((double)c->d));
    const float *q = (const float *)b->at->q->data + first * d;
    float *o = (float *)b->at->o->data + first * dv;
    for (int64_t e = ptr[0]; e < ptr[1]; e++)
        b->openblas.sgemm(BLAS_ROW_MAJOR, BLAS_AS_IT_IS, BLAS_TRANSPOSED, bq, bk, d, scale, q, d,
                          (const float *)b->at->k->data +
                              (kv * l->n_kv + l->col_idx[e] * l->block_kv) * d,
                          d, 0, strip + (e - ptr[0]) * bk, (int)b->row);
    for (int r = 0; r < bq; r++)
        bench_softmax_row(strip + r * b->row, (ptr[1] - ptr[0]) * bk);
    for (int64_t e = ptr[0]; e < ptr[1]; e++)
        b->openblas.sgemm(BLAS_ROW_MAJOR, BLAS_AS_IT_IS, BLAS_AS_IT_IS, bq, dv, bk, 1,
                          strip + (e - ptr[0]) * bk, (int)b->row,
                          (const float *)b->at->v->data +
                              (kv * l->n_kv + l->col_idx[e] * l->block_kv) * dv,
                          dv, e > ptr[0], o, dv);
    if (ptr[0] == ptr[1])
        memset(o, 0, (size_t)(l->block_q * dv) * sizeof *o);
}

const char *bench_blocks_run(void *blocks, tess_stream stream) {
    const struct bench_blocks *b = blocks;
    const int64_t rows = b->lists.n_q / b->lists.block_q, heads = b->c->b * b->c->h;
    (void)stream;
    b->openblas.set_threads(1); /* each product is one thread's */
#pragma omp parallel for num_threads(b->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < heads * rows; i++)
        block_row(b, i / rows, i % rows, b->strips + omp_get_thread_num() * b->strip);
    b->openblas.set_threads(omp_get_max_threads());
    return NULL;
}
