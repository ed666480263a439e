/* From global to shared memory without passing through registers: copies are done after cp_async_wait,
 * and seen by other threads after a barrier. Where `wanted` is false zeros are written and nothing
 * is read, but the place must be one that could be. */
#ifndef TESSERA_CUDA_COPY_CUH
#define TESSERA_CUDA_COPY_CUH

#include "device/shared.cuh"

/* 16 bytes, aligned on both sides. */
static __device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
}

/* The same for bytes that others of the 128 around them are soon to follow: the L2 cache fetches
 * those too. Where nothing is read, `from` may be anywhere. */
static __device__ __forceinline__ void cp_async_16_l2_128(uint32_t to, const void *from,
                                                          bool wanted) {
    asm volatile("{\n"
                 ".reg .pred zeros;\n"
                 "setp.eq.b32 zeros, %2, 0;\n"
                 "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, zeros;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"((int)wanted)
                 : "memory");
}

/* 8 bytes, aligned on both sides. */
static __device__ __forceinline__ void cp_async_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/* 4 bytes, aligned on both sides. */
static __device__ __forceinline__ void cp_async_4(uint32_t to, const void *from, bool wanted) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 4 : 0)
                 : "memory");
}

/* Ends a batch of this thread's copies, which may be empty. */
static __device__ __forceinline__ void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all of this thread's copies are done, in batches or not. */
static __device__ __forceinline__ void cp_async_wait_all(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Until all but this thread's last PENDING batches are done. */
template <int PENDING> static __device__ __forceinline__ void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
