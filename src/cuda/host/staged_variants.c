/* What variants of the stages take: block rows, heads, and rows in memory. */
#include "host/staged.h"

/* ---- tiles ---- */

int staged_spmm_cluster(const struct staged_params *p, int64_t units, int blocks) {
    const int64_t held = (int64_t)p->multiprocessors * blocks, chunks = p->columns / CUDA_CHUNK;
    const int most = p->architecture >= CLUSTER_ARCHITECTURE ? STAGED_SPMM_CLUSTER : 1;
    int cluster = 1;
    while (cluster < most && 2 * cluster * units < 3 * held && chunks >= 4 * cluster * p->n_items)
        cluster *= 2;
    return cluster;
}

int staged_spmm_tma_rows(const struct staged_params *p) {
    int rows = p->height <= 32 ? 32 : p->height <= 64 ? 64 : 128;
    while (rows >= 32 && staged_spmm_cluster(p, p->n_items * ((p->height + rows - 1) / rows),
                                             STAGED_SPMM_TMA_BLOCKS(rows)) > 1)
        rows /= 2;
    return rows >= 32 ? rows : 0;
}

int softmax_bulk_lanes(const struct staged_params *p) {
    int lanes = 1;
    while (lanes <= SOFTMAX_BULK_LANES && p->widest > (int64_t)SOFTMAX_BULK_HELD * lanes)
        lanes *= 2;
    return lanes <= SOFTMAX_BULK_LANES ? lanes : 0;
}

/* ---- refusals ---- */

static const char not_hopper[] = "the target's architecture is not 90 (compute capability 9.0)";

/* Whether rows of d elements are whole aligned pieces of 16 bytes. */
static int rows_whole(const struct problem *problem, int64_t d) {
    return problem->alignment >= 16 && d * (int64_t)tess_type_size(problem->type) % 16 == 0;
}

static int known(const struct staged_params *p) {
    return p->n_items > 0;
}

/* By TMA: heads of d dims. */
static const char *tma_refuses(const struct staged_params *p, int32_t d) {
    if (p->architecture != 90)
        return not_hopper;
    if (d > 64 && d != STAGED_TMA_DIMS)
        return "its heads have at most 64 dims, or 128";
    if (p->alignment < 16)
        return "it copies by TMA: rows have to be aligned to 16 bytes";
    if (known(p) && p->block_kv % STAGED_TMA_KEYS)
        return "it copies by TMA: blocks have to be multiples of 32 keys";
    if (known(p) && p->n_bands + p->n_bitmasks)
        return "it has no masks: tiles have to be full";
    if (known(p) && p->height <= STAGED_TMA_ROWS)
        return "its block rows have more than 16 queries";
    return NULL;
}

#define REFUSES(variant)                                                                           \
    const char *variant##_refuses(const struct problem *problem, const struct staged_params *p)

/* Of SpMM that rounds weights to the storage type: gradients of scores have any size. */
static const char *gradient_refused(const struct problem *problem) {
    return problem->operation == TESS_ATTENTION_BACKWARD && problem->type != TESS_F32
               ? "it rounds weights of attention to 16 bits: gradients of scores have any size"
               : NULL;
}

REFUSES(sddmm_tma) {
    const char *why = tma_refuses(p, p->d_qk);
    (void)problem;
    if (!why && p->q_scale != 1)
        why = "it does not scale Q, as scales below 2^-8 need in bf16";
    return why;
}

REFUSES(spmm_tma) {
    const char *why = gradient_refused(problem);
    if (!why)
        why = tma_refuses(p, p->d_v);
    if (!why && known(p) && !staged_spmm_tma_rows(p))
        why = "block rows are so few that several CTAs have to share one";
    return why;
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

REFUSES(softmax_bulk) {
    const int lanes = softmax_bulk_lanes(p);
    const int64_t wave = (int64_t)p->multiprocessors * SOFTMAX_BULK_WARPS * 32; /* rows, by lane */
    const char *why = modified_refused(problem);
    if (why)
        return why;
    if (p->architecture != 90)
        return not_hopper;
    if (!known(p))
        return NULL;
    if (!lanes)
        return "its rows have at most 128 keys";
    if (!p->even)
        return "its block rows have about the same number of keys";
    if (p->n_q % p->block_q)
        return "its block rows have all of a block's queries";
    if (p->n_items * p->height < SOFTMAX_BULK_TIMES * wave / lanes)
        return "its rows are enough for two tiles of each resident warp";
    return NULL;
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
