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

/* Launches a kernel of one argument so where it may. bytes: of dynamic shared memory. */
static inline cudaError_t launch_early(const void *kernel, dim3 blocks, int threads, size_t bytes,
                                       const void *argument, cudaStream_t stream) {
    void *arguments[] = {const_cast<void *>(argument)};
    bool overlaps;
    const cudaError_t code = launch_overlaps(kernel, &overlaps);
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = overlaps;
    return code ? code : cudaLaunchKernelExC(&config, kernel, arguments);
}

#endif
