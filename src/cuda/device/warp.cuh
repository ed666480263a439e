/* Operations of a whole warp; all 32 lanes take part. */
#ifndef TESSERA_CUDA_WARP_CUH
#define TESSERA_CUDA_WARP_CUH

#include "device/inline.cuh"

#include <stdint.h>

#define WARP_ALL 0xffffffffu

DEVICE int warp_lane(void) {
    return (int)(threadIdx.x % 32);
}

/* The lane number, read again at each call: the compiler keeps neither it nor what follows from it
 * in registers across a loop. */
DEVICE int warp_lane_here(void) {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

template <class T> DEVICE T *warp_pointer(T *x, int lane) {
    return (T *)__shfl_sync(WARP_ALL, (unsigned long long)x, lane);
}

/* The largest x of all lanes; NaN is ignored. */
DEVICE float warp_max(float x) {
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    return x;
}

DEVICE double warp_sum(double x) {
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, step);
    return x;
}

/* The last i in 0 ... n - 1 with first[i] <= x. first[0 ... n] is ascending, and first[0] <= x <
 * first[n]. */
DEVICE int64_t warp_find(const int64_t *first, int64_t n, int64_t x) {
    int64_t low = 0, count = n; /* the answer is one of low ... low + count - 1 */
    while (count > 1) {
        const int64_t step = (count + 31) / 32, at = warp_lane() * step;
        const unsigned below = __ballot_sync(WARP_ALL, at < count && first[low + at] <= x);
        const int64_t skipped = (__popc(below) - 1) * step;
        low += skipped;
        count = count - skipped < step ? count - skipped : step;
    }
    return low;
}

#endif
