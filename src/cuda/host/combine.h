/* Combines that launches of split tiles end with, which all kernels of a family share. */
#ifndef TESSERA_CUDA_COMBINE_H
#define TESSERA_CUDA_COMBINE_H

#include "host/rows.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attention_params;
struct decode_params;

/* o: the type that is stored. */
cudaError_t cuda_attention_combine(const struct attention_params *p, tess_type o,
                                   cudaStream_t stream);
cudaError_t cuda_decode_combine(const struct decode_params *p, tess_type o, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
