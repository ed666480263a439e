/* Which kernels compute a plan, and in which query tiles. Costs are seconds of one worker. */
#ifndef TESSERA_SELECT_H
#define TESSERA_SELECT_H

#include "plan/plan.h"

/* NULL if the kernel computes the plan's problem on its target, at one height at least; else why
 * not, in words. */
const char *select_refuses(const tess_plan *plan, const struct kernel *kernel);

/* Whether the kernel refuses the problem whatever its alignment, scale and tile rows are: it is of
 * another type, of other head sizes or for another machine. */
int select_foreign(const tess_plan *plan, const struct kernel *kernel);

/* For each pass of the plan the first kernel of its stage that does not refuse the problem; a name
 * forces one. Answers TESS_UNSUPPORTED with the reason where there is none. */
tess_status select_kernels(tess_plan *plan, const char *name, tess_error *error);

/* Into *rows, which is 0, the cheapest height of the pass's kernel; where that is to be weighed
 * against those after it and no name forces it, the cheapest of them all, whose kernel becomes the
 * pass's. heads: that read each list. */
tess_status select_height(const tess_plan *plan, struct pass *pass, const struct bcsr *m,
                          double heads, int forced, int32_t *rows, tess_error *error);

/* How many query heads a tile has `rows` rows of; 0 where it would have to be made up of some that
 * do not share their list, or need not be. */
int32_t select_stack(const tess_plan *plan, const struct kernel *kernel, int32_t rows);

/* Dims of a key that attention computes, K's and V's. */
double select_dims(const tess_plan *plan, const struct kernel *kernel);

/* One key of so many dims for a query tile of `rows` rows. */
double select_key_cost(const tess_plan *plan, const struct kernel *kernel, double dims,
                       double rows);

/* A fused run over lists with these sums, each list read by `heads` heads, in tiles of `height`
 * rows of each of `stack` heads: what kernels and heights are weighed by, without launch, merges and
 * workers that have more to do than others, which the plan's prediction counts. */
double select_fused_cost(const tess_plan *plan, const struct kernel *kernel,
                         const struct lists_sums *sums, double heads, int32_t height,
                         int32_t stack);

/* All passes over the block lists. */
double select_staged_cost(const tess_plan *plan, double heads);

#endif
