/* The public run functions: check what a caller hands over, then forward. */
#include "plan/problem.h"
#include "plan/plan.h"
#include "plan/reserve.h"
#include "base/status.h"
#include "base/threads.h"

/* Which arguments a call uses. */
enum {
    USES_Q = 1,
    USES_K = 2,
    USES_V = 4,
    USES_O = 8,
    USES_LSE = 16,
    USES_SCORES = 32,
    USES_BIAS = 64,     /* what changes scores: alibi */
    USES_WEIGHTS = 128, /* what changes weights: sink, seed */
};

/* ---- planning ---- */

/* Halves *alignment until the tensor has it. */
static void alignment_lower(int64_t *alignment, const tess_tensor *t) {
    int64_t element = (int64_t)tess_type_size(t->type);
    for (; *alignment > element; *alignment /= 2) {
        int fits = (uintptr_t)t->data % (uintptr_t)*alignment == 0;
        for (int i = 0; i < 3; i++)
            fits &= t->size[i] == 1 || t->stride[i] % (*alignment / element) == 0;
        if (fits)
            return;
    }
}

/* A tensor as it is given. NULL, or what is wrong with it by itself. */
static const char *tensor_wrong(tess_tensor *out, const tess_tensor *given) {
    const char *wrong = given ? struct_take(out, sizeof *out, sizeof *out, given) : "it is NULL";
    return !wrong && !tess_type_size(out->type) ? "type is not TESS_F32, TESS_F16 or TESS_BF16"
                                                : wrong;
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
        const char *wrong = tensor_wrong(&t[i], all[i].given);
        if (wrong)
            return error_set(error, TESS_INVALID_ARGUMENT, function, all[i].name, "%s: %s",
                             all[i].name, wrong);
        alignment_lower(&p.alignment, &t[i]);
    }
    p.type = t[0].type;
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
    tess_status status = check_problem(&resolved, &kernel, problem, function, error);
    if (!status)
        status = check_pattern(pattern, &resolved, function, error);
    if (!status)
        status = check_target(&where, target, function, error);
    if (status)
        return status;
    const struct backend *backend;
    status = check_backend(&backend, where.backend, function, "target", error);
    if (status)
        return status;
    const int32_t threads = threads_set(resolved.threads);
    status = plan_make(plan, &resolved, kernel, pattern, &where, backend, error);
    threads_set(threads);
    return status;
}

/* The image of a plan, as given for upload or a run. */
static tess_status image_check(const tess_plan *plan, const void *image, size_t image_size,
                               const char *function, tess_error *error) {
    if (plan->image && (!image || (uintptr_t)image % IMAGE_ALIGNMENT))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "image is NULL or not aligned to %d bytes: see tess_plan_image_size",
                         IMAGE_ALIGNMENT);
    if (!plan->image && image)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "a plan for the CPU has no image");
    if (image_size < plan->image)
        return error_set(error, TESS_WORKSPACE_TOO_SMALL, function, "image",
                         "the image has %zu bytes and must have %zu", image_size, plan->image);
    return TESS_OK;
}

tess_status tess_plan_upload(const tess_plan *plan, void *image, size_t image_size,
                             tess_error *error, tess_stream stream) {
    if (!plan)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "plan", "plan is NULL");
    if (plan->reserved)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "plan",
                         "the plan is reserved: its image is filled by tess_plan_fill");
    tess_status status = image_check(plan, image, image_size, __func__, error);
    if (status || !plan->image)
        return status;
    struct kernel_args args = plan_args(plan);
    pass_args(&args, plan->passes); /* whose work is that of all */
    args.stream = stream;
    return plan->backend->image_upload(&args, image, error);
}

/* ---- running ---- */

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

/* Checks the tensors that a call uses and turns them into views. */
static tess_status tensors_take(struct kernel_args *out, const struct problem *p,
                                const tess_arguments *a, int uses, const char *function,
                                tess_error *error) {
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

/* Checks the arguments that a call uses and turns them into what kernels are handed. */
static tess_status arguments_take(struct kernel_args *out, const tess_plan *plan,
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

static tess_status pass_run(const struct pass *pass, struct kernel_args *args, tess_error *error) {
    pass_args(args, pass);
    return pass->kernel->run(args, error);
}

tess_status tess_run(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                     tess_stream stream) {
    struct kernel_args args;
    int uses = USES_Q | USES_K | USES_V | USES_O | USES_LSE | USES_BIAS | USES_WEIGHTS;
    tess_status status = arguments_take(&args, plan, arguments, uses,
                                        tess_plan_workspace_size(plan), __func__, error);
    if (status)
        return status;
    struct carve carve = {.base = args.workspace};
    plan_carve(plan, &carve, &args.scores, &args.workspace);
    args.stream = stream;
    if (plan->reserved)
        return reserve_run(plan, &args, error);
    for (int i = 0; i < plan->n_passes && !status; i++)
        status = pass_run(&plan->passes[i], &args, error);
    return status;
}

/* One stage of a staged plan by itself. */
static tess_status stage_run(const tess_plan *plan, const tess_arguments *arguments,
                             tess_stage stage, int uses, const char *function, tess_error *error,
                             tess_stream stream) {
    struct kernel_args args;
    const struct pass *pass = plan_pass(plan, stage);
    if (plan && !pass)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "plan",
                         "the plan is fused: stages need a problem whose pipeline is TESS_STAGED");
    tess_status status = arguments_take(
        &args, plan, arguments, uses, tess_plan_stage_workspace_size(plan, stage), function, error);
    if (status)
        return status;
    args.stream = stream;
    return pass_run(pass, &args, error);
}

tess_status tess_sddmm(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                       tess_stream stream) {
    return stage_run(plan, arguments, TESS_STAGE_SDDMM, USES_Q | USES_K | USES_SCORES | USES_BIAS,
                     __func__, error, stream);
}

tess_status tess_softmax(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                         tess_stream stream) {
    return stage_run(plan, arguments, TESS_STAGE_SOFTMAX, USES_LSE | USES_SCORES | USES_WEIGHTS,
                     __func__, error, stream);
}

tess_status tess_spmm(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                      tess_stream stream) {
    return stage_run(plan, arguments, TESS_STAGE_SPMM, USES_V | USES_O | USES_SCORES, __func__,
                     error, stream);
}

/* ---- joining partial results ---- */

#define MERGE_MAX_PARTS 65536

static tess_status size_check(const char *name, int which, int64_t value, int64_t most,
                              const char *function, tess_error *error) {
    if (value >= 1 && value <= most)
        return TESS_OK;
    return error_set(error, TESS_INVALID_ARGUMENT, function, name, "%s has %lld %s, not 1 ... %lld",
                     name, (long long)value, check_size_names[which], (long long)most);
}

/* What tensors of a merge must be, and where its outputs are: o first, lse second. */
struct merge_rules {
    struct tensor_rule in[2], out[2];
    struct view to[2];
};

/* Of the rows of another tensor, with d elements each. */
static struct tensor_rule rows_rule(const char *name, tess_type type, const tess_tensor *like,
                                    int64_t d, int output) {
    return (struct tensor_rule){name,
                                type,
                                {like->size[0], like->size[1], like->size[2], d},
                                (int64_t)tess_type_size(type),
                                output};
}

static tess_status outputs_check(struct merge_rules *rules, const struct merge_args *args,
                                 const char *function, tess_error *error) {
    tess_tensor o_out, first;
    tess_status status = TESS_OK;
    const char *wrong = tensor_wrong(&o_out, args->o_out);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "o_out", "o_out: %s", wrong);
    for (int i = 0; i < 4 && !status; i++)
        status = size_check("o_out", i, o_out.size[i], i < 3 ? INT32_MAX : CHECK_MAX_DIM, function,
                            error);
    if (status)
        return status;
    wrong = tensor_wrong(&first, args->o[0]);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "o", "part 0: o: %s", wrong);
    *rules = (struct merge_rules){
        .in = {rows_rule("o", first.type, &o_out, o_out.size[3], 0),
               rows_rule("lse", TESS_F32, &o_out, 1, 0)},
        .out = {rows_rule("o_out", o_out.type, &o_out, o_out.size[3], 1),
                rows_rule("lse_out", TESS_F32, &o_out, 1, 1)},
    };
    status = check_tensor(&rules->to[0], args->o_out, &rules->out[0], function, error);
    if (!status && args->lse_out)
        status = check_tensor(&rules->to[1], args->lse_out, &rules->out[1], function, error);
    if (!status && rules->to[0].data == rules->to[1].data)
        status = error_set(error, TESS_INVALID_ARGUMENT, function, "lse_out",
                           "lse_out begins where o_out does");
    return status;
}

/* A part; an output is the very rows of the part's, or begins elsewhere. */
static tess_status part_check(const struct merge_rules *rules, const struct merge_args *args,
                              int64_t part, const char *function, tess_error *error) {
    const tess_tensor *const given[2] = {args->o[part], args->lse[part]};
    tess_error inner = tess_error_init();
    struct view from[2];
    for (int i = 0; i < 2; i++)
        if (check_tensor(&from[i], given[i], &rules->in[i], function, &inner))
            return error_set(error, inner.status, function, rules->in[i].name, "part %lld: %s",
                             (long long)part, inner.message);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            const struct view *to = &rules->to[i];
            const int same = i == j && rules->out[i].type == rules->in[i].type &&
                             !memcmp(to->stride, from[i].stride, sizeof to->stride);
            if (to->data && to->data == from[j].data && !same)
                return error_set(error, TESS_INVALID_ARGUMENT, function, rules->out[i].name,
                                 "part %lld: %s begins where its %s does, and is not the same rows",
                                 (long long)part, rules->out[i].name, rules->in[j].name);
        }
    return TESS_OK;
}

static tess_status merge_check(const struct merge_args *args, const char *function,
                               tess_error *error) {
    struct merge_rules rules;
    if (args->parts < 1 || args->parts > MERGE_MAX_PARTS)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "parts",
                         "parts is %lld, not in 1 ... %d", (long long)args->parts, MERGE_MAX_PARTS);
    if (!args->o)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "o", "o is NULL");
    if (!args->lse)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "lse", "lse is NULL");
    tess_status status = outputs_check(&rules, args, function, error);
    for (int64_t part = 0; part < args->parts && !status; part++)
        status = part_check(&rules, args, part, function, error);
    return status;
}

tess_status tess_merge(tess_backend backend, int64_t parts, const tess_tensor *const *o,
                       const tess_tensor *const *lse, const tess_tensor *o_out,
                       const tess_tensor *lse_out, tess_error *error, tess_stream stream) {
    const struct merge_args args = {parts, o, lse, o_out, lse_out, stream};
    const struct backend *b;
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (!status)
        status = merge_check(&args, __func__, error);
    return status ? status : b->merge(&args, error);
}

/* ---- the one call ---- */

/* Whether the sizes that the tensors say make up a problem; errors name the tensor. */
static tess_status sizes_agree(const tess_problem *p, const char *function, tess_error *error) {
    const struct {
        const char *name;
        int which; /* of check_size_names */
        int64_t value, most;
    } sizes[] = {{"q", 0, p->batch, INT32_MAX},    {"q", 1, p->heads_q, INT32_MAX},
                 {"q", 2, p->n_q, INT32_MAX},      {"q", 3, p->d_qk, CHECK_MAX_DIM},
                 {"k", 1, p->heads_kv, INT32_MAX}, {"k", 2, p->n_kv, INT32_MAX},
                 {"v", 3, p->d_v, CHECK_MAX_DIM}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tess_status status = size_check(sizes[i].name, sizes[i].which, sizes[i].value,
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
    void *workspace = size ? backend->allocate(size) : NULL;
    void *image = plan->image ? backend->allocate(plan->image) : NULL;
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
        status = backend->synchronize(NULL, error);
    backend->release(workspace);
    backend->release(image);
    return status;
}

/* Plans and runs the pipeline of lower predicted cost, among those that have kernels for the problem
 * and find memory: the staged one needs room for its scores. */
static tess_status cheaper_run(tess_problem *problem, const tess_pattern *pattern,
                               const tess_target *target, tess_arguments *arguments,
                               const char *function, tess_error *error) {
    tess_plan *fused = NULL, *staged = NULL;
    tess_status status = tess_plan_create(&fused, problem, pattern, target, error);
    if (status == TESS_UNSUPPORTED ||
        (!status && plan_staged_seconds(fused, pattern) < fused->predicted_seconds)) {
        problem->pipeline = TESS_STAGED;
        status = tess_plan_create(&staged, problem, pattern, target, error);
        if (!status)
            status = plan_run(staged, arguments, function, error);
    }
    if (fused && (!staged || status == TESS_OUT_OF_MEMORY))
        status = plan_run(fused, arguments, function, error);
    tess_plan_free(staged);
    tess_plan_free(fused);
    return status;
}

/* Errors may name functions and arguments of a callee. */
static tess_status attention(tess_backend backend, const tess_pattern *pattern,
                             tess_arguments *arguments, const char *function, tess_error *error) {
    tess_problem problem = tess_problem_init();
    tess_target target = tess_target_init();
    struct problem resolved;
    struct kernel_args args;
    const char *kernel;
    if (!arguments->o)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "o", "o is NULL");
    tess_status status = tess_problem_from_tensors(&problem, arguments->q, arguments->k,
                                                   arguments->v, arguments->o, error);
    if (!status)
        status = sizes_agree(&problem, function, error);
    if (!status)
        status = check_problem(&resolved, &kernel, &problem, function, error);
    if (!status)
        status = tensors_take(&args, &resolved, arguments,
                              USES_Q | USES_K | USES_V | USES_O | USES_LSE, function, error);
    if (!status)
        status = tess_target_query(&target, backend, -1, error);
    if (!status)
        status = cheaper_run(&problem, pattern, &target, arguments, function, error);
    return status;
}

/* The argument of tess_attention that a callee's stands for: what no kernel computes is refused by
 * the backend, other faults of the problem are the tensors'. */
static const char *own_argument(const tess_error *error) {
    static const char *const own[] = {"backend", "q", "k", "v", "pattern", "o", "lse"};
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
    if (!attention(backend, pattern, &arguments, __func__, &inner))
        return TESS_OK;
    return error_pass(error, &inner, __func__, own_argument(&inner));
}
