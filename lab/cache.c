/* How a case's cache holds keys and values. */
#include "lab/cache.h"

#include "lab/half.h"
#include "lab/rng.h"

#include <math.h>
#include <stdlib.h>

enum { STREAM_PAGES = 300, STREAM_ABSENT, STREAM_K_SCALE, STREAM_V_SCALE };

#define SCALE_GROUP 128 /* dims, as the library has it */

struct lab_cache_shape lab_case_cache(const struct lab_case *c) {
    const tess_type type = c->kv_type ? c->kv_type : c->type;
    return (struct lab_cache_shape){.batch = c->b,
                                    .heads_kv = c->hkv,
                                    .n_kv = c->nkv,
                                    .d_qk = c->d,
                                    .d_v = c->dv,
                                    .k_type = type,
                                    .v_type = type,
                                    .page_size = c->page,
                                    .k_scale = c->kv_scale,
                                    .v_scale = c->v_in_k ? TESS_SCALE_NONE : c->kv_scale,
                                    .v_in_k = (int)c->v_in_k,
                                    .layout = c->layout,
                                    .alignment = c->align,
                                    .seed = c->seed};
}

/* A table of distinct places of the pool, but for entries that name none. */
static int table_make(struct lab_cache *cache, const struct lab_cache_shape *s) {
    struct lab_caching *of = &cache->of;
    of->size = s->page_size;
    of->columns = (s->n_kv + s->page_size - 1) / s->page_size;
    const int64_t used = s->batch * of->columns;
    of->pages = used + used / 3 + 1;
    int32_t *place = malloc((size_t)of->pages * sizeof *place);
    if (!place || lab_buffer_make(&cache->table, (size_t)used * sizeof(int32_t), 4)) {
        free(place);
        return -1;
    }
    for (int64_t i = 0; i < of->pages; i++)
        place[i] = (int32_t)i;
    int32_t *table = (int32_t *)(void *)cache->table.data;
    for (int64_t i = 0; i < used; i++) {
        const int64_t other = i + lab_below(s->seed, STREAM_PAGES, (uint64_t)i, of->pages - i);
        const int32_t taken = place[other];
        place[other] = place[i];
        place[i] = table[i] = taken;
        const int64_t absent = lab_below(s->seed, STREAM_ABSENT, (uint64_t)i, 48);
        if (absent < 3)
            table[i] = absent == 0 ? -1 : absent == 1 ? (int32_t)of->pages : INT32_MIN + (int32_t)i;
    }
    free(place);
    of->table = table;
    return 0;
}

static int scale_make(struct lab_tensor *t, const struct lab_cache_shape *s,
                      const struct lab_caching *of, tess_scaling scale, int64_t d,
                      uint64_t stream) {
    const int rows = scale >= TESS_SCALE_TOKEN;
    const int64_t size[4] = {!rows          ? 1
                             : s->page_size ? of->pages
                                            : s->batch,
                             scale == TESS_SCALE_TENSOR ? 1 : s->heads_kv,
                             !rows          ? 1
                             : s->page_size ? s->page_size
                                            : s->n_kv,
                             scale == TESS_SCALE_GROUP ? d / of->group : 1};
    if (scale == TESS_SCALE_NONE)
        return 0;
    if (lab_tensor_make(t, TESS_F32, size, s->layout, 4))
        return -1;
    const int64_t all = size[0] * size[1] * size[2];
    for (int64_t r = 0; r < all; r++)
        for (int64_t g = 0; g < size[3]; g++)
            lab_put(t->view.data, TESS_F32,
                    lab_row(&t->view, r / size[2] / size[1], r / size[2] % size[1], r % size[2]) +
                        g,
                    exp2(4 * lab_uniform(s->seed, stream, (uint64_t)(r * size[3] + g)) - 2));
    return 0;
}

int lab_cache_make(struct lab_cache *cache, const struct lab_cache_shape *s) {
    struct lab_caching *of = &cache->of;
    memset(cache, 0, sizeof *cache);
    cache->v_in_k = s->v_in_k;
    cache->k_rows = s->k_scale >= TESS_SCALE_TOKEN, cache->v_rows = s->v_scale >= TESS_SCALE_TOKEN;
    of->group = s->group ? s->group : SCALE_GROUP;
    if (s->page_size) {
        if (table_make(cache, s))
            return -1;
        const int64_t k[4] = {of->pages, s->heads_kv, s->page_size, s->d_qk};
        const int64_t v[4] = {of->pages, s->heads_kv, s->page_size, s->d_v};
        const int64_t k_element = (int64_t)tess_type_size(s->k_type);
        const int64_t v_element = (int64_t)tess_type_size(s->v_type);
        if (lab_tensor_make(&cache->k, s->k_type, k, s->layout,
                            s->alignment < k_element ? k_element : s->alignment) ||
            lab_tensor_make(&cache->v, s->v_type, v, s->layout,
                            s->alignment < v_element ? v_element : s->alignment))
            return -1;
    }
    if (scale_make(&cache->k_scale, s, of, s->k_scale, s->d_qk, STREAM_K_SCALE) ||
        scale_make(&cache->v_scale, s, of, s->v_scale, s->d_v, STREAM_V_SCALE))
        return -1;
    of->k_scale = s->k_scale ? &cache->k_scale.view : NULL;
    of->v_scale = s->v_in_k ? of->k_scale : s->v_scale ? &cache->v_scale.view : NULL;
    return 0;
}

void lab_cache_free(struct lab_cache *cache) {
    lab_buffer_free(&cache->table);
    lab_tensor_free(&cache->k);
    lab_tensor_free(&cache->v);
    lab_tensor_free(&cache->k_scale);
    lab_tensor_free(&cache->v_scale);
    memset(cache, 0, sizeof *cache);
}

void lab_cache_values(const struct lab_cache *cache, const tess_tensor *k, const tess_tensor *v) {
    const size_t size = tess_type_size(v->type);
    const int64_t rows = cache->v_in_k ? v->size[0] * v->size[1] * v->size[2] : 0;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t b = r / v->size[2] / v->size[1], h = r / v->size[2] % v->size[1],
                      j = r % v->size[2];
        memcpy((char *)v->data + (size_t)lab_row(v, b, h, j) * size,
               (const char *)k->data + (size_t)lab_row(k, b, h, j) * size,
               (size_t)v->size[3] * size);
    }
}

int lab_cache_place(const struct lab_cache *cache, struct lab_mirror *mirror, tess_tensor scales[2],
                    tess_arguments *arguments) {
    if (cache->table.base && !(arguments->page_table = lab_mirror_add(mirror, &cache->table)))
        return -1;
    if ((cache->k_scale.buffer.base && lab_mirror_tensor(mirror, &cache->k_scale, &scales[0])) ||
        (cache->v_scale.buffer.base && lab_mirror_tensor(mirror, &cache->v_scale, &scales[1])))
        return -1;
    arguments->k_scale = cache->k_scale.buffer.base ? &scales[0] : NULL;
    arguments->v_scale = cache->v_scale.buffer.base ? &scales[1] : NULL;
    return 0;
}

/* Rows of a tensor to their pages; and NaN to the scales of those that begin with NaN. */
static void rows_store(const struct lab_cache *cache, struct lab_tensor *to,
                       struct lab_tensor *scale, int by_row, const tess_tensor *from) {
    const struct lab_caching *of = &cache->of;
    const size_t size = tess_type_size(from->type);
    const int64_t rows = from->size[0] * from->size[1] * from->size[2];
    if (to->buffer.base)
        lab_tensor_poison(to);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t h = r / from->size[2] % from->size[1];
        int64_t b = r / from->size[2] / from->size[1], j = r % from->size[2];
        const char *row = (const char *)from->data + (size_t)lab_row(from, b, h, j) * size;
        const int bad = isnan(lab_get(row, from->type, 0));
        if (of->table) {
            b = of->table[b * of->columns + j / of->size], j %= of->size;
            if (b < 0 || b >= of->pages)
                continue;
            memcpy((char *)to->view.data + (size_t)lab_row(&to->view, b, h, j) * size, row,
                   (size_t)from->size[3] * size);
        }
        for (int64_t g = 0; bad && by_row && g < scale->view.size[3]; g++)
            lab_put(scale->view.data, TESS_F32, lab_row(&scale->view, b, h, j) + g, (double)NAN);
    }
}

void lab_cache_store(struct lab_cache *cache, const tess_tensor *k, const tess_tensor *v) {
    rows_store(cache, &cache->k, &cache->k_scale, cache->k_rows, k);
    rows_store(cache, &cache->v, &cache->v_scale, cache->v_rows, v);
}
