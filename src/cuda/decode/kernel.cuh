/*
 * Decode over a filled image (src/lists/fill.h): kernels and launches. Counts are read from the image: a CTA without
 * an item leaves. Over an image of no fill all outputs become NaN. Lists that are given go to decode/direct.cuh.
 */
#ifndef TESSERA_CUDA_DECODE_KERNEL_CUH
#define TESSERA_CUDA_DECODE_KERNEL_CUH

#include "decode/direct.cuh"
#include "decode/launch.cuh"

/* An item, which also stands at `again`: where registers are short it is read anew. */
template <class shape, bool MODIFIED>
DEVICE void decode_one(char *memory, const struct decode_params &p, const struct work_item &w,
                       const struct work_item *again) {
    struct attention_state<typename shape::T, shape::DIMS_O, 16> state;
    const struct decode_item item = decode_item_of(p, w);
    decode_sum<shape, MODIFIED>(state, memory, p, item,
                                decode_list_of(p, decode_ends_of(p, item.T)));
    if (decode_pass<shape, MODIFIED, struct decode_list>::SHORT)
        decode_finish<shape>(p, decode_item_of(p, *again), state);
    else
        decode_finish<shape>(p, item, state);
}

template <class shape, bool MODIFIED>
static __global__ void __launch_bounds__(shape::THREADS, (decode_blocks<shape, MODIFIED>()))
    decode_attention(const __grid_constant__ struct decode_params p) {
    extern __shared__ __align__(128) char memory[];
    early_fetch(p, memory);
    early_wait(); /* a fill writes the image, and what was before it q, K and V */
    early_next();
    int64_t i = blockIdx.x;
    struct work_item w = filled_first_item(&p.image.items[i]);
    const int64_t items = filled_items(p);
#pragma unroll 1
    while (i < items) {
        decode_one<shape, MODIFIED>(memory, p, w, &p.image.items[i]);
        __syncthreads(); /* all have read the ring and the scores */
        i += gridDim.x;
        if (i < items)
            w = p.image.items[i];
    }
    if (items == 0 && filled_foreign(p))
        filled_store_nan(p, (int)threadIdx.x, shape::THREADS);
}

template <class shape, bool MODIFIED>
static constexpr struct decode_variant decode_variant_of(void) {
    return {decode_attention<shape, MODIFIED>, shape::THREADS, shape::SCALES, shape::BYTES,
            launch_shared<shape::BYTES>};
}

/* SHARED: there is an instance for v in k; elsewhere its rows are fetched twice. T: of products; q
 * has type Q, and o too, unless p->o_f32. */
template <class T, class Q, int D, int DV, int ROWS, bool SHARED>
static cudaError_t decode_launch(const struct decode_params *p, cudaStream_t stream) {
    using apart = decode_shape<T, D, DV, ROWS, false, Q>;
    using in_k = decode_shape<T, D, DV, ROWS, SHARED, Q>;
    static const struct decode_variant variants[2][2] = {
        {decode_variant_of<apart, false>(), decode_variant_of<apart, true>()},
        {decode_variant_of<in_k, false>(), decode_variant_of<in_k, true>()},
    };
    static const struct decode_variant direct[2][2] = {
        {direct_variant_of<apart, false>(), direct_variant_of<apart, true>()},
        {direct_variant_of<in_k, false>(), direct_variant_of<in_k, true>()},
    };
    const bool modified = p->run.modify.each || p->stored || p->k.rest.size > 0;
    return decode_launch_variant<Q>((p->given.indices ? direct : variants)[p->v_in_k][modified], p,
                                    p->image.most_items, stream);
}

/* Bytes of shared memory of a CTA, of the instance that has most. */
template <class T, class Q, int D, int DV, int ROWS, bool SHARED>
static constexpr int64_t decode_shared(void) {
    constexpr int apart = decode_shape<T, D, DV, ROWS, false, Q>::BYTES;
    constexpr int in_k = decode_shape<T, D, DV, ROWS, SHARED, Q>::BYTES;
    return apart > in_k ? apart : in_k;
}

#endif
