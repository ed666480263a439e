/* Patterns: the walk over tiles, set operations, transposition, and what a pattern tells. */
#include "pattern/pattern.h"

#include "pattern/build.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

/* The first place in ascending a[n] that holds at least v. */
static int64_t lower_bound(const int64_t *a, int64_t n, int64_t v) {
    int64_t first = 0;
    while (first < n) {
        int64_t middle = first + (n - first) / 2;
        if (a[middle] < v)
            first = middle + 1;
        else
            n = middle;
    }
    return first;
}

void tile_walk_begin(struct tile_walk *w, const struct bcsr *m, int64_t list, int64_t row) {
    w->m = m;
    w->entry = bcsr_row_begin(m, list, row);
    w->end = bcsr_row_end(m, list, row);
    w->band = lower_bound(m->band_entry, m->n_bands, w->entry);
    w->bitmask = lower_bound(m->bitmask_entry, m->n_bitmasks, w->entry);
}

void tile_at(const struct bcsr *m, int64_t entry, struct tile *t) {
    struct tile_walk w = {.m = m, .entry = entry, .end = entry + 1};
    w.band = lower_bound(m->band_entry, m->n_bands, entry);
    w.bitmask = lower_bound(m->bitmask_entry, m->n_bitmasks, entry);
    tile_walk_next(&w, t);
}

void bcsr_free(struct bcsr *m) {
    free(m->row_ptr);
    free(m->col_idx);
    free(m->band_entry);
    free(m->band);
    free(m->bitmask_entry);
    free(m->bits);
}

size_t bcsr_memory(const struct bcsr *m) {
    return (size_t)(m->batch * m->heads * (m->rows + 1)) * sizeof *m->row_ptr +
           (size_t)m->n_tiles * sizeof *m->col_idx +
           (size_t)m->n_bands * (sizeof *m->band_entry + 2 * sizeof *m->band) +
           (size_t)m->n_bitmasks * sizeof *m->bitmask_entry +
           (size_t)bcsr_words(m) * sizeof *m->bits;
}

void tess_pattern_free(tess_pattern *pattern) {
    if (!pattern)
        return;
    bcsr_free(&pattern->lists);
    free(pattern);
}

/* ---- set operations, transposition ----------------------------------------------------------- */

static tess_status combine(tess_pattern **pattern, const tess_pattern *a, const tess_pattern *b,
                           const struct source_kind *kind, const char *function,
                           tess_error *error) {
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    *pattern = NULL;
    if (!a || !b)
        return error_set(error, TESS_INVALID_ARGUMENT, function, a ? "b" : "a", "%s is NULL",
                         a ? "b" : "a");
    const struct bcsr *x = &a->lists, *y = &b->lists;
    const struct {
        const char *name;
        int64_t of_a, of_b;
        int one_serves_all;
    } sizes[] = {{"n_q", x->n_q, y->n_q, 0},
                 {"n_kv", x->n_kv, y->n_kv, 0},
                 {"block_q", x->block_q, y->block_q, 0},
                 {"block_kv", x->block_kv, y->block_kv, 0},
                 {"batch", x->batch, y->batch, 1},
                 {"heads", x->heads, y->heads, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].of_a != sizes[i].of_b &&
            !(sizes[i].one_serves_all && (sizes[i].of_a == 1 || sizes[i].of_b == 1)))
            return error_set(error, TESS_INVALID_ARGUMENT, function, "b",
                             "%s is %lld in a, but %lld in b", sizes[i].name,
                             (long long)sizes[i].of_a, (long long)sizes[i].of_b);
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = x->n_q, shape.n_kv = x->n_kv;
    shape.block_q = x->block_q, shape.block_kv = x->block_kv;
    shape.batch = max_i64(x->batch, y->batch), shape.heads = max_i64(x->heads, y->heads);
    shape.threads = x->threads && y->threads ? min_i64(x->threads, y->threads)
                                             : max_i64(x->threads, y->threads);
    struct bcsr m;
    tess_status status = build_sizes(&m, &shape, function, "b", error);
    if (status != TESS_OK)
        return status;
    struct source sources[] = {
        {.kind = &source_pattern, .child = -1, .next = 1, .u.pattern = x},
        {.kind = &source_pattern, .child = -1, .next = -1, .u.pattern = y},
        {.kind = kind, .child = 0, .next = -1},
    };
    return pattern_build(pattern, &m, sources, 3, function, error);
}

tess_status tess_pattern_union(tess_pattern **pattern, const tess_pattern *a, const tess_pattern *b,
                               tess_error *error) {
    return combine(pattern, a, b, &source_union, "tess_pattern_union", error);
}

tess_status tess_pattern_intersection(tess_pattern **pattern, const tess_pattern *a,
                                      const tess_pattern *b, tess_error *error) {
    return combine(pattern, a, b, &source_intersection, "tess_pattern_intersection", error);
}

/* ---- what a pattern tells -------------------------------------------------------------------- */

tess_status tess_pattern_lists(const tess_pattern *pattern, tess_lists *lists, tess_error *error) {
    static const char function[] = "tess_pattern_lists";
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    const struct bcsr *m = &pattern->lists;
    tess_lists known = tess_lists_init();
    known.n_q = m->n_q, known.n_kv = m->n_kv;
    known.block_q = m->block_q, known.block_kv = m->block_kv;
    known.batch = m->batch, known.heads = m->heads;
    known.n_tiles = m->n_tiles, known.n_bands = m->n_bands, known.n_bitmasks = m->n_bitmasks;
    known.row_ptr = m->row_ptr;
    known.col_idx = m->col_idx;
    known.band_entry = m->band_entry;
    known.band = m->band;
    known.bitmask_entry = m->bitmask_entry;
    known.bits = m->bits;
    known.threads = m->threads;
    const char *wrong =
        lists ? struct_give(lists, &known, sizeof known, LISTS_FIRST_SIZE) : "is NULL";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "lists", "lists %s", wrong);
    return TESS_OK;
}

tess_status tess_pattern_row(const tess_pattern *pattern, int64_t batch, int64_t head,
                             int64_t query, int64_t *keys, int64_t capacity, int64_t *count,
                             tess_error *error) {
    static const char function[] = "tess_pattern_row";
    if (!pattern || !count)
        return error_set(error, TESS_INVALID_ARGUMENT, function, pattern ? "count" : "pattern",
                         "%s is NULL", pattern ? "count" : "pattern");
    if (capacity < 0 || (capacity > 0 && !keys))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "keys",
                         "no keys array for a capacity of %lld", (long long)capacity);
    const struct bcsr *m = &pattern->lists;
    const struct {
        const char *name;
        int64_t value, last;
    } places[] = {{"batch", batch, m->batch == 1 ? INT64_MAX : m->batch - 1},
                  {"head", head, m->heads == 1 ? INT64_MAX : m->heads - 1},
                  {"query", query, m->n_q - 1}};
    struct words words;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].value < 0 || places[i].value > places[i].last)
            return error_set(error, TESS_INVALID_ARGUMENT, function, places[i].name,
                             "%s is %lld, but the pattern has %s", places[i].name,
                             (long long)places[i].value, words_range(&words, 0, places[i].last));
    struct tile_walk w;
    struct tile t;
    int64_t n = 0, r = query % m->block_q;
    int64_t list = (m->batch == 1 ? 0 : batch) * m->heads + (m->heads == 1 ? 0 : head);
    tile_walk_begin(&w, m, list, query / m->block_q);
    while (tile_walk_next(&w, &t)) {
        int64_t cols = bcsr_col_width(m, t.col), first = t.col * m->block_kv;
        for (int64_t c = 0; c < cols; c += 64) {
            uint64_t v = tile_row_bits(m, &t, r, c, (int)min_i64(64, cols - c));
            int64_t more = __builtin_popcountll(v);
            for (int64_t i = n; v && i < capacity; v &= v - 1)
                keys[i++] = first + c + __builtin_ctzll(v);
            n += more;
        }
    }
    *count = n;
    return TESS_OK;
}

tess_status tess_pattern_describe(const tess_pattern *pattern, tess_pattern_info *info,
                                  tess_error *error) {
    static const char function[] = "tess_pattern_describe";
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    const struct bcsr *m = &pattern->lists;
    tess_pattern_info known = tess_pattern_info_init();
    known.n_q = m->n_q, known.n_kv = m->n_kv;
    known.block_q = m->block_q, known.block_kv = m->block_kv;
    known.batch = m->batch, known.heads = m->heads;
    known.full_tiles = m->n_tiles - m->n_bands - m->n_bitmasks;
    known.band_tiles = m->n_bands;
    known.bitmask_tiles = m->n_bitmasks;
    known.pairs = pattern->pairs;
    known.empty_rows = pattern->empty_rows;
    known.memory_size = (int64_t)(sizeof *pattern + bcsr_memory(m));
    const char *wrong = info ? struct_give(info, &known, sizeof known, sizeof known) : "is NULL";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "info", "info %s", wrong);
    return TESS_OK;
}
