/* The arguments of a run, checked against its plan and turned into what kernels are handed. */
#include "arguments.h"

#include "plan/problem.h"
#include "base/status.h"

tess_status image_check(const tess_plan *plan, const void *image, size_t image_size,
                        const char *function, tess_error *error) {
    if (plan->image && (!image || (uintptr_t)image % IMAGE_ALIGNMENT))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "image is NULL or not aligned to %d bytes: see tess_plan_upload",
                         IMAGE_ALIGNMENT);
    if (!plan->image && image)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "a plan for the CPU has no image");
    if (image_size < plan->image)
        return error_set(error, TESS_WORKSPACE_TOO_SMALL, function, "image",
                         "the image has %zu bytes and must have %zu", image_size, plan->image);
    return TESS_OK;
}

/* The name of an output that begins where another argument does, or NULL. */
static const char *outputs_shared(const struct kernel_args *args) {
    const struct {
        const char *name;
        const void *data;
        int output;
    } all[] = {{"q", args->q.data, 0}, {"k", args->k.data, 0},     {"v", args->v.data, 0},
               {"o", args->o.data, 1}, {"lse", args->lse.data, 1}, {"scores", args->scores, 1}};
    const size_t n = sizeof all / sizeof *all;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (i != j && all[i].output && all[i].data && all[i].data == all[j].data)
                return all[i].name;
    return NULL;
}

tess_status tensors_take(struct kernel_args *out, const struct problem *p, const tess_arguments *a,
                         int uses, const char *function, tess_error *error) {
    const struct {
        int use;
        const tess_tensor *given;
        struct view *view;
        struct tensor_rule rule;
    } tensors[] = {
        {USES_Q,
         a->q,
         &out->q,
         {"q", p->type, {p->batch, p->heads_q, p->n_q, p->d_qk}, p->alignment, 0}},
        {USES_K,
         a->k,
         &out->k,
         {"k", p->type, {p->batch, p->heads_kv, p->n_kv, p->d_qk}, p->alignment, 0}},
        {USES_V,
         a->v,
         &out->v,
         {"v", p->type, {p->batch, p->heads_kv, p->n_kv, p->d_v}, p->alignment, 0}},
        {USES_O,
         a->o,
         &out->o,
         {"o", p->type, {p->batch, p->heads_q, p->n_q, p->d_v}, p->alignment, 1}},
        {USES_LSE,
         a->lse,
         &out->lse,
         {"lse", TESS_F32, {p->batch, p->heads_q, p->n_q, 1}, sizeof(float), 1}},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        if (!(uses & tensors[i].use) || (tensors[i].use == USES_LSE && !a->lse))
            continue;
        tess_status status =
            check_tensor(tensors[i].view, tensors[i].given, &tensors[i].rule, function, error);
        if (status)
            return status;
    }
    return TESS_OK;
}

/* The arrays that a problem's modifiers need, of the call that uses them, and no others. */
static tess_status modifiers_take(struct kernel_args *out, const struct problem *p,
                                  const tess_arguments *a, int uses, const char *function,
                                  tess_error *error) {
    const struct modifiers *m = &p->modifiers;
    const int bias = m->alibi && uses & USES_BIAS, drop = m->dropped && uses & USES_WEIGHTS;
    const struct {
        const char *name;
        const void *given;
        size_t alignment;
        int declared, used;
    } arrays[] = {
        {"alibi", a->alibi, sizeof *a->alibi, m->alibi, bias},
        {"sink", a->sink, sizeof *a->sink, m->sink, m->sink && uses & USES_WEIGHTS},
        {"seed", a->seed, sizeof *a->seed, m->seed, drop},
        {"key_positions", a->key_positions, sizeof *a->key_positions, m->key_positions,
         m->key_positions && (bias || drop)},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (arrays[i].given && !arrays[i].declared)
            return error_set(error, TESS_INVALID_ARGUMENT, function, arrays[i].name,
                             "%s is given, and the plan's problem does not declare it",
                             arrays[i].name);
        if (arrays[i].used &&
            (!arrays[i].given || (uintptr_t)arrays[i].given % arrays[i].alignment))
            return error_set(error, TESS_INVALID_ARGUMENT, function, arrays[i].name,
                             "%s is NULL or not aligned, and the plan's problem declares it",
                             arrays[i].name);
    }
    out->alibi = a->alibi;
    out->sink = a->sink;
    out->seed = a->seed;
    out->key_positions = a->key_positions;
    return TESS_OK;
}

tess_status arguments_take(struct kernel_args *out, const tess_plan *plan,
                           const tess_arguments *given, int uses, size_t workspace_size,
                           const char *function, tess_error *error) {
    tess_arguments a;
    const char *wrong = !plan    ? "plan is NULL"
                        : !given ? "arguments is NULL"
                                 : struct_take(&a, sizeof a, ARGUMENTS_FIRST_SIZE, given);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, plan ? "arguments" : "plan", "%s",
                         wrong);
    *out = plan_args(plan);
    out->function = function;
    tess_status status = tensors_take(out, &plan->problem, &a, uses, function, error);
    if (!status)
        status = modifiers_take(out, &plan->problem, &a, uses, function, error);
    if (status)
        return status;
    if (uses & USES_SCORES) {
        if (!a.scores || (uintptr_t)a.scores % sizeof(float))
            return error_set(error, TESS_INVALID_ARGUMENT, function, "scores",
                             "scores is NULL or not aligned");
        out->scores = a.scores;
    }
    const char *both = outputs_shared(out);
    if (both)
        return error_set(error, TESS_INVALID_ARGUMENT, function, both,
                         "%s begins where another argument does: outputs overlap nothing", both);
    if (workspace_size && (!a.workspace || (uintptr_t)a.workspace % CARVE_ALIGNMENT))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "workspace",
                         "workspace is NULL or not aligned to %d bytes", CARVE_ALIGNMENT);
    if (a.workspace_size < workspace_size)
        return error_set(error, TESS_WORKSPACE_TOO_SMALL, function, "workspace",
                         "the workspace has %zu bytes and must have %zu", a.workspace_size,
                         workspace_size);
    out->workspace = a.workspace;
    out->image = a.image;
    return image_check(plan, a.image, a.image_size, function, error);
}
