/* Rows of tensors by their strides. */
#ifndef TESSERA_CUDA_VIEWS_CUH
#define TESSERA_CUDA_VIEWS_CUH

#include "device/convert.cuh"
#include "host/forward.h"

/* First element of head (b, h) of a tensor. */
template <class T> DEVICE char *attention_head(const struct rows_view &view, int32_t b, int32_t h) {
    return reinterpret_cast<char *>(static_cast<T *>(view.data) + b * view.stride[0] +
                                    h * view.stride[1]);
}

/* First element of row (b, h, n). */
template <class T>
DEVICE T *view_row(const struct rows_view &view, int64_t b, int64_t h, int64_t n) {
    return static_cast<T *>(view.data) + b * view.stride[0] + h * view.stride[1] +
           n * view.stride[2];
}

/* Up to 16 bytes of a row, loaded element by element and multiplied by `scale`; zeros past
 * `bytes`. */
template <class T> DEVICE uint4 attention_load_16(const char *from, int32_t bytes, float scale) {
    union {
        T x[16 / sizeof(T)];
        uint4 all;
    } piece;
    piece.all = {0, 0, 0, 0};
    const T *elements = reinterpret_cast<const T *>(from);
#pragma unroll
    for (int i = 0; i < (int)(16 / sizeof(T)); i++)
        if (i * (int)sizeof(T) < bytes)
            from_f32(&piece.x[i], to_f32(elements[i]) * scale);
    return piece.all;
}

#endif
