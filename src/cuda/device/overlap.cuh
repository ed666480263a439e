/* Programmatic dependent launch: a kernel that begins before the one in front of it has ended. */
#ifndef TESSERA_CUDA_OVERLAP_CUH
#define TESSERA_CUDA_OVERLAP_CUH

#include <cuda_runtime.h>

/* Whether a kernel may: where it was compiled to wait (9.0 on), and the driver can capture such launches,
 * from 12.3 on. */
static inline cudaError_t launch_overlaps(const void *kernel, bool *overlaps) {
    cudaFuncAttributes attributes;
    int driver = 0;
    cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (!code)
        code = cudaDriverGetVersion(&driver);
    *overlaps = !code && attributes.ptxVersion >= 90 && driver >= 12030;
    return code;
}

#endif
