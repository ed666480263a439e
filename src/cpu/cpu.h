/*
 * The CPU backend's levels: instruction sets that its kernels are compiled for. The sources of the
 * stems are compiled once for each level, with -DCPU_LEVEL=NAME and the level's machine flags,
 * and export their functions under that name. A new level is a line here, rows in table.c
 * and a line in cmake/cpu.cmake. A build may leave levels out.
 */
#ifndef TESSERA_CPU_H
#define TESSERA_CPU_H

#include "plan/attention.h"

/* Best first. */
#if defined(__x86_64__)
#define CPU_LEVELS(X) X(amx) X(avx512bf16) X(avx512) X(avx2) X(portable)
#elif defined(__aarch64__)
#define CPU_LEVELS(X) X(neon) X(portable)
#else
#define CPU_LEVELS(X) X(portable)
#endif

#define CPU_JOIN_(stem, level) cpu_##stem##_##level
#define CPU_JOIN(stem, level) CPU_JOIN_(stem, level)
#define CPU_NAME(stem) CPU_JOIN(stem, CPU_LEVEL) /* cpu_attention_portable */

#define CPU_DECLARE_STEM(stem, level)                                                              \
    size_t cpu_##stem##_workspace_##level(const struct kernel_args *args);                         \
    tess_status cpu_##stem##_##level(const struct kernel_args *args, tess_error *error);
#define CPU_DECLARE(level)                                                                         \
    CPU_DECLARE_STEM(attention, level)                                                             \
    CPU_DECLARE_STEM(column_sums, level)                                                           \
    CPU_DECLARE_STEM(sddmm, level)                                                                 \
    CPU_DECLARE_STEM(softmax, level)                                                               \
    CPU_DECLARE_STEM(spmm, level)                                                                  \
    CPU_DECLARE_STEM(softmax_backward, level)                                                      \
    CPU_DECLARE_STEM(spmm_transposed, level)                                                       \
    CPU_DECLARE_STEM(delta, level)                                                                 \
    CPU_DECLARE_STEM(gradient_keys, level)                                                         \
    CPU_DECLARE_STEM(gradient_rows, level)                                                         \
    CPU_DECLARE_STEM(mlp_up, level)                                                                \
    CPU_DECLARE_STEM(mlp_down, level)
CPU_LEVELS(CPU_DECLARE)

/* Merging and unmerging, at every level (forward/merge.c). */
tess_status cpu_merge(const struct merge_args *args, tess_error *error);
tess_status cpu_unmerge(const struct merge_args *args, tess_error *error);

/* Choosing columns, at every level (select/select.c). */
tess_status cpu_select(const struct select_args *args, tess_error *error);
/* Pooled blocks, their scores, and columns as bytes, bits and lists (select/). */
tess_status cpu_pool(const struct pool_args *args, tess_error *error);
tess_status cpu_score(const struct score_args *args, tess_error *error);
tess_status cpu_columns(const struct columns_args *args, tess_error *error);

/* Fills of reserved plans (fill.c). */
int64_t cpu_workers(const tess_target *target);
tess_status cpu_fill(const struct fill_job *job, tess_error *error);

/* Rows of a query tile that the kernels hold at most, so that a row mask is one word. */
#define CPU_TILE_ROWS 64

/* Whether a problem's heads are fit for tiles that compute listed pairs alone: their dims fill vectors
 * of every level, and sums over them need no chunks. */
#define CPU_LISTED_DIMS 16
#define CPU_LISTED_MOST 256
static inline int cpu_listed_fits(const struct problem *p) {
    return p->d_qk % CPU_LISTED_DIMS == 0 && p->d_v % CPU_LISTED_DIMS == 0 &&
           p->d_qk <= CPU_LISTED_MOST;
}

/* Likewise for the backward, which computes scores of dO and V as well, and modifies none there. */
static inline int cpu_gradients_listed_fit(const struct problem *p) {
    const struct modifiers *m = &p->modifiers;
    return cpu_listed_fits(p) && p->d_v <= CPU_LISTED_MOST && m->softcap == 0 && !m->alibi &&
           !m->dropped;
}

#endif
