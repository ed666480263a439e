/* Device memory in builds without CUDA: the host's for the CPU, none for CUDA. */
#include "device.h"

#include <stdlib.h>

int lab_device_available(tess_backend backend) {
    return backend == TESS_CPU;
}

void *lab_device_alloc(tess_backend backend, size_t size) {
    if (backend != TESS_CPU || size > SIZE_MAX - 63)
        return NULL;
    return aligned_alloc(64, size ? (size + 63) / 64 * 64 : 64);
}

void lab_device_free(tess_backend backend, void *memory) {
    if (backend == TESS_CPU)
        free(memory);
}

int lab_device_to_device(tess_backend backend, void *device, const void *host, size_t size) {
    if (backend != TESS_CPU)
        return -1;
    memcpy(device, host, size);
    return 0;
}

int lab_device_to_host(tess_backend backend, void *host, const void *device, size_t size) {
    if (backend != TESS_CPU)
        return -1;
    memcpy(host, device, size);
    return 0;
}

int lab_device_synchronize(tess_backend backend) {
    return backend == TESS_CPU ? 0 : -1;
}
