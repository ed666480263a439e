/* Kernels of a problem and their tiles: candidates, by value. Costs are seconds of one worker. */
#ifndef TESSERA_SELECT_H
#define TESSERA_SELECT_H

#include "plan/cost.h"
#include "plan/plan.h"

/* All that candidates are computed from. */
struct premises {
    const struct problem *problem;
    const tess_target *target;
    const struct backend *backend;
    const char *kernel;              /* the name that is forced, or NULL */
    const struct bcsr *m;            /* the pattern's tiles; NULL: of a reserved plan */
    const struct fill_shape *filled; /* shape of a reserved plan; else NULL */
    double keys;                     /* likewise: that a tile lists */
    int64_t block_q, block_kv, n_lists;
    int64_t pairs;          /* over all batches and query heads */
    const int64_t *list_of; /* [batch * heads_q] */
};

/* Premises of a plan, without a kernel's name and tiles. */
struct premises plan_premises(const tess_plan *plan);

/* Lists of each height, estimated once, whichever kernels and passes ask. */
struct estimates {
    const struct bcsr *m;       /* the pattern's tiles, or the transposed ones */
    int32_t rows[PLAN_HEIGHTS]; /* 0 ends them */
    struct lists_sums sums[PLAN_HEIGHTS];
};

/* NULL if the kernel computes the pass's problem on the target, at one height at least; else why not, in
 * words. */
const char *select_refuses(const struct premises *p, const struct pass *pass,
                           const struct kernel *kernel);

/* Whether the kernel refuses the problem whatever its alignment, scale, tile rows and block rows: type, head
 * sizes or machine are others. */
int select_foreign(const struct premises *p, const struct pass *pass, const struct kernel *kernel);

/* A candidate without tiles: for each pass the first kernel of its stage that does not refuse its problem; a
 * name forces one. joint: dQ joins the pass over keys. Answers TESS_UNSUPPORTED with the reason where there
 * is none. */
tess_status select_kernels(struct candidate *candidate, const struct premises *p, int joint,
                           tess_error *error);

/* The candidate's tiles and seconds, by lowest predicted cost. A kernel that no name forces and that is
 * weighed against the kernels after it may be replaced by the cheapest. m, transposed: estimates of lists
 * of passes over queries, and over keys; NULL where the candidate has no such fused pass, or is reserved. */
tess_status select_tiles(struct candidate *candidate, const struct premises *p, struct estimates *m,
                         struct estimates *transposed, tess_error *error);

/* A kernel for a pass, in the pass's tiles. */
struct trial select_trial(const struct premises *p, const struct pass *pass,
                          const struct kernel *kernel);

/* A candidate in which dQ joins the pass over keys, and the lists and strips of that pass, where five
 * products pay. Else *candidate and *key_work stay as they are (joint.c). */
tess_status joint_decide(struct candidate *candidate, struct work *key_work,
                         const struct premises *p, struct estimates *m,
                         struct estimates *transposed, tess_error *error);

/* Whether that may be, as far as problem and backend say. */
int joint_possible(const struct premises *p);

/* Whether a joint pass leaves gradients of scores in the workspace, and has no strips. Then its work is made as that of
 * other passes, and where these do not fit spill_size, or are not whole units, the plan has seven products. */
int joint_spills(const struct pass *pass);

/* Predicted seconds of clearing and adding the sums of strips. */
double joint_seconds(const struct problem *problem, const struct strips *strips);

#endif
