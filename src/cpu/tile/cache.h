/*
 * Keys and values as caches hold them: rows in pages, of types of their own, with scales. A superblock of
 * them is converted to f32 before anything is computed of it, and scaled on the way.
 */
#ifndef TESSERA_CPU_CACHE_H
#define TESSERA_CPU_CACHE_H

#include "tile/tile.h"

/* Keys or values of a K/V head. */
static inline struct cpu_head cpu_cache(const struct kernel_args *args, const struct view *rows,
                                        const struct view *scale, tess_type type, int64_t group,
                                        int64_t b, int64_t h) {
    const struct attention_operands *given = attention_of(args);
    const int paged = given->page_table != NULL;
    struct cpu_head head = cpu_head(rows, type, paged ? 0 : b, h);
    head.group = group;
    if (paged) {
        head.table = given->page_table + b * given->table_stride;
        head.pages = (int32_t)given->pages;
        head.shift = args->problem->caches.page_shift;
        head.page = rows->stride[0] * (int64_t)tess_type_size(type);
    }
    if (scale->data) {
        head.scale =
            (const float *)scale->data + (paged ? 0 : b * scale->stride[0]) + h * scale->stride[1];
        head.scale_row = scale->stride[2];
        head.scale_page = scale->stride[0];
    }
    return head;
}

/* Head of keys; `rope` is where the last dims lie, and is set. */
static inline struct cpu_head cpu_cache_k(const struct kernel_args *args, int64_t b, int64_t h,
                                          struct cpu_head *rope) {
    static const struct view no_scale = {0};
    const struct caches *c = &args->problem->caches;
    const struct attention_operands *given = attention_of(args);
    struct cpu_head k = cpu_cache(args, &given->k, &given->k_scale, c->k_type, c->k_group, b, h);
    if (!args->problem->rope_dims)
        return k;
    *rope = cpu_cache(args, &given->k_rope, &no_scale, c->k_rope_type, 0, b, h);
    k.rope = rope;
    k.rope_dims = args->problem->rope_dims;
    return k;
}
static inline struct cpu_head cpu_cache_v(const struct kernel_args *args, int64_t b, int64_t h) {
    const struct caches *c = &args->problem->caches;
    const struct attention_operands *given = attention_of(args);
    return cpu_cache(args, &given->v, &given->v_scale, c->v_type, c->v_group, b, h);
}

/* Whether rows of keys and values are read where they are: tiles that compute listed pairs alone find
 * a row by its number. */
static inline int cpu_in_place(const struct problem *p) {
    return p->caches.k_type == TESS_F32 && p->caches.v_type == TESS_F32 &&
           !caches_paged(&p->caches) && !p->rope_dims;
}

/* Whether keys and values have one type and one view each, which groups of lanes convert for
 * themselves. */
static inline int cpu_alike(const struct problem *p) {
    return p->caches.k_type == p->caches.v_type && !type_is_8bit(p->caches.k_type) && !p->rope_dims;
}

/* out = the d elements of a key's row, which lies at `row`, times their scales; and those of its second
 * view, which has none. */
static inline void cpu_load_key(float *restrict out, const struct cpu_head *head, const char *row,
                                int32_t key, int64_t d) {
    d -= head->rope_dims;
    cpu_load_any(out, row, head->type, d);
    if (head->rope)
        cpu_load_any(out + d, cpu_key(head->rope, key), head->rope->type, head->rope_dims);
    if (!head->scale)
        return;
    const float *scale = head->scale + key * head->scale_row;
    if (head->table)
        scale = head->scale + head->table[key >> head->shift] * head->scale_page +
                (key & ((1 << head->shift) - 1)) * head->scale_row;
    for (int64_t first = 0; first < d; first += head->group) {
        const float by = scale[first / head->group];
        const int64_t end = first + head->group < d ? first + head->group : d;
        for (int64_t i = first; i < end; i++)
            out[i] *= by;
    }
}

/* row[j], where the row of key[j] lies, becomes its conversion, in buffer; rows of f32 stay that have one
 * view. */
static inline void cpu_convert_keys(const float **row, const struct cpu_head *head,
                                    const int32_t *key, int32_t n, int64_t d, float *buffer) {
    if (head->type == TESS_F32 && !head->rope)
        return;
    const int64_t size = (d - head->rope_dims) * (int64_t)tess_type_size(head->type);
    for (int32_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < size; i += 64) /* lines */
            v_fetch(row[j + CPU_CONVERT_AHEAD] + i / 4);
        cpu_load_key(buffer + j * d, head, (const char *)row[j], key[j], d);
        row[j] = buffer + j * d;
    }
    cpu_rows_end(row, n);
}

/* Takes keys whose page there is not out of a superblock: they are not listed. */
static inline void cpu_drop_keys(const struct cpu_head *head, struct cpu_keys *keys) {
    int32_t n = 0;
    for (int32_t j = 0; j < keys->n; j++) {
        const int32_t page = head->table[keys->key[j] >> head->shift];
        keys->key[n] = keys->key[j];
        if (keys->masked)
            keys->mask[n] = keys->mask[j];
        n += page >= 0 && page < head->pages;
    }
    keys->n = n;
}

#endif
