/* Fused attention: partial results of KV splits and how they are combined; lse. */
#ifndef TESSERA_CUDA_COMBINE_CUH
#define TESSERA_CUDA_COMBINE_CUH

#include "host/forward.h"
#include "device/convert.cuh"
#include "device/modify.cuh"
#include "device/warp.cuh"

#include <cuda_runtime.h>

#define ATTENTION_LN_2 0.69314718055994531f
#define ATTENTION_COMBINE_THREADS 128
#define ATTENTION_COMBINE_ROWS                                                                     \
    (ATTENTION_COMBINE_THREADS / 32) /* rows of a thread block at a time */

/* A slot of the workspace (host/forward.h). */
struct attention_slot {
    float *o, *m, *l;
};

static __device__ __forceinline__ struct attention_slot
attention_slot_of(const struct attention_params &p, int64_t slot) {
    float *at = p.slots + slot * p.slot_floats;
    float *m = at + (int64_t)p.tile_rows * p.slot_dims;
    return {at, m, m + p.tile_rows};
}

/* Stores the lse of row `row` of head (b, h) from the row's maximum m and sum l, both base 2. */
static __device__ __forceinline__ void attention_store_lse(const struct attention_params &p,
                                                           int32_t b, int32_t h, int32_t row,
                                                           float m, float l) {
    if (p.lse.data)
        static_cast<float *>(
            p.lse.data)[b * p.lse.stride[0] + h * p.lse.stride[1] + row * p.lse.stride[2]] =
            l == 0 ? -INFINITY : (m + log2f(l)) * ATTENTION_LN_2;
}

/* What is subtracted from scores: the maximum, or 0 where it is -Inf. */
static __device__ __forceinline__ float attention_base(float m) {
    return m == -INFINITY ? 0.0f : m;
}

/* Combines the partial results of split tiles, in the order of the splits: O = sum over parts of
 * 2^(m_part - m) O_part / l. A warp takes a row. */
template <class T>
static __global__ void __launch_bounds__(ATTENTION_COMBINE_THREADS)
    attention_combine(const __grid_constant__ struct attention_params p) {
    const int64_t combines = p.header->array[ATTENTION_IMAGE_COMBINES].count;
    for (int64_t i = blockIdx.x; i < combines; i += gridDim.x) {
        const struct granule_item combine = p.image.combines[i];
        const int32_t b = combine.batch, h = combine.head;
        T *o = static_cast<T *>(p.o.data) + b * p.o.stride[0] + h * p.o.stride[1];
        for (int row = (int)(blockIdx.y * ATTENTION_COMBINE_ROWS + threadIdx.x / 32);
             row < combine.rows; row += (int)gridDim.y * ATTENTION_COMBINE_ROWS) {
            float m = -INFINITY, l = 0;
            for (int part = 0; part < combine.parts; part++)
                m = fmaxf(m, attention_slot_of(p, combine.slot + part).m[row]);
            const float base = attention_base(m);
            for (int part = 0; part < combine.parts; part++) {
                const struct attention_slot s = attention_slot_of(p, combine.slot + part);
                l += exp2f(s.m[row] - base) * s.l[row];
            }
            const float below = modify_denominator(p.modify, h, m, l);
            for (int d = warp_lane(); d < p.d_v; d += 32) {
                float sum = 0;
                for (int part = 0; part < combine.parts; part++) {
                    const struct attention_slot s = attention_slot_of(p, combine.slot + part);
                    sum += exp2f(s.m[row] - base) * s.o[(int64_t)row * p.slot_dims + d];
                }
                from_f32(
                    &o[(combine.row + row) * p.o.stride[2] + d],
                    l == 0 ? 0.0f
                           : mean_in_range(sum * p.modify.kept / below, p.modify.mean_below, T()));
            }
            if (warp_lane() == 0)
                attention_store_lse(p, b, h, combine.row + row, m, l);
        }
    }
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

template <class T>
static cudaError_t attention_combine_launch(const struct attention_params *p, cudaStream_t stream) {
    const unsigned high =
        (unsigned)(p->tile_rows + ATTENTION_COMBINE_ROWS - 1) / ATTENTION_COMBINE_ROWS;
    return attention_launch(attention_combine<T>, dim3(attention_blocks(p->n_combines), high),
                            ATTENTION_COMBINE_THREADS, 0, p, stream);
}

#endif
