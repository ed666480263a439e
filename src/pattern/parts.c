/* Patterns put together of patterns, document by document, and parts taken out of one. */
#include "pattern/build.h"

#include <stdlib.h>

/* ---- concat ---------------------------------------------------------------------------------- */

/* The sizes of all parts together: queries and keys add up, one batch or head serves many. */
static tess_status concat_sizes(struct bcsr *m, const tess_pattern *const *parts, int64_t count,
                                const char *function, tess_error *error) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.batch = shape.heads = 1;
    for (int64_t i = 0; i < count; i++) {
        if (!parts[i])
            return error_set(error, TESS_INVALID_ARGUMENT, function, "parts", "parts[%lld] is NULL",
                             (long long)i);
        const struct bcsr *part = &parts[i]->lists;
        const struct {
            const char *name;
            int64_t *all, own;
        } lists[] = {{"batch", &shape.batch, part->batch}, {"heads", &shape.heads, part->heads}};
        for (int k = 0; k < 2; k++) {
            if (*lists[k].all != 1 && lists[k].own != 1 && *lists[k].all != lists[k].own)
                return error_set(error, TESS_INVALID_ARGUMENT, function, "parts",
                                 "%s is %lld in parts[%lld], but %lld before it", lists[k].name,
                                 (long long)lists[k].own, (long long)i, (long long)*lists[k].all);
            *lists[k].all = max_i64(*lists[k].all, lists[k].own);
        }
        /* 2^32 is refused, and does not wrap. */
        shape.n_q = min_i64(shape.n_q + part->n_q, INT64_C(1) << 32);
        shape.n_kv = min_i64(shape.n_kv + part->n_kv, INT64_C(1) << 32);
    }
    shape.block_q = parts[0]->lists.block_q, shape.block_kv = parts[0]->lists.block_kv;
    return build_sizes(m, &shape, function, "parts", error);
}

tess_status tess_pattern_concat(tess_pattern **pattern, const tess_pattern *const *parts,
                                int64_t count, tess_error *error) {
    static const char function[] = "tess_pattern_concat";
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    *pattern = NULL;
    if (!parts)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "parts", "parts is NULL");
    if (count < 1 || count > INT32_MAX)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "count",
                         "count is %lld, but must be 1 ... 2147483647", (long long)count);
    struct bcsr m;
    tess_status status = concat_sizes(&m, parts, count, function, error);
    if (status != TESS_OK)
        return status;
    struct source *sources = malloc((size_t)(count + 1) * sizeof *sources);
    int64_t *ends = malloc(2 * (size_t)count * sizeof *ends);
    if (sources && ends) {
        int64_t *q_end = ends, *kv_end = ends + count;
        int64_t query = 0, key = 0;
        for (int64_t i = 0; i < count; i++) {
            const struct bcsr *part = &parts[i]->lists;
            sources[i] = (struct source){.kind = &source_placed, .child = -1, .next = -1};
            sources[i].u.placed.m = part;
            sources[i].u.placed.query = query;
            sources[i].u.placed.key = key;
            query += part->n_q, key += part->n_kv;
            q_end[i] = query + m.n_kv - m.n_q, kv_end[i] = key;
        }
        sources[count] = (struct source){.kind = &source_documents, .child = -1, .next = -1};
        sources[count].u.documents.n = count;
        sources[count].u.documents.q_end = q_end;
        sources[count].u.documents.kv_end = kv_end;
        sources[count].u.documents.q_begin = m.n_kv - m.n_q;
        sources[count].u.documents.first = 0;
        sources[count].u.documents.apart = 1;
        status = pattern_build(pattern, &m, sources, count + 1, function, error);
    } else {
        status = error_set_memory(error, function, (size_t)(count + 1) * sizeof *sources);
    }
    free(sources);
    free(ends);
    return status;
}

/* ---- select ---------------------------------------------------------------------------------- */

tess_status tess_pattern_select(tess_pattern **pattern, const tess_pattern *a, int64_t query_begin,
                                int64_t query_end, int64_t key_begin, int64_t key_end,
                                tess_error *error) {
    static const char function[] = "tess_pattern_select";
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    *pattern = NULL;
    if (!a)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "a", "a is NULL");
    const struct bcsr *from = &a->lists;
    const struct {
        const char *name, *end_name;
        int64_t begin, end, n;
    } ranges[] = {{"query_begin", "query_end", query_begin, query_end, from->n_q},
                  {"key_begin", "key_end", key_begin, key_end, from->n_kv}};
    struct words words;
    for (int i = 0; i < 2; i++) {
        if (ranges[i].begin < 0 || ranges[i].begin >= ranges[i].n)
            return error_set(error, TESS_INVALID_ARGUMENT, function, ranges[i].name,
                             "%s is %lld, but the pattern has %s", ranges[i].name,
                             (long long)ranges[i].begin, words_range(&words, 0, ranges[i].n - 1));
        if (ranges[i].end <= ranges[i].begin || ranges[i].end > ranges[i].n)
            return error_set(error, TESS_INVALID_ARGUMENT, function, ranges[i].end_name,
                             "%s is %lld, but must be %s", ranges[i].end_name,
                             (long long)ranges[i].end,
                             words_range(&words, ranges[i].begin + 1, ranges[i].n));
    }
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = query_end - query_begin, shape.n_kv = key_end - key_begin;
    shape.block_q = from->block_q, shape.block_kv = from->block_kv;
    shape.batch = from->batch, shape.heads = from->heads;
    struct bcsr m;
    tess_status status = build_sizes(&m, &shape, function, "a", error);
    if (status != TESS_OK)
        return status;
    struct source source = {.kind = &source_placed, .child = -1, .next = -1};
    source.u.placed.m = from;
    source.u.placed.query = -query_begin;
    source.u.placed.key = -key_begin;
    return pattern_build(pattern, &m, &source, 1, function, error);
}
