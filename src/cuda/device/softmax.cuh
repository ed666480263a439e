/* Online softmax: what its tiles have in common (tile.cuh, sm90/softmax.cuh). */
#ifndef TESSERA_CUDA_ONLINE_SOFTMAX_CUH
#define TESSERA_CUDA_ONLINE_SOFTMAX_CUH

#include <math.h>

/* Subtrahend of scores: the maximum, or 0 where it is -Inf. */
static __device__ __forceinline__ float attention_base(float m) {
    return m == -INFINITY ? 0.0f : m;
}

static __device__ __forceinline__ float attention_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
