/* 16 bytes of a tensor's row as four words, as tensor cores take operands. */
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

/* Whether rows of d elements are whole 16-byte pieces, all aligned: WHOLE below. */
template <class T>
static __host__ __device__ constexpr bool words_whole(int32_t alignment, int32_t d) {
    return alignment >= 16 && d % words_elements<T>() == 0;
}

/* Element i of the 16 bytes. */
DEVICE float words_element(const struct words &w, int i, float) {
    return __uint_as_float(w.x[i]);
}
DEVICE float words_element(const struct words &w, int i, __nv_bfloat16) {
    return __uint_as_float(i % 2 ? w.x[i / 2] & 0xffff0000u : w.x[i / 2] << 16);
}
DEVICE float words_element(const struct words &w, int i, __half) {
    return __half2float(__ushort_as_half((unsigned short)(w.x[i / 2] >> i % 2 * 16)));
}

/* The L2 policy of an ordinary load. */
DEVICE uint64_t words_policy(void) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* 16 bytes of a row of d elements from element `at` on, a multiple of their number. Past the row's
 * end: 0, or where rows are WHOLE the row's last 16 bytes, which costs nothing. `kept`: L1 keeps
 * the line. L2 evicts first what L1 is told not to keep, unless the load has a policy. */
template <class T, bool WHOLE>
DEVICE struct words words_load(const T *row, int32_t d, int32_t at, bool kept) {
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
