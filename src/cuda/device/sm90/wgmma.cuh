/*
 * WGMMA: C [64, N] += A [64, 16] B [16, N] by a warpgroup; 16-bit operands, f32 sums. WGMMAs are
 * asynchronous: between wgmma_fence and wgmma_wait<0> none of their registers may be touched. With
 * g = lane / 4 and t = lane % 4, warp w holds rows 16 w + g and 16 w + g + 8:
 *
 *                       C [64, N]: columns 8 j + 2 t, + 1     A [64, 16] in registers
 *                                                             columns 2 t, + 1   2 t + 8, + 9
 *   row 16 w + g        c[4 j],     c[4 j + 1]                a[0]               a[2]
 *   row 16 w + g + 8    c[4 j + 2], c[4 j + 3]                a[1]               a[3]
 *
 * So S as C, rounded in pairs, is P as A. B is in shared memory, and A may be: panels of 64 columns, aligned to
 * 1024 bytes. Rows are 128 bytes in the 128-byte swizzle (device/swizzle.cuh).
 */
#ifndef TESSERA_CUDA_SM90_WGMMA_CUH
#define TESSERA_CUDA_SM90_WGMMA_CUH

#include "device/inline.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

DEVICE void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Commits the WGMMAs so far as a group. */
DEVICE void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most the PENDING last groups are incomplete. */
template <int PENDING> DEVICE void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Compiler fence: no use of these registers moves across it. */
template <int N> DEVICE void wgmma_fence_operand(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> DEVICE void wgmma_fence_operand(uint32_t (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

/* Shared memory descriptors: address and strides in units of 16 bytes, 128-byte swizzle. Groups of
 * 8 rows are 1024 bytes apart. */
#define WGMMA_SWIZZLE_128B ((uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32)

/* The address within this CTA's shared memory. Higher address bits hold the CTA's rank in its
 * cluster. */
DEVICE uint64_t wgmma_address(uint32_t at) {
    return (at & 0x3ffff) / 16;
}

/* K-major descriptor, K along a panel's rows: Q, and K of Q K^T as stored. */
DEVICE uint64_t wgmma_k_major(uint32_t at) {
    return WGMMA_SWIZZLE_128B | (uint64_t)1 << 16 | wgmma_address(at);
}
/* K-major descriptor where groups of 8 rows are `apart` bytes apart. */
DEVICE uint64_t wgmma_k_major(uint32_t at, uint32_t apart) {
    return (uint64_t)1 << 62 | (uint64_t)(apart / 16) << 32 | (uint64_t)1 << 16 | wgmma_address(at);
}
/* MN-major descriptor, K across a panel's rows: V of P V as stored. The next 64 columns of V are
 * `panel` bytes further. */
DEVICE uint64_t wgmma_mn_major(uint32_t at, uint32_t panel) {
    return WGMMA_SWIZZLE_128B | (uint64_t)(panel / 16) << 16 | wgmma_address(at);
}

/* stmatrix.x4: four 8 x 8 matrices of 16-bit elements to shared memory. Lane l gives the address of row l %
 * 8 of matrix l / 8. Each lane gives columns 2t, 2t + 1 of row g of each matrix. */
DEVICE void stmatrix(uint32_t row, const uint32_t (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

#define C_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C_16_AT(c, i) C_4(c, i), C_4(c, i + 4), C_4(c, i + 8), C_4(c, i + 12)
#define C_16(c) C_16_AT(c, 0)
#define C_32(c) C_16_AT(c, 0), C_16_AT(c, 16)
#define C_64(c) C_32(c), C_16_AT(c, 32), C_16_AT(c, 48)
#define C_96(c) C_64(c), C_16_AT(c, 64), C_16_AT(c, 80)
#define C_128(c) C_96(c), C_16_AT(c, 96), C_16_AT(c, 112)
#define NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                   \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"   \
             "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_96                                                                                   \
    NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,"   \
             "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_128                                                                                  \
    NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"  \
             "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* C [64, n] (+)= A B, A and B both from shared memory, B K-major. A thread has `floats` floats of
 * C; `a_`, `b_` and `add_` are the numbers of the operands after them. add = 0: C is only
 * written. */
#define WGMMA_SS(T, type, n, floats, a_, b_, add_)                                                 \
    DEVICE void wgmma_ss(float(&c)[floats], uint64_t a, uint64_t b, int add, T) {                  \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_ ", 0;\n"                         \
                     "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                \
                     " {" NAMES_##floats "}, " a_ ", " b_ ", add, 1, 1, 0, 0;\n}"                  \
                     : C_##floats(c)                                                               \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }
/* C [64, n] (+)= A B, A from registers with operand numbers `a_`, B from shared memory and
 * MN-major. */
#define WGMMA_RS(T, type, n, floats, a_, b_, add_)                                                 \
    DEVICE void wgmma_rs(float(&c)[floats], const uint32_t *a, uint64_t b, int add, T) {           \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_ ", 0;\n"                         \
                     "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                \
                     " {" NAMES_##floats "}, {" a_ "}, " b_ ", add, 1, 1, 1;\n}"                   \
                     : C_##floats(c)                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }
/* C [64, 64] (+)= A B, A from registers, B K-major. */
#define WGMMA_RS_K_MAJOR(T, type)                                                                  \
    DEVICE void wgmma_rs_k_major(float(&c)[32], const uint32_t *a, uint64_t b, int add, T) {       \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" NAMES_32     \
                     "}, {%32,%33,%34,%35}, %36, add, 1, 1, 0;\n}"                                 \
                     : C_32(c)                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }
#define WGMMAS(T, type)                                                                            \
    WGMMA_SS(T, type, "32", 16, "%16", "%17", "%18")                                               \
    WGMMA_SS(T, type, "64", 32, "%32", "%33", "%34")                                               \
    WGMMA_SS(T, type, "128", 64, "%64", "%65", "%66")                                              \
    WGMMA_RS(T, type, "32", 16, "%16,%17,%18,%19", "%20", "%21")                                   \
    WGMMA_RS(T, type, "64", 32, "%32,%33,%34,%35", "%36", "%37")                                   \
    WGMMA_RS(T, type, "128", 64, "%64,%65,%66,%67", "%68", "%69")                                  \
    WGMMA_RS(T, type, "192", 96, "%96,%97,%98,%99", "%100", "%101")                                \
    WGMMA_RS(T, type, "256", 128, "%128,%129,%130,%131", "%132", "%133")                           \
    WGMMA_RS_K_MAJOR(T, type)
WGMMAS(__half, "f16")
WGMMAS(__nv_bfloat16, "bf16")
#undef WGMMAS
#undef WGMMA_RS
#undef WGMMA_RS_K_MAJOR
#undef WGMMA_SS
#undef NAMES_128
#undef NAMES_96
#undef NAMES_64
#undef NAMES_32
#undef NAMES_16
#undef C_128
#undef C_96
#undef C_64
#undef C_32
#undef C_16
#undef C_16_AT
#undef C_4

#endif
