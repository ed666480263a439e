/* Choosing columns on CUDA: launch parameters. */
#include "host/select.h"

#include "base/status.h"
#include "host/launch.h"

/* Whether all rows lie at one stride. */
static bool lists_follow(const struct select_args *args) {
    const struct select_shape *s = &args->shape;
    return (s->heads == 1 || args->stride[1] == s->rows * args->stride[2]) &&
           (s->batch == 1 || args->stride[0] == s->heads * s->rows * args->stride[2]);
}

tess_status cuda_select_run(const struct select_args *args, tess_error *error) {
    const struct select_shape *s = &args->shape;
    const int64_t piece = 16 / (int64_t)tess_type_size(args->type);
    struct select_params p = {.shape = *s,
                              .keys = select_keys_of(args->type),
                              .type = args->type,
                              .scores = args->scores,
                              .row_k = args->row_k,
                              .lengths = args->lengths,
                              .keep = args->keep,
                              .indices = args->to.indices,
                              .counts = args->to.counts,
                              .bits = args->to.bits,
                              .overflows = args->to.overflows,
                              .all = s->batch * s->heads * s->rows,
                              .whole = (uintptr_t)args->scores % 16 == 0};
    for (int i = 0; i < 3; i++) {
        p.stride[i] = args->stride[i];
        p.whole &= args->stride[i] % piece == 0;
    }
    p.same = !args->row_k && !args->lengths && !args->keep && !s->causal && lists_follow(args);
    p.row = select_row_of(s, 0, s->n_kv, s->k), p.step = args->stride[2];
    const cudaError_t code = cuda_select(&p, args->stream);
    return code == cudaSuccess ? TESS_OK
                               : cuda_failed(error, code, "tess_select", NULL, "cuda_select");
}
