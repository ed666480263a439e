/* Patterns of a case by way of the other constructors: the spec's rows, written down as a mask, as
 * top-k indices or as block lists, and read back by the library. */
#include "lab/case.h"
#include "lab/rng.h"

#include <stdlib.h>

enum { STREAM_PADDING = 100 };

/* One row of (batch, head) of a wanted shape; a pattern with one list serves all. */
static tess_status spec_row(const tess_pattern *spec, const tess_pattern_info *info, int64_t b,
                            int64_t h, int64_t i, int64_t *keys, int64_t capacity, int64_t *count,
                            tess_error *error) {
    return tess_pattern_row(spec, info->batch == 1 ? 0 : b, info->heads == 1 ? 0 : h, i, keys,
                            capacity, count, error);
}

/* What the two writers below share. */
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

static tess_status longest_row(const struct rows *r, int64_t *longest, tess_error *error) {
    tess_status status = TESS_OK;
    *longest = 0;
    for (int64_t b = 0; b < r->info.batch; b++)
        for (int64_t h = 0; h < r->info.heads; h++)
            for (int64_t i = 0; i < r->shape.n_q && !status; i++) {
                int64_t count = 0;
                status = tess_pattern_row(r->spec, b, h, i, NULL, 0, &count, error);
                *longest = count > *longest ? count : *longest;
            }
    return status;
}

/* Puts a row's keys in places of k that hold -1, in an order that the seed picks; the first key, if
 * there is one and room is left, is named twice. */
static void scatter(int32_t *out, int64_t k, const int64_t *keys, int64_t count, uint64_t seed,
                    uint64_t row) {
    for (int64_t x = 0; x < k; x++)
        out[x] = x < count ? (int32_t)keys[x] : x == count && count > 0 ? (int32_t)keys[0] : -1;
    for (int64_t x = k - 1; x > 0; x--) {
        int64_t y = lab_below(seed, STREAM_PADDING + row, (uint64_t)x, x + 1);
        int32_t swap = out[x];
        out[x] = out[y];
        out[y] = swap;
    }
}

static tess_status from_topk(tess_pattern **pattern, const struct rows *r, uint64_t seed,
                             tess_error *error) {
    int64_t longest, rows = r->shape.batch * r->shape.heads * r->shape.n_q;
    tess_status status = longest_row(r, &longest, error);
    if (status)
        return status;
    int64_t k = longest + 2;
    int32_t *indices = calloc((size_t)rows * (size_t)k, sizeof *indices), *at = indices;
    if (!indices)
        return TESS_OUT_OF_MEMORY;
    uint64_t row = 0;
    for (int64_t b = 0; b < r->shape.batch; b++)
        for (int64_t h = 0; h < r->shape.heads; h++)
            for (int64_t i = 0; i < r->shape.n_q && !status; i++, at += k) {
                int64_t count = 0;
                status =
                    spec_row(r->spec, &r->info, b, h, i, r->keys, r->shape.n_kv, &count, error);
                scatter(at, k, r->keys, count, seed, row++);
            }
    if (!status)
        status = tess_pattern_from_topk(pattern, indices, k, &r->shape, error);
    free(indices);
    return status;
}

static tess_status from_lists(tess_pattern **pattern, const tess_pattern *spec, tess_error *error) {
    tess_lists lists = tess_lists_init();
    tess_status status = tess_pattern_lists(spec, &lists, error);
    return status ? status : tess_pattern_from_lists(pattern, &lists, error);
}

tess_status lab_case_pattern(const struct lab_case *c, tess_pattern **pattern, tess_error *error) {
    tess_pattern *spec;
    *pattern = NULL;
    tess_status status = lab_case_spec(c, &spec, error);
    if (status || c->source == LAB_SOURCE_SPEC) {
        *pattern = spec;
        return status;
    }
    struct rows r = {.spec = spec, .info = tess_pattern_info_init(), .shape = lab_case_shape(c)};
    r.keys = malloc(sizeof *r.keys * (size_t)c->nkv);
    status = r.keys ? tess_pattern_describe(spec, &r.info, error) : TESS_OUT_OF_MEMORY;
    if (!status && c->source == LAB_SOURCE_MASK)
        status = from_mask(pattern, &r, error);
    else if (!status && c->source == LAB_SOURCE_TOPK)
        status = from_topk(pattern, &r, c->seed, error);
    else if (!status)
        status = from_lists(pattern, spec, error);
    free(r.keys);
    tess_pattern_free(spec);
    return status;
}
