/* WGMMA of wide B: C [64, N] += A [64, 16] B [16, N] for N of 64 to 256, A and B both from shared memory. C is the
 * first N / 2 of 128 floats, so that one array of registers serves tiles of every width. */
#ifndef TESSERA_CUDA_SM90_WGMMA_WIDE_CUH
#define TESSERA_CUDA_SM90_WGMMA_WIDE_CUH

#include "device/sm90/wgmma.cuh"

#define WIDE_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define WIDE_8(c, i) WIDE_4(c, i), WIDE_4(c, i + 4)
#define WIDE_16(c, i) WIDE_8(c, i), WIDE_8(c, i + 8)
#define WIDE_32(c, i) WIDE_16(c, i), WIDE_16(c, i + 16)
#define WIDE_C_32(c) WIDE_32(c, 0)
#define WIDE_C_48(c) WIDE_C_32(c), WIDE_16(c, 32)
#define WIDE_C_64(c) WIDE_C_48(c), WIDE_16(c, 48)
#define WIDE_C_72(c) WIDE_C_64(c), WIDE_8(c, 64)
#define WIDE_C_80(c) WIDE_C_72(c), WIDE_8(c, 72)
#define WIDE_C_88(c) WIDE_C_80(c), WIDE_8(c, 80)
#define WIDE_C_96(c) WIDE_C_88(c), WIDE_8(c, 88)
#define WIDE_C_104(c) WIDE_C_96(c), WIDE_8(c, 96)
#define WIDE_C_112(c) WIDE_C_104(c), WIDE_8(c, 104)
#define WIDE_C_120(c) WIDE_C_112(c), WIDE_8(c, 112)
#define WIDE_C_128(c) WIDE_C_120(c), WIDE_8(c, 120)
#define WIDE_NAMES_32                                                                              \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"  \
    "25,%26,%27,%28,%29,%30,%31"
#define WIDE_NAMES_48                                                                              \
    WIDE_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WIDE_NAMES_64                                                                              \
    WIDE_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WIDE_NAMES_72 WIDE_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define WIDE_NAMES_80 WIDE_NAMES_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define WIDE_NAMES_88 WIDE_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define WIDE_NAMES_96 WIDE_NAMES_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define WIDE_NAMES_104 WIDE_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define WIDE_NAMES_112 WIDE_NAMES_104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define WIDE_NAMES_120 WIDE_NAMES_112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define WIDE_NAMES_128 WIDE_NAMES_120 ",%120,%121,%122,%123,%124,%125,%126,%127"

/* C += A B; add = 0: C is only written. TRANSPOSED: A and B are MN-major, else both K-major. */
template <int N, bool TRANSPOSED, class T>
DEVICE void wgmma_wide(float (&c)[128], uint64_t a, uint64_t b, int add, T);

#define WIDE_OF(T, type, n, floats, transposed, bits, a_, b_, add_)                                \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma_wide<n, transposed, T>(float(&c)[128], uint64_t a,       \
                                                                 uint64_t b, int add, T) {         \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_ ", 0;\n"                         \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type               \
                     " {" WIDE_NAMES_##floats "}, " a_ ", " b_ ", add, 1, 1, " bits ";\n}"         \
                     : WIDE_C_##floats(c)                                                          \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }
#define WIDE_BOTH(n, floats, a_, b_, add_)                                                         \
    WIDE_OF(__half, "f16", n, floats, false, "0, 0", a_, b_, add_)                                 \
    WIDE_OF(__half, "f16", n, floats, true, "1, 1", a_, b_, add_)                                  \
    WIDE_OF(__nv_bfloat16, "bf16", n, floats, false, "0, 0", a_, b_, add_)                         \
    WIDE_OF(__nv_bfloat16, "bf16", n, floats, true, "1, 1", a_, b_, add_)
WIDE_BOTH(64, 32, "%32", "%33", "%34")
WIDE_BOTH(96, 48, "%48", "%49", "%50")
WIDE_BOTH(128, 64, "%64", "%65", "%66")
WIDE_BOTH(144, 72, "%72", "%73", "%74")
WIDE_BOTH(160, 80, "%80", "%81", "%82")
WIDE_BOTH(176, 88, "%88", "%89", "%90")
WIDE_BOTH(192, 96, "%96", "%97", "%98")
WIDE_BOTH(208, 104, "%104", "%105", "%106")
WIDE_BOTH(224, 112, "%112", "%113", "%114")
WIDE_BOTH(240, 120, "%120", "%121", "%122")
WIDE_BOTH(256, 128, "%128", "%129", "%130")
#undef WIDE_BOTH
#undef WIDE_OF
#undef WIDE_NAMES_128
#undef WIDE_C_128
#undef WIDE_NAMES_120
#undef WIDE_C_120
#undef WIDE_NAMES_112
#undef WIDE_C_112
#undef WIDE_NAMES_104
#undef WIDE_C_104
#undef WIDE_NAMES_96
#undef WIDE_C_96
#undef WIDE_NAMES_88
#undef WIDE_C_88
#undef WIDE_NAMES_80
#undef WIDE_C_80
#undef WIDE_NAMES_72
#undef WIDE_C_72
#undef WIDE_NAMES_64
#undef WIDE_C_64
#undef WIDE_NAMES_48
#undef WIDE_C_48
#undef WIDE_NAMES_32
#undef WIDE_C_32
#undef WIDE_32
#undef WIDE_16
#undef WIDE_8
#undef WIDE_4

#endif
