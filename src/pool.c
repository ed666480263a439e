/* tess_pool and tess_pool_score: check what is given, then pool and score. */
#include "plan/problem.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

#define POOL_MOST_BLOCK (INT64_C(1) << 20)
#define POOL_MOST_DIMS 65536

/* A tensor of any type and strides, with sizes that are checked by themselves. */
static tess_status tensor_take(tess_tensor *out, const char *name, const tess_tensor *given,
                               const char *function, tess_error *error) {
    const char *wrong = check_given(out, given);
    tess_status status =
        wrong ? error_set(error, TESS_INVALID_ARGUMENT, function, name, "%s: %s", name, wrong)
              : TESS_OK;
    for (int i = 0; i < 4 && !status; i++)
        status = check_size(name, i, out->size[i], i < 3 ? INT32_MAX : 2 * POOL_MOST_DIMS, function,
                            error);
    return status;
}

/* A view of a tensor, whose sizes have to be these. */
static tess_status view_take(struct view *out, const char *name, const tess_tensor *given,
                             tess_type type, const int64_t size[4], int output,
                             const char *function, tess_error *error) {
    struct tensor_rule rule = {
        .name = name, .type = type, .alignment = (int64_t)tess_type_size(type), .output = output};
    memcpy(rule.size, size, sizeof rule.size);
    return check_tensor(out, given, &rule, function, error);
}

static tess_status told(const char *function, const char *argument, const char *field,
                        int64_t value, const char *range, tess_error *error) {
    return error_set(error, TESS_INVALID_ARGUMENT, function, argument, "%s: %s is %lld, not in %s",
                     argument, field, (long long)value, range);
}

static tess_status array_check(const char *function, const char *argument, const char *name,
                               const int32_t *array, tess_error *error) {
    return (uintptr_t)array % sizeof *array
               ? error_set(error, TESS_INVALID_ARGUMENT, function, argument,
                           "%s: %s is not aligned to its elements", argument, name)
               : TESS_OK;
}

/* ---- pooling ---- */

static tess_status pooling_take(struct pool_args *args, const tess_pooling *given,
                                const char *function, tess_error *error) {
    tess_pooling p;
    const char *wrong = given ? struct_take(&p, sizeof p, sizeof p, given) : "it is NULL";
    if (!wrong && (unsigned)p.mode > TESS_POOL_LSE)
        wrong = "mode is not TESS_POOL_MEAN, TESS_POOL_MIN_MAX or TESS_POOL_LSE";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pooling", "pooling: %s", wrong);
    if (p.block < 1 || p.block > POOL_MOST_BLOCK)
        return told(function, "pooling", "block", p.block, "1 ... 2^20", error);
    args->mode = p.mode, args->block = p.block;
    args->lengths = p.lengths, args->begins = p.begins;
    tess_status status = array_check(function, "pooling", "lengths", p.lengths, error);
    return status ? status : array_check(function, "pooling", "begins", p.begins, error);
}

tess_status tess_pool(tess_backend backend, const tess_pooling *pooling, const tess_tensor *x,
                      const tess_tensor *pooled, tess_error *error, tess_stream stream) {
    struct pool_args args = {.stream = stream};
    const struct backend *b;
    tess_tensor from, to;
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (!status)
        status = pooling_take(&args, pooling, __func__, error);
    if (!status)
        status = tensor_take(&from, "x", x, __func__, error);
    if (!status)
        status = tensor_take(&to, "pooled", pooled, __func__, error);
    if (!status && from.size[3] > POOL_MOST_DIMS)
        status = told(__func__, "x", "size[3]", from.size[3], "1 ... 65536", error);
    if (status)
        return status;
    args.batch = from.size[0], args.heads = from.size[1];
    args.n = from.size[2], args.d = from.size[3];
    args.blocks = (args.n + args.block - 1) / args.block;
    const int64_t halves = args.mode == TESS_POOL_MIN_MAX ? 2 : 1;
    const int64_t size[4] = {args.batch, args.heads, args.blocks, halves * args.d};
    status = view_take(&args.x, "x", x, from.type, from.size, 0, __func__, error);
    if (!status)
        status = view_take(&args.pooled, "pooled", pooled, to.type, size, 1, __func__, error);
    return status ? status : b->call.pool(&args, error);
}

/* ---- scores ---- */

/* Queries or keys of so many blocks: as many as are given, or all. */
static tess_status count_take(int64_t *out, const char *field, int64_t given, int64_t blocks,
                              int64_t block, const char *function, tess_error *error) {
    *out = given ? given : blocks * block;
    return *out > INT32_MAX || *out <= (blocks - 1) * block || *out > blocks * block
               ? told(function, "scoring", field, *out,
                      "what so many blocks of it have, below 2^31", error)
               : TESS_OK;
}

static tess_status scoring_take(struct score_args *args, const tess_scoring *given,
                                const char *function, tess_error *error) {
    tess_scoring s;
    const char *wrong = given ? struct_take(&s, sizeof s, sizeof s, given) : "it is NULL";
    if (!wrong && !isfinite(s.scale))
        wrong = "scale is not finite";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "scoring", "scoring: %s", wrong);
    const struct {
        const char *name, *range;
        int64_t value, most;
    } fields[] = {{"bounds", "0 ... 1", s.bounds, 1},
                  {"causal", "0 ... 1", s.causal, 1},
                  {"block_q", "0 ... 2^20", s.block_q, POOL_MOST_BLOCK},
                  {"block_kv", "0 ... 2^20", s.block_kv, POOL_MOST_BLOCK}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < 0 || fields[i].value > fields[i].most)
            return told(function, "scoring", fields[i].name, fields[i].value, fields[i].range,
                        error);
    args->scale = s.scale;
    args->bounds = (int32_t)s.bounds, args->causal = (int32_t)s.causal;
    args->block_q = s.block_q ? s.block_q : 1, args->block_kv = s.block_kv ? s.block_kv : 1;
    args->n_q = s.n_q, args->n_kv = s.n_kv, args->lengths = s.lengths;
    return array_check(function, "scoring", "lengths", s.lengths, error);
}

static tess_status heads_check(const struct score_args *args, const char *function,
                               tess_error *error) {
    if (args->heads_q % args->heads_kv)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "k",
                         "k has %lld heads, which do not divide q's %lld",
                         (long long)args->heads_kv, (long long)args->heads_q);
    if (args->heads_q % args->heads || args->heads % args->heads_kv)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "scores",
                         "scores have %lld heads: these divide q's %lld and are a multiple of k's "
                         "%lld",
                         (long long)args->heads, (long long)args->heads_q,
                         (long long)args->heads_kv);
    return TESS_OK;
}

static tess_status sizes_take(struct score_args *args, const tess_tensor *q, const tess_tensor *k,
                              const tess_tensor *scores, const char *function, tess_error *error) {
    tess_tensor of_q, of_k, to;
    tess_status status = tensor_take(&of_q, "q", q, function, error);
    if (!status)
        status = tensor_take(&of_k, "k", k, function, error);
    if (!status)
        status = tensor_take(&to, "scores", scores, function, error);
    if (!status && of_q.size[3] > POOL_MOST_DIMS)
        status = told(function, "q", "size[3]", of_q.size[3], "1 ... 65536", error);
    if (status)
        return status;
    args->batch = of_q.size[0], args->d = of_q.size[3];
    args->heads_q = of_q.size[1], args->heads_kv = of_k.size[1], args->heads = to.size[1];
    args->rows = of_q.size[2], args->columns = of_k.size[2];
    args->scale = args->scale != 0 ? args->scale : 1 / sqrt((double)args->d);
    const int64_t size_k[4] = {args->batch, args->heads_kv, args->columns,
                               args->d * (1 + args->bounds)};
    const int64_t size_s[4] = {args->batch, args->heads, args->rows, args->columns};
    status = heads_check(args, function, error);
    if (!status)
        status = view_take(&args->q, "q", q, of_q.type, of_q.size, 0, function, error);
    if (!status)
        status = view_take(&args->k, "k", k, of_q.type, size_k, 0, function, error);
    if (!status)
        status = view_take(&args->scores, "scores", scores, TESS_F32, size_s, 1, function, error);
    if (!status)
        status =
            count_take(&args->n_q, "n_q", args->n_q, args->rows, args->block_q, function, error);
    return status ? status
                  : count_take(&args->n_kv, "n_kv", args->n_kv, args->columns, args->block_kv,
                               function, error);
}

tess_status tess_pool_score(tess_backend backend, const tess_scoring *scoring, const tess_tensor *q,
                            const tess_tensor *k, const tess_tensor *scores, tess_error *error,
                            tess_stream stream) {
    struct score_args args = {.stream = stream};
    const struct backend *b;
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (!status)
        status = scoring_take(&args, scoring, __func__, error);
    if (!status)
        status = sizes_take(&args, q, k, scores, __func__, error);
    return status ? status : b->call.score(&args, error);
}
