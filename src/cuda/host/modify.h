/* Score modifiers, as the host hands them to kernels of the forward (docs/semantics.md). */
#ifndef TESSERA_CUDA_MODIFY_H
#define TESSERA_CUDA_MODIFY_H

#include "plan/attention.h"

#include <math.h>

/* Pointers NULL, cap, scores and each 0, kept 1 where a problem has none. */
struct modify_params {
    const float *alibi, *sink;               /* [heads_q], or NULL */
    const uint64_t *seed;                    /* NULL: no dropout */
    const int32_t *key_positions;            /* [n_kv], or NULL: a key's number and first_key */
    uint32_t first_key, first_position;      /* modulo 2^32 */
    uint32_t first_query, first_head, heads; /* dropout's; heads: from a batch to the next */
    uint32_t dropped;                        /* draws that drop, of 65536 */
    float kept;                              /* 65536 / (65536 - dropped) */
    /* Inf where O is a mean of numbers of its type, and so no larger than they are. 0 where dropout or
     * scales of V may take it past the type's largest number. */
    float mean_below;
    float unit;     /* exponents of 1 in natural logarithms: log2(e), or 1 */
    float cap;      /* softcap in exponents; 0: none */
    int32_t scores; /* softcap or ALiBi */
    int32_t each;   /* scores or weights change one by one */
};

/* Softcap or ALiBi: stages have a launch of its own for them, after SDDMM. */
static inline int modify_scores(const struct modifiers *m) {
    return m->softcap != 0 || m->alibi;
}

/* `unit`: log2(e) where exponents are those of 2, 1 where they are those of e. */
static inline struct modify_params modify_params_of(const struct kernel_args *args, double unit) {
    const struct modifiers *m = &args->problem->modifiers;
    const struct modifier_operands *given = modifier_of(args);
    const int scores = modify_scores(m);
    const int is_mean = !m->dropped && args->problem->caches.v_scale == TESS_SCALE_NONE;
    return (struct modify_params){
        .alibi = m->alibi ? given->alibi : NULL,
        .sink = m->sink ? given->sink : NULL,
        .seed = m->dropped ? given->seed : NULL,
        .key_positions = m->key_positions ? given->key_positions : NULL,
        .first_key = m->key_positions ? 0 : (uint32_t)m->first_key,
        .first_position = (uint32_t)m->first_position,
        .first_query = (uint32_t)m->first_query,
        .first_head = (uint32_t)m->first_head,
        .heads = (uint32_t)m->heads,
        .dropped = (uint32_t)m->dropped,
        .kept = 65536.0f / (float)(65536 - m->dropped),
        .mean_below = is_mean ? INFINITY : 0,
        .unit = (float)unit,
        .cap = (float)(m->softcap * unit),
        .scores = scores,
        .each = scores || m->dropped,
    };
}

#endif
