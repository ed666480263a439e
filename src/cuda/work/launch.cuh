/* Programmatic dependent launch: a kernel that begins before the one in front of it has ended (early.cuh). */
#ifndef TESSERA_CUDA_LAUNCH_EARLY_CUH
#define TESSERA_CUDA_LAUNCH_EARLY_CUH

#include "device/launch.cuh"

#include <atomic>
#include <cuda_runtime.h>
#include <stdint.h>

/* Whether a kernel may: where it was compiled to wait (9.0 on), and the driver can capture such launches,
 * from 12.3 on. Kernels of a translation unit have the same architectures, so one answer holds for all of
 * them on a device. The answer is kept, since asking takes half a microsecond: two bits for each of the
 * first 32 devices. Threads that ask at once find the same. */
static inline cudaError_t launch_overlaps(const void *kernel, bool *overlaps) {
    static std::atomic<uint64_t> answers{0};
    cudaFuncAttributes attributes;
    int device = 0, driver = 0;
    cudaError_t code = cudaGetDevice(&device);
    const uint64_t answer =
        device < 32 ? answers.load(std::memory_order_relaxed) >> 2 * device & 3 : 0;
    if (answer) {
        *overlaps = answer > 1;
        return code;
    }
    if (!code)
        code = cudaFuncGetAttributes(&attributes, kernel);
    if (!code)
        code = cudaDriverGetVersion(&driver);
    *overlaps = !code && attributes.ptxVersion >= 90 && driver >= 12030;
    if (!code && device < 32)
        answers.fetch_or((uint64_t)(*overlaps ? 2 : 1) << 2 * device, std::memory_order_relaxed);
    return code;
}

/* Launches a kernel so where it may, in clusters of `cluster` CTAs, 0: in none. bytes: of dynamic shared memory. */
static inline cudaError_t launch_early(const void *kernel, dim3 blocks, int threads, size_t bytes,
                                       void **arguments, cudaStream_t stream, int cluster = 0) {
    bool overlaps = false;
    const cudaError_t code = launch_overlaps(kernel, &overlaps);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchAttribute &clusters = attributes[overlaps];
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim.x = (unsigned)cluster;
    clusters.val.clusterDim.y = clusters.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = overlaps + (cluster > 0);
    return code ? code : cudaLaunchKernelExC(&config, kernel, arguments);
}

#endif
