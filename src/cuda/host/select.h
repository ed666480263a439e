/* Choosing columns on a device: what its kernels are handed. */
#ifndef TESSERA_CUDA_SELECT_H
#define TESSERA_CUDA_SELECT_H

#include "plan/kernels.h"

#include <cuda_runtime_api.h>

struct select_params {
    struct select_shape shape;
    struct select_keys keys;
    tess_type type;
    const void *scores;
    int64_t stride[3];
    const int32_t *row_k, *lengths;
    const uint64_t *keep; /* [keep_rows][words], or NULL */
    int32_t *indices, *counts;
    uint64_t *bits;
    int64_t *overflows;
    int64_t all;           /* rows of all lists */
    struct select_row row; /* every row, where `same` */
    int64_t
        step; /* elements between rows of all lists where `same`: lists lie behind one another */
    int32_t same;  /* whether rows differ in their scores alone */
    int32_t whole; /* whether rows of scores begin at multiples of 16 bytes */
    /* select_rows: chunks of a warp, and those that stay in shared memory. select_stream: steps of a CTA, and entries
     * of a lane's list. */
    int32_t span, resident;
    int32_t listed; /* select_stream: bytes of all lists of a CTA */
};

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_select(const struct select_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

/* The backend's selection. */
tess_status cuda_select_run(const struct select_args *args, tess_error *error);

#endif
