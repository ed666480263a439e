/*
 * Merging partial results on the CPU, row by row: the largest lse first, then the weights of the parts
 * and their sums, in double. Taking a part out again, in f32. Memory is what both wait for, so they are
 * compiled once, for any processor.
 */
#include "cpu.h"
#include "plan/unmerge_rules.h"
#include "tile/convert.h"
#include "tile/parallel.h"

#include <math.h>

#define MERGE_ROWS 64     /* rows that a thread takes at a time */
#define MERGE_COLUMNS 256 /* columns that are summed at a time */

struct merge_place {
    int64_t b, h, n;
};

static void *row_of(const tess_tensor *t, const struct merge_place *at) {
    const int64_t first =
        at->b * t->stride[0] + at->h * t->stride[1] + at->n * t->stride[2]; /* in elements */
    return (char *)t->data + first * (int64_t)tess_type_size(t->type);
}

static float lse_of(const struct merge_args *args, int64_t part, const struct merge_place *at) {
    return *(const float *)row_of(args->lse[part], at);
}

/* Columns first ... first + n - 1 of a row: the weights' sum, by which what is stored was divided. An
 * empty part has no weight, and is not read. */
static double columns_merge(const struct merge_args *args, const struct merge_place *at, double top,
                            int64_t first, int64_t n) {
    const tess_tensor *out = args->o_out;
    const size_t size = tess_type_size(args->o[0]->type);
    double l = 0, sum[MERGE_COLUMNS];
    float x[MERGE_COLUMNS];
    for (int64_t i = 0; i < n; i++)
        sum[i] = 0;
    for (int64_t part = 0; part < args->parts; part++) {
        const float lse = lse_of(args, part, at);
        if (lse == -INFINITY)
            continue;
        const double weight = exp((double)lse - top);
        const char *row = row_of(args->o[part], at);
        cpu_row_to_f32(x, row + (size_t)first * size, args->o[part]->type, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += weight * (double)x[i];
        l += weight;
    }
    const double factor = l == 0 ? 0 : 1 / l;
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(sum[i] * factor);
    char *row = row_of(out, at);
    cpu_row_from_f32(row + (size_t)first * tess_type_size(out->type), x, out->type, n);
    return l;
}

/* lse_out may stand where an lse does, and is written last. */
static void row_merge(const struct merge_args *args, const struct merge_place *at) {
    const int64_t d = args->o_out->size[3];
    double top = -INFINITY, l = 0;
    for (int64_t part = 0; part < args->parts; part++) {
        const double lse = lse_of(args, part, at);
        top = lse > top ? lse : top;
    }
    for (int64_t first = 0; first < d; first += MERGE_COLUMNS)
        l = columns_merge(args, at, top, first,
                          d - first < MERGE_COLUMNS ? d - first : MERGE_COLUMNS);
    if (args->lse_out)
        *(float *)row_of(args->lse_out, at) = l == 0 ? -INFINITY : (float)(top + log(l));
}

/* lse_out may stand where an lse does, and is written last. */
static void row_unmerge(const struct merge_args *args, const struct merge_place *at) {
    const tess_tensor *out = args->o_out;
    const tess_type type = args->o[0]->type;
    const int64_t d = out->size[3], size = (int64_t)tess_type_size(type);
    const struct unmerge_row row = unmerge_row_of(lse_of(args, 0, at), lse_of(args, 1, at));
    const char *const whole = row_of(args->o[0], at), *const kept = row_of(args->o[1], at);
    char *const rest = row_of(out, at);
    float x[MERGE_COLUMNS], y[MERGE_COLUMNS];
    for (int64_t first = 0; first < d; first += MERGE_COLUMNS) {
        const int64_t n = d - first < MERGE_COLUMNS ? d - first : MERGE_COLUMNS;
        cpu_row_to_f32(x, whole + first * size, type, n);
        cpu_row_to_f32(y, kept + first * size, type, n);
        for (int64_t i = 0; i < n; i++)
            x[i] = unmerge_value(&row, x[i], y[i]);
        cpu_row_from_f32(rest + first * (int64_t)tess_type_size(out->type), x, out->type, n);
    }
    if (args->lse_out)
        *(float *)row_of(args->lse_out, at) = row.lse;
}

/* ---- all rows ---- */

struct merge_job {
    const struct merge_args *args;
    void (*row)(const struct merge_args *args, const struct merge_place *at);
};

static void rows_run(const void *context, int64_t number, int32_t thread) {
    const struct merge_job *job = context;
    const int64_t *size = job->args->o_out->size, rows = size[0] * size[1] * size[2];
    const int64_t first = number * MERGE_ROWS;
    (void)thread;
    for (int64_t r = first; r < rows && r < first + MERGE_ROWS; r++)
        job->row(job->args,
                 &(struct merge_place){r / size[2] / size[1], r / size[2] % size[1], r % size[2]});
}

/* Seconds as docs/design/cpu.md, "Merging", has them. */
static tess_status rows_share(const struct merge_job *job) {
    const struct merge_args *args = job->args;
    const int64_t *size = args->o_out->size, rows = size[0] * size[1] * size[2];
    const double seconds = (double)rows * (double)args->parts * (25e-9 + 1e-9 * (double)size[3]);
    cpu_share(threads_limit(0), seconds, (rows + MERGE_ROWS - 1) / MERGE_ROWS, rows_run, job);
    return TESS_OK;
}

tess_status cpu_merge(const struct merge_args *args, tess_error *error) {
    (void)error;
    return rows_share(&(struct merge_job){args, row_merge});
}

tess_status cpu_unmerge(const struct merge_args *args, tess_error *error) {
    (void)error;
    return rows_share(&(struct merge_job){args, row_unmerge});
}
