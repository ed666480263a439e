/* WGMMA of two operands that lie in shared memory across their rows: C [64, N] (+)= A B, both MN-major (wgmma.cuh). */
#ifndef TESSERA_CUDA_SM90_WGMMA_BOTH_CUH
#define TESSERA_CUDA_SM90_WGMMA_BOTH_CUH

#include "device/sm90/wgmma.cuh"

/* MN-major descriptor without swizzle: blocks of 8 by 8 elements, 128 bytes each, of which those of one k follow one
 * another; the next 8 of k are `apart` bytes further. */
DEVICE uint64_t wgmma_blocks(uint32_t at, uint32_t apart) {
    return wgmma_address(at) | (uint64_t)(apart / 16) << 16 | (uint64_t)(128 / 16) << 32;
}

#define C_8(c, i)                                                                                  \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]),    \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define C_32(c, i) C_8(c, i), C_8(c, i + 8), C_8(c, i + 16), C_8(c, i + 24)
#define NAMES_32                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                   \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"   \
             "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_BOTH(T, type, n, floats, names, a_, b_, add_, ...)                                   \
    DEVICE void wgmma_both(float(&c)[floats], uint64_t a, uint64_t b, int add, T) {                \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_ ", 0;\n"                         \
                     "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names     \
                     "}, " a_ ", " b_ ", add, 1, 1, 1, 1;\n}"                                      \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }
#define WGMMAS_BOTH(T, type)                                                                       \
    WGMMA_BOTH(T, type, "64", 32, NAMES_32, "%32", "%33", "%34", C_32(c, 0))                       \
    WGMMA_BOTH(T, type, "128", 64, NAMES_64, "%64", "%65", "%66", C_32(c, 0), C_32(c, 32))
WGMMAS_BOTH(__nv_bfloat16, "bf16")
#undef WGMMAS_BOTH
#undef WGMMA_BOTH
#undef NAMES_64
#undef NAMES_32
#undef C_32
#undef C_8

#endif
