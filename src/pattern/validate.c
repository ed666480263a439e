/*
 * Block lists that a caller made: every rule of tess_lists (tessera.h) is checked before anything
 * is built from them. The first fault, in reading order, is the one reported.
 */
#include "pattern/build.h"

static const char from_lists[] = "tess_pattern_from_lists";

static const char *ordinal_rule(tess_list_fault fault) {
    return fault == TESS_FAULT_DUPLICATE ? "equals the one before it"
                                         : "is less than the one before it";
}

static tess_status check_counts(const tess_lists *l, const struct bcsr *m, tess_error *error) {
    const struct {
        const char *count_name, *array_name;
        int64_t count;
        const void *array;
    } arrays[] = {
        {"n_tiles", "row_ptr", 1, l->row_ptr},
        {"n_tiles", "col_idx", l->n_tiles, l->col_idx},
        {"n_bands", "band_entry", l->n_bands, l->band_entry},
        {"n_bands", "band", l->n_bands, l->band},
        {"n_bitmasks", "bitmask_entry", l->n_bitmasks, l->bitmask_entry},
        {"n_bitmasks", "bits", l->n_bitmasks, l->bits},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (arrays[i].count < 0)
            return error_set_list(error, TESS_FAULT_NEGATIVE, from_lists, arrays[i].count_name, -1,
                                  -1, -1, -1, "%s is %lld", arrays[i].count_name,
                                  (long long)arrays[i].count);
        if (arrays[i].count > 0 && !arrays[i].array)
            return error_set_list(error, TESS_FAULT_NULL, from_lists, arrays[i].array_name, -1, -1,
                                  -1, -1, "%s is NULL", arrays[i].array_name);
    }
    int64_t bits;
    if (__builtin_mul_overflow(l->n_bitmasks, m->block_q * m->block_kv, &bits) ||
        bits > INT64_MAX - 64)
        return error_set_list(error, TESS_FAULT_OVERFLOW, from_lists, "n_bitmasks", -1, -1, -1, -1,
                              "%lld masks of %lldx%lld bits do not fit 64 bits",
                              (long long)l->n_bitmasks, (long long)m->block_q,
                              (long long)m->block_kv);
    const struct {
        const char *name;
        int64_t count, bytes;
    } sizes[] = {{"n_tiles", l->n_tiles, sizeof *l->col_idx},
                 {"n_bands", l->n_bands, sizeof *l->band_entry},
                 {"n_bitmasks", l->n_bitmasks, sizeof *l->bitmask_entry}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].count > INT64_MAX / sizes[i].bytes)
            return error_set_list(error, TESS_FAULT_OVERFLOW, from_lists, sizes[i].name, -1, -1, -1,
                                  -1, "an array of %s = %lld does not fit 64 bits", sizes[i].name,
                                  (long long)sizes[i].count);
    return TESS_OK;
}

/* row_ptr of one block row: where it ends, being known where it begins. */
static tess_status check_row_end(const tess_lists *l, const struct bcsr *m, int64_t list,
                                 int64_t row, tess_error *error) {
    const int64_t *ptr = l->row_ptr + list * (m->rows + 1) + row;
    tess_list_fault fault = TESS_FAULT_NONE;
    if (ptr[1] < 0)
        fault = TESS_FAULT_NEGATIVE;
    else if (ptr[1] < ptr[0])
        fault = TESS_FAULT_NOT_MONOTONE;
    else if (ptr[1] > l->n_tiles)
        fault = TESS_FAULT_OVERFLOW;
    if (fault == TESS_FAULT_NONE)
        return TESS_OK;
    return error_set_list(error, fault, from_lists, "row_ptr", list / m->heads, list % m->heads,
                          row, -1, "row_ptr goes from %lld to %lld, of %lld tiles",
                          (long long)ptr[0], (long long)ptr[1], (long long)l->n_tiles);
}

/* The columns of one block row. */
static tess_status check_columns(const tess_lists *l, const struct bcsr *m, int64_t list,
                                 int64_t row, tess_error *error) {
    const int64_t *ptr = l->row_ptr + list * (m->rows + 1) + row;
    for (int64_t e = ptr[0]; e < ptr[1]; e++) {
        int32_t col = l->col_idx[e], last = e > ptr[0] ? l->col_idx[e - 1] : -1;
        tess_list_fault fault = TESS_FAULT_NONE;
        if (col < 0)
            fault = TESS_FAULT_NEGATIVE;
        else if (col >= m->cols)
            fault = TESS_FAULT_OUT_OF_RANGE;
        else if (col < last)
            fault = TESS_FAULT_UNSORTED;
        else if (col == last)
            fault = TESS_FAULT_DUPLICATE;
        if (fault == TESS_FAULT_NONE)
            continue;
        int64_t batch = list / m->heads, head = list % m->heads, i = e - ptr[0];
        struct words words;
        if (fault == TESS_FAULT_NEGATIVE || fault == TESS_FAULT_OUT_OF_RANGE)
            return error_set_list(error, fault, from_lists, "col_idx", batch, head, row, i,
                                  "block column %d is not %s", col,
                                  words_range(&words, 0, m->cols - 1));
        return error_set_list(error, fault, from_lists, "col_idx", batch, head, row, i,
                              "block column %d %s (%d)", col, ordinal_rule(fault), last);
    }
    return TESS_OK;
}

static tess_status check_rows(const tess_lists *l, const struct bcsr *m, tess_error *error) {
    int64_t lists = m->batch * m->heads, end = 0;
    for (int64_t list = 0; list < lists; list++) {
        int64_t first = l->row_ptr[list * (m->rows + 1)];
        if (first != end) {
            tess_list_fault fault = first < 0            ? TESS_FAULT_NEGATIVE
                                    : first < end        ? TESS_FAULT_NOT_MONOTONE
                                    : first > l->n_tiles ? TESS_FAULT_OVERFLOW
                                                         : TESS_FAULT_OUT_OF_RANGE;
            return error_set_list(error, fault, from_lists, "row_ptr", list / m->heads,
                                  list % m->heads, 0, -1, "the list begins at %lld instead of %lld",
                                  (long long)first, (long long)end);
        }
        for (int64_t row = 0; row < m->rows; row++) {
            tess_status status = check_row_end(l, m, list, row, error);
            if (status == TESS_OK)
                status = check_columns(l, m, list, row, error);
            if (status != TESS_OK)
                return status;
        }
        end = l->row_ptr[list * (m->rows + 1) + m->rows];
    }
    if (end != l->n_tiles)
        return error_set_list(error, TESS_FAULT_OUT_OF_RANGE, from_lists, "n_tiles", -1, -1, -1, -1,
                              "n_tiles is %lld, but row_ptr ends at %lld", (long long)l->n_tiles,
                              (long long)end);
    return TESS_OK;
}

/* band_entry or bitmask_entry: ascending places in col_idx. `position` is the place in the array.
 */
static tess_status check_entries(const int64_t *entry, int64_t n, int64_t n_tiles, const char *name,
                                 tess_error *error) {
    for (int64_t i = 0; i < n; i++) {
        tess_list_fault fault = TESS_FAULT_NONE;
        if (entry[i] < 0)
            fault = TESS_FAULT_NEGATIVE;
        else if (entry[i] >= n_tiles)
            fault = TESS_FAULT_OUT_OF_RANGE;
        else if (i > 0 && entry[i] < entry[i - 1])
            fault = TESS_FAULT_UNSORTED;
        else if (i > 0 && entry[i] == entry[i - 1])
            fault = TESS_FAULT_DUPLICATE;
        if (fault == TESS_FAULT_NONE)
            continue;
        struct words words;
        if (fault == TESS_FAULT_NEGATIVE || fault == TESS_FAULT_OUT_OF_RANGE)
            return error_set_list(error, fault, from_lists, name, -1, -1, -1, i,
                                  "tile %lld is not %s", (long long)entry[i],
                                  n_tiles ? words_range(&words, 0, n_tiles - 1)
                                          : "there: n_tiles is 0");
        return error_set_list(error, fault, from_lists, name, -1, -1, -1, i, "tile %lld %s (%lld)",
                              (long long)entry[i], ordinal_rule(fault), (long long)entry[i - 1]);
    }
    return TESS_OK;
}

/* No tile is both a band and a bitmask. */
static tess_status check_apart(const tess_lists *l, tess_error *error) {
    int64_t band = 0;
    for (int64_t i = 0; i < l->n_bitmasks; i++) {
        while (band < l->n_bands && l->band_entry[band] < l->bitmask_entry[i])
            band++;
        if (band < l->n_bands && l->band_entry[band] == l->bitmask_entry[i])
            return error_set_list(error, TESS_FAULT_DUPLICATE, from_lists, "bitmask_entry", -1, -1,
                                  -1, i, "tile %lld is also in band_entry",
                                  (long long)l->bitmask_entry[i]);
    }
    return TESS_OK;
}

tess_status tess_pattern_from_lists(tess_pattern **pattern, const tess_lists *lists,
                                    tess_error *error) {
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, from_lists, "pattern", "pattern is NULL");
    *pattern = NULL;
    tess_lists l;
    const char *wrong = lists ? struct_take(&l, sizeof l, LISTS_FIRST_SIZE, lists) : "is NULL";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, from_lists, "lists", "lists %s", wrong);
    if (!l.n_kv || !l.block_q || !l.block_kv)
        return error_set(error, TESS_INVALID_ARGUMENT, from_lists, "lists",
                         "n_kv, block_q and block_kv must be given: they say what the arrays mean");
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = l.n_q, shape.n_kv = l.n_kv;
    shape.block_q = l.block_q, shape.block_kv = l.block_kv;
    shape.batch = l.batch, shape.heads = l.heads;
    shape.threads = l.threads;
    struct bcsr sizes, given;
    tess_status status = build_sizes(&sizes, &shape, from_lists, "lists", error);
    if (status == TESS_OK)
        status = check_counts(&l, &sizes, error);
    if (status == TESS_OK)
        status = check_rows(&l, &sizes, error);
    if (status == TESS_OK)
        status = check_entries(l.band_entry, l.n_bands, l.n_tiles, "band_entry", error);
    if (status == TESS_OK)
        status = check_entries(l.bitmask_entry, l.n_bitmasks, l.n_tiles, "bitmask_entry", error);
    if (status == TESS_OK)
        status = check_apart(&l, error);
    if (status != TESS_OK)
        return status;
    /* The arrays are only read; the engine copies them tile by tile, each in its simplest kind. */
    given = sizes;
    given.n_tiles = l.n_tiles, given.n_bands = l.n_bands, given.n_bitmasks = l.n_bitmasks;
    given.row_ptr = (int64_t *)(uintptr_t)l.row_ptr;
    given.col_idx = (int32_t *)(uintptr_t)l.col_idx;
    given.band_entry = (int64_t *)(uintptr_t)l.band_entry;
    given.band = (int32_t *)(uintptr_t)l.band;
    given.bitmask_entry = (int64_t *)(uintptr_t)l.bitmask_entry;
    given.bits = (uint64_t *)(uintptr_t)l.bits;
    struct source source = {.kind = &source_pattern, .child = -1, .next = -1, .u.pattern = &given};
    return pattern_build(pattern, &sizes, &source, 1, from_lists, error);
}
