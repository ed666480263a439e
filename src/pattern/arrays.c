/* Patterns from arrays of a caller: masks, a byte or a bit for each block, padded indices. */
#include "pattern/build.h"
#include "base/threads.h"

/* Seconds of one thread that it takes to look at an index. */
#define SECONDS_INDEX 0.6e-9

/* First steps of every builder: *pattern = NULL, the shape taken and resolved. */
static tess_status shape_take(struct bcsr *sizes, tess_pattern **pattern,
                              const tess_pattern_shape *given, int64_t default_block,
                              const char *function, tess_error *error) {
    tess_pattern_shape shape;
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    *pattern = NULL;
    const char *wrong =
        given ? struct_take(&shape, sizeof shape, SHAPE_FIRST_SIZE, given) : "is NULL";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "shape", "shape %s", wrong);
    if (!shape.block_q)
        shape.block_q = default_block;
    if (!shape.block_kv)
        shape.block_kv = default_block;
    return build_sizes(sizes, &shape, function, "shape", error);
}

/* Can an array of batch * heads * rows * inner elements exist? */
static int array_fits(const struct bcsr *m, int64_t rows, int64_t inner, size_t size) {
    int64_t n;
    return !__builtin_mul_overflow(m->batch * m->heads, rows, &n) &&
           !__builtin_mul_overflow(n, inner, &n) && !__builtin_mul_overflow(n, (int64_t)size, &n);
}

/* ---- a byte or a bit for each element or block ----------------------------------------------- */

tess_status tess_pattern_from_mask(tess_pattern **pattern, const uint8_t *mask,
                                   const tess_pattern_shape *shape, tess_error *error) {
    static const char function[] = "tess_pattern_from_mask";
    struct bcsr m;
    tess_status status = shape_take(&m, pattern, shape, 64, function, error);
    if (status != TESS_OK)
        return status;
    if (!mask)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "mask", "mask is NULL");
    if (!array_fits(&m, m.n_q, m.n_kv, sizeof *mask))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "shape",
                         "batch * heads * n_q * n_kv bytes do not fit 64 bits");
    struct source source = {.kind = &source_mask, .child = -1, .next = -1, .u.mask = mask};
    source.row_bytes = (double)min_i64(m.block_q, m.n_q) * (double)m.n_kv;
    return pattern_build(pattern, &m, &source, 1, function, error);
}

tess_status tess_pattern_from_blocks(tess_pattern **pattern, const uint8_t *blocks,
                                     const tess_pattern_shape *shape, tess_error *error) {
    static const char function[] = "tess_pattern_from_blocks";
    struct bcsr m;
    tess_status status = shape_take(&m, pattern, shape, 64, function, error);
    if (status != TESS_OK)
        return status;
    if (!blocks)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "blocks", "blocks is NULL");
    if (!array_fits(&m, m.rows, m.cols, sizeof *blocks))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "shape",
                         "a byte for each block does not fit 64 bits");
    struct source source = {.kind = &source_blocks, .child = -1, .next = -1, .u.blocks = blocks};
    source.row_bytes = (double)m.cols;
    return pattern_build(pattern, &m, &source, 1, function, error);
}

tess_status tess_pattern_from_bits(tess_pattern **pattern, const uint64_t *bits,
                                   const tess_pattern_shape *shape, tess_error *error) {
    static const char function[] = "tess_pattern_from_bits";
    struct bcsr m;
    tess_status status = shape_take(&m, pattern, shape, 64, function, error);
    if (status != TESS_OK)
        return status;
    if (!bits)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "bits", "bits is NULL");
    if (!array_fits(&m, m.rows, bcsr_col_words(&m), sizeof *bits))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "shape",
                         "words of a bit for each block do not fit 64 bits");
    struct source source = {.kind = &source_bits, .child = -1, .next = -1, .u.bits = bits};
    source.row_bytes = (double)bcsr_col_words(&m) * sizeof *bits;
    return pattern_build(pattern, &m, &source, 1, function, error);
}

/* ---- padded indices -------------------------------------------------------------------------- */

/* The entries of a block row that are looked at; block rows are numbered over all lists. */
static int64_t padded_count(const struct padded_lists *l, int64_t row) {
    return l->counts ? l->counts[row] : l->capacity;
}

/* The block columns of the block row at hand. */
static int padded_fill(struct build_row *b, const struct source *s, struct cursor *c) {
    const struct padded_lists *l = &s->u.columns.from.padded;
    int64_t row = b->list * b->m->rows + b->row, count = padded_count(l, row);
    const int32_t *index = l->indices + row * l->capacity;
    int32_t *columns = build_scratch(c, count * (int64_t)sizeof *columns);
    if (!columns)
        return -1;
    for (int64_t i = 0; i < count; i++)
        if (index[i] >= 0)
            columns[c->n++] = index[i];
    return columns_sort(b, c);
}

/* Are all counts 0 ... capacity? Their sum goes to *sum. */
static tess_status check_counts(const struct padded_lists *l, const struct bcsr *m, int64_t *sum,
                                const char *function, tess_error *error) {
    int64_t total = m->batch * m->heads * m->rows;
    *sum = 0;
    for (int64_t row = 0; row < total; row++) {
        int64_t count = padded_count(l, row), list = row / m->rows;
        if (count < 0 || count > l->capacity)
            return error_set_list(error, count < 0 ? TESS_FAULT_NEGATIVE : TESS_FAULT_OVERFLOW,
                                  function, "counts", list / m->heads, list % m->heads,
                                  row % m->rows, -1, "count %lld is not 0 ... %lld",
                                  (long long)count, (long long)l->capacity);
        *sum += count;
    }
    return TESS_OK;
}

/* The first entry of a block row that is neither padding nor a block column, or its count. */
static int64_t wrong_entry(const struct padded_lists *l, int64_t row, int64_t cols) {
    const int32_t *index = l->indices + row * l->capacity;
    int64_t count = padded_count(l, row), i = 0;
    while (i < count && index[i] >= -1 && index[i] < cols)
        i++;
    return i;
}

/* Are all entries that are looked at, `sum` of them, padding or block columns? */
static tess_status check_indices(const struct padded_lists *l, const struct bcsr *m, int64_t sum,
                                 const char *function, tess_error *error) {
    int64_t total = m->batch * m->heads * m->rows, row = total;
    const int32_t threads = threads_limit(m->threads);
    const int shared = threads_pay(SECONDS_INDEX * (double)sum);
#pragma omp parallel for num_threads(threads) reduction(min : row) if (shared)
    for (int64_t r = 0; r < total; r++)
        if (wrong_entry(l, r, m->cols) < padded_count(l, r))
            row = min_i64(row, r);
    if (row == total)
        return TESS_OK;
    int64_t list = row / m->rows, position = wrong_entry(l, row, m->cols);
    int32_t index = l->indices[row * l->capacity + position];
    struct words words;
    return error_set_list(error, index < 0 ? TESS_FAULT_NEGATIVE : TESS_FAULT_OUT_OF_RANGE,
                          function, "indices", list / m->heads, list % m->heads, row % m->rows,
                          position, "index %d is not -1 (padding) or %s", index,
                          words_range(&words, 0, m->cols - 1));
}

/* `capacity` is what the function calls it. */
static tess_status from_padded(tess_pattern **pattern, const struct padded_lists *l,
                               const struct bcsr *m, const char *capacity, const char *function,
                               tess_error *error) {
    if (l->capacity < 1 || !array_fits(m, m->rows, l->capacity, sizeof *l->indices))
        return error_set(error, TESS_INVALID_ARGUMENT, function, capacity,
                         "%s is %lld, but must be at least 1 and fit memory", capacity,
                         (long long)l->capacity);
    if (!l->indices)
        return error_set_list(error, TESS_FAULT_NULL, function, "indices", -1, -1, -1, -1,
                              "indices is NULL");
    int64_t sum;
    tess_status status = check_counts(l, m, &sum, function, error);
    if (status == TESS_OK)
        status = check_indices(l, m, sum, function, error);
    if (status != TESS_OK)
        return status;
    struct source source = {.kind = &source_columns, .child = -1, .next = -1};
    source.row_bytes = (double)sum * sizeof *l->indices / (double)(m->batch * m->heads * m->rows);
    source.u.columns.fill = padded_fill;
    source.u.columns.from.padded = *l;
    return pattern_build(pattern, m, &source, 1, function, error);
}

tess_status tess_pattern_from_counts(tess_pattern **pattern, const int32_t *indices,
                                     const int32_t *counts, int64_t capacity,
                                     const tess_pattern_shape *shape, tess_error *error) {
    static const char function[] = "tess_pattern_from_counts";
    struct padded_lists l = {.indices = indices, .counts = counts, .capacity = capacity};
    struct bcsr m;
    tess_status status = shape_take(&m, pattern, shape, 64, function, error);
    if (status != TESS_OK)
        return status;
    return from_padded(pattern, &l, &m, "capacity", function, error);
}

tess_status tess_pattern_from_topk(tess_pattern **pattern, const int32_t *indices, int64_t k,
                                   const tess_pattern_shape *shape, tess_error *error) {
    static const char function[] = "tess_pattern_from_topk";
    struct padded_lists l = {.indices = indices, .counts = NULL, .capacity = k};
    struct bcsr m;
    tess_status status = shape_take(&m, pattern, shape, 1, function, error);
    if (status != TESS_OK)
        return status;
    if (m.block_q != 1 || m.block_kv != 1)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "shape",
                         "blocks are %lldx%lld, but top-k patterns have blocks of 1x1",
                         (long long)m.block_q, (long long)m.block_kv);
    return from_padded(pattern, &l, &m, "k", function, error);
}
