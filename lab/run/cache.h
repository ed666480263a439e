/*
 * How a case's cache holds keys and values, and what runs are given of it.
 *
 *   pages    drawn places of a pool that has a third more; what no key lies in holds NaN. One entry of
 *            sixteen names no page. Rows of three tables in four are parts of longer ones
 *   scales   from 1/4 to 4; those of rows that hold NaN are NaN
 *   rope     the last dims of K, and where q is not whole of q, in tensors of their own. The case's K has
 *            the type of those, of which the first dims are converted
 */
#ifndef LAB_CACHE_H
#define LAB_CACHE_H

#include "lab/memory/mirror.h"
#include "lab/oracle/scoring.h"

struct lab_cache {
    int v_in_k, k_rows, v_rows;         /* rows: scales are of each */
    struct lab_buffer table;            /* no data: not paged */
    int64_t table_stride;               /* entries from row to row, for a run */
    struct lab_tensor q, k, v;          /* paged, or first views; no data: as the case's tensors */
    struct lab_tensor q_rope, k_rope;   /* no data: none */
    struct lab_tensor k_scale, v_scale; /* no data: none */
    struct lab_caching caching;         /* for the oracle */
};

/* Sizes, types and layout of a cache. */
struct lab_cache_shape {
    int64_t batch, heads_q, heads_kv, n_q, n_kv, d_qk, d_v;
    tess_type q_type, k_type, v_type, k_rope_type;
    int64_t rope_dims; /* 0: none */
    int q_whole;       /* q has one view */
    int64_t page_size; /* 0: not paged */
    tess_scaling k_scale, v_scale;
    int64_t group;
    int v_in_k;
    enum lab_layout layout;
    int64_t alignment;
    uint64_t seed;
};

struct lab_cache_shape lab_case_cache(const struct lab_case *c);

/* The type of the tensor that lab_cache_store is given for K. */
static inline tess_type lab_cache_k_type(const struct lab_cache_shape *shape) {
    return shape->rope_dims ? shape->k_rope_type : shape->k_type;
}

/* Draws table and scales, and makes room for pages. 0, or -1 without memory; lab_cache_free whichever. */
int lab_cache_make(struct lab_cache *cache, const struct lab_cache_shape *shape);
void lab_cache_free(struct lab_cache *cache);

/* V becomes the first dims of K, where V lies in K. */
void lab_cache_values(const struct lab_cache *cache, const tess_tensor *k, const tess_tensor *v);

/* Writes queries [batch, heads_q, n_q, d], keys and values [batch, heads_kv, n_kv, d] to where runs find
 * them. Again after each change. */
void lab_cache_store(struct lab_cache *cache, const tess_tensor *q, const tess_tensor *k,
                     const tess_tensor *v);

enum { LAB_CACHE_VIEWS = 4 };

/* Places of table, scales and second views on the mirror's backend; the views stay, as arguments are told
 * of them. 0, or -1 and the mirror's why. */
int lab_cache_place(const struct lab_cache *cache, struct lab_mirror *mirror,
                    tess_tensor views[LAB_CACHE_VIEWS], tess_arguments *arguments);

/* Tensors that runs are given for q, k or v. */
static inline const struct lab_tensor *lab_cache_q(const struct lab_cache *cache,
                                                   const struct lab_tensor *q) {
    return cache->q.buffer.base ? &cache->q : q;
}
static inline const struct lab_tensor *lab_cache_k(const struct lab_cache *cache,
                                                   const struct lab_tensor *k) {
    return cache->k.buffer.base ? &cache->k : k;
}
static inline const struct lab_tensor *lab_cache_v(const struct lab_cache *cache,
                                                   const struct lab_tensor *v) {
    return cache->v.buffer.base ? &cache->v : v;
}

#endif
