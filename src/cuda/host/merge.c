/* Merging partial results on CUDA, and taking one out: one launch, whose parameters hold all views. */
#include "host/merge.h"

#include "base/status.h"
#include "host/launch.h"

_Static_assert(sizeof(struct merge_params) <= 4096, "a launch has 4 KB of parameters");

static struct rows_view view_of(const tess_tensor *t) {
    return (struct rows_view){t->data, {t->stride[0], t->stride[1], t->stride[2]}};
}

/* Parts fit MERGE_PARTS. */
static struct merge_params params_of(const struct merge_args *args) {
    const tess_tensor *out = args->o_out;
    struct merge_params p = {.o_out = view_of(out),
                             .rows = out->size[0] * out->size[1] * out->size[2],
                             .heads = out->size[1],
                             .n = out->size[2],
                             .parts = (int32_t)args->parts,
                             .d_v = (int32_t)out->size[3]};
    if (args->lse_out)
        p.lse_out = view_of(args->lse_out);
    for (int32_t part = 0; part < p.parts; part++) {
        p.o[part] = view_of(args->o[part]);
        p.lse[part] = view_of(args->lse[part]);
    }
    return p;
}

tess_status cuda_merge_run(const struct merge_args *args, tess_error *error) {
    if (args->parts > MERGE_PARTS)
        return error_set(error, TESS_UNSUPPORTED, "tess_merge", "parts",
                         "CUDA merges at most %d parts at a time, not %lld: merge groups of them "
                         "into f32, then the groups",
                         MERGE_PARTS, (long long)args->parts);
    const struct merge_params p = params_of(args);
    const cudaError_t code = cuda_merge(&p, args->o[0]->type, args->o_out->type, args->stream);
    return code == cudaSuccess ? TESS_OK
                               : cuda_failed(error, code, "tess_merge", NULL, "cuda_merge");
}

tess_status cuda_unmerge_run(const struct merge_args *args, tess_error *error) {
    const struct merge_params p = params_of(args);
    const cudaError_t code = cuda_unmerge(&p, args->o[0]->type, args->o_out->type, args->stream);
    return code == cudaSuccess ? TESS_OK
                               : cuda_failed(error, code, "tess_unmerge", NULL, "cuda_unmerge");
}
