/* A plan: everything that can be known before the tensors are. Immutable. */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "plan/kernels.h"
#include "plan/strips.h"

#define PLAN_PASSES 7  /* passes of a plan at most */
#define PLAN_HEIGHTS 8 /* tile heights that a kernel can offer */

struct plan_height {
    int32_t rows;
    double seconds; /* predicted from a sample of tiles */
};

/* Tiles of a fused pass: their height, query heads packed in one, and heights that were weighed. */
struct tile_shape {
    int32_t rows, tile_heads;
    struct plan_height heights[PLAN_HEIGHTS]; /* rows 0 ends them */
};

/* The pattern, or the transposed one, in tiles, and a schedule over them. */
struct work {
    struct bcsr bcsr;                  /* staged: the tiles, copied */
    int64_t *entries;                  /* staged, transposed: their places in the pattern */
    struct lists lists;                /* fused: query tiles; transposed: key tiles */
    const struct plan_height *heights; /* fused: what its pass's tiles were weighed as */
    int32_t tile_heads;                /* fused: query heads packed in a tile */
    struct schedule schedule;
    struct strips strips;      /* strips of key tiles, where dQ joins the pass over keys */
    struct prepared *prepared; /* fused, of families that prepare their lists */
    const struct prepare_services *prepare; /* the family's, which made it */
};

#define PASS_OPERANDS 512 /* bytes of operands that a pass binds, at most */

/* One step of a run: a kernel, what it reads and writes, and the work that it walks. */
struct pass {
    tess_stage stage;
    const char *what; /* name of its product, where a plan has several of the stage; or NULL */
    struct problem problem;         /* the plan's, with the dims of the operands */
    const struct binding *bindings; /* operation.h; NULL: the operation's own operands */
    const struct kernel *kernel;
    struct tile_shape tiles; /* shape of a fused pass over tiles; else zeros */
    struct work *work;       /* shared by all passes over the same tiles; reserved: its part's */
    int over_keys;           /* whose tiles are those of the transposed pattern */
    int joint;               /* over keys: it writes dQ as well */
    size_t workspace;        /* bytes that the kernel needs while it runs */
    const struct part *part; /* part of the image; NULL: it reads none */
    double seconds;          /* predicted */
};

/* A form that a plan may have, by value: its passes have kernels, tiles and predicted seconds, and neither
 * work nor memory. */
struct candidate {
    struct pass passes[PLAN_PASSES]; /* in the order in which they run */
    int n_passes;
    int joint; /* fused backward: dQ joins the pass over keys (joint.c) */
    double seconds;
};

struct reserved; /* reserve.h */

/* Part of a plan's image: lists and schedule of a pass, or of all passes of the stages. An upload writes it
 * from the plan, or a fill from a device pattern. */
struct part {
    const struct pass *pass;   /* whose lists these are: of several, the first */
    size_t at, size;           /* bytes, from the image's begin */
    struct reserved *reserved; /* lists that a fill writes; NULL: an upload writes them */
    uint64_t header[IMAGE_HEADER_MOST / sizeof(uint64_t)]; /* an upload's */
};

/* Passes point into their plan, which is not copied. */
struct tess_plan {
    struct problem problem;
    tess_target target;
    const struct backend *backend;
    int64_t block_q, block_kv, n_lists, n_tiles; /* the pattern's */
    struct pass passes[PLAN_PASSES];             /* passes of the candidate that was kept */
    int n_passes, joint;
    struct work work;       /* work of all passes over query tiles, unless it is a part's */
    struct work key_work;   /* work of all passes over key tiles, likewise */
    struct work sum_work;   /* work of the pass of column sums, likewise */
    int64_t *list_of;       /* [batch * heads_q] */
    int64_t *scores_offset; /* staged: [batch * heads_q] */
    int64_t scores_count;
    struct part parts[PLAN_PASSES]; /* parts of the image, in its order */
    int n_parts;
    size_t image;              /* bytes of all parts; 0 where there are none */
    size_t workspace;          /* bytes that tess_run needs: plan_carve's */
    int64_t pairs;             /* over all batches and query heads */
    double bytes;              /* least that a run moves of q, k, v and o (bytes.c); reserved: 0 */
    double predicted_seconds;  /* kernels alone, whatever the memory */
    struct fill_shape *filled; /* lists that come with the image, but for their tiles; else NULL */
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

/* Bytes of Q, K, V and O that a run moves at least: `keys` rows of K and V, `queries` of Q, all of O. */
double bytes_moved(const struct problem *p, double keys, double queries);

/* Counts the plan's bytes: rows and keys of the pattern's tiles, each once for the heads that share it. */
tess_status bytes_count(tess_plan *plan, const struct bcsr *m, tess_error *error);

/* `seconds` of kernels, or those that the target's memory takes for the bytes where these are more. */
double plan_seconds(const tess_plan *plan, double seconds, double bytes);

/* The workspace of tess_run: what lives from pass to pass, then room for the largest of a pass, which is
 * answered. The operation's operands, unless NULL, learn of the first. */
void *plan_carve(const tess_plan *plan, struct carve *carve, void *operands);

/* Sets the passes of the problem's operation, pipeline and gradients, without kernels (pass.c). */
void passes_begin(struct candidate *candidate, const struct problem *problem, int joint);

/* Tells that memory ran out for a part of a plan. */
tess_status plan_no_memory(tess_error *error, const char *what);

/* Gives a plan the passes of a candidate. */
void plan_keep(tess_plan *plan, const struct candidate *candidate);

/* Checks that no query tile of a pass of column sums has queries of two groups, and of kernels that need whole
 * groups that each is one. */
tess_status sums_check(const struct pass *pass, const struct lists *lists, const char *function,
                       tess_error *error);

/* Begins a part of the image, after those there are, and ends it: its size is a multiple of CARVE_ALIGNMENT.
 * part_close answers 0, or -1 where the image does not fit. */
struct part *part_add(tess_plan *plan, struct pass *pass);
int part_close(tess_plan *plan, struct part *part, size_t size);

/* Arguments of all its kernels, as far as a plan knows them. */
struct kernel_args plan_args(const tess_plan *plan);

/* The arguments of a pass, from those of the run; its operands are still the operation's. */
struct kernel_args pass_args(const struct kernel_args *run, const struct pass *pass);

/* Runs n passes of a plan, in their order, after a fill of the image where `filling` is no NULL. All kernels are
 * asked before anything is launched, so that a run that is refused has written nothing. */
struct filling; /* reserve.h */
tess_status passes_run(const tess_plan *plan, const struct pass *passes, int n,
                       const struct filling *filling, const struct kernel_args *run,
                       tess_error *error);

/* Keeps the candidate, or one in which dQ joins the pass over keys: lists, or tiles, and schedules of all
 * passes; predicted seconds (work.c). The candidate has kernels alone. */
struct premises;
tess_status works_make(tess_plan *plan, struct candidate *candidate,
                       const struct premises *premises, tess_error *error);
void work_free(struct work *work);
size_t work_memory(const struct work *work);

/* Whether lists are packed for a work, and tiles copied. */
static inline int work_packed(const struct work *work) {
    return work->lists.tile_rows > 0;
}
static inline int work_copied(const struct work *work) {
    return work->bcsr.row_ptr != NULL;
}

#endif
