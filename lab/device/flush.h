/* The one kernel of the lab, for cuda.c. */
#ifndef LAB_DEVICE_FLUSH_H
#define LAB_DEVICE_FLUSH_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads `size` bytes, all of them 0, through the L2 cache. */
cudaError_t lab_device_flush_read(void *zeros, size_t size, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
