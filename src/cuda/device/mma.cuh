/*
 * mma.sync.m16n8k16: C += A B with A [16, 16], B [16, 8], C [16, 8]; 16-bit operands, f32 sums.
 * With g = lane / 4 and t = lane % 4 a lane holds
 *
 *          A [16, 16]                       B [16, 8]            C [16, 8]
 *          columns 2t, +1   2t + 8, +9                g                    columns 2t, 2t + 1
 *   row g      a[0]            a[2]         2t, +1    b[0]       row g         c[0], c[1]
 *   row g + 8  a[1]            a[3]         2t+8, +9  b[1]       row g + 8     c[2], c[3]
 *
 * All lanes take part. The asm is volatile, so that no MMA moves to where lanes have diverged.
 */
#ifndef TESSERA_CUDA_MMA_CUH
#define TESSERA_CUDA_MMA_CUH

#include "device/convert.cuh"

DEVICE void mma_sync(float (&c)[4], const uint32_t (&a)[4], const uint32_t *b, __half) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_sync(float (&c)[4], const uint32_t (&a)[4], const uint32_t *b, __nv_bfloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ldmatrix.x4: four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l
 * % 8 of matrix l / 8. Each lane gets columns 2t, 2t + 1 of row g of each matrix. */
DEVICE void ldmatrix(uint32_t (&to)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

/* ldmatrix.x4.trans: a lane gets rows 2t, 2t + 1 of column g of each matrix. */
DEVICE void ldmatrix_transposed(uint32_t (&to)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

/* Two numbers as a word of an operand, the first in the lower 16 bits. */
DEVICE uint32_t mma_pack(float x, float y, __half) {
    const __half2 two = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&two);
}
DEVICE uint32_t mma_pack(float x, float y, __nv_bfloat16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&two);
}

/* The two numbers of a word. */
DEVICE float2 mma_unpack(uint32_t two, __half) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&two));
}
DEVICE float2 mma_unpack(uint32_t two, __nv_bfloat16) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&two));
}

#endif
