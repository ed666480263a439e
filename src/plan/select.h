/* Which kernels compute a plan, and in which query tiles. Costs are seconds of one worker. */
#ifndef TESSERA_SELECT_H
#define TESSERA_SELECT_H

#include "plan/plan.h"

/* NULL if the kernel computes the pass's problem on the plan's target, at one height at least; else
 * why not, in words. */
const char *select_refuses(const tess_plan *plan, const struct pass *pass,
                           const struct kernel *kernel);

/* Whether the kernel refuses the problem whatever its alignment, scale, tile rows and block rows are:
 * it is of another type, of other head sizes or for another machine. */
int select_foreign(const tess_plan *plan, const struct pass *pass, const struct kernel *kernel);

/* For each pass of the plan the first kernel of its stage that does not refuse its problem; a name
 * forces one. Answers TESS_UNSUPPORTED with the reason where there is none. */
tess_status select_kernels(tess_plan *plan, const char *name, tess_error *error);

/* What lists of each height would be: estimated once, whichever kernels and passes ask. rows 0 ends them. */
struct estimates {
    const struct bcsr *m; /* the pattern's tiles, or the transposed ones */
    int32_t rows[PLAN_HEIGHTS];
    struct lists_sums sums[PLAN_HEIGHTS];
};

/* Writes to *rows, which must be 0, the height of lowest predicted cost, and to *seconds this cost. A kernel
 * that no name forces and that is weighed against the kernels after it may be replaced: the cheapest
 * becomes the pass's. heads: heads that read each list. */
tess_status select_height(const tess_plan *plan, struct pass *pass, struct estimates *e,
                          double heads, int forced, int32_t *rows, double *seconds,
                          tess_error *error);

/* Gives the pass of a reserved plan its kernel: of the kernels that are weighed, the one of lowest
 * predicted cost for block rows of `height` queries that list `keys` keys. */
void select_filled_kernel(const tess_plan *plan, struct pass *pass, int64_t height, double keys);

/* Into *rows the height of the tiles of a reserved plan, whose lists are not known: the lowest that
 * holds `height` rows, or those that the problem asks for; or the highest. */
tess_status select_filled_rows(const tess_plan *plan, const struct pass *pass, int64_t height,
                               int32_t *rows, tess_error *error);

/* How many query heads a tile has `rows` rows of; 0 where it would have to be made up of some that
 * do not share their list, or need not be. Key tiles are of one K/V head: 1. */
int32_t select_tile_heads(const tess_plan *plan, const struct pass *pass,
                          const struct kernel *kernel, int32_t rows);

/* Keys of a part of a split tile at least. */
int64_t select_part_keys(const tess_plan *plan, const struct kernel *kernel);

/* Seconds that the partial results of a part of `rows` rows take; 0 where combining has no known cost. */
double select_part_cost(const struct pass *pass, const struct kernel *kernel, double rows);

/* Dims of a key that the kernel multiplies by a row's, over all products. */
double select_dims(const struct pass *pass, const struct kernel *kernel);

/* One key of so many dims for a query tile of `rows` rows; over keys, one query for a key tile. */
double select_key_cost(const tess_plan *plan, const struct pass *pass, const struct kernel *kernel,
                       double dims, double rows);

/* Seconds by which kernels and heights are compared: a fused pass over lists with these sums, each list
 * read by `heads` heads, in tiles of `height` rows of each of `tile_heads` heads. Launch, combines and
 * workers' uneven loads are left to the plan's prediction. */
double select_fused_cost(const tess_plan *plan, const struct pass *pass,
                         const struct kernel *kernel, const struct lists_sums *sums, double heads,
                         int32_t height, int32_t tile_heads);

/* A pass over the pattern's tiles m, or over the rows of tensors alone. */
double select_stage_cost(const tess_plan *plan, const struct pass *pass, const struct bcsr *m,
                         double heads);

#endif
