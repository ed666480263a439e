/* Pooled blocks, their scores, and columns on CUDA: a launch each. */
#include "host/pool.h"

#include "base/status.h"
#include "host/launch.h"

static tess_status answered(cudaError_t code, const char *function, const char *launch,
                            tess_error *error) {
    return code == cudaSuccess ? TESS_OK : cuda_failed(error, code, function, NULL, launch);
}

/* Whether rows of so many elements begin at multiples of `bytes` and are whole pieces of as many. */
static bool rows_whole(const struct view *view, int64_t d, int64_t bytes) {
    const int64_t size = (int64_t)tess_type_size(view->type);
    bool whole = d * size % bytes == 0 && (uintptr_t)view->data % (uintptr_t)bytes == 0;
    for (int i = 0; i < 3; i++)
        whole = whole && view->stride[i] * size % bytes == 0;
    return whole;
}

tess_status cuda_pool_run(const struct pool_args *args, tess_error *error) {
    const struct pool_params p = {.x = rows_view_of(&args->x),
                                  .pooled = rows_view_of(&args->pooled),
                                  .lengths = args->lengths,
                                  .begins = args->begins,
                                  .count = args->batch * args->heads * args->blocks,
                                  .heads = (int32_t)args->heads,
                                  .n = (int32_t)args->n,
                                  .d = (int32_t)args->d,
                                  .block = (int32_t)args->block,
                                  .blocks = (int32_t)args->blocks,
                                  .mode = args->mode,
                                  .type = args->pooled.type,
                                  .vector = rows_whole(&args->x, args->d, 16)};
    return answered(cuda_pool(&p, args->x.type, args->stream), "tess_pool", "cuda_pool", error);
}

tess_status cuda_score_run(const struct score_args *args, tess_error *error) {
    const struct score_params p = {.q = rows_view_of(&args->q),
                                   .k = rows_view_of(&args->k),
                                   .scores = rows_view_of(&args->scores),
                                   .lengths = args->lengths,
                                   .lists = args->batch * args->heads,
                                   .heads_q = (int32_t)args->heads_q,
                                   .heads_kv = (int32_t)args->heads_kv,
                                   .heads = (int32_t)args->heads,
                                   .rows = (int32_t)args->rows,
                                   .columns = (int32_t)args->columns,
                                   .d = (int32_t)args->d,
                                   .block_q = (int32_t)args->block_q,
                                   .block_kv = (int32_t)args->block_kv,
                                   .n_q = (int32_t)args->n_q,
                                   .n_kv = (int32_t)args->n_kv,
                                   .bounds = args->bounds,
                                   .causal = args->causal,
                                   .scale = (float)args->scale,
                                   .vector = rows_whole(&args->q, args->d, 16) &&
                                             rows_whole(&args->k, args->d, 16),
                                   .even = rows_whole(&args->scores, args->columns, 8)};
    const bool pairs = args->q.type != TESS_F32 && !args->bounds &&
                       rows_whole(&args->q, args->d, 4) && rows_whole(&args->k, args->d, 4);
    return answered(cuda_score(&p, args->q.type, pairs, args->stream), "tess_pool_score",
                    "cuda_score", error);
}

/* Rows of bytes that begin at multiples of 16 and end there. */
static bool bytes_whole(const tess_columns *c, int64_t columns) {
    return !c->bytes || (columns % 16 == 0 && (uintptr_t)c->bytes % 16 == 0);
}

tess_status cuda_columns_run(const struct columns_args *args, tess_error *error) {
    const int64_t columns = args->from.columns;
    const int lists = args->to.indices || args->to.counts;
    const struct columns_params p = {
        .from = args->from,
        .to = args->to,
        .words = args->words,
        .chunks = lists ? 1 : (columns + COLUMNS_CHUNK - 1) / COLUMNS_CHUNK,
        .whole = bytes_whole(&args->from, columns) && bytes_whole(&args->to, columns)};
    return answered(cuda_columns(&p, args->stream), "tess_columns_convert", "cuda_columns", error);
}
