/* Patterns of a case by way of the other constructors. The spec's rows or blocks are written down as a
 * mask, lists, indices, bytes or bits, and read back by the library. */
#include "lab/lists/source.h"

#include "lab/fill/rng.h"
#include "lab/lists/listed.h"

#include <stdio.h>
#include <stdlib.h>

enum { STREAM_COUNTS = 99, STREAM_PADDING = 100 };

/* One row of (batch, head) of a wanted shape; a pattern with one list serves all. */
static tess_status spec_row(const tess_pattern *spec, const tess_pattern_info *info, int64_t b,
                            int64_t h, int64_t i, int64_t *keys, int64_t capacity, int64_t *count,
                            tess_error *error) {
    return tess_pattern_row(spec, info->batch == 1 ? 0 : b, info->heads == 1 ? 0 : h, i, keys,
                            capacity, count, error);
}

/* Rows that a mask is written from. */
struct rows {
    const tess_pattern *spec;
    tess_pattern_info info;
    tess_pattern_shape shape;
    int64_t *keys; /* [n_kv] */
};

static tess_status from_mask(tess_pattern **pattern, const struct rows *r, tess_error *error) {
    size_t bytes, cells = (size_t)r->shape.n_q * (size_t)r->shape.n_kv;
    if (__builtin_mul_overflow(cells, (size_t)(r->shape.batch * r->shape.heads), &bytes))
        return TESS_OUT_OF_MEMORY;
    uint8_t *mask = calloc(bytes, 1), *at = mask;
    if (!mask)
        return TESS_OUT_OF_MEMORY;
    tess_status status = TESS_OK;
    for (int64_t b = 0; b < r->shape.batch; b++)
        for (int64_t h = 0; h < r->shape.heads; h++)
            for (int64_t i = 0; i < r->shape.n_q && !status; i++, at += r->shape.n_kv) {
                int64_t count = 0;
                status =
                    spec_row(r->spec, &r->info, b, h, i, r->keys, r->shape.n_kv, &count, error);
                for (int64_t x = 0; x < count; x++)
                    at[r->keys[x]] = (uint8_t)(1 + x % 255); /* any nonzero byte */
            }
    if (!status)
        status = tess_pattern_from_mask(pattern, mask, &r->shape, error);
    free(mask);
    return status;
}

/* The block rows of a spec of whole blocks, numbered over all lists of the wanted shape. */
struct block_rows {
    tess_lists spec;
    tess_pattern_shape shape;
    int64_t rows, cols, total;
};

static const int32_t *block_row(const struct block_rows *r, int64_t number, int64_t *count) {
    int64_t list = number / r->rows, b = list / r->shape.heads, h = list % r->shape.heads;
    list = (r->spec.batch == 1 ? 0 : b) * r->spec.heads + (r->spec.heads == 1 ? 0 : h);
    const int64_t *ptr = r->spec.row_ptr + list * (r->rows + 1) + number % r->rows;
    *count = ptr[1] - ptr[0];
    return r->spec.col_idx + ptr[0];
}

/* Puts a row's columns in places of k that hold -1, in an order that the seed picks; the first, if
 * there is one and room is left, is named twice. */
static void scatter(int32_t *out, int64_t k, const int32_t *cols, int64_t count, uint64_t seed,
                    uint64_t row) {
    for (int64_t x = 0; x < k; x++)
        out[x] = x < count ? cols[x] : x == count && count > 0 ? cols[0] : -1;
    for (int64_t x = k - 1; x > 0; x--) {
        int64_t y = lab_below(seed, STREAM_PADDING + row, (uint64_t)x, x + 1);
        int32_t swap = out[x];
        out[x] = out[y];
        out[y] = swap;
    }
}

/* Top-k indices, or lists with counts, after which stands what is no column. */
static tess_status from_padded(tess_pattern **pattern, const struct block_rows *r,
                               const struct lab_case *c, tess_error *error) {
    int64_t capacity = 2, count;
    for (int64_t row = 0; row < r->total; row++) {
        block_row(r, row, &count);
        capacity = count + 2 > capacity ? count + 2 : capacity;
    }
    int32_t *indices = calloc((size_t)r->total, (size_t)capacity * sizeof *indices);
    int32_t *counts = calloc((size_t)r->total, sizeof *counts);
    tess_status status = TESS_OUT_OF_MEMORY;
    if (indices && counts) {
        for (int64_t row = 0; row < r->total; row++) {
            const int32_t *cols = block_row(r, row, &count);
            int32_t *out = indices + row * capacity;
            int64_t used = capacity;
            if (c->source == LAB_SOURCE_COUNTS)
                used = count + lab_below(c->seed, STREAM_COUNTS, (uint64_t)row, 3);
            scatter(out, used, cols, count, c->seed, (uint64_t)row);
            for (int64_t x = used; x < capacity; x++)
                out[x] = INT32_MAX;
            counts[row] = (int32_t)used;
        }
        status =
            c->source == LAB_SOURCE_COUNTS
                ? tess_pattern_from_counts(pattern, indices, counts, capacity, &r->shape, error)
                : tess_pattern_from_topk(pattern, indices, capacity, &r->shape, error);
    }
    free(indices);
    free(counts);
    return status;
}

static tess_status from_blocks(tess_pattern **pattern, const struct block_rows *r,
                               tess_error *error) {
    uint8_t *blocks = calloc((size_t)r->total, (size_t)r->cols);
    if (!blocks)
        return TESS_OUT_OF_MEMORY;
    for (int64_t row = 0; row < r->total; row++) {
        int64_t count;
        const int32_t *cols = block_row(r, row, &count);
        for (int64_t x = 0; x < count; x++)
            blocks[row * r->cols + cols[x]] = (uint8_t)(1 + x % 255); /* any nonzero byte */
    }
    tess_status status = tess_pattern_from_blocks(pattern, blocks, &r->shape, error);
    free(blocks);
    return status;
}

static tess_status from_bits(tess_pattern **pattern, const struct block_rows *r,
                             tess_error *error) {
    int64_t words = (r->cols + 63) / 64;
    uint64_t *bits = calloc((size_t)r->total, (size_t)words * sizeof *bits);
    if (!bits)
        return TESS_OUT_OF_MEMORY;
    for (int64_t row = 0; row < r->total; row++) {
        int64_t count;
        const int32_t *cols = block_row(r, row, &count);
        for (int64_t x = 0; x < count; x++)
            bits[row * words + cols[x] / 64] |= UINT64_C(1) << cols[x] % 64;
        if (r->cols % 64) /* no columns */
            bits[row * words + words - 1] |= UINT64_MAX << r->cols % 64;
    }
    tess_status status = tess_pattern_from_bits(pattern, bits, &r->shape, error);
    free(bits);
    return status;
}

static tess_status from_lists(tess_pattern **pattern, const tess_pattern *spec, tess_error *error) {
    tess_lists lists = tess_lists_init();
    tess_status status = tess_pattern_lists(spec, &lists, error);
    return status ? status : tess_pattern_from_lists(pattern, &lists, error);
}

/* The keys that the first set of the case's device lists has. */
static tess_status listed_spec(const struct lab_case *c, tess_pattern **pattern,
                               tess_error *error) {
    struct lab_listed l;
    *pattern = NULL;
    const tess_status status =
        lab_listed_make(&l, c, 0) ? TESS_OUT_OF_MEMORY : lab_listed_pattern(&l, pattern, error);
    lab_listed_free(&l);
    return status;
}

tess_status lab_case_spec(const struct lab_case *c, tess_pattern **pattern, tess_error *error) {
    tess_pattern_shape shape = lab_case_shape(c);
    if (c->topk || c->select[0])
        return listed_spec(c, pattern, error);
    return tess_pattern_from_spec(pattern, c->pattern, &shape, error);
}

/* Whether a spec's tiles are all full. */
static int full_tiles_only(const tess_pattern_info *info) {
    return info->band_tiles == 0 && info->bitmask_tiles == 0;
}

int lab_case_whole_blocks(const struct lab_case *c) {
    tess_pattern *spec;
    tess_pattern_info info = tess_pattern_info_init();
    int whole = !lab_case_spec(c, &spec, NULL) && !tess_pattern_describe(spec, &info, NULL) &&
                full_tiles_only(&info);
    tess_pattern_free(spec);
    return whole;
}

/* By the sources that take whole blocks; top-k indices are of blocks of 1x1. */
static tess_status from_whole_blocks(tess_pattern **pattern, const tess_pattern *spec,
                                     const tess_pattern_info *info, const struct lab_case *c,
                                     tess_error *error) {
    struct block_rows r = {.spec = tess_lists_init(), .shape = lab_case_shape(c)};
    r.rows = (c->n + c->block_q - 1) / c->block_q;
    r.cols = (c->nkv + c->block_kv - 1) / c->block_kv;
    r.total = r.shape.batch * r.shape.heads * r.rows;
    if (!full_tiles_only(info)) {
        if (error)
            snprintf(error->message, sizeof error->message,
                     "this source needs a pattern of whole blocks");
        return TESS_INVALID_ARGUMENT;
    }
    tess_status status = tess_pattern_lists(spec, &r.spec, error);
    if (status)
        return status;
    if (c->source == LAB_SOURCE_BLOCKS)
        return from_blocks(pattern, &r, error);
    if (c->source == LAB_SOURCE_BITS)
        return from_bits(pattern, &r, error);
    return from_padded(pattern, &r, c, error);
}

tess_status lab_case_pattern(const struct lab_case *c, tess_pattern **pattern, tess_error *error) {
    tess_pattern *spec;
    *pattern = NULL;
    tess_status status = lab_case_spec(c, &spec, error);
    if (status || c->source == LAB_SOURCE_SPEC) { /* or lists on the device */
        *pattern = spec;
        return status;
    }
    struct rows r = {.spec = spec, .info = tess_pattern_info_init(), .shape = lab_case_shape(c)};
    r.keys = malloc(sizeof *r.keys * (size_t)c->nkv);
    status = r.keys ? tess_pattern_describe(spec, &r.info, error) : TESS_OUT_OF_MEMORY;
    if (!status && c->source == LAB_SOURCE_MASK)
        status = from_mask(pattern, &r, error);
    else if (!status && c->source == LAB_SOURCE_LISTS)
        status = from_lists(pattern, spec, error);
    else if (!status)
        status = from_whole_blocks(pattern, spec, &r.info, c, error);
    free(r.keys);
    tess_pattern_free(spec);
    return status;
}
