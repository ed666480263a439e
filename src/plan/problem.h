/* Checks of what a caller hands over, and its turning into what the library works with. */
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H

#include "plan/kernels.h"

/* The longest dimension of a head. */
#define CHECK_MAX_DIM 65536

/* Checks a problem and resolves its defaults; *kernel is the name it asks for, or NULL. */
tess_status check_problem(struct problem *out, const char **kernel, const tess_problem *given,
                          const char *function, tess_error *error);

/* Whether dimension `which` of the tensor `name` is 1 ... most; else an error. */
tess_status check_size(const char *name, int which, int64_t value, int64_t most,
                       const char *function, tess_error *error);

/* A tensor as it is given. NULL, or what is wrong with it by itself. */
const char *check_given(tess_tensor *out, const tess_tensor *given);
/* Keys or values as given, which may have 8 bits. */
const char *check_stored(tess_tensor *out, const tess_tensor *given);

struct tensor_rule {
    const char *name; /* name of the argument */
    tess_type type;
    int64_t size[4];
    int64_t alignment;
    int output;  /* no element may stand for two */
    int or_f32;  /* f32 will do as well */
    int of_keys; /* keys or values of a problem without pages */
    int weights; /* W2 of an MLP */
};

/* Halves *alignment, in bytes, until the tensor has it or an element has as many. */
void alignment_lower(int64_t *alignment, const tess_tensor *t);

/* Checks a tensor by its rule and turns it into a view. */
tess_status check_tensor(struct view *out, const tess_tensor *given, const struct tensor_rule *rule,
                         const char *function, tess_error *error);

/* The target that is given, or this machine's CPU. */
tess_status check_target(tess_target *out, const tess_target *given, const char *function,
                         tess_error *error);

/* The backend that a caller names, if it was built. */
tess_status check_backend(const struct backend **out, tess_backend backend, const char *function,
                          const char *argument, tess_error *error);

/* Whether a problem takes lists for so many batches and heads; else an error. */
tess_status check_lists(int64_t batch, int64_t heads, const struct problem *problem,
                        const char *function, tess_error *error);

/* The sizes of a pattern against those of a problem. */
tess_status check_pattern(const tess_pattern *pattern, const struct problem *problem,
                          const char *function, tess_error *error);

#endif
