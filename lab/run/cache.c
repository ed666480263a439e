/* How a case's cache holds keys and values. */
#include "lab/run/cache.h"

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

#include <math.h>
#include <stdlib.h>

enum { STREAM_PAGES = 300, STREAM_ABSENT, STREAM_K_SCALE, STREAM_V_SCALE, STREAM_STRIDE };

#define SCALE_GROUP 128 /* dims, as the library has it */

struct lab_cache_shape lab_case_cache(const struct lab_case *c) {
    const tess_type type = c->kv_type ? c->kv_type : c->type;
    return (struct lab_cache_shape){.batch = c->b,
                                    .heads_q = c->h,
                                    .heads_kv = c->hkv,
                                    .n_q = c->n,
                                    .n_kv = c->nkv,
                                    .d_qk = c->d,
                                    .d_v = c->dv,
                                    .q_type = c->type,
                                    .k_type = type,
                                    .v_type = type,
                                    .k_rope_type = tess_type_size(type) > 1 ? type : c->type,
                                    .rope_dims = c->rope,
                                    .q_whole = lab_case_q_whole(c),
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
    struct lab_caching *caching = &cache->caching;
    const int64_t columns = (s->n_kv + s->page_size - 1) / s->page_size, used = s->batch * columns;
    const int64_t wider = lab_below(s->seed, STREAM_STRIDE, 0, 4);
    caching->size = s->page_size;
    caching->stride = columns + wider;
    caching->pages = used + used / 3 + 1;
    cache->table_stride = wider ? caching->stride : 0;
    int32_t *place = malloc((size_t)caching->pages * sizeof *place);
    if (!place ||
        lab_buffer_make(&cache->table, (size_t)(s->batch * caching->stride) * sizeof(int32_t), 4)) {
        free(place);
        return -1;
    }
    for (int64_t i = 0; i < caching->pages; i++)
        place[i] = (int32_t)i;
    int32_t *table = (int32_t *)(void *)cache->table.data;
    for (int64_t i = 0; i < s->batch * caching->stride; i++)
        table[i] = INT32_MIN; /* entries between rows name no page */
    for (int64_t i = 0; i < used; i++) {
        int32_t *entry = &table[i / columns * caching->stride + i % columns];
        const int64_t other = i + lab_below(s->seed, STREAM_PAGES, (uint64_t)i, caching->pages - i);
        const int32_t taken = place[other];
        place[other] = place[i];
        place[i] = *entry = taken;
        const int64_t absent = lab_below(s->seed, STREAM_ABSENT, (uint64_t)i, 48);
        if (absent < 3)
            *entry = absent == 0   ? -1
                     : absent == 1 ? (int32_t)caching->pages
                                   : INT32_MIN + (int32_t)i;
    }
    free(place);
    caching->table = table;
    return 0;
}

static int scale_make(struct lab_tensor *t, const struct lab_cache_shape *s,
                      const struct lab_caching *caching, tess_scaling scale, int64_t d,
                      uint64_t stream) {
    const int rows = scale >= TESS_SCALE_TOKEN;
    const int64_t size[4] = {!rows          ? 1
                             : s->page_size ? caching->pages
                                            : s->batch,
                             scale == TESS_SCALE_TENSOR ? 1 : s->heads_kv,
                             !rows          ? 1
                             : s->page_size ? s->page_size
                                            : s->n_kv,
                             scale == TESS_SCALE_GROUP ? d / caching->group : 1};
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

/* Room for rows of queries, or of keys and values. */
static int rows_make(struct lab_tensor *t, const struct lab_cache_shape *s,
                     const struct lab_caching *caching, tess_type type, int of_keys, int64_t d) {
    const int64_t queries[4] = {s->batch, s->heads_q, s->n_q, d};
    const int64_t keys[4] = {s->batch, s->heads_kv, s->n_kv, d};
    const int64_t pages[4] = {caching->pages, s->heads_kv, s->page_size, d};
    const int64_t *size = !of_keys ? queries : s->page_size ? pages : keys;
    const int64_t element = (int64_t)tess_type_size(type);
    return lab_tensor_make(t, type, size, s->layout,
                           s->alignment < element ? element : s->alignment);
}

/* Room for the views that the case's tensors are not. */
static int views_make(struct lab_cache *cache, const struct lab_cache_shape *s) {
    const int64_t rope = s->rope_dims, first = s->d_qk - rope;
    const struct lab_caching *caching = &cache->caching;
    if ((s->page_size || rope) && rows_make(&cache->k, s, caching, s->k_type, 1, first))
        return -1;
    if (s->page_size && rows_make(&cache->v, s, caching, s->v_type, 1, s->d_v))
        return -1;
    if (rope && rows_make(&cache->k_rope, s, caching, s->k_rope_type, 1, rope))
        return -1;
    return rope && !s->q_whole &&
                   (rows_make(&cache->q, s, caching, s->q_type, 0, first) ||
                    rows_make(&cache->q_rope, s, caching, s->q_type, 0, rope))
               ? -1
               : 0;
}

int lab_cache_make(struct lab_cache *cache, const struct lab_cache_shape *s) {
    struct lab_caching *caching = &cache->caching;
    memset(cache, 0, sizeof *cache);
    cache->v_in_k = s->v_in_k;
    cache->k_rows = s->k_scale >= TESS_SCALE_TOKEN, cache->v_rows = s->v_scale >= TESS_SCALE_TOKEN;
    caching->group = s->group ? s->group : SCALE_GROUP;
    if ((s->page_size && table_make(cache, s)) || views_make(cache, s))
        return -1;
    if (scale_make(&cache->k_scale, s, caching, s->k_scale, s->d_qk - s->rope_dims,
                   STREAM_K_SCALE) ||
        scale_make(&cache->v_scale, s, caching, s->v_scale, s->d_v, STREAM_V_SCALE))
        return -1;
    caching->k_scale = s->k_scale ? &cache->k_scale.view : NULL;
    caching->v_scale = s->v_in_k ? caching->k_scale : s->v_scale ? &cache->v_scale.view : NULL;
    caching->k_rope = s->rope_dims ? &cache->k_rope.view : NULL;
    return 0;
}

void lab_cache_free(struct lab_cache *cache) {
    lab_buffer_free(&cache->table);
    struct lab_tensor *const all[] = {&cache->q,      &cache->k,      &cache->v,
                                      &cache->q_rope, &cache->k_rope, &cache->k_scale,
                                      &cache->v_scale};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        lab_tensor_free(all[t]);
    memset(cache, 0, sizeof *cache);
}

/* Dims `first` ... of row `from_row` to row `to_row`, which may have another type. */
static void row_put(const tess_tensor *to, int64_t to_row, const tess_tensor *from,
                    int64_t from_row, int64_t first) {
    const size_t size = tess_type_size(to->type);
    if (to->type == from->type) {
        memcpy((char *)to->data + (size_t)to_row * size,
               (const char *)from->data + (size_t)(from_row + first) * size,
               (size_t)to->size[3] * size);
        return;
    }
    for (int64_t d = 0; d < to->size[3]; d++)
        lab_put(to->data, to->type, to_row + d,
                lab_get(from->data, from->type, from_row + first + d));
}

void lab_cache_values(const struct lab_cache *cache, const tess_tensor *k, const tess_tensor *v) {
    const int64_t rows = cache->v_in_k ? v->size[0] * v->size[1] * v->size[2] : 0;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t b = r / v->size[2] / v->size[1], h = r / v->size[2] % v->size[1],
                      j = r % v->size[2];
        row_put(v, lab_row(v, b, h, j), k, lab_row(k, b, h, j), 0);
    }
}

int lab_cache_place(const struct lab_cache *cache, struct lab_mirror *mirror,
                    tess_tensor views[LAB_CACHE_VIEWS], tess_arguments *arguments) {
    const struct {
        const struct lab_tensor *tensor;
        const tess_tensor **given;
    } all[LAB_CACHE_VIEWS] = {{&cache->k_scale, &arguments->k_scale},
                              {&cache->v_scale, &arguments->v_scale},
                              {&cache->q_rope, &arguments->q_rope},
                              {&cache->k_rope, &arguments->k_rope}};
    if (cache->table.base && !(arguments->page_table = lab_mirror_add(mirror, &cache->table)))
        return -1;
    arguments->page_table_stride = cache->table_stride;
    for (int i = 0; i < LAB_CACHE_VIEWS; i++) {
        *all[i].given = all[i].tensor->buffer.base ? &views[i] : NULL;
        if (*all[i].given && lab_mirror_tensor(mirror, all[i].tensor, &views[i]))
            return -1;
    }
    return 0;
}

/* Row x of a [batch, heads, n, d] tensor. */
struct row {
    int64_t b, h, j;
};
static struct row row_of(const tess_tensor *t, int64_t x) {
    return (struct row){x / t->size[2] / t->size[1], x / t->size[2] % t->size[1], x % t->size[2]};
}

/* Moves a row of keys to where its page lies; 0: it has none. */
static int row_place(const struct lab_caching *caching, struct row *r) {
    if (!caching->table)
        return 1;
    r->b = caching->table[r->b * caching->stride + r->j / caching->size], r->j %= caching->size;
    return r->b >= 0 && r->b < caching->pages;
}

/* Dims `first` ... of rows to where they lie, and nowhere without such a tensor. of: of keys; zeros: row
 * behind row. */
static void rows_store(const struct lab_caching *caching, struct lab_tensor *to,
                       const tess_tensor *from, int64_t first) {
    const int64_t rows = from->size[0] * from->size[1] * from->size[2];
    if (!to->buffer.base)
        return;
    lab_tensor_poison(to);
    for (int64_t x = 0; x < rows; x++) {
        struct row at = row_of(from, x);
        const int64_t row = lab_row(from, at.b, at.h, at.j);
        if (row_place(caching, &at))
            row_put(&to->view, lab_row(&to->view, at.b, at.h, at.j), from, row, first);
    }
}

/* NaN to the scales of rows that begin with NaN. */
static void scales_spoil(const struct lab_caching *caching, const tess_tensor *scale,
                         const tess_tensor *from) {
    const int64_t rows = from->size[0] * from->size[1] * from->size[2];
    for (int64_t x = 0; x < rows; x++) {
        struct row at = row_of(from, x);
        const int bad = isnan(lab_get(from->data, from->type, lab_row(from, at.b, at.h, at.j)));
        const int placed = row_place(caching, &at);
        for (int64_t g = 0; bad && placed && g < scale->size[3]; g++)
            lab_put(scale->data, TESS_F32, lab_row(scale, at.b, at.h, at.j) + g, (double)NAN);
    }
}

void lab_cache_store(struct lab_cache *cache, const tess_tensor *q, const tess_tensor *k,
                     const tess_tensor *v) {
    static const struct lab_caching whole = {0};
    const struct lab_caching *caching = &cache->caching;
    rows_store(&whole, &cache->q, q, 0);
    rows_store(&whole, &cache->q_rope, q, cache->q.view.size[3]);
    rows_store(caching, &cache->k, k, 0);
    rows_store(caching, &cache->k_rope, k, cache->k.view.size[3]);
    rows_store(caching, &cache->v, v, 0);
    if (cache->k_rows)
        scales_spoil(caching, &cache->k_scale.view, k);
    if (cache->v_rows)
        scales_spoil(caching, &cache->v_scale.view, v);
}
