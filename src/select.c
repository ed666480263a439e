/* tess_select: checks what is chosen, from what and where to, then chooses. */
#include "plan/problem.h"
#include "base/status.h"

#include <string.h>

/* Refuses a field of an argument. */
static tess_status refused(tess_error *error, const char *argument, const char *field,
                           int64_t value, const char *range) {
    return error_set(error, TESS_INVALID_ARGUMENT, "tess_select", argument,
                     "%s: %s is %lld, not in %s", argument, field, (long long)value, range);
}

static tess_status told(tess_error *error, const char *argument, const char *words) {
    return error_set(error, TESS_INVALID_ARGUMENT, "tess_select", argument, "%s: %s", argument,
                     words);
}

/* The scores and their sizes. */
static tess_status scores_take(struct select_args *args, const tess_tensor *given,
                               tess_error *error) {
    tess_tensor t;
    struct view view;
    const char *wrong = check_given(&t, given);
    tess_status status = wrong ? told(error, "scores", wrong) : TESS_OK;
    for (int i = 0; i < 4 && !status; i++)
        status = check_size("scores", i, t.size[i], i < 3 ? INT32_MAX : SELECT_MOST_COLUMNS,
                            "tess_select", error);
    if (status)
        return status;
    struct tensor_rule rule = {.name = "scores", .type = t.type};
    memcpy(rule.size, t.size, sizeof rule.size);
    status = check_tensor(&view, given, &rule, "tess_select", error);
    const int64_t lists = t.size[0] * t.size[1];
    if (!status && (lists > INT32_MAX || lists * t.size[2] > INT32_MAX))
        status = told(error, "scores", "rows of all batches and heads are above 2^31 - 1");
    if (status)
        return status;
    args->shape = (struct select_shape){.batch = t.size[0],
                                        .heads = t.size[1],
                                        .rows = t.size[2],
                                        .n = t.size[3],
                                        .words = (t.size[3] + 63) / 64};
    args->scores = view.data, args->type = view.type;
    memcpy(args->stride, view.stride, sizeof args->stride);
    return TESS_OK;
}

/* A mode's number: k, a threshold's key or a share. */
static tess_status mode_take(struct select_args *args, const tess_selection *s, tess_error *error) {
    struct select_shape *shape = &args->shape;
    switch (s->mode) {
    case TESS_SELECT_EXACT:
        if (!s->row_k && (s->k < 1 || s->k > shape->n))
            return refused(error, "selection", "k", s->k, "1 ... n of the scores");
        shape->k = s->row_k ? 0 : s->k;
        break;
    case TESS_SELECT_THRESHOLD:
        if (s->threshold != s->threshold)
            return told(error, "selection", "threshold is NaN");
        shape->bound = select_bound(s->threshold, select_keys_of(args->type), args->type);
        break;
    case TESS_SELECT_TOP_P:
        if (!(s->p > 0 && s->p <= 1))
            return told(error, "selection", "p is not above 0 and up to 1");
        shape->share = (uint32_t)((double)s->p * (UINT32_C(1) << SELECT_SHARE_BITS));
        break;
    default:
        return told(error, "selection",
                    "mode is not TESS_SELECT_EXACT, TESS_SELECT_THRESHOLD or TESS_SELECT_TOP_P");
    }
    if (s->mode != TESS_SELECT_EXACT && (s->row_k || s->k))
        return told(error, "selection", "k and row_k have no use but for TESS_SELECT_EXACT");
    return TESS_OK;
}

static tess_status selection_take(struct select_args *args, const tess_selection *given,
                                  tess_error *error) {
    struct select_shape *shape = &args->shape;
    tess_selection s;
    const char *wrong = given ? struct_take(&s, sizeof s, sizeof s, given) : "it is NULL";
    if (wrong)
        return told(error, "selection", wrong);
    const int64_t block_q = s.block_q ? s.block_q : 1, block_kv = s.block_kv ? s.block_kv : 1;
    if (s.keep_first < 0 || s.keep_first > shape->n)
        return refused(error, "selection", "keep_first", s.keep_first, "0 ... n of the scores");
    if (s.keep_last < 0 || s.keep_last > shape->n)
        return refused(error, "selection", "keep_last", s.keep_last, "0 ... n of the scores");
    if (block_q < 1 || block_q > INT32_MAX)
        return refused(error, "selection", "block_q", s.block_q, "0 ... 2^31 - 1");
    if (block_kv < 1 || block_kv * shape->n > INT32_MAX)
        return refused(error, "selection", "block_kv", s.block_kv,
                       "0 ... 2^31 - 1 keys of all columns");
    if (s.causal != 0 && s.causal != 1)
        return refused(error, "selection", "causal", s.causal, "0 ... 1");
    if (s.n_q && (s.n_q <= (shape->rows - 1) * block_q || s.n_q > shape->rows * block_q))
        return refused(error, "selection", "n_q", s.n_q, "rows of block_q queries");
    if (s.n_kv && (s.n_kv <= (shape->n - 1) * block_kv || s.n_kv > shape->n * block_kv))
        return refused(error, "selection", "n_kv", s.n_kv, "columns of block_kv keys");
    if (!s.keep != !s.keep_rows || (s.keep && s.keep_rows != 1 && s.keep_rows != shape->rows &&
                                    s.keep_rows != shape->batch * shape->heads * shape->rows))
        return refused(error, "selection", "keep_rows", s.keep_rows,
                       "1, rows and rows of all lists with keep, else 0");
    if ((uintptr_t)s.row_k % sizeof *s.row_k || (uintptr_t)s.lengths % sizeof *s.lengths ||
        (uintptr_t)s.keep % sizeof *s.keep)
        return told(error, "selection", "row_k, lengths or keep is not aligned to its elements");
    shape->mode = (int32_t)s.mode;
    shape->keep_first = s.keep_first, shape->keep_last = s.keep_last;
    shape->block_q = block_q, shape->block_kv = block_kv;
    shape->causal = (int32_t)s.causal;
    shape->n_q = s.n_q ? s.n_q : shape->rows * block_q;
    shape->n_kv = s.n_kv ? s.n_kv : shape->n * block_kv;
    shape->keep_rows = s.keep_rows;
    args->row_k = s.row_k, args->lengths = s.lengths, args->keep = s.keep;
    return mode_take(args, &s, error);
}

static tess_status selected_take(struct select_args *args, const tess_selected *given,
                                 tess_error *error) {
    struct select_shape *shape = &args->shape;
    tess_selected *to = &args->to;
    const char *wrong = given ? struct_take(to, sizeof *to, sizeof *to, given) : "it is NULL";
    if (!wrong && !to->indices && !to->bits)
        wrong = "indices and bits are NULL: one of them must be given";
    if (wrong)
        return told(error, "selected", wrong);
    shape->capacity = to->capacity ? to->capacity : shape->n;
    if (shape->capacity < 1 || shape->capacity > shape->n)
        return refused(error, "selected", "capacity", to->capacity, "0 ... n of the scores");
    if (shape->k > shape->capacity)
        return refused(error, "selected", "capacity", to->capacity, "k ... n of the scores");
    const struct {
        const char *name;
        const void *data;
        size_t size;
    } arrays[] = {
        {"indices is not aligned to its elements", to->indices, sizeof *to->indices},
        {"counts is not aligned to its elements", to->counts, sizeof *to->counts},
        {"bits is not aligned to its elements", to->bits, sizeof *to->bits},
        {"overflows is not aligned to its elements", to->overflows, sizeof *to->overflows}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if ((uintptr_t)arrays[i].data % arrays[i].size)
            return told(error, "selected", arrays[i].name);
    return TESS_OK;
}

tess_status tess_select(tess_backend backend, const tess_selection *selection,
                        const tess_tensor *scores, const tess_selected *selected, tess_error *error,
                        tess_stream stream) {
    struct select_args args = {.stream = stream};
    const struct backend *b;
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (!status)
        status = scores_take(&args, scores, error);
    if (!status)
        status = selection_take(&args, selection, error);
    if (!status)
        status = selected_take(&args, selected, error);
    return status ? status : b->call.select(&args, error);
}
