/* Refusals of variants of the stages: block rows, heads, and rows in memory. */
#include "host/staged.h"

/* Whether rows of d elements are whole aligned pieces of 16 bytes. */
static int rows_whole(const struct problem *problem, int64_t d) {
    return problem->alignment >= 16 && d * (int64_t)tess_type_size(problem->type) % 16 == 0;
}

static int known(const struct staged_params *p) {
    return p->n_items > 0;
}

#define REFUSES(variant)                                                                           \
    const char *variant##_refuses(const struct problem *problem, const struct staged_params *p)

/* Refusal of SpMM that rounds weights to the storage type: gradients of scores have any size. */
static const char *gradient_refused(const struct problem *problem) {
    return problem->operation == TESS_ATTENTION_BACKWARD && problem->type != TESS_F32
               ? "it rounds weights of attention to 16 bits: gradients of scores have any size"
               : NULL;
}

static const char *mma_refuses(const struct staged_params *p) {
    return known(p) && p->height <= STAGED_GATHER_ROWS ? "its block rows have more than 8 queries"
                                                       : NULL;
}
REFUSES(sddmm_mma) {
    (void)problem;
    return mma_refuses(p);
}
REFUSES(spmm_mma) {
    const char *why = gradient_refused(problem);
    return why ? why : mma_refuses(p);
}

static const char *row_refuses(const struct staged_params *p) {
    return known(p) && p->height > 1 ? "its block rows have one query" : NULL;
}
REFUSES(sddmm_row) {
    (void)problem;
    return row_refuses(p);
}
REFUSES(spmm_row) {
    const char *why = gradient_refused(problem);
    return why ? why : row_refuses(p);
}

REFUSES(sddmm_narrow) {
    if (!rows_whole(problem, problem->d_qk))
        return "its rows are whole pieces of 16 bytes, aligned to that";
    if (known(p) && p->widest > SDDMM_NARROW_WIDTH)
        return "its block rows have at most 32 keys";
    return row_refuses(p);
}

REFUSES(spmm_short) {
    (void)problem;
    if (p->d_v < SPMM_SHORT_DIMS)
        return "its values have at least 256 dims";
    if (known(p) && p->height <= STAGED_GATHER_ROWS)
        return "its block rows have more than 8 queries";
    if (known(p) && p->columns > SPMM_SHORT_WIDTH * p->n_items)
        return "its block rows have at most 64 keys in the mean";
    return NULL;
}

static const char *modified_refused(const struct problem *problem) {
    return problem->modifiers.sink || problem->modifiers.dropped ? "it has no sinks and no dropout"
                                                                 : NULL;
}

static const char *nothing_refused(const struct problem *problem, const struct staged_params *p) {
    (void)problem, (void)p;
    return NULL;
}
REFUSES(sddmm_gather) {
    return nothing_refused(problem, p);
}
REFUSES(softmax_rows) {
    (void)p;
    return modified_refused(problem);
}
REFUSES(softmax_modified) {
    return nothing_refused(problem, p);
}
REFUSES(spmm_gather) {
    (void)p;
    return gradient_refused(problem);
}
REFUSES(spmm_gradient) {
    (void)p;
    return problem->operation == TESS_ATTENTION ? "it computes gradients alone" : NULL;
}
REFUSES(softmax_backward_rows) {
    return nothing_refused(problem, p);
}
REFUSES(spmm_transposed_gather) {
    return nothing_refused(problem, p);
}
