/*
 * CUDA kernels that are C, on the host: the threads of a thread block are contexts of one thread of the
 * host, which change at barriers and operations of warps. Where such an operation is not met by all
 * whom it is for, or at different lines, the test ends. Contexts take their turns in an order drawn
 * from a seed, and thread blocks too, so that what a barrier is missing for shows.
 */
#ifndef TESTS_EMULATED_H
#define TESTS_EMULATED_H

#include <stddef.h>
#include <stdint.h>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __align__(bytes) _Alignas(bytes)
#define __launch_bounds__(...)
#define FILL_ROLLED
#define FILL_UNROLLED

struct emulated_place {
    uint32_t x;
};
typedef struct {
    int32_t x, y;
} __attribute__((may_alias, aligned(8))) int2;
typedef struct {
    int32_t x, y, z, w;
} __attribute__((may_alias, aligned(16))) int4;
static inline int2 make_int2(int32_t x, int32_t y) {
    return (int2){x, y};
}
static inline int4 make_int4(int32_t x, int32_t y, int32_t z, int32_t w) {
    return (int4){x, y, z, w};
}

extern struct emulated_place threadIdx, blockIdx, blockDim, gridDim;

/* Shared memory, filled with what is no zero before each thread block begins. */
#define EMULATED_SHARED (96 * 1024)

enum emulated_operation {
    EMULATED_BARRIER,
    EMULATED_UP,
    EMULATED_XOR,
    EMULATED_FROM,
    EMULATED_ANY
};
int emulated_block_wait(int x, int line); /* whether any thread has an x */
uint64_t emulated_warp(enum emulated_operation operation, uint64_t x, int argument, int line);

#define __syncthreads() ((void)emulated_block_wait(0, __LINE__))
#define __syncthreads_or(x) emulated_block_wait((x) != 0, __LINE__)
#define __syncwarp(lanes) ((void)emulated_warp(EMULATED_BARRIER, 0, 0, __LINE__))
#define __shfl_up_sync(lanes, x, step)                                                             \
    ((__typeof__(x))emulated_warp(EMULATED_UP, (uint64_t)(x), step, __LINE__))
#define __shfl_xor_sync(lanes, x, step)                                                            \
    ((__typeof__(x))emulated_warp(EMULATED_XOR, (uint64_t)(x), step, __LINE__))
#define __shfl_sync(lanes, x, from)                                                                \
    ((__typeof__(x))emulated_warp(EMULATED_FROM, (uint64_t)(x), from, __LINE__))
#define __ballot_sync(lanes, x) ((uint32_t)emulated_warp(EMULATED_ANY, (x) != 0, 0, __LINE__))
#define __any_sync(lanes, x) (__ballot_sync(lanes, x) != 0)
#define __popc(x) __builtin_popcount(x)
#define __popcll(x) __builtin_popcountll(x)
#define __ffs(x) __builtin_ffs(x)
#define __clz(x) __builtin_clz((unsigned)(x))
static inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t sum) {
    for (int i = 0; i < 32; i += 8)
        sum += (a >> i & 255) * (b >> i & 255);
    return sum;
}
static inline uint32_t atomicExch(uint32_t *to, uint32_t x) {
    const uint32_t was = *to;
    *to = x;
    return was;
}
static inline uint32_t atomicOr(uint32_t *to, uint32_t x) {
    const uint32_t was = *to;
    *to |= x;
    return was;
}
static inline uint32_t atomicAdd(uint32_t *to, uint32_t x) {
    const uint32_t was = *to;
    *to += x;
    return was;
}
static inline unsigned long long atomicMin(unsigned long long *to, unsigned long long x) {
    const unsigned long long was = *to;
    *to = x < was ? x : was;
    return was;
}

/* Runs kernel(argument) for each thread of `blocks` thread blocks of up to 1024 threads, whole warps. */
void emulated_run(void (*kernel)(const void *argument), const void *argument, int blocks,
                  int threads, size_t shared, uint64_t seed);

#endif
