/* cp.async: copies from global to shared memory that pass through no registers. A copy is complete
 * after cp_async_wait, and visible to other threads after a barrier. Where `wanted` is false, zeros
 * are written and nothing is read, but `from` must be a valid address. */
#ifndef TESSERA_CUDA_COPY_CUH
#define TESSERA_CUDA_COPY_CUH

#include "device/shared.cuh"

/* 16 bytes, aligned on both sides. */
DEVICE void cp_async_16(uint32_t to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
}

/* The first `bytes` of 16, which is aligned on both sides; zeros follow. */
DEVICE void cp_async_part(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* 16 bytes, with an L2 prefetch of the 128 bytes around them: for rows whose other bytes are copied
 * soon. Where `wanted` is false, `from` may be any address. */
DEVICE void cp_async_16_l2_128(uint32_t to, const void *from, bool wanted) {
    asm volatile("{\n"
                 ".reg .pred zeros;\n"
                 "setp.eq.b32 zeros, %2, 0;\n"
                 "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, zeros;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"((int)wanted)
                 : "memory");
}

/* Copy between addresses TO and FROM bytes further on, which the instruction holds. */
template <int TO, int FROM>
DEVICE void cp_async_16_l2_128_at(uint32_t to, const void *from, bool wanted) {
    asm volatile("{\n"
                 ".reg .pred zeros;\n"
                 "setp.eq.b32 zeros, %2, 0;\n"
                 "cp.async.cg.shared.global.L2::128B [%0 + %3], [%1 + %4], 16, zeros;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"((int)wanted), "n"(TO), "n"(FROM)
                 : "memory");
}

/* Copy where `some`; else nothing is written. */
DEVICE void cp_async_16_l2_128_if(bool some, uint32_t to, const void *from, bool wanted) {
    asm volatile("{\n"
                 ".reg .pred zeros, some;\n"
                 "setp.eq.b32 zeros, %2, 0;\n"
                 "setp.ne.b32 some, %3, 0;\n"
                 "@some cp.async.cg.shared.global.L2::128B [%0], [%1], 16, zeros;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"((int)wanted), "r"((int)some)
                 : "memory");
}

/* 8 bytes, aligned on both sides. */
DEVICE void cp_async_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/* 4 bytes, aligned on both sides. */
DEVICE void cp_async_4(uint32_t to, const void *from, bool wanted) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 4 : 0)
                 : "memory");
}

/* Commits this thread's copies as a group, which may be empty. */
DEVICE void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all of this thread's copies are complete, committed or not. */
DEVICE void cp_async_wait_all(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Waits until at most the PENDING last committed groups of this thread are incomplete. */
template <int PENDING> DEVICE void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
