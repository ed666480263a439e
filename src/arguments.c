/* The arguments of a run, checked against its plan and turned into what kernels are handed. */
#include "arguments.h"

#include "plan/caches.h"
#include "plan/problem.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

struct call call_run(tess_operation operation, const char *function) {
    static const struct call runs[] = {
        [TESS_ATTENTION] = {USES_Q | USES_K | USES_V | USES_BIAS | USES_WEIGHTS | USES_BASE |
                                USES_REFERENCE,
                            USES_O | USES_O_REST | USES_LSE | USES_SUMS, NULL},
        [TESS_ATTENTION_BACKWARD] = {USES_Q | USES_K | USES_V | USES_O | USES_O_REST | USES_LSE |
                                         USES_BIAS | USES_WEIGHTS | USES_D_O | USES_D_LSE |
                                         USES_DELTA,
                                     USES_GRADIENTS, NULL},
        [TESS_MLP] = {USES_Q | USES_K | USES_V | USES_BASE | USES_MLP_BIASES,
                      USES_O | USES_ACTIVATIONS, NULL},
    };
    struct call call = runs[operation];
    call.function = function;
    return call;
}

tess_status image_check(const tess_plan *plan, const void *image, size_t image_size,
                        const char *function, tess_error *error) {
    if (plan->image && (!image || (uintptr_t)image % IMAGE_ALIGNMENT))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "image is NULL or not aligned to %d bytes: see %s", IMAGE_ALIGNMENT,
                         plan->filled ? "tess_plan_fill" : "tess_plan_upload");
    if (!plan->image && image)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "a plan for the CPU has no image");
    if (image_size < plan->image)
        return error_set(error, TESS_WORKSPACE_TOO_SMALL, function, "image",
                         "the image has %zu bytes and must have %zu", image_size, plan->image);
    return TESS_OK;
}

/* ---- tensors ---- */

enum { WHEN_READ = 1, WHEN_WRITTEN = 2 };
enum dim { DIM_QK, DIM_Q, DIM_K, DIM_ROPE, DIM_V, DIM_ONE, DIM_KEYS, DIM_HIDDEN, DIM_QUERIES };

/* A tensor of calls: where it is given, where its view goes, and what it must be. */
static const struct operand {
    const char *name;
    size_t given, view; /* places in tess_arguments and in union operands */
    int use;            /* USES_... flags */
    int of_keys;        /* [batch, heads_kv, n_kv, dim], else [batch, heads_q, n_q, dim] */
    /* DIM_Q, DIM_K: first view's; DIM_ONE: of f32; DIM_KEYS: n_kv, of sum_type, a row for each group of queries;
     * DIM_HIDDEN: n_kv; DIM_QUERIES: n_q; else of the problem's type */
    enum dim dim;
    int optional;     /* when it may be NULL: of WHEN_... */
    int or_f32;       /* when it may be f32 as well: of WHEN_... */
    int64_t gradient; /* which of TESS_GRADIENT_... it is, 0: none */
} tensors[] = {
#define AT_PLACE(name, view) #name, offsetof(tess_arguments, name), offsetof(union operands, view)
#define FORWARD(name) AT_PLACE(name, attention.name)
#define GRADIENT(name) AT_PLACE(name, gradient.name)
    {FORWARD(q), USES_Q, 0, DIM_Q, 0, 0, 0},
    {FORWARD(k), USES_K, 1, DIM_K, 0, 0, 0},
    {FORWARD(q_rope), USES_Q, 0, DIM_ROPE, WHEN_READ, 0, 0},
    {FORWARD(k_rope), USES_K, 1, DIM_ROPE, 0, 0, 0},
    {FORWARD(v), USES_V, 1, DIM_V, 0, 0, 0},
    {FORWARD(o), USES_O, 0, DIM_V, 0, WHEN_READ, 0},
    {FORWARD(lse), USES_LSE, 0, DIM_ONE, WHEN_WRITTEN, 0, 0},
    {FORWARD(o_rest), USES_O_REST, 0, DIM_V, 0, 0, 0},
    {FORWARD(base_o), USES_BASE, 0, DIM_V, 0, 0, 0},
    {FORWARD(base_lse), USES_BASE, 0, DIM_ONE, 0, 0, 0},
    {FORWARD(lse_reference), USES_REFERENCE, 0, DIM_ONE, 0, 0, 0},
    {FORWARD(column_sums), USES_SUMS, 0, DIM_KEYS, 0, 0, 0},
    {GRADIENT(d_o), USES_D_O, 0, DIM_V, 0, 0, 0},
    {GRADIENT(d_lse), USES_D_LSE, 0, DIM_ONE, WHEN_READ, 0, 0},
    {GRADIENT(delta), USES_DELTA, 0, DIM_ONE, WHEN_READ, 0, 0},
    {GRADIENT(d_q), USES_GRADIENTS, 0, DIM_QK, 0, WHEN_WRITTEN, TESS_GRADIENT_Q},
    {GRADIENT(d_k), USES_GRADIENTS, 1, DIM_QK, 0, WHEN_WRITTEN, TESS_GRADIENT_K},
    {GRADIENT(d_v), USES_GRADIENTS, 1, DIM_V, 0, WHEN_WRITTEN, TESS_GRADIENT_V},
    {AT_PLACE(bias, mlp.bias), USES_MLP_BIASES, 0, DIM_HIDDEN, WHEN_READ, WHEN_READ, 0},
    {AT_PLACE(bias_out, mlp.bias_out), USES_MLP_BIASES, 0, DIM_V, WHEN_READ, WHEN_READ, 0},
    {AT_PLACE(activations, mlp.activations), USES_ACTIVATIONS, 1, DIM_QUERIES, WHEN_WRITTEN, 0, 0},
#undef AT_PLACE
#undef FORWARD
#undef GRADIENT
};
#define TENSORS (sizeof tensors / sizeof *tensors)

static const tess_tensor *given_of(const struct operand *operand, const tess_arguments *a) {
    const tess_tensor *given;
    memcpy(&given, (const char *)a + operand->given, sizeof given);
    return given;
}

static struct view *view_of(const struct operand *operand, union operands *operands) {
    return (struct view *)(void *)((char *)operands + operand->view);
}

/* ---- a base ---- */

static const char *base_wrong(const tess_arguments *a, const char **argument) {
    const int base = (int)a->base, beta = a->beta < 0 || a->beta > 0;
    *argument = "base";
    if (base < TESS_BASE_NONE || base > TESS_BASE_ADD)
        return "base is none of TESS_BASE_...";
    *argument = "base_o";
    if (base == TESS_BASE_NONE && a->base_o)
        return "base_o is given, and base is TESS_BASE_NONE";
    *argument = "base_lse";
    if (base != TESS_BASE_MERGE && a->base_lse)
        return "base_lse is given, and base is not TESS_BASE_MERGE";
    *argument = "beta";
    if (!isfinite(a->beta))
        return "beta is not finite";
    return base != TESS_BASE_ADD && beta ? "beta is given, and base is not TESS_BASE_ADD" : NULL;
}

static tess_status base_check(const struct problem *p, const tess_arguments *a,
                              const struct call *call, tess_error *error) {
    const char *argument, *wrong = base_wrong(a, &argument);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, call->function, argument, "%s", wrong);
    if (a->base && (!(call->reads & USES_BASE) || p->pipeline != TESS_FUSED))
        return error_set(
            error, TESS_UNSUPPORTED, call->function, "base",
            "base: runs of fused attention and of MLPs alone take one: make the plan with pipeline "
            "TESS_FUSED and operation TESS_ATTENTION, or join by tess_merge");
    if (a->base == TESS_BASE_MERGE && p->operation == TESS_MLP)
        return error_set(error, TESS_INVALID_ARGUMENT, call->function, "base",
                         "base is TESS_BASE_MERGE, and an MLP has no lse: use TESS_BASE_ADD");
    return TESS_OK;
}

/* ---- all tensors ---- */

/* Whether any call of a plan for this problem has a use for the tensor. */
static int operand_declared(const struct operand *operand, const struct problem *p,
                            const tess_arguments *a) {
    if (operand->dim == DIM_ROPE)
        return p->rope_dims > 0;
    switch (operand->use) {
    case USES_V:
        return !p->caches.v_in_k;
    case USES_GRADIENTS:
        return (p->gradients & operand->gradient) != 0;
    case USES_O_REST:
        return p->o_rest;
    case USES_LSE:
        return p->operation != TESS_MLP;
    case USES_MLP_BIASES:
    case USES_ACTIVATIONS:
        return p->operation == TESS_MLP;
    case USES_BASE:
        return a->base == TESS_BASE_MERGE || (a->base == TESS_BASE_ADD && operand->dim == DIM_V);
    case USES_REFERENCE:
    case USES_SUMS:
        return p->sum_rows > 0;
    case USES_D_O:
    case USES_D_LSE:
    case USES_DELTA:
        return p->operation == TESS_ATTENTION_BACKWARD;
    default:
        return 1;
    }
}

static tess_type operand_type(const struct operand *operand, const struct problem *p) {
    const tess_type k = operand->dim == DIM_ROPE ? p->caches.k_rope_type : p->caches.k_type;
    return operand->dim == DIM_ONE               ? TESS_F32
           : operand->dim == DIM_KEYS            ? p->sum_type
           : operand->use == USES_K              ? k
           : operand->use == USES_V              ? p->caches.v_type
           : operand->use & (USES_O | USES_BASE) ? p->o_type
                                                 : p->type;
}

/* pages: of paged keys and values; d_q: dims of q's view. */
static struct tensor_rule operand_rule(const struct operand *operand, const struct problem *p,
                                       int when, int64_t pages, int64_t d_q) {
    const int64_t dims[] = {
        [DIM_QK] = p->d_qk,        [DIM_Q] = d_q,          [DIM_K] = problem_d_k(p),
        [DIM_ROPE] = p->rope_dims, [DIM_V] = p->d_v,       [DIM_ONE] = 1,
        [DIM_KEYS] = p->n_kv,      [DIM_HIDDEN] = p->n_kv, [DIM_QUERIES] = p->n_q};
    const int sums = operand->dim == DIM_KEYS;
    const int64_t rows = sums ? (p->n_q + p->sum_rows - 1) / p->sum_rows : p->n_q;
    const int64_t keys[4] = {p->batch, p->heads_kv, p->n_kv, dims[operand->dim]};
    const int64_t paged[4] = {pages, p->heads_kv, INT64_C(1) << p->caches.page_shift,
                              dims[operand->dim]};
    const int64_t queries[4] = {p->batch, p->heads_q, rows, dims[operand->dim]};
    const int64_t row[4] = {1, 1, 1, dims[operand->dim]};
    const int bias = operand->use == USES_MLP_BIASES;
    const int64_t *size = bias                       ? row
                          : !operand->of_keys        ? queries
                          : caches_paged(&p->caches) ? paged
                                                     : keys;
    return (struct tensor_rule){
        .name = operand->name,
        .type = operand_type(operand, p),
        .size = {size[0], size[1], size[2], size[3]},
        .alignment = operand->dim == DIM_ONE || sums || bias
                         ? 1
                         : p->alignment, /* no less than an element */
        .output = when == WHEN_WRITTEN,
        .or_f32 = (operand->or_f32 & when) != 0,
        .weights = p->operation == TESS_MLP && operand->use == USES_V,
        .of_keys = operand->of_keys && when == WHEN_READ && !caches_paged(&p->caches),
    };
}

static tess_status undeclared(const char *name, const char *function, tess_error *error) {
    return error_set(error, TESS_INVALID_ARGUMENT, function, name,
                     "%s is given, and the plan's problem does not declare it", name);
}

/* The last dims of q, where they have no view of their own. */
static struct view rope_in_q(const struct problem *p, const struct view *q) {
    struct view rope = *q;
    rope.data = (char *)q->data + problem_d_k(p) * (int64_t)tess_type_size(q->type);
    return rope;
}

tess_status tensors_take(union operands *out, const struct problem *p, const tess_arguments *a,
                         const struct call *call, tess_error *error) {
    const int64_t d_q = a->q_rope ? problem_d_k(p) : p->d_qk;
    const int in_place = call->reads & USES_DELTA && a->delta ? USES_O | USES_O_REST : 0;
    const int uses = (call->reads | call->writes) & ~in_place;
    int64_t pages;
    tess_status status = base_check(p, a, call, error);
    if (!status)
        status = caches_pages(&pages, p, a->k, call->function, error);
    if (status)
        return status;
    for (const struct operand *operand = tensors; operand < tensors + TENSORS; operand++) {
        const tess_tensor *given = given_of(operand, a);
        const int when = call->writes & operand->use ? WHEN_WRITTEN : WHEN_READ;
        const int declared = operand_declared(operand, p, a);
        if (given && !declared)
            return undeclared(operand->name, call->function, error);
        if (!declared || !(uses & operand->use) || (!given && operand->optional & when))
            continue;
        const struct tensor_rule rule = operand_rule(operand, p, when, pages, d_q);
        status = check_tensor(view_of(operand, out), given, &rule, call->function, error);
        if (status)
            return status;
    }
    if (call->reads & USES_V && p->caches.v_in_k)
        out->attention.v = out->attention.k;
    if (call->reads & USES_Q && p->rope_dims && !a->q_rope)
        out->attention.q_rope = rope_in_q(p, &out->attention.q);
    out->attention.pages = pages;
    out->attention.beta = a->beta < 0 || a->beta > 0 ? a->beta : 1;
    return TESS_OK;
}

/* ---- arrays ---- */

/* The arrays that a problem's modifiers and their gradients need, of the call that uses them, and no
 * others. */
static tess_status arrays_take(union operands *out, const struct problem *p,
                               const tess_arguments *a, const struct call *call,
                               tess_error *error) {
    const struct modifiers *m = &p->modifiers;
    const int weights = call->reads & USES_WEIGHTS, gradients = call->writes & USES_GRADIENTS;
    const int bias = m->alibi && call->reads & USES_BIAS, drop = m->dropped && weights;
    const int d_alibi = (p->gradients & TESS_GRADIENT_ALIBI) != 0;
    const int d_sink = (p->gradients & TESS_GRADIENT_SINK) != 0;
    const struct {
        const char *name;
        const void *given;
        size_t alignment;
        int declared, used;
    } arrays[] = {
        {"alibi", a->alibi, sizeof *a->alibi, m->alibi, bias},
        {"sink", a->sink, sizeof *a->sink, m->sink, m->sink && weights},
        {"seed", a->seed, sizeof *a->seed, m->seed, drop},
        {"page_table", a->page_table, sizeof *a->page_table, caches_paged(&p->caches),
         caches_paged(&p->caches) && call->reads & USES_K},
        {"key_positions", a->key_positions, sizeof *a->key_positions, m->key_positions,
         m->key_positions && (bias || drop)},
        {"d_alibi", a->d_alibi, sizeof *a->d_alibi, d_alibi, d_alibi && gradients},
        {"d_sink", a->d_sink, sizeof *a->d_sink, d_sink, d_sink && gradients},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (arrays[i].given && !arrays[i].declared)
            return undeclared(arrays[i].name, call->function, error);
        if (arrays[i].used &&
            (!arrays[i].given || (uintptr_t)arrays[i].given % arrays[i].alignment))
            return error_set(error, TESS_INVALID_ARGUMENT, call->function, arrays[i].name,
                             "%s is NULL or not aligned, and the plan's problem declares it",
                             arrays[i].name);
    }
    if (a->page_table_stride && !caches_paged(&p->caches))
        return undeclared("page_table_stride", call->function, error);
    if (a->page_table_stride && (a->page_table_stride < caches_columns(p) ||
                                 a->page_table_stride > INT64_MAX / 8 / p->batch))
        return error_set(error, TESS_INVALID_ARGUMENT, call->function, "page_table_stride",
                         "page_table_stride is %lld: a row of page_table has %lld entries",
                         (long long)a->page_table_stride, (long long)caches_columns(p));
    out->attention.modifiers =
        (struct modifier_operands){a->alibi, a->sink, a->seed, a->key_positions};
    out->attention.page_table = a->page_table;
    out->attention.table_stride = a->page_table_stride ? a->page_table_stride : caches_columns(p);
    if (gradients) {
        out->gradient.d_alibi = a->d_alibi;
        out->gradient.d_sink = a->d_sink;
    }
    return TESS_OK;
}

/* ---- all of them ---- */

/* Whether o is written over the base's, row by row. */
static int base_in_place(const struct attention_operands *given) {
    return given->o.data == given->base_o.data &&
           !memcmp(given->o.stride, given->base_o.stride, sizeof given->o.stride);
}

/* The name of an output that begins where another argument does, or NULL. */
static const char *outputs_shared(union operands *operands, const struct call *call) {
    const struct attention_operands *given = &operands->attention;
    const int uses = call->reads | call->writes;
    const int gradients = call->writes & USES_GRADIENTS;
    const struct place {
        const char *name;
        const void *data;
        int output;
    } arrays[] = {{"scores", given->scores, 1},
                  {"alibi", given->modifiers.alibi, 0},
                  {"sink", given->modifiers.sink, 0},
                  {"page_table", given->page_table, 0},
                  {"k_scale", given->k_scale.data, 0},
                  {"v_scale", given->v_scale.data, 0},
                  {"d_alibi", gradients ? operands->gradient.d_alibi : NULL, 1},
                  {"d_sink", gradients ? operands->gradient.d_sink : NULL, 1}};
    struct place all[TENSORS + sizeof arrays / sizeof *arrays];
    const size_t n = sizeof all / sizeof *all;
    for (size_t i = 0; i < TENSORS; i++)
        all[i] = (struct place){tensors[i].name,
                                uses & tensors[i].use ? view_of(&tensors[i], operands)->data : NULL,
                                (call->writes & tensors[i].use) != 0};
    for (size_t i = 0; i < TENSORS && base_in_place(given); i++)
        if (view_of(&tensors[i], operands) == &given->base_o)
            all[i].data = NULL;
    memcpy(all + TENSORS, arrays, sizeof arrays);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (i != j && all[i].output && all[i].data && all[i].data == all[j].data)
                return all[i].name;
    return NULL;
}

/* Bytes. On a device as the problem's tensors, up to 16: planning chooses kernels by it. */
static size_t scores_alignment(const tess_plan *plan) {
    const int64_t declared = plan->problem.alignment < 16 ? plan->problem.alignment : 16;
    const int copied = !plan->backend->on_host && declared > (int64_t)sizeof(float);
    return copied ? (size_t)declared : sizeof(float);
}

tess_status arguments_take(struct kernel_args *out, union operands *operands, const tess_plan *plan,
                           const tess_arguments *given, const struct call *call,
                           size_t workspace_size, tess_error *error) {
    const char *function = call->function;
    tess_arguments a;
    const char *wrong = !plan    ? "plan is NULL"
                        : !given ? "arguments is NULL"
                                 : struct_take(&a, sizeof a, ARGUMENTS_FIRST_SIZE, given);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, plan ? "arguments" : "plan", "%s",
                         wrong);
    *out = plan_args(plan);
    out->function = function;
    out->operands = memset(operands, 0, sizeof *operands);
    tess_status status = tensors_take(operands, &plan->problem, &a, call, error);
    if (!status)
        status = arrays_take(operands, &plan->problem, &a, call, error);
    if (!status)
        status = caches_take(&operands->attention, &plan->problem, &a, function, error);
    if (status)
        return status;
    if ((call->reads | call->writes) & USES_SCORES) {
        if (!a.scores || (uintptr_t)a.scores % scores_alignment(plan))
            return error_set(error, TESS_INVALID_ARGUMENT, function, "scores",
                             "scores is NULL or not aligned to %zu bytes", scores_alignment(plan));
        operands->attention.scores = a.scores;
    }
    const char *both = outputs_shared(operands, call);
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
    return call->reads & USES_LISTS ? TESS_OK
                                    : image_check(plan, a.image, a.image_size, function, error);
}
