/* The stages of the staged backward by themselves: what their kernels are handed, made from a case
 * without a plan. What cannot be made ends the test. */
#ifndef TESTS_STAGES_H
#define TESTS_STAGES_H

#include "lab/case/case.h"
#include "lab/memory/guard.h"
#include "plan/attention.h"

struct stages {
    struct lab_case c;
    tess_pattern *pattern, *transposed;
    struct problem problem;
    int64_t *list_of;        /* [batch * heads_q] */
    int64_t *scores_offset;  /* [batch * heads_q] */
    int64_t *entries;        /* for each tile of transposed the same tile of pattern */
    int64_t count;           /* BCSR scores of all heads */
    struct schedule rows;    /* (b * heads_q + h, block row) */
    struct schedule columns; /* (b * heads_kv + h, block column) */
};

void stages_make(struct stages *s, const char *text);
void stages_free(struct stages *s);

/* An element of a tile, in a row of queries that exist. */
struct stages_element {
    int64_t b, h, i, key; /* key: n_kv and more where the last block is short */
    int64_t place;        /* in the scores */
    int listed;
};
typedef void stages_visit(void *context, const struct stages_element *e);

/* All elements of all heads, by query and then by key. */
void stages_each(const struct stages *s, stages_visit *visit, void *context);

/* Whether any head that reads list (b, h)'s keys j0 ... j1 - 1 lists one of them for query i. */
int stages_lists(const struct stages *s, int64_t b, int64_t h, int64_t i, int64_t j0, int64_t j1);

/* Arguments as a plan would make them. */
struct kernel_args stages_args(const struct stages *s);

/* Runs a kernel in a workspace of exactly its size, between canaries. */
void stages_run(const struct kernel *kernel, struct kernel_args *args, int32_t threads);

/* The kernels of a stage that this machine can run, from `kernel` (NULL: the first) on; NULL: no
 * more. */
const struct kernel *stages_kernel(tess_stage stage, const struct kernel *kernel);

struct view stages_view(const struct lab_tensor *t);

#endif
