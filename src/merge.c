/* tess_merge: checks the parts of a result, then joins them. */
#include "plan/problem.h"
#include "base/status.h"

#include <string.h>

#define MERGE_MAX_PARTS 65536

/* Rules for tensors of a merge, and places of its outputs: o first, lse second. */
struct merge_rules {
    struct tensor_rule in[2], out[2];
    struct view to[2];
};

/* Rule of a tensor with the rows of another, of d elements each. */
static struct tensor_rule rows_rule(const char *name, tess_type type, const tess_tensor *like,
                                    int64_t d, int output) {
    return (struct tensor_rule){.name = name,
                                .type = type,
                                .size = {like->size[0], like->size[1], like->size[2], d},
                                .alignment = (int64_t)tess_type_size(type),
                                .output = output};
}

static tess_status outputs_check(struct merge_rules *rules, const struct merge_args *args,
                                 const char *function, tess_error *error) {
    tess_tensor o_out, first;
    tess_status status = TESS_OK;
    const char *wrong = check_given(&o_out, args->o_out);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "o_out", "o_out: %s", wrong);
    for (int i = 0; i < 4 && !status; i++)
        status = check_size("o_out", i, o_out.size[i], i < 3 ? INT32_MAX : CHECK_MAX_DIM, function,
                            error);
    if (status)
        return status;
    wrong = check_given(&first, args->o[0]);
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
    return status ? status : b->call.merge(&args, error);
}
