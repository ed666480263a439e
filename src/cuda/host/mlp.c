/* The host's side of the MLP on CUDA. */
#include "host/mlp.h"

#include "host/families.h"

const char *mlp_refuses(const struct problem *problem, const tess_target *target) {
    (void)target;
    if (problem->alignment < 16 || problem->d_qk % 8 || problem->d_v % 8)
        return "it copies 16 bytes at a time: rows have to be aligned to that, and d_qk and d_v to "
               "be "
               "multiples of 8";
    if (problem->o_type != problem->type)
        return "it writes o of x's type: o_f32 must be 0";
    return NULL;
}

const char *mlp_sm90_refuses(const struct problem *problem, const tess_target *target) {
    if (target->architecture != 90)
        return "the target's architecture is not 90 (compute capability 9.0)";
    return mlp_refuses(problem, target);
}

size_t mlp_workspace(const struct kernel_args *args) {
    (void)args;
    return 0; /* values are the operation's */
}

static struct mlp_bias bias_of(const struct view *view) {
    return (struct mlp_bias){view->data, view->type == TESS_F32};
}

struct mlp_params mlp_params_of(const struct kernel_args *args) {
    const struct mlp_operands *given = mlp_of(args);
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    struct mlp_params to = {
        .bias = bias_of(&given->bias),
        .bias_out = bias_of(&given->bias_out),
        .activations = rows_view_of(&given->activations),
        .values = given->values,
        .value_stride = given->value_stride,
        .activation = p->activation,
        .filled = args->work.filled != NULL,
        .ranges = given->ranges,
        .dense = !args->work.filled && p->n_kv > 0 &&
                 lists->full_keys == lists->n_lists * lists->tiles * p->n_kv,
        .delta = mlp_is_delta(given),
    };
    if (to.filled)
        to.lists = decode_params_of(args);
    else
        to.lists.run = attention_params_of(args);
    to.lists.multiprocessors = args->target->multiprocessors;
    return to;
}
