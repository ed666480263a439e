/*
 * Pooled blocks and their scores on the CPU. Memory is what pooling waits for, and scores are few, so both are
 * compiled once, for any processor; sums are double.
 */
#include "cpu.h"
#include "tile/convert.h"
#include "tile/parallel.h"

#include <math.h>
#include <string.h>

#define POOL_DIMS 256  /* dims that are pooled at a time */
#define SCORE_DIMS 256 /* dims that are multiplied at a time */

/* Element `dim` of row n of a head. */
static char *element_at(const struct view *view, int64_t b, int64_t h, int64_t n, int64_t dim) {
    const int64_t at = b * view->stride[0] + h * view->stride[1] + n * view->stride[2] + dim;
    return (char *)view->data + at * (int64_t)tess_type_size(view->type);
}

/* ---- pooling ---- */

/* Rows first ... end - 1 of a head, and where their block stands. */
struct pool_block {
    int64_t b, h, block, first, end;
};

static void block_sum(const struct pool_args *args, const struct pool_block *at, int64_t dim,
                      int64_t n, float *out) {
    double sum[POOL_DIMS] = {0};
    float x[POOL_DIMS];
    for (int64_t row = at->first; row < at->end; row++) {
        cpu_row_to_f32(x, element_at(&args->x, at->b, at->h, row, dim), args->x.type, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += (double)x[i];
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(sum[i] / (double)(at->end - at->first));
}

/* NaN where all are. */
static void block_bounds(const struct pool_args *args, const struct pool_block *at, int64_t dim,
                         int64_t n, float *least, float *most) {
    float x[POOL_DIMS];
    for (int64_t row = at->first; row < at->end; row++) {
        cpu_row_to_f32(x, element_at(&args->x, at->b, at->h, row, dim), args->x.type, n);
        for (int64_t i = 0; i < n; i++) {
            least[i] = row == at->first ? x[i] : fminf(least[i], x[i]);
            most[i] = row == at->first ? x[i] : fmaxf(most[i], x[i]);
        }
    }
}

/* The largest first: a sum of exponentials below 1. */
static void block_lse(const struct pool_args *args, const struct pool_block *at, int64_t dim,
                      int64_t n, float *out) {
    double sum[POOL_DIMS] = {0};
    float x[POOL_DIMS], least[POOL_DIMS], most[POOL_DIMS];
    block_bounds(args, at, dim, n, least, most);
    for (int64_t row = at->first; row < at->end; row++) {
        cpu_row_to_f32(x, element_at(&args->x, at->b, at->h, row, dim), args->x.type, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += isinf(most[i]) ? (double)(isnan(x[i]) ? x[i] : 0)
                                     : exp((double)x[i] - (double)most[i]);
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)((double)most[i] + (isinf(most[i]) ? sum[i] : log(sum[i])));
}

static void block_pool(const struct pool_args *args, const struct pool_block *at) {
    for (int64_t dim = 0; dim < args->d; dim += POOL_DIMS) {
        const int64_t n = args->d - dim < POOL_DIMS ? args->d - dim : POOL_DIMS;
        float out[2][POOL_DIMS];
        if (args->mode == TESS_POOL_MEAN)
            block_sum(args, at, dim, n, out[0]);
        else if (args->mode == TESS_POOL_MIN_MAX)
            block_bounds(args, at, dim, n, out[0], out[1]);
        else
            block_lse(args, at, dim, n, out[0]);
        for (int half = 0; half <= (args->mode == TESS_POOL_MIN_MAX); half++)
            cpu_row_from_f32(
                element_at(&args->pooled, at->b, at->h, at->block, dim + half * args->d), out[half],
                args->pooled.type, n);
    }
}

static void blocks_pool(const void *context, int64_t number, int32_t thread) {
    const struct pool_args *args = context;
    const int64_t head = number / args->blocks, first = number % args->blocks * args->block;
    const int64_t b = head / args->heads, length = pool_length(args->lengths, b, args->n);
    const int64_t begin = args->begins ? fill_most(0, args->begins[b]) : 0;
    const struct pool_block at = {b, head % args->heads, number % args->blocks, first,
                                  fill_least(first + args->block, length)};
    (void)thread;
    if (at.end > first && at.end > begin)
        block_pool(args, &at);
}

tess_status cpu_pool(const struct pool_args *args, tess_error *error) {
    const int64_t blocks = args->batch * args->heads * args->blocks;
    const double each = args->mode == TESS_POOL_LSE ? 8e-9 : 0.5e-9; /* seconds, roughly */
    (void)error;
    cpu_share(threads_limit(0), each * (double)blocks * (double)(args->block * args->d), blocks,
              blocks_pool, args);
    return TESS_OK;
}

/* ---- scores ---- */

/* q times a block's pooled keys or, with bounds, their largest product. */
static double pair_score(const struct score_args *args, const float *q, const float *least,
                         const float *most, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)q[i] * (double)least[i];
        const double y = args->bounds ? (double)q[i] * (double)most[i] : x;
        sum += x > y || isnan(x) ? x : y;
    }
    return sum;
}

/* Scores of a row's columns 0 ... n - 1, of one query head. Adds to what there is. */
static void head_score(const struct score_args *args, int64_t b, int64_t h, int64_t row, int64_t n,
                       float *to) {
    const int64_t h_kv = h / (args->heads_q / args->heads_kv);
    float q[SCORE_DIMS], k[2][SCORE_DIMS];
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t dim = 0; dim < args->d; dim += SCORE_DIMS) {
            const int64_t dims = args->d - dim < SCORE_DIMS ? args->d - dim : SCORE_DIMS;
            cpu_row_to_f32(q, element_at(&args->q, b, h, row, dim), args->q.type, dims);
            for (int half = 0; half <= args->bounds; half++)
                cpu_row_to_f32(k[half], element_at(&args->k, b, h_kv, j, dim + half * args->d),
                               args->k.type, dims);
            sum += pair_score(args, q, k[0], k[args->bounds], dims);
        }
        to[j] += (float)(sum * args->scale);
    }
}

static void rows_score(const void *context, int64_t number, int32_t thread) {
    const struct score_args *args = context;
    const int64_t list = number / args->rows, row = number % args->rows;
    const int64_t b = list / args->heads, each = args->heads_q / args->heads;
    const int64_t length = pool_length(args->lengths, b, args->n_kv);
    const int64_t n = fill_least(args->columns, score_columns(row, args->block_q, args->block_kv,
                                                              args->n_q, length, args->causal));
    float *to = (float *)(void *)element_at(&args->scores, b, list % args->heads, row, 0);
    (void)thread;
    for (int64_t j = 0; j < args->columns; j++)
        to[j] = j < n ? 0 : -INFINITY;
    for (int64_t h = 0; h < each; h++)
        head_score(args, b, list % args->heads * each + h, row, n, to);
}

tess_status cpu_score(const struct score_args *args, tess_error *error) {
    const int64_t rows = args->batch * args->heads * args->rows;
    const double products =
        (double)(args->heads_q / args->heads) * (double)args->columns * (double)args->d;
    (void)error;
    cpu_share(threads_limit(0), 1e-9 * (double)rows * products, rows, rows_score, args);
    return TESS_OK;
}
