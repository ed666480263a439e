/* The host's side of column sums on CUDA. */
#include "host/column_sums.h"

static bool rows_copied(const struct problem *p, const struct attention_params *run) {
    return run->alignment == 16 && p->d_qk * (int64_t)tess_type_size(p->type) % 16 == 0 &&
           run->q_scale == 1;
}

size_t column_sums_workspace(const struct kernel_args *args) {
    (void)args;
    return 0;
}

struct column_sums_params column_sums_params_of(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    struct column_sums_params to = {
        .type = p->type,
        .groups = (p->n_q + p->sum_rows - 1) / p->sum_rows,
        .filled = args->work.filled != NULL,
        .dense = !args->work.filled && lists->full_keys == lists->n_lists * lists->tiles * p->n_kv,
    };
    if (to.filled)
        to.lists = decode_params_of(args);
    else
        to.lists.run = attention_params_of(args);
    to.copied = rows_copied(p, &to.lists.run);
    return to;
}
