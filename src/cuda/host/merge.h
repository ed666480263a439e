/* Launch parameters of the kernel that merges partial results: their views, by value. */
#ifndef TESSERA_CUDA_MERGE_H
#define TESSERA_CUDA_MERGE_H

#include "host/rows.h"

#include <cuda_runtime_api.h>

/* Most parts that fit the 4 KB of a launch's parameters. */
#define MERGE_PARTS 60

struct merge_params {
    struct rows_view o[MERGE_PARTS], lse[MERGE_PARTS];
    struct rows_view o_out, lse_out; /* lse_out.data NULL = not wanted */
    int64_t rows;                    /* rows of all batches and heads */
    int64_t heads, n;
    int32_t parts, d_v;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Types of the parts' o and of o_out. */
cudaError_t cuda_merge(const struct merge_params *p, tess_type in, tess_type out,
                       cudaStream_t stream);

/* Parts are the whole and the kept. */
cudaError_t cuda_unmerge(const struct merge_params *p, tess_type in, tess_type out,
                         cudaStream_t stream);

#ifdef __cplusplus
}
#endif

/* The backend's merge and unmerge. */
tess_status cuda_merge_run(const struct merge_args *args, tess_error *error);
tess_status cuda_unmerge_run(const struct merge_args *args, tess_error *error);

#endif
