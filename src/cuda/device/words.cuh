/* 16 bytes of a row of a tensor as four words, which is how tensor cores take operands. */
#ifndef TESSERA_CUDA_WORDS_CUH
#define TESSERA_CUDA_WORDS_CUH

#include "device/convert.cuh"

struct words {
    uint32_t x[4];
};

/* Elements in 16 bytes. */
template <class T> static __host__ __device__ constexpr int words_elements(void) {
    return 16 / (int)sizeof(T);
}

/* Whether rows of d elements are made of whole 16-byte pieces that are aligned: WHOLE below. */
template <class T>
static __host__ __device__ constexpr bool words_whole(int32_t alignment, int32_t d) {
    return alignment >= 16 && d % words_elements<T>() == 0;
}

/* Element i of them. */
static __device__ __forceinline__ float words_element(const struct words &w, int i, float) {
    return __uint_as_float(w.x[i]);
}
static __device__ __forceinline__ float words_element(const struct words &w, int i,
                                                      __nv_bfloat16) {
    return __uint_as_float(i % 2 ? w.x[i / 2] & 0xffff0000u : w.x[i / 2] << 16);
}
static __device__ __forceinline__ float words_element(const struct words &w, int i, __half) {
    return __half2float(__ushort_as_half((unsigned short)(w.x[i / 2] >> i % 2 * 16)));
}

/* What is fetched as any other is kept in L2 as long. */
static __device__ __forceinline__ uint64_t words_policy(void) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Elements at ... of a row of d; `at` is a multiple of their number. Past the row's end: where rows
 * are WHOLE, its last elements (which costs nothing, and no other row is touched), else 0. `kept`:
 * in the L1 cache too. (What L1 is told not to keep, L2 lets go first unless it has a policy.) */
template <class T, bool WHOLE>
static __device__ __forceinline__ struct words words_load(const T *row, int32_t d, int32_t at,
                                                          bool kept) {
    constexpr int N = words_elements<T>();
    union {
        T element[N];
        struct words w;
    } out;
    if (WHOLE) {
        const T *from = row + min(at, d - N);
        if (kept)
            asm("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                : "=r"(out.w.x[0]), "=r"(out.w.x[1]), "=r"(out.w.x[2]), "=r"(out.w.x[3])
                : "l"(from));
        else
            asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                : "=r"(out.w.x[0]), "=r"(out.w.x[1]), "=r"(out.w.x[2]), "=r"(out.w.x[3])
                : "l"(from), "l"(words_policy()));
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            from_f32(&out.element[i], 0.0f);
            if (at + i < d)
                out.element[i] = row[at + i];
        }
    }
    return out.w;
}

#endif
