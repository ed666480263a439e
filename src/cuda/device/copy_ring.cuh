/* From global to shared memory in the background, to addresses of the shared window. */
#ifndef TESSERA_CUDA_COPY_RING_CUH
#define TESSERA_CUDA_COPY_RING_CUH

#include "device/copy.cuh"

/* 16 bytes, aligned on both sides, or zeros where `wanted` is false: then nothing is read. */
static __device__ __forceinline__ void ring_copy_16(uint32_t to, const void *from, bool wanted) {
    asm volatile("{\n"
                 ".reg .pred zeros;\n"
                 "setp.eq.b32 zeros, %2, 0;\n"
                 "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, zeros;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"((int)wanted)
                 : "memory");
}
static __device__ __forceinline__ void ring_copy_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void ring_copy_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/* Waits for this thread's copies; a barrier then shows them to others. */
static __device__ __forceinline__ void ring_wait(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

static __device__ __forceinline__ void shared_store_8(uint32_t to, uint64_t x) {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(x) : "memory");
}
static __device__ __forceinline__ void shared_store_4(uint32_t to, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
static __device__ __forceinline__ uint32_t shared_load_4(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}
static __device__ __forceinline__ void shared_store_16(uint32_t to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}
static __device__ __forceinline__ uint4 shared_load_16(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from));
    return x;
}

#endif
