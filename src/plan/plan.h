/* A plan: everything that can be known before the tensors are. Immutable. */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "plan/kernels.h"

#define PLAN_PASSES 3  /* of a plan at most */
#define PLAN_HEIGHTS 8 /* tile heights that a kernel can offer */

/* Parts that CPU work is cut for, whatever the number of threads, so that results do not depend on
 * it. */
#define PLAN_CPU_WORKERS 64

struct plan_height {
    int32_t rows;
    double seconds; /* predicted from a sample of tiles */
};

/* The pattern in tiles, and a schedule over them. */
struct work {
    struct bcsr bcsr;                         /* staged: the pattern's own tiles, copied */
    struct lists lists;                       /* fused: query tiles */
    struct plan_height heights[PLAN_HEIGHTS]; /* fused: what was weighed; rows 0 ends it */
    int32_t stack;                            /* fused: query heads that make up a tile */
    struct schedule schedule;
    struct prepared *prepared; /* fused, of backends that prepare their lists */
};

/* One step of a run: a kernel and the work that it walks. */
struct pass {
    tess_stage stage;
    const struct kernel *kernel;
    struct work *work; /* of the plan, and of every other pass over the same tiles */
    size_t workspace;  /* bytes that the kernel needs while it runs */
};

struct reserved; /* reserve.h */

/* Passes point into their plan, which is not copied. */
struct tess_plan {
    struct problem problem;
    tess_target target;
    const struct backend *backend;
    int64_t block_q, block_kv, n_lists, n_tiles; /* of the pattern */
    struct pass passes[PLAN_PASSES];             /* in the order in which they run */
    int n_passes;
    struct work work;       /* one, as all passes walk the same tiles */
    int64_t *list_of;       /* [batch * heads_q] */
    int64_t *scores_offset; /* staged: [batch * heads_q] */
    int64_t scores_count;
    size_t image;     /* bytes of the device image; 0 where there is none */
    size_t workspace; /* what tess_run needs: staged, scores; then the largest of a pass */
    int64_t pairs;    /* over all batches and query heads */
    double predicted_seconds;
    struct reserved *reserved; /* where lists come with the image; else NULL */
};

/* Makes a plan of what has been checked: sizes agree, the backend exists. */
tess_status plan_make(tess_plan **plan, const struct problem *problem, const char *kernel,
                      const tess_pattern *pattern, const tess_target *target,
                      const struct backend *backend, tess_error *error);

/* The pass of a stage; NULL where the plan, which may be NULL, has none. */
const struct pass *plan_pass(const tess_plan *plan, tess_stage stage);

/* Predicted seconds of the staged pipeline on a fused plan's problem; infinite where it has no kernel.
 * Nothing is allocated. */
double plan_staged_seconds(const tess_plan *plan, const tess_pattern *pattern);

/* The workspace of tess_run: staged, the scores; then room for the largest of a pass. */
void plan_carve(const tess_plan *plan, struct carve *carve, float **scores, void **of_pass);

/* What the plan knows of the arguments of all its kernels; then of the kernel of a pass. */
struct kernel_args plan_args(const tess_plan *plan);
void pass_args(struct kernel_args *args, const struct pass *pass);

#endif
