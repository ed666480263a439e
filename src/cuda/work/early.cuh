/* Programmatic dependent launch, in a kernel: sm_90 and later. The file compiles as C too, as kernels of a fill do. */
#ifndef TESSERA_CUDA_EARLY_CUH
#define TESSERA_CUDA_EARLY_CUH

#include "device/architecture.cuh"
#include "device/inline.cuh"

/* A kernel may take room that the one before leaves, and waits here until that has ended and its writes are
 * visible. Kernels of a run wait before they let the next one begin, which may then read what the fill wrote
 * before its own wait. */
DEVICE void early_wait(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Allows the next kernel of the stream, if it was launched early and waits likewise, to start as soon as there is
 * room. */
DEVICE void early_next(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
