/* Decode on Hopper: the kernel and its launch. config.cuh describes the pipeline. */
#ifndef TESSERA_CUDA_DECODE_SM90_KERNEL_CUH
#define TESSERA_CUDA_DECODE_SM90_KERNEL_CUH

#include "decode/sm90/outputs.cuh"
#include "decode/sm90/producer.cuh"
#include "decode/sm90/scores.cuh"

/* Place of the i-th item that is taken. Without split tiles, heads packed in several tiles come one after
 * another: their rows are then in L2. */
DEVICE int decode_sm90_order(const struct decode_params &p, int i, int64_t items) {
    if (items != p.image.units)
        return i;
    const int tile = (int)((uint32_t)i / (uint32_t)p.packs);
    return (i - tile * p.packs) * (int)p.tiles + tile;
}

template <class shape, bool MODIFIED>
static __global__ void __launch_bounds__(shape::THREADS, 1)
    decode_sm90(const __grid_constant__ struct decode_params p) {
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    early_fetch(p, memory);
    if (threadIdx.x == 0)
        decode_sm90_barriers<shape>(shared);
    __syncthreads();
    early_wait(); /* a fill writes the image, and what was before it q, K and V */
    early_next();
    struct work_item w = filled_first_item(&p.image.items[blockIdx.x]); /* one of the two */
    const struct work_item in_order = filled_first_item(&p.image.items[decode_sm90_order(
        p, (int)fill_least(blockIdx.x, p.image.units - 1), p.image.units)]);
    const int items = sm90_uniform((int)fill_least(filled_items(p), INT32_MAX));
    if (items == 0 && filled_foreign(p))
        filled_store_nan(p, (int)threadIdx.x, shape::THREADS);
    if ((int)blockIdx.x >= items)
        return;
    if (items == p.image.units)
        w = in_order;
    /* Each role goes through the CTA's items at its own pace. */
    const auto each = [&](const auto &take) {
        uint32_t step = 0; /* counted over all items */
#pragma unroll 1
        for (int i = (int)blockIdx.x;;) {
            take(w, i, step);
            i += (int)gridDim.x;
            if (i >= items)
                return;
            w = p.image.items[decode_sm90_order(p, i, items)];
        }
    };
    const int role = sm90_uniform((int)threadIdx.x / 128);
    if (role == 0) {
        registers_release<shape::PRODUCER>();
        each([&](const struct work_item &item, int, uint32_t &step) {
            decode_sm90_produce<shape>(memory, shared, p, item, step);
        });
    } else if (role == 1) {
        registers_release<shape::SCORES>();
        each([&](const struct work_item &item, int, uint32_t &step) {
            decode_sm90_score<shape, MODIFIED>(memory, shared, p, item, step);
        });
    } else {
        registers_claim<shape::OUTPUTS>();
        each([&](const struct work_item &item, int i, uint32_t &step) {
            decode_sm90_output<shape>(
                memory, shared, p, item,
                [&] { return p.image.items[decode_sm90_order(p, i, items)]; }, step);
        });
    }
}

template <class shape, bool MODIFIED>
static constexpr struct decode_variant decode_sm90_variant_of(void) {
    return {decode_sm90<shape, MODIFIED>, shape::THREADS, shape::BYTES, shape::BYTES,
            launch_shared<shape::BYTES>};
}

template <class T, class, int D, int DV>
static cudaError_t decode_sm90_launch(const struct decode_params *p, cudaStream_t stream) {
    using apart = decode_sm90_shape<T, D, DV, false, false>;
    using in_k = decode_sm90_shape<T, D, DV, true, false>;
    using codes = decode_sm90_shape<T, D, DV, true, true>;
    static const struct decode_variant variants[2][2] = {
        {decode_sm90_variant_of<apart, false>(), decode_sm90_variant_of<apart, true>()},
        {decode_sm90_variant_of<in_k, false>(), decode_sm90_variant_of<in_k, true>()},
    };
    static const struct decode_variant of_codes = decode_sm90_variant_of<codes, false>();
    /* CTAs that stay: rows of an item are fetched before the last one has ended. */
    return decode_launch_variant<T>(p->stored ? of_codes : variants[p->v_in_k][p->run.modify.each],
                                    p, p->multiprocessors, stream);
}

/* Bytes of shared memory of a CTA, of the instance that has most. */
template <class T, class, int D, int DV> static constexpr int64_t decode_sm90_shared(void) {
    constexpr int apart = decode_sm90_shape<T, D, DV, false, false>::BYTES;
    constexpr int in_k = decode_sm90_shape<T, D, DV, true, false>::BYTES;
    constexpr int codes = decode_sm90_shape<T, D, DV, true, true>::BYTES;
    return apart > in_k && apart > codes ? apart : in_k > codes ? in_k : codes;
}

#endif
