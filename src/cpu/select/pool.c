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

/* Rows and columns that are multiplied at a time: each pooled row is converted once for as many of the other side. */
#define SCORE_BLOCK 16

/* Operands and sums of one thread; k has its second half with bounds. */
struct score_block {
    float q[SCORE_BLOCK][SCORE_DIMS], k[2][SCORE_BLOCK][SCORE_DIMS];
    double sum[SCORE_BLOCK][SCORE_BLOCK];
};

/* q times a block's pooled keys; dims are a multiple of SCORE_SUMS. */
#define SCORE_SUMS 4
static double pair_score(const float *q, const float *k, int64_t dims) {
    double sum[SCORE_SUMS] = {0};
    for (int64_t i = 0; i < dims; i += SCORE_SUMS)
        for (int j = 0; j < SCORE_SUMS; j++)
            sum[j] += (double)q[i + j] * (double)k[i + j];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* With bounds: their largest product. */
static double pair_bound(const float *q, const float *least, const float *most, int64_t dims) {
    double sum = 0;
    for (int64_t i = 0; i < dims; i++) {
        const double x = (double)q[i] * (double)least[i], y = (double)q[i] * (double)most[i];
        sum += x > y || isnan(x) ? x : y;
    }
    return sum;
}

/* Dims of n rows of a head as f32, zeros up to a multiple of SCORE_SUMS. */
static void score_load(float to[][SCORE_DIMS], const struct view *view, const int64_t at[4],
                       int64_t n, int64_t dims) {
    for (int64_t r = 0; r < n; r++) {
        cpu_row_to_f32(to[r], element_at(view, at[0], at[1], at[2] + r, at[3]), view->type, dims);
        for (int64_t i = dims; i % SCORE_SUMS; i++)
            to[r][i] = 0;
    }
}

/* Sums of rows x columns of one query head. */
static void head_score(const struct score_args *args, struct score_block *s, const int64_t at[4],
                       int64_t rows, int64_t columns) {
    const int64_t b = at[0], h = at[1], h_kv = h / (args->heads_q / args->heads_kv);
    memset(s->sum, 0, sizeof s->sum);
    for (int64_t dim = 0; dim < args->d; dim += SCORE_DIMS) {
        const int64_t dims = args->d - dim < SCORE_DIMS ? args->d - dim : SCORE_DIMS;
        const int64_t whole = (dims + SCORE_SUMS - 1) / SCORE_SUMS * SCORE_SUMS;
        score_load(s->q, &args->q, (const int64_t[]){b, h, at[2], dim}, rows, dims);
        for (int half = 0; half <= args->bounds; half++)
            score_load(s->k[half], &args->k,
                       (const int64_t[]){b, h_kv, at[3], dim + half * args->d}, columns, dims);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++)
                s->sum[r][c] += args->bounds ? pair_bound(s->q[r], s->k[0][c], s->k[1][c], dims)
                                             : pair_score(s->q[r], s->k[0][c], whole);
    }
}

static int64_t score_blocks(int64_t n) {
    return (n + SCORE_BLOCK - 1) / SCORE_BLOCK;
}

static void block_score(const void *context, int64_t number, int32_t thread) {
    const struct score_args *args = context;
    const int64_t across = score_blocks(args->columns), down = score_blocks(args->rows);
    const int64_t column = number % across * SCORE_BLOCK, list = number / across / down;
    const int64_t row = number / across % down * SCORE_BLOCK;
    const int64_t b = list / args->heads, each = args->heads_q / args->heads;
    const int64_t rows = fill_least(SCORE_BLOCK, args->rows - row);
    const int64_t columns = fill_least(SCORE_BLOCK, args->columns - column);
    const int64_t length = pool_length(args->lengths, b, args->n_kv);
    int64_t n[SCORE_BLOCK], most = 0; /* columns of a row that have a score */
    float *to[SCORE_BLOCK];
    struct score_block s;
    (void)thread;
    for (int64_t r = 0; r < rows; r++) {
        n[r] =
            score_columns(row + r, args->block_q, args->block_kv, args->n_q, length, args->causal);
        n[r] = fill_most(0, fill_least(columns, n[r] - column));
        most = fill_most(most, n[r]);
        to[r] = (float *)(void *)element_at(&args->scores, b, list % args->heads, row + r, column);
        for (int64_t c = 0; c < columns; c++)
            to[r][c] = c < n[r] ? 0 : -INFINITY;
    }
    for (int64_t h = list % args->heads * each, end = h + each; h < end && most; h++) {
        head_score(args, &s, (const int64_t[]){b, h, row, column}, rows, most);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < n[r]; c++)
                to[r][c] += (float)(s.sum[r][c] * args->scale);
    }
}

tess_status cpu_score(const struct score_args *args, tess_error *error) {
    const int64_t lists = args->batch * args->heads;
    const double products = (double)args->rows * (double)args->columns * (double)args->d;
    (void)error;
    cpu_share(threads_limit(0), 0.5e-9 * (double)(args->batch * args->heads_q) * products,
              lists * score_blocks(args->rows) * score_blocks(args->columns), block_score, args);
    return TESS_OK;
}
