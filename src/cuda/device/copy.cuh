/* From global to shared memory without passing through registers. */
#ifndef TESSERA_CUDA_COPY_CUH
#define TESSERA_CUDA_COPY_CUH

#include <stdint.h>

/* 16 bytes, aligned on both sides, or zeros where `wanted` is false: then nothing is read, but the
 * place must be one that could be. Done after copy_wait, and seen by others after a barrier. */
static __device__ __forceinline__ void copy_16(void *to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_wait(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
