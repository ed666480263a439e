/* A plan: everything that can be known before the tensors are. Immutable. */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "plan/kernels.h"

#define PLAN_STAGES 4  /* of enum tess_stage */
#define PLAN_HEIGHTS 8 /* tile heights that a kernel can offer */

struct plan_height {
    int32_t rows;
    double seconds; /* predicted from a sample of tiles */
};

struct tess_plan {
    struct problem problem;
    tess_target target;
    const struct backend *backend;
    const struct kernel *kernels[PLAN_STAGES];   /* NULL where the pipeline has no such stage */
    struct plan_height heights[PLAN_HEIGHTS];    /* fused: what was weighed; rows 0 ends it */
    int32_t stack;                               /* fused: query heads that make up a tile */
    int64_t block_q, block_kv, n_lists, n_tiles; /* of the pattern */
    struct bcsr bcsr;                            /* staged: the pattern's lists, copied */
    struct lists lists;                          /* fused */
    struct prepared *prepared;                   /* fused, of backends that prepare their lists */
    struct schedule schedule;
    int64_t *list_of;       /* [batch * heads_q] */
    int64_t *scores_offset; /* staged: [batch * heads_q] */
    int64_t scores_count;
    size_t stage_workspace[PLAN_STAGES];
    size_t image;     /* bytes of the device image; 0 where there is none */
    size_t workspace; /* what tess_run needs: staged, scores and the largest stage's workspace */
    int64_t pairs;    /* over all batches and query heads */
    double predicted_seconds;
};

/* The stages of a pipeline, in order; returns how many. */
int plan_stages(tess_pipeline pipeline, const tess_stage **stages);

/* Makes a plan of what has been checked: sizes agree, the backend exists. */
tess_status plan_make(tess_plan **plan, const struct problem *problem, const char *kernel,
                      const tess_pattern *pattern, const tess_target *target,
                      const struct backend *backend, tess_error *error);

/* The workspace of tess_run: staged, the scores; then room for the largest stage. */
void plan_carve(const tess_plan *plan, struct carve *carve, float **scores, void **stage);

/* The arguments that every kernel of the plan is handed; tensors are left empty. */
struct kernel_args plan_args(const tess_plan *plan);

#endif
