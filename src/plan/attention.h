/* Operands of kernels of attention, of its gradient and of the staged pipeline. */
#ifndef TESSERA_ATTENTION_H
#define TESSERA_ATTENTION_H

#include "plan/kernels.h"

/* Arrays of score modifiers, as the problem declares them. Operands of kernels with modifiers begin with these. */
struct modifier_operands {
    const float *alibi, *sink; /* [heads_q] */
    const uint64_t *seed;
    const int32_t *key_positions; /* [n_kv] */
};

struct attention_operands {
    struct modifier_operands modifiers;
    struct view q, k, v, o, lse, o_rest;
    struct view lse_reference, column_sums; /* data NULL: the problem has no sum_rows */
    /* The last rope_dims dims; q_rope lies in q where a run is given none. data NULL: rope_dims is 0. */
    struct view q_rope, k_rope;
    struct view k_scale, v_scale; /* f32, data NULL: none; as k and v */
    const int32_t *page_table;    /* [batch] rows, table_stride entries apart; NULL: not paged */
    int64_t pages, table_stride;
    float *scores; /* staged */
    /* A base that fused kernels start from; base_o.data NULL: none. base_lse.data NULL: o is base_o and beta
     * times the run's own, else the base is one more part. base_o may be o. */
    struct view base_o, base_lse;
    double beta;
};

/* Statistics of each query that the pass over delta leaves for the passes after it, [batch * heads_q][n_q]
 * each. P = exp2(s - base), s in base 2: the gradient of a score is P (left dP - delta), and dV gets left P. */
struct query_stats {
    float *base;  /* lse in base 2; +Inf where the query is empty */
    float *left;  /* share that the sink leaves, 1 without one */
    float *delta; /* left (dO . o) - dlse */
};

struct gradient_operands {
    struct attention_operands forward;
    struct view d_o, d_lse, delta, d_q, d_k, d_v;
    float *d_alibi, *d_sink; /* [heads_q], NULL = not wanted */
    struct query_stats
        stats;        /* in the workspace, of all passes; tess_delta: NULLs, and the kernel writes
                                 delta, without regard to sinks */
    float *gradients; /* staged: laid out as scores, dP and then dS; NULL = not wanted */
};

/* Stages, whichever operation they belong to: SDDMM reads q and k, SpMM scores and v. */
struct stage_operands {
    struct modifier_operands modifiers;
    struct view q, k, v, o, lse, o_rest;
    float *scores, *gradients;
    struct query_stats stats;
    float *d_alibi;
};

static inline const struct modifier_operands *modifier_of(const struct kernel_args *args) {
    return (const struct modifier_operands *)args->operands;
}

/* Operands of a gradient begin with attention's: its kernels find q, k and v by this as well. */
static inline const struct attention_operands *attention_of(const struct kernel_args *args) {
    return (const struct attention_operands *)args->operands;
}

static inline const struct gradient_operands *gradient_of(const struct kernel_args *args) {
    return (const struct gradient_operands *)args->operands;
}

static inline const struct stage_operands *stage_of(const struct kernel_args *args) {
    return (const struct stage_operands *)args->operands;
}

#endif
