/*
 * Operands of tensor cores for every storage type: c += a b for a 16 x K, b K x 8, c 16 x 8, where
 * K is 16 for 16-bit types and 8 for f32. With g = lane / 4 and t = lane % 4, word i of a is row
 * g + 8 (i % 2) and that of b column g; both are columns of K number t + 4 (i / 2), which for 16
 * bits are pairs. What c holds: device/mma.cuh. The order of K is the caller's, as long as a and b
 * agree on it.
 *
 * f32 is split into a high and a low part of 11 significant bits each, and the products of parts
 * are added (Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores, 2022). They
 * leave out low times low; where one product outweighs the others, it can be half of what an lse
 * may err. Low parts are held times 2^12, or those of elements under 2^-115 would lose bits as
 * subnormals; `rest`, without it, is for low times low alone, which such elements have no need of.
 * Infinities have no such parts and give NaN. Tensor cores truncate when they add, so sums of high
 * parts are short, and added up outside.
 */
#ifndef TESSERA_CUDA_FRAGMENT_CUH
#define TESSERA_CUDA_FRAGMENT_CUH

#include "device/mma.cuh"

#define FRAGMENT_LOW 4096.0f /* what low parts are held times */

template <class T, int N> struct fragment {
    uint32_t word[N];
};
template <int N> struct fragment<float, N> {
    uint32_t high[N], low[N], residual[N]; /* low is rest times FRAGMENT_LOW */
};

template <class T, int N>
static __device__ __forceinline__ struct fragment<T, N>
fragment_of(const uint32_t (&word)[N], T) {
    struct fragment<T, N> f;
#pragma unroll
    for (int i = 0; i < N; i++)
        f.word[i] = word[i];
    return f;
}
template <int N>
static __device__ __forceinline__ struct fragment<float, N>
fragment_of(const uint32_t (&word)[N], float) {
    struct fragment<float, N> f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        f.high[i] = (word[i] + 0x1000u) & 0xffffe000u; /* to nearest */
        const float residual = __uint_as_float(word[i]) - __uint_as_float(f.high[i]);
        f.residual[i] = __float_as_uint(residual);
        f.low[i] = __float_as_uint(residual * FRAGMENT_LOW);
    }
    return f;
}

/* The same of parts that were split before. */
template <int N>
static __device__ __forceinline__ struct fragment<float, N>
fragment_of_parts(const uint32_t (&high)[N], const uint32_t (&low)[N]) {
    struct fragment<float, N> f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        f.high[i] = high[i];
        f.low[i] = low[i];
        f.residual[i] = __float_as_uint(__uint_as_float(low[i]) * (1 / FRAGMENT_LOW));
    }
    return f;
}

static __device__ __forceinline__ void fragment_mma_tf32(float (&c)[4], const uint32_t (&a)[4],
                                                         const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* sum += a[0] b[0] + ... + a[STEPS - 1] b[STEPS - 1], by sums that begin at zero. ALL: f32 with all
 * four products of parts. */
template <bool ALL, class T, int STEPS>
static __device__ __forceinline__ void
fragment_multiply(float (&sum)[4], const struct fragment<T, 4> (&a)[STEPS],
                  const struct fragment<T, 2> (&b)[STEPS]) {
    float part[4] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        mma_sync(part, a[s].word, b[s].word, T());
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum[e] += part[e];
}
/* What is small stays apart from what is large, which then is truncated once. */
template <bool ALL, int STEPS>
static __device__ __forceinline__ void
fragment_multiply(float (&sum)[4], const struct fragment<float, 4> (&a)[STEPS],
                  const struct fragment<float, 2> (&b)[STEPS]) {
    float lowest[4] = {}, low[4] = {}, high[STEPS][4] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (ALL)
            fragment_mma_tf32(lowest, a[s].low, b[s].low);
        fragment_mma_tf32(low, a[s].low, b[s].high);
        fragment_mma_tf32(low, a[s].high, b[s].low);
        fragment_mma_tf32(high[s], a[s].high, b[s].high);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (ALL)
            low[e] = fmaf(lowest[e], 1 / FRAGMENT_LOW, low[e]);
        float part = low[e] * (1 / FRAGMENT_LOW);
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            part += high[s][e];
        sum[e] += part;
    }
}

#endif
