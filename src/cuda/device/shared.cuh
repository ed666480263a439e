/* Shared memory by 32-bit addresses of the shared window. */
#ifndef TESSERA_CUDA_SHARED_CUH
#define TESSERA_CUDA_SHARED_CUH

#include "device/inline.cuh"

#include <stdint.h>

/* The address of `at` in the shared window, in bytes. */
DEVICE uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

DEVICE void shared_store_4(uint32_t to, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
DEVICE uint32_t shared_load_4(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}
DEVICE void shared_store_16(uint32_t to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}
DEVICE uint4 shared_load_16(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from));
    return x;
}

#endif
