/* The arguments of a run, checked against its plan and turned into what kernels are handed. */
#ifndef TESSERA_ARGUMENTS_H
#define TESSERA_ARGUMENTS_H

#include "plan/mlp.h"
#include "plan/plan.h"

/* Arguments of calls. */
enum {
    USES_Q = 1,
    USES_K = 2,
    USES_V = 4,
    USES_O = 8,
    USES_LSE = 16,
    USES_SCORES = 32,
    USES_BIAS = 64,     /* changes of scores: alibi */
    USES_WEIGHTS = 128, /* changes of weights: sink, seed */
    USES_O_REST = 256,  /* if the problem has one */
    USES_D_O = 512,
    USES_D_LSE = 1024,
    USES_DELTA = 2048,     /* read: in place of o, where it is given */
    USES_GRADIENTS = 4096, /* all that the problem names */
    USES_BASE = 8192,      /* read, where the run has one */
    USES_REFERENCE =
        16384, /* lse of an earlier step, and column sums: where the problem has sum_rows */
    USES_SUMS = 32768,
    USES_LISTS = 65536,       /* lists that the call is given, and no image */
    USES_MLP_BIASES = 131072, /* if given */
    USES_ACTIVATIONS = 262144 /* a cache, read and written, if given */
};

/* Tensors that a call uses. Arguments that its plan's problem has no use for are refused in any call. */
struct call {
    int reads, writes; /* USES_... flags */
    const char *function;
};

/* Tensors that tess_run uses. */
struct call call_run(tess_operation operation, const char *function);

/* Operands of a run, by its operation. */
union operands {
    struct attention_operands attention;
    struct gradient_operands gradient; /* which begin with attention's */
    struct mlp_operands mlp;           /* likewise */
};

/* Checks the tensors that a call uses and turns them into views. */
tess_status tensors_take(union operands *out, const struct problem *p, const tess_arguments *a,
                         const struct call *call, tess_error *error);

/* Checks the arguments that a call uses and turns them into what kernels are handed, operands included. */
tess_status arguments_take(struct kernel_args *out, union operands *operands, const tess_plan *plan,
                           const tess_arguments *given, const struct call *call,
                           size_t workspace_size, tess_error *error);

/* The image of a plan, as given for upload or a run. */
tess_status image_check(const tess_plan *plan, const void *image, size_t image_size,
                        const char *function, tess_error *error);

#endif
