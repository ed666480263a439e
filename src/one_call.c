/* The call that does it all: plans, allocates, runs, waits and frees. */
#include "arguments.h"
#include "plan/problem.h"
#include "base/status.h"

#include <string.h>

/* Whether the sizes that the tensors say make up a problem; errors name the tensor. */
static tess_status sizes_agree(const tess_problem *p, const char *function, tess_error *error) {
    const struct {
        const char *name;
        int which; /* index of check_size_names */
        int64_t value, most;
    } sizes[] = {{"q", 0, p->batch, INT32_MAX},    {"q", 1, p->heads_q, INT32_MAX},
                 {"q", 2, p->n_q, INT32_MAX},      {"q", 3, p->d_qk, CHECK_MAX_DIM},
                 {"k", 1, p->heads_kv, INT32_MAX}, {"k", 2, p->n_kv, INT32_MAX},
                 {"v", 3, p->d_v, CHECK_MAX_DIM}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tess_status status = check_size(sizes[i].name, sizes[i].which, sizes[i].value,
                                        sizes[i].most, function, error);
        if (status)
            return status;
    }
    if (p->heads_q % p->heads_kv)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "k",
                         "k has %lld heads, which do not divide q's %lld", (long long)p->heads_kv,
                         (long long)p->heads_q);
    return TESS_OK;
}

/* Allocates, runs and waits. */
static tess_status plan_run(const tess_plan *plan, tess_arguments *arguments, const char *function,
                            tess_error *error) {
    const struct backend *backend = plan->backend;
    const size_t size = tess_plan_workspace_size(plan);
    void *workspace = size ? backend->device.allocate(size) : NULL;
    void *image = plan->image ? backend->device.allocate(plan->image) : NULL;
    tess_status status;
    arguments->workspace = workspace;
    arguments->workspace_size = size;
    arguments->image = image;
    arguments->image_size = plan->image;
    if ((size && !workspace) || (plan->image && !image))
        status = error_set_memory(error, function, size + plan->image);
    else
        status = tess_plan_upload(plan, image, plan->image, error, NULL);
    if (!status)
        status = tess_run(plan, arguments, error, NULL);
    if (!status)
        status = backend->device.synchronize(NULL, error);
    backend->device.release(workspace);
    backend->device.release(image);
    return status;
}

/* Plans and runs the pipeline of lower predicted cost, among those that have kernels for the problem
 * and its tensors, and find memory: the staged one needs room for its scores. */
static tess_status cheaper_run(tess_problem *problem, const tess_pattern *pattern,
                               const tess_target *target, tess_arguments *arguments,
                               const char *function, tess_error *error) {
    tess_plan *fused = NULL, *staged = NULL;
    const int fused_alone = problem->o_f32 != 0; /* the stages write o of q's type */
    tess_status status = tess_plan_create(&fused, problem, pattern, target, error);
    const int fused_first =
        fused_alone ||
        (!status && !(plan_staged_seconds(fused, pattern) < fused->predicted_seconds));
    if (!status && fused_first)
        status = plan_run(fused, arguments, function, error);
    if (!fused_alone && (status == TESS_UNSUPPORTED || (!status && !fused_first))) {
        problem->pipeline = TESS_STAGED;
        status = tess_plan_create(&staged, problem, pattern, target, error);
        if (!status)
            status = plan_run(staged, arguments, function, error);
    }
    if (fused && !fused_first &&
        (!staged || status == TESS_OUT_OF_MEMORY || status == TESS_UNSUPPORTED))
        status = plan_run(fused, arguments, function, error);
    tess_plan_free(staged);
    tess_plan_free(fused);
    return status;
}

/* The problem of the tensors of a call, of which all but q, k and v may be missing. o may be f32. */
static tess_status problem_of(tess_problem *problem, const tess_arguments *a, const char *function,
                              tess_error *error) {
    const tess_tensor *const others[] = {a->d_o, a->d_q, a->d_k, a->d_v};
    tess_status status = tess_problem_from_tensors(problem, a->q, a->k, a->v, a->o, error);
    problem->k_type = problem->v_type = TESS_F32; /* q's: the one call has one type */
    for (size_t i = 0; i < sizeof others / sizeof *others && !status; i++) {
        tess_tensor t;
        if (others[i] && !check_given(&t, others[i])) /* faults are told by name, later */
            alignment_lower(&problem->alignment, &t);
    }
    return status ? status : sizes_agree(problem, function, error);
}

/* Errors may name functions and arguments of a callee. */
static tess_status all_of_it(tess_backend backend, const tess_pattern *pattern,
                             tess_arguments *arguments, tess_operation operation, int64_t gradients,
                             const char *function, tess_error *error) {
    const struct call call = call_run(operation, function);
    tess_problem problem = tess_problem_init();
    tess_target target = tess_target_init();
    struct problem resolved;
    union operands operands;
    const char *kernel;
    if (!arguments->o)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "o", "o is NULL");
    tess_status status = problem_of(&problem, arguments, function, error);
    problem.operation = operation;
    problem.gradients = gradients;
    problem.o_f32 &= operation == TESS_ATTENTION; /* the backward reads o of either type */
    if (!status)
        status = check_problem(&resolved, &kernel, &problem, function, error);
    if (!status)
        status = tensors_take(&operands, &resolved, arguments, &call, error);
    if (!status)
        status = tess_target_query(&target, backend, -1, error);
    if (!status)
        status = cheaper_run(&problem, pattern, &target, arguments, function, error);
    return status;
}

/* The argument of a call that a callee's stands for: what no kernel computes is refused by the
 * backend, other faults of the problem are the tensors'. */
static const char *own_argument(const tess_error *error) {
    static const char *const own[] = {"backend", "q",   "k",   "v",   "pattern", "o",
                                      "lse",     "d_o", "d_q", "d_k", "d_v"};
    for (size_t i = 0; error->argument && i < sizeof own / sizeof *own; i++)
        if (!strcmp(error->argument, own[i]))
            return own[i];
    if (!error->argument)
        return NULL;
    return error->status == TESS_INVALID_ARGUMENT && !strcmp(error->argument, "problem")
               ? "q"
               : "backend";
}

tess_status tess_attention(tess_backend backend, const tess_tensor *q, const tess_tensor *k,
                           const tess_tensor *v, const tess_pattern *pattern, const tess_tensor *o,
                           const tess_tensor *lse, tess_error *error) {
    tess_arguments arguments = tess_arguments_init();
    tess_error inner = tess_error_init();
    arguments.q = q, arguments.k = k, arguments.v = v, arguments.o = o, arguments.lse = lse;
    if (!all_of_it(backend, pattern, &arguments, TESS_ATTENTION, 0, __func__, &inner))
        return TESS_OK;
    return error_pass(error, &inner, __func__, own_argument(&inner));
}

tess_status tess_attention_backward(tess_backend backend, const tess_tensor *q,
                                    const tess_tensor *k, const tess_tensor *v,
                                    const tess_pattern *pattern, const tess_tensor *o,
                                    const tess_tensor *lse, const tess_tensor *d_o,
                                    const tess_tensor *d_q, const tess_tensor *d_k,
                                    const tess_tensor *d_v, tess_error *error) {
    const int64_t gradients =
        (d_q ? TESS_GRADIENT_Q : 0) | (d_k ? TESS_GRADIENT_K : 0) | (d_v ? TESS_GRADIENT_V : 0);
    tess_arguments arguments = tess_arguments_init();
    tess_error inner = tess_error_init();
    if (!gradients)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "d_q",
                         "d_q, d_k and d_v are NULL: one at least is to be wanted");
    arguments.q = q, arguments.k = k, arguments.v = v, arguments.o = o, arguments.lse = lse;
    arguments.d_o = d_o, arguments.d_q = d_q, arguments.d_k = d_k, arguments.d_v = d_v;
    if (!all_of_it(backend, pattern, &arguments, TESS_ATTENTION_BACKWARD, gradients, __func__,
                   &inner))
        return TESS_OK;
    return error_pass(error, &inner, __func__, own_argument(&inner));
}
