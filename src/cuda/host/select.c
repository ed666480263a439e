/* Choosing columns on CUDA: launch parameters. */
#include "host/select.h"

#include "base/status.h"
#include "host/launch.h"

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
    const cudaError_t code = cuda_select(&p, args->stream);
    return code == cudaSuccess ? TESS_OK
                               : cuda_failed(error, code, "tess_select", NULL, "cuda_select");
}
