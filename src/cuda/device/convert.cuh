/* Elements of storage types to and from f32. */
#ifndef TESSERA_CUDA_CONVERT_CUH
#define TESSERA_CUDA_CONVERT_CUH

#include "device/inline.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

DEVICE float to_f32(float x) {
    return x;
}
DEVICE float to_f32(__half x) {
    return __half2float(x);
}
DEVICE float to_f32(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

/* Rounded to nearest, ties to even. */
DEVICE void from_f32(float *to, float x) {
    *to = x;
}
DEVICE void from_f32(__half *to, float x) {
    *to = __float2half_rn(x);
}
DEVICE void from_f32(__nv_bfloat16 *to, float x) {
    *to = __float2bfloat16_rn(x);
}

/* Clamps x, an element of O in type T, to T's finite range where O is a mean of numbers of T. A mean is
 * never larger than its largest element, but P rounded up could make f16's largest number infinite.
 * mean_below: modify_params has it. */
template <class T> DEVICE float mean_in_range(float x, float mean_below, T) {
    (void)mean_below;
    return x;
}
DEVICE float mean_in_range(float x, float mean_below, __half) {
    return fabsf(x) < mean_below ? fminf(fmaxf(x, -65504.0f), 65504.0f) : x;
}

/* A row of a tensor. `vector`: elements at multiples of 4 are aligned for loads of 4 elements. */
template <class T> struct row_view {
    const T *data;
    int32_t d;
    bool vector;
};

/* Elements at ... at + 3, where `at` is a multiple of 4; 0 past the row's end. */
template <class T> DEVICE float4 row_load4(const row_view<T> &row, int32_t at) {
    struct alignas(4 * sizeof(T)) four {
        T x, y, z, w;
    };
    float4 out = {0, 0, 0, 0};
    if (row.vector && at + 4 <= row.d) {
        const four in = *reinterpret_cast<const four *>(row.data + at);
        out = {to_f32(in.x), to_f32(in.y), to_f32(in.z), to_f32(in.w)};
    } else {
        out.x = at < row.d ? to_f32(row.data[at]) : 0.0f;
        out.y = at + 1 < row.d ? to_f32(row.data[at + 1]) : 0.0f;
        out.z = at + 2 < row.d ? to_f32(row.data[at + 2]) : 0.0f;
        out.w = at + 3 < row.d ? to_f32(row.data[at + 3]) : 0.0f;
    }
    return out;
}

#endif
