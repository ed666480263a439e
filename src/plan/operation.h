/* An operation: the passes of its plans, and what its runs hand from pass to pass. */
#ifndef TESSERA_OPERATION_H
#define TESSERA_OPERATION_H

#include "plan/plan.h"

/* Source of a kernel's operand: places in the operands of the operation and of the kernel. */
struct binding {
    size_t from, to, size; /* bytes; size 0 ends a list */
};
#define BIND(of_run, from, of_kernel, to)                                                          \
    {                                                                                              \
        offsetof(struct of_run, from), offsetof(struct of_kernel, to),                             \
            sizeof((struct of_kernel *)0)->to                                                      \
    }

/* Parts of the problem's scale and modifiers that a pass keeps. */
enum keeps { KEEPS_BOTH, KEEPS_SCALE, KEEPS_NEITHER };

/* A pass as it stands in its operation's table. */
struct step {
    tess_pipeline pipeline;
    tess_stage stage;
    int64_t wanted; /* TESS_GRADIENT_...: left out where none of these is wanted; 0: never */
    int64_t joint;  /* TESS_GRADIENT_... likewise, and written, where dQ joins the pass over keys */
    const char *what;
    const struct binding *bindings; /* NULL: its kernel is handed the operation's own operands */
    size_t d_qk, d_v;               /* dims of the problem, as places in struct problem */
    enum keeps keeps;
    int over_keys;
};

struct operation {
    const char *name;         /* name in printed plans */
    const char *absent;       /* refusal where a backend has no kernel of a pass */
    const struct step *steps; /* in the order in which they run */
    size_t n_steps;
    /* Places what lives from pass to pass in the workspace of a run, and has its operands point there.
     * operands NULL: sizes alone. */
    void (*carve)(const tess_plan *plan, struct carve *carve, void *operands);
};
extern const struct operation operation_attention, operation_gradient; /* attention.c */
extern const struct operation operation_mlp;                           /* mlp.c */
const struct operation *operation_get(tess_operation operation);

#endif
