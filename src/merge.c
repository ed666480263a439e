/* tess_merge and tess_unmerge: parts of a result are checked, then joined or taken apart. */
#include "plan/problem.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#define MERGE_MAX_PARTS 65536

/* Names of a call, of its outputs and of the tensors of its parts: o first, lse second. */
struct merge_names {
    const char *function, *out[2];
    const char *const (*in)[2]; /* NULL: "o" and "lse" of all, told apart by numbers */
};

/* Rules for tensors of a call, and places of its outputs, in the same order. */
struct merge_rules {
    struct tensor_rule in[2], out[2];
    struct view to[2];
};

static const char *part_name(const struct merge_names *names, int64_t part, int i) {
    return names->in ? names->in[part][i] : i ? "lse" : "o";
}

static tess_status part_error(tess_error *error, const struct merge_names *names, int64_t part,
                              const char *argument, const char *wrong) {
    return names->in
               ? error_set(error, TESS_INVALID_ARGUMENT, names->function, argument, "%s", wrong)
               : error_set(error, TESS_INVALID_ARGUMENT, names->function, argument, "part %lld: %s",
                           (long long)part, wrong);
}

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
                                 const struct merge_names *names, tess_error *error) {
    const char *const function = names->function, *const *const out = names->out;
    tess_tensor o_out, first;
    tess_status status = TESS_OK;
    char words[sizeof error->message];
    const char *wrong = check_given(&o_out, args->o_out);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, out[0], "%s: %s", out[0], wrong);
    for (int i = 0; i < 4 && !status; i++)
        status = check_size(out[0], i, o_out.size[i], i < 3 ? INT32_MAX : CHECK_MAX_DIM, function,
                            error);
    if (status)
        return status;
    wrong = check_given(&first, args->o[0]);
    snprintf(words, sizeof words, "%s: %s", part_name(names, 0, 0), wrong ? wrong : "");
    if (wrong)
        return part_error(error, names, 0, part_name(names, 0, 0), words);
    *rules = (struct merge_rules){
        .in = {rows_rule("", first.type, &o_out, o_out.size[3], 0),
               rows_rule("", TESS_F32, &o_out, 1, 0)},
        .out = {rows_rule(out[0], o_out.type, &o_out, o_out.size[3], 1),
                rows_rule(out[1], TESS_F32, &o_out, 1, 1)},
    };
    status = check_tensor(&rules->to[0], args->o_out, &rules->out[0], function, error);
    if (!status && args->lse_out)
        status = check_tensor(&rules->to[1], args->lse_out, &rules->out[1], function, error);
    if (!status && rules->to[0].data == rules->to[1].data)
        status = error_set(error, TESS_INVALID_ARGUMENT, function, out[1],
                           "%s begins where %s does", out[1], out[0]);
    return status;
}

/* A part; an output is the very rows of the part's, or begins elsewhere. */
static tess_status part_check(const struct merge_rules *rules, const struct merge_args *args,
                              int64_t part, const struct merge_names *names, tess_error *error) {
    const tess_tensor *const given[2] = {args->o[part], args->lse[part]};
    tess_error inner = tess_error_init();
    char words[sizeof error->message];
    struct view from[2];
    for (int i = 0; i < 2; i++) {
        struct tensor_rule rule = rules->in[i];
        rule.name = part_name(names, part, i);
        if (check_tensor(&from[i], given[i], &rule, names->function, &inner))
            return part_error(error, names, part, rule.name, inner.message);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            const struct view *to = &rules->to[i];
            const int same = i == j && rules->out[i].type == rules->in[i].type &&
                             !memcmp(to->stride, from[i].stride, sizeof to->stride);
            if (!to->data || to->data != from[j].data || same)
                continue;
            snprintf(words, sizeof words,
                     names->in ? "%s begins where %s does, and is not the same rows"
                               : "%s begins where its %s does, and is not the same rows",
                     names->out[i], part_name(names, part, j));
            return part_error(error, names, part, names->out[i], words);
        }
    return TESS_OK;
}

static tess_status parts_check(const struct merge_args *args, const struct merge_names *names,
                               tess_error *error) {
    struct merge_rules rules;
    tess_status status = outputs_check(&rules, args, names, error);
    for (int64_t part = 0; part < args->parts && !status; part++)
        status = part_check(&rules, args, part, names, error);
    return status;
}

static tess_status merge_check(const struct merge_args *args, const char *function,
                               tess_error *error) {
    const struct merge_names names = {function, {"o_out", "lse_out"}, NULL};
    if (args->parts < 1 || args->parts > MERGE_MAX_PARTS)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "parts",
                         "parts is %lld, not in 1 ... %d", (long long)args->parts, MERGE_MAX_PARTS);
    if (!args->o)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "o", "o is NULL");
    if (!args->lse)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "lse", "lse is NULL");
    return parts_check(args, &names, error);
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

tess_status tess_unmerge(tess_backend backend, const tess_tensor *o_whole,
                         const tess_tensor *lse_whole, const tess_tensor *o_kept,
                         const tess_tensor *lse_kept, const tess_tensor *o_rest,
                         const tess_tensor *lse_rest, tess_error *error, tess_stream stream) {
    static const char *const in[2][2] = {{"o_whole", "lse_whole"}, {"o_kept", "lse_kept"}};
    const struct merge_names names = {__func__, {"o_rest", "lse_rest"}, in};
    const tess_tensor *const o[2] = {o_whole, o_kept}, *const lse[2] = {lse_whole, lse_kept};
    const struct merge_args args = {2, o, lse, o_rest, lse_rest, stream};
    const struct backend *b;
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (!status)
        status = parts_check(&args, &names, error);
    return status ? status : b->call.unmerge(&args, error);
}
