/* Planning, upload, runs and stages: check what a caller hands over, then forward. */
#include "arguments.h"
#include "plan/problem.h"
#include "plan/plan.h"
#include "base/status.h"
#include "base/threads.h"

/* ---- planning ---- */

/* Rows of a group of an MLP, and columns of a block, where no pattern says what is listed. */
#define MLP_GROUP_ROWS 128
#define MLP_BLOCK_COLUMNS 128

/* An MLP of whole columns; without a pattern of all of them, which *all then is. */
static tess_status mlp_pattern(const tess_pattern **pattern, tess_pattern **all,
                               const struct problem *problem, const char *function,
                               tess_error *error) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error inner = tess_error_init();
    shape.n_q = problem->n_q, shape.n_kv = problem->n_kv, shape.threads = problem->threads;
    shape.block_q = MLP_GROUP_ROWS, shape.block_kv = MLP_BLOCK_COLUMNS;
    if (*pattern)
        return mlp_check_pattern(&(*pattern)->lists, function, error);
    const tess_status status = tess_pattern_from_spec(all, "dense", &shape, &inner);
    *pattern = *all;
    return status ? error_pass(error, &inner, function, inner.argument) : TESS_OK;
}

tess_status tess_problem_from_tensors(tess_problem *problem, const tess_tensor *q,
                                      const tess_tensor *k, const tess_tensor *v,
                                      const tess_tensor *o, tess_error *error) {
    const char *function = __func__;
    const struct {
        const char *name;
        const tess_tensor *given;
    } all[] = {{"q", q}, {"k", k}, {"v", v}, {"o", o}};
    tess_tensor t[4];
    tess_problem p = tess_problem_init();
    p.alignment = 16;
    if (!problem)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem", "problem is NULL");
    for (int i = 0; i < 4; i++) {
        if (!all[i].given && i == 3)
            break;
        const char *wrong = (i == 1 || i == 2 ? check_stored : check_given)(&t[i], all[i].given);
        if (wrong)
            return error_set(error, TESS_INVALID_ARGUMENT, function, all[i].name, "%s: %s",
                             all[i].name, wrong);
        alignment_lower(&p.alignment, &t[i]);
    }
    p.type = t[0].type;
    p.k_type = t[1].type == p.type ? TESS_F32 : t[1].type; /* 0: as q */
    p.v_type = t[2].type == p.type ? TESS_F32 : t[2].type;
    p.o_f32 = o && t[3].type == TESS_F32 && p.type != TESS_F32;
    p.batch = t[0].size[0];
    p.heads_q = t[0].size[1];
    p.n_q = t[0].size[2];
    p.d_qk = t[0].size[3];
    p.heads_kv = t[1].size[1];
    p.n_kv = t[1].size[2];
    p.d_v = t[2].size[3];
    const char *wrong = struct_give(problem, &p, sizeof p, PROBLEM_FIRST_SIZE);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem", "problem: %s", wrong);
    return TESS_OK;
}

tess_status tess_plan_create(tess_plan **plan, const tess_problem *problem,
                             const tess_pattern *pattern, const tess_target *target,
                             tess_error *error) {
    const char *function = __func__, *kernel;
    struct problem resolved;
    tess_target where;
    if (!plan)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "plan", "plan is NULL");
    *plan = NULL;
    const struct backend *backend;
    tess_pattern *all = NULL;
    tess_status status = check_problem(&resolved, &kernel, problem, function, error);
    if (!status && resolved.operation == TESS_MLP)
        status = mlp_pattern(&pattern, &all, &resolved, function, error);
    if (!status)
        status = check_pattern(pattern, &resolved, function, error);
    if (!status)
        status = check_target(&where, target, function, error);
    if (!status)
        status = check_backend(&backend, where.backend, function, "target", error);
    if (!status) {
        const int32_t threads = threads_set(resolved.threads);
        status = plan_make(plan, &resolved, kernel, pattern, &where, backend, error);
        threads_set(threads);
    }
    tess_pattern_free(all);
    return status;
}

tess_status tess_plan_upload(const tess_plan *plan, void *image, size_t image_size,
                             tess_error *error, tess_stream stream) {
    if (!plan)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "plan", "plan is NULL");
    if (plan->filled)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "plan",
                         "the plan is reserved: its image is filled by tess_plan_fill");
    tess_status status = image_check(plan, image, image_size, __func__, error);
    if (status || !plan->image)
        return status;
    const struct kernel_args of_plan = plan_args(plan);
    for (const struct part *part = plan->parts; part < plan->parts + plan->n_parts && !status;
         part++) {
        struct kernel_args args = pass_args(&of_plan, part->pass);
        args.stream = stream;
        status = plan->backend->image.upload(&args, part->header, (char *)image + part->at, error);
    }
    return status;
}

/* ---- running ---- */

tess_status tess_run(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                     tess_stream stream) {
    const struct call call = call_run(plan ? plan->problem.operation : TESS_ATTENTION, __func__);
    struct kernel_args args;
    union operands operands;
    tess_status status = arguments_take(&args, &operands, plan, arguments, &call,
                                        tess_plan_workspace_size(plan), error);
    if (status)
        return status;
    struct carve carve = {.base = args.workspace};
    args.workspace = plan_carve(plan, &carve, &operands);
    args.stream = stream;
    return passes_run(plan, plan->passes, plan->n_passes, NULL, &args, error);
}

/* One stage of a plan by itself. */
static tess_status stage_run(const tess_plan *plan, const tess_arguments *arguments,
                             tess_stage stage, const struct call *call, tess_error *error,
                             tess_stream stream) {
    struct kernel_args args;
    union operands operands;
    tess_status status = arguments_take(&args, &operands, plan, arguments, call,
                                        tess_plan_stage_workspace_size(plan, stage), error);
    args.stream = stream;
    return status ? status : passes_run(plan, plan_pass(plan, stage), 1, NULL, &args, error);
}

tess_status tess_delta(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                       tess_stream stream) {
    static const struct call call = {USES_O | USES_O_REST | USES_D_O | USES_D_LSE, USES_DELTA,
                                     "tess_delta"};
    if (plan && plan->problem.operation != TESS_ATTENTION_BACKWARD)
        return error_set(error, TESS_INVALID_ARGUMENT, call.function, "plan",
                         "the plan's operation is not TESS_ATTENTION_BACKWARD");
    return stage_run(plan, arguments, TESS_STAGE_DELTA, &call, error, stream);
}

/* One of the three stages of attention. */
static tess_status staged_run(const tess_plan *plan, const tess_arguments *arguments,
                              tess_stage stage, const struct call *call, tess_error *error,
                              tess_stream stream) {
    if (plan && plan->problem.operation != TESS_ATTENTION)
        return error_set(error, TESS_INVALID_ARGUMENT, call->function, "plan",
                         "the plan's operation is not TESS_ATTENTION");
    if (plan && plan->problem.pipeline != TESS_STAGED)
        return error_set(error, TESS_INVALID_ARGUMENT, call->function, "plan",
                         "the plan is fused: stages need a problem whose pipeline is TESS_STAGED");
    return stage_run(plan, arguments, stage, call, error, stream);
}

tess_status tess_sddmm(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                       tess_stream stream) {
    static const struct call call = {USES_Q | USES_K | USES_BIAS, USES_SCORES, "tess_sddmm"};
    return staged_run(plan, arguments, TESS_STAGE_SDDMM, &call, error, stream);
}

tess_status tess_softmax(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                         tess_stream stream) {
    static const struct call call = {USES_WEIGHTS, USES_LSE | USES_SCORES, "tess_softmax"};
    return staged_run(plan, arguments, TESS_STAGE_SOFTMAX, &call, error, stream);
}

tess_status tess_spmm(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                      tess_stream stream) {
    static const struct call call = {USES_V | USES_SCORES, USES_O | USES_O_REST, "tess_spmm"};
    return staged_run(plan, arguments, TESS_STAGE_SPMM, &call, error, stream);
}
