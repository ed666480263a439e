/*
 * mma.sync fragments of every storage type: C += A B with A [16, K], B [K, 8], C [16, 8]. K is 16 for 16-bit
 * types, 8 for f32 (TF32). With g = lane / 4 and t = lane % 4, a lane holds
 *
 *   word i of A    row g + 8 (i % 2)     columns of K number t + 4 (i / 2)
 *   word i of B    column g              the same columns of K
 *   word i of C    see device/mma.cuh
 *
 * A word of a 16-bit type is a pair of columns. The order of K is the caller's choice, as long as A
 * and B agree.
 *
 * f32 is split into a high and a low TF32 part of 11 significant bits each. MMAs of the parts are
 * added (Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores, 2022). The
 * published scheme leaves out low x low. Where one term outweighs the others, low x low can be half
 * of the error that an lse may have. Callers may ask for low x low (ALL).
 *
 * Low parts are stored times 2^12: low parts of elements under 2^-115 would lose bits as
 * subnormals. `residual` is the low part without that factor, for low x low alone. Infinities
 * cannot be split and give NaN.
 *
 * Tensor cores truncate when they add. Sums of high parts are therefore kept short and are added up
 * outside the tensor cores.
 */
#ifndef TESSERA_CUDA_FRAGMENT_CUH
#define TESSERA_CUDA_FRAGMENT_CUH

#include "device/mma.cuh"

#define FRAGMENT_LOW 4096.0f /* factor that low parts are stored times */

template <class T, int N> struct fragment { uint32_t word[N]; };
template <int N> struct fragment<float, N> {
    uint32_t high[N], low[N], residual[N]; /* low = residual x FRAGMENT_LOW */
};

template <class T, int N> DEVICE struct fragment<T, N> fragment_of(const uint32_t (&word)[N], T) {
    struct fragment<T, N> f;
#pragma unroll
    for (int i = 0; i < N; i++)
        f.word[i] = word[i];
    return f;
} template <int N> DEVICE struct fragment<float, N> fragment_of(const uint32_t (&word)[N], float) {
    struct fragment<float, N> f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        f.high[i] = (word[i] + 0x1000u) & 0xffffe000u; /* round to nearest */
        const float residual = __uint_as_float(word[i]) - __uint_as_float(f.high[i]);
        f.residual[i] = __float_as_uint(residual);
        f.low[i] = __float_as_uint(residual * FRAGMENT_LOW);
    }
    return f;
}

/* A fragment of parts that were split earlier. */
template <int N>
DEVICE struct fragment<float, N> fragment_of_parts(const uint32_t (&high)[N],
                                                   const uint32_t (&low)[N]) {
    struct fragment<float, N> f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        f.high[i] = high[i];
        f.low[i] = low[i];
        f.residual[i] = __float_as_uint(__uint_as_float(low[i]) * (1 / FRAGMENT_LOW));
    }
    return f;
}

DEVICE void
fragment_mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* sum += a[0] b[0] + ... + a[STEPS - 1] b[STEPS - 1]. Each MMA starts from a zero accumulator. ALL:
 * for f32, all four MMAs of parts. */
template <bool ALL, class T, int STEPS>
DEVICE void fragment_multiply(float (&sum)[4], const struct fragment<T, 4> (&a)[STEPS],
                              const struct fragment<T, 2> (&b)[STEPS]) {
    float part[4] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        mma_sync(part, a[s].word, b[s].word, T());
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum[e] += part[e];
}
/* Small terms have accumulators of their own: a large accumulator is then truncated once. */
template <bool ALL, int STEPS>
DEVICE void fragment_multiply(float (&sum)[4], const struct fragment<float, 4> (&a)[STEPS],
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
