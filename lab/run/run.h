/*
 * One run of a plan through the public API on its backend: between canaries, into poisoned memory,
 * with everything back on the host afterwards.
 */
#ifndef LAB_RUN_H
#define LAB_RUN_H

#include "lab/run/backward.h"
#include "lab/run/base.h"
#include "lab/run/cache.h"
#include "lab/lists/listed.h"
#include "lab/memory/mirror.h"
#include "lab/run/mlp.h"
#include "lab/run/modifiers.h"
#include "lab/run/sums.h"

/* A plan and its image, which lies between canaries where the plan's runs find it. */
struct lab_planned {
    tess_plan *plan;
    tess_backend backend;
    struct lab_buffer image; /* bytes as filled */
    struct lab_mirror home;
    void *place; /* NULL: the plan has no image */
    uint64_t hash;
    const struct lab_listed *listed; /* reserved: what the image is filled from, NULL: uploaded */
    tess_device_pattern lists;       /* listed's pattern where the plan's fills find it */
};

/* Plans and fills the image. Not TESS_OK: error says why. lab_planned_free in either case. */
tess_status lab_planned_make(struct lab_planned *planned, const tess_problem *problem,
                             const tess_pattern *pattern, const tess_target *target,
                             tess_error *error);
/* Reserves a plan and fills its image. A run that is replayed as a graph fills the image again in it. */
tess_status lab_planned_reserve(struct lab_planned *planned, const tess_problem *problem,
                                const struct lab_listed *listed, const tess_target *target,
                                tess_error *error);
void lab_planned_free(struct lab_planned *planned);

/* On the default stream; on one that does not wait for it; recorded there as a graph and replayed
 * twice, filling the image; likewise without an image. The CPU knows the first alone. */
enum lab_launch { LAB_PLAIN, LAB_STREAM, LAB_GRAPH, LAB_DIRECT };

struct lab_run {
    const struct lab_planned *planned;
    const struct lab_tensor *q, *k, *v;
    /* Written, lse NULL: none wanted. A backward reads them, o NULL: not given. */
    struct lab_tensor *o, *lse;
    enum lab_launch launch;
    const struct lab_modifiers *modifiers; /* NULL: none */
    const struct lab_cache *cache;         /* how k and v are held; NULL: as they are */
    const struct lab_sums *sums;           /* NULL: as one without memory */
    const struct lab_base *base;           /* NULL: none */
    const struct lab_mlp *mlp;             /* NULL: not an MLP */
    int keeps_cache;                       /* 1: the cache of activations stays as a run left it */
    struct lab_given *given;               /* NULL: not a backward */
    struct lab_wanted *wanted;             /* NULL: tess_delta, to given->delta */
};

/* Arguments of a call, as the backend sees them: not to be moved. */
enum { LAB_RUN_PARTS = 18 };
struct lab_sight {
    struct lab_mirror mirror;
    tess_tensor view[LAB_RUN_PARTS];
    tess_arguments arguments;
};

/* Copies a run's tensors to the backend, for calls of the caller's own. 0, or -1 and the mirror's why;
 * lab_mirror_free of the mirror in either case. */
int lab_run_place(struct lab_sight *sight, const struct lab_run *run,
                  const struct lab_buffer *workspace);

/* tess_run, or the three stages by themselves over scores of exactly the size asked for. 0: the run
 * succeeded, touched no canary and changed no input and no image; else -1 and why. */
int lab_run_whole(const struct lab_run *run, char why[LAB_WHY]);
int lab_run_stages(const struct lab_run *run, char why[LAB_WHY]);

/* tess_delta, in the same way. */
int lab_run_delta(const struct lab_run *run, char why[LAB_WHY]);

#endif
