/* Partial results of KV splits, in slots of the workspace; lse; launches over items. */
#ifndef TESSERA_CUDA_SLOTS_CUH
#define TESSERA_CUDA_SLOTS_CUH

#include "device/convert.cuh"
#include "device/modify.cuh"
#include "device/softmax.cuh"
#include "device/warp.cuh"
#include "host/combine.h"
#include "host/forward.h"

#include <cuda_runtime.h>

#define ATTENTION_LN_2 0.69314718055994531f

/* A slot of the workspace (host/forward.h). */
struct attention_slot {
    float *o, *m, *l;
};

DEVICE struct attention_slot attention_slot_of(const struct attention_params &p, int64_t slot) {
    float *at = p.slots + slot * p.slot_floats;
    float *m = at + (int64_t)p.tile_rows * p.slot_dims;
    return {at, m, m + p.tile_rows};
}

/* Stores the lse of row `row` of head (b, h) from the row's maximum m and sum l, both base 2. */
DEVICE void attention_store_lse(const struct attention_params &p, int32_t b, int32_t h, int32_t row,
                                float m, float l) {
    if (p.lse.data)
        static_cast<float *>(
            p.lse.data)[b * p.lse.stride[0] + h * p.lse.stride[1] + row * p.lse.stride[2]] =
            l == 0 ? -INFINITY : (m + log2f(l)) * ATTENTION_LN_2;
}

/* Thread blocks of a launch over `items`, at most a grid's; kernels loop over items by the grid's
 * size. */
static inline unsigned attention_blocks(int64_t items) {
    return (unsigned)(items < 1 << 30 ? items : 1 << 30);
}

static inline cudaError_t attention_launch(void (*kernel)(const struct attention_params),
                                           dim3 blocks, int threads, size_t shared,
                                           const struct attention_params *p, cudaStream_t stream) {
    if (blocks.x == 0)
        return cudaSuccess;
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)kernel, blocks, dim3(threads), arguments, shared, stream);
}

static constexpr tess_type attention_type(float) {
    return TESS_F32;
}
static constexpr tess_type attention_type(__half) {
    return TESS_F16;
}
static constexpr tess_type attention_type(__nv_bfloat16) {
    return TESS_BF16;
}

#endif
