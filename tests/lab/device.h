/*
 * Device memory for tests, bench and tools: the one place outside src/cuda that may speak to CUDA.
 * On the CPU backend memory is the host's and copies are plain copies. In a build without CUDA the
 * CUDA backend is never available.
 */
#ifndef LAB_DEVICE_H
#define LAB_DEVICE_H

#include "tessera.h"

/* Whether the lab can run on a backend here. */
int lab_device_available(tess_backend backend);

/* Memory aligned to 64 bytes, or NULL. */
void *lab_device_alloc(tess_backend backend, size_t size);
void lab_device_free(tess_backend backend, void *memory);

/* Copies that are done when they return: 0, or -1 when the backend is not available. */
int lab_device_to_device(tess_backend backend, void *device, const void *host, size_t size);
int lab_device_to_host(tess_backend backend, void *host, const void *device, size_t size);
int lab_device_synchronize(tess_backend backend);

#endif
