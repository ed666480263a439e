/* State of a function that a launch sets. All host threads share it: a constant of the kernel's instance, never a
 * number of a plan. */
#ifndef TESSERA_CUDA_LAUNCH_CUH
#define TESSERA_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#define LAUNCH_SURE_SHARED (48 * 1024) /* bytes that every launch may ask for */

/* Lets launches of a kernel have up to MOST bytes of dynamic shared memory: the most that any plan asks this
 * instance for. On a device with less, all that the device has. */
template <int MOST> static inline cudaError_t launch_shared(const void *kernel) {
    int device = 0, room = 0;
    if (MOST <= LAUNCH_SURE_SHARED)
        return cudaSuccess;
    cudaError_t code = cudaGetDevice(&device);
    if (!code)
        code = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return code ? code
                : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       MOST < room ? MOST : room);
}

#endif
