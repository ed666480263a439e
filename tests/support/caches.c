/* Caches for tests. */
#include "support/caches.h"

#include "support/device_lists.h"

struct lab_cache_shape cache_shape(const tess_problem *p, uint64_t seed) {
    const tess_type k_type = p->k_type ? p->k_type : p->type;
    const tess_type v_type = p->v_type ? p->v_type : p->type;
    return (struct lab_cache_shape){.batch = p->batch,
                                    .heads_q = p->heads_q,
                                    .heads_kv = p->heads_kv,
                                    .n_q = p->n_q,
                                    .n_kv = p->n_kv,
                                    .d_qk = p->d_qk,
                                    .d_v = p->d_v,
                                    .q_type = p->type,
                                    .k_type = k_type,
                                    .k_rope_type = p->k_rope_type                ? p->k_rope_type
                                                   : tess_type_size(k_type) == 1 ? p->type
                                                                                 : k_type,
                                    .rope_dims = p->rope_dims,
                                    .q_whole = seed % 2,
                                    .v_type = p->v_in_k ? k_type : v_type,
                                    .page_size = p->page_size,
                                    .k_scale = p->k_scale,
                                    .v_scale = p->v_scale,
                                    .group = p->scale_group,
                                    .v_in_k = (int)p->v_in_k,
                                    .alignment = 16,
                                    .seed = seed};
}

void cache_draw(tess_problem *p, uint64_t seed) {
    const int wide = p->type == TESS_F32;
    if (PICK(30, 0, 1))
        return;
    p->alignment = 4; /* rows of 8 bits have as many bytes as dims */
    p->page_size = PICK(31, 0, 1, 2, 16, 64, 256);
    p->k_type = (tess_type)PICK(32, 0, TESS_E4M3, TESS_E5M2, wide ? TESS_F16 : 0);
    p->v_in_k = p->d_v <= p->d_qk && PICK(33, 0, 0, 1);
    if (!p->v_in_k)
        p->v_type = (tess_type)PICK(34, p->k_type, p->k_type, 0, TESS_E4M3, wide ? TESS_BF16 : 0);
    p->scale_group = PICK(37, 8, 16);
    if (p->d_qk > 8)
        p->rope_dims = PICK(38, 0, 0, 8, 4);
    if (p->rope_dims && wide)
        p->k_rope_type = (tess_type)PICK(39, 0, 0, TESS_F16, TESS_BF16);
    if (p->v_in_k && p->d_v > p->d_qk - p->rope_dims)
        p->rope_dims = 0, p->k_rope_type = TESS_F32;
    const int k_groups = (p->d_qk - p->rope_dims) % p->scale_group == 0 &&
                         (!p->v_in_k || p->d_v % p->scale_group == 0);
    if (p->k_type >= TESS_E4M3)
        p->k_scale = (tess_scaling)PICK(35, 0, 1, 2, 3, k_groups ? 4 : 3);
    if (p->v_type >= TESS_E4M3)
        p->v_scale = (tess_scaling)PICK(36, 0, 1, 2, 3, p->d_v % p->scale_group == 0 ? 4 : 3);
    if (p->k_scale != TESS_SCALE_GROUP && p->v_scale != TESS_SCALE_GROUP)
        p->scale_group = 0;
}
