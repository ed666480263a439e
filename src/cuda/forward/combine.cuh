/* Fused attention: how partial results of KV splits are combined. A unit of its own, for all kernels. */
#ifndef TESSERA_CUDA_COMBINE_CUH
#define TESSERA_CUDA_COMBINE_CUH

#include "forward/slots.cuh"

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

template <class T>
static cudaError_t attention_combine_launch(const struct attention_params *p, cudaStream_t stream) {
    const unsigned high =
        (unsigned)(p->tile_rows + ATTENTION_COMBINE_ROWS - 1) / ATTENTION_COMBINE_ROWS;
    return attention_launch(attention_combine<T>, dim3(attention_blocks(p->n_combines), high),
                            ATTENTION_COMBINE_THREADS, 0, p, stream);
}

static inline cudaError_t attention_combine_launch_type(const struct attention_params *p,
                                                        tess_type o, cudaStream_t stream) {
    return o == TESS_F32   ? attention_combine_launch<float>(p, stream)
           : o == TESS_F16 ? attention_combine_launch<__half>(p, stream)
                           : attention_combine_launch<__nv_bfloat16>(p, stream);
}

#endif
