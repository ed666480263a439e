/*
 * Hopper's products by warpgroup: c += a b with 64 rows of a, 16 deep, operands of 16 bits and sums
 * in f32. They run in the background: between product_fence and product_wait<0> no register of
 * theirs may be touched. With g = lane / 4 and t = lane % 4, warp w of the group holds rows 16 w + g
 * and 16 w + g + 8:
 *
 *   c[4 j ...]  columns 8 j + 2 t, + 1 of the one row, then of the other
 *   a[0 ... 3]  columns 2 t, + 1 of the one row, then of the other; the same 8 columns further on
 *
 * So c, rounded in pairs, is an a. b lies in shared memory, and a may, as panels of 64 columns: rows
 * of 128 bytes whose 16-byte pieces are exchanged as in device/swizzle.cuh, 1024-byte aligned.
 */
#ifndef TESSERA_CUDA_SM90_WGMMA_CUH
#define TESSERA_CUDA_SM90_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ void product_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Ends a group of products. */
static __device__ __forceinline__ void product_group(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until all but the last PENDING groups are done. */
template <int PENDING> static __device__ __forceinline__ void product_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* The compiler moves no use of these registers past this. */
template <int N> static __device__ __forceinline__ void product_pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> static __device__ __forceinline__ void product_pin(uint32_t (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

/* Descriptors: address and distances in units of 16 bytes, and the exchange of pieces within 128
 * bytes. Groups of 8 rows are 1024 bytes apart. */
#define PRODUCT_SWIZZLED ((uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32)

/* Of an operand whose rows are 16-deep pieces of a panel's rows: Q, and K as it stands. */
static __device__ __forceinline__ uint64_t product_rows(uint32_t at) {
    return PRODUCT_SWIZZLED | (uint64_t)1 << 16 | at / 16;
}
/* Of an operand of which 16 rows of a panel are the depth: V as it stands; `panel` bytes on, the
 * next 64 of its columns. */
static __device__ __forceinline__ uint64_t product_columns(uint32_t at, uint32_t panel) {
    return PRODUCT_SWIZZLED | (uint64_t)(panel / 16) << 16 | at / 16;
}

/* Four 8 x 8 matrices of 16-bit elements to shared memory: lane l names row l % 8 of matrix l / 8, and
 * gives columns 2t, 2t + 1 of row g of each. */
static __device__ __forceinline__ void matrix_store(uint32_t row, const uint32_t (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

#define C_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C_16(c, i) C_4(c, i), C_4(c, i + 4), C_4(c, i + 8), C_4(c, i + 12)
#define C_32(c, i) C_16(c, i), C_16(c, i + 16)
#define NAMES_32                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                   \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"   \
             "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* For each type: c[64][128] (+)= a b with both in shared memory, b by rows; c[64][128] and
 * c[64][64] (+)= a b with a in registers, b by columns. `add` 0: c is only written. */
#define PRODUCTS(T, type)                                                                          \
    static __device__ __forceinline__ void product_rows_128(float(&c)[64], uint64_t a, uint64_t b, \
                                                            int add, T) {                          \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                  \
                     " {" NAMES_64 "}, %64, %65, add, 1, 1, 0, 0;\n}"                              \
                     : C_32(c, 0), C_32(c, 32)                                                     \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }                                                                                              \
    static __device__ __forceinline__ void product_columns_of(float(&c)[64], const uint32_t *a,    \
                                                              uint64_t b, int add, T) {            \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                  \
                     " {" NAMES_64 "}, {%64,%65,%66,%67}, %68, add, 1, 1, 1;\n}"                   \
                     : C_32(c, 0), C_32(c, 32)                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }                                                                                              \
    static __device__ __forceinline__ void product_columns_of(float(&c)[32], const uint32_t *a,    \
                                                              uint64_t b, int add, T) {            \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                   \
                     " {" NAMES_32 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 1;\n}"                   \
                     : C_32(c, 0)                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }
PRODUCTS(__half, "f16")
PRODUCTS(__nv_bfloat16, "bf16")
#undef PRODUCTS
#undef NAMES_64
#undef NAMES_32
#undef C_32
#undef C_16
#undef C_4

#endif
