/* Fused attention on Hopper over filled columns: the kernel and its launch. config.cuh describes it. */
#ifndef TESSERA_CUDA_SM90_COLUMNS_KERNEL_CUH
#define TESSERA_CUDA_SM90_COLUMNS_KERNEL_CUH

#include "device/launch.cuh"
#include "forward/sm90/filled/columns/producer.cuh"
#include "forward/sm90/consumer_steps.cuh"
#include "forward/sm90/tensor_maps.cuh"
#include "work/launch.cuh"

/* A warp of the producer warpgroup. */
template <class T, class shape>
DEVICE void sm90_columns_role(char *memory, uint32_t shared, const struct decode_params &p,
                              const struct sm90_maps &maps) {
    const int warp = sm90_uniform((int)threadIdx.x / 32);
    if (warp < 2)
        sm90_columns_produce<T, shape, true>(memory, shared, p, maps, warp);
    else
        sm90_columns_produce<T, shape, false>(memory, shared, p, maps, warp - 2);
    const int64_t end = sm90_filled_items(p);
    if (end == 0 && filled_foreign(p))
        filled_store_nan(p, (int)threadIdx.x, 128);
    const auto load = [&](int64_t first) { return sm90_filled_load_items(p, first, end); };
    sm90_store_empty<T, shape, false>(p.run, load, 0, end, warp, 4);
}

template <class T, class shape>
static __global__ void __launch_bounds__(shape::THREADS, shape::RESIDENT)
    attention_sm90_columns(const __grid_constant__ struct decode_params p,
                           const __grid_constant__ struct sm90_maps maps) {
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    if (threadIdx.x == 0)
        sm90_barriers_make<shape, SM90_COLUMNS>(shared);
    __syncthreads();
    /* A fill writes the image. The combine reads it before it waits, so it may begin from here on. */
    early_wait();
    early_next();
    const int role = sm90_uniform((int)threadIdx.x / 128);
    if (role > 0) {
        registers_claim<shape::CONSUMER_REGISTERS[SM90_CP_ASYNC]>();
        sm90_consume<T, sm90_path<shape, SM90_COLUMNS, false>>(memory, shared, role - 1, p.run,
                                                               sm90_scale(p.run));
        sm90_filled_store_based<T, shape>(p);
    } else {
        registers_release<shape::PRODUCER_REGISTERS[SM90_CP_ASYNC]>();
        sm90_columns_role<T, shape>(memory, shared, p, maps);
    }
}

template <class T, class, int D, int DV, int CONSUMERS>
static cudaError_t attention_columns_launch(const struct decode_params *p, cudaStream_t stream) {
    using shape = sm90_columns_shape<D, DV, CONSUMERS>;
    const void *kernel = (const void *)attention_sm90_columns<T, shape>;
    const struct attention_params *run = &p->run;
    const int64_t q[4] = {run->batch, run->heads_q, run->n_q, run->d_qk};
    const sm90_encode encode = sm90_encode_find();
    const int64_t stay = (int64_t)p->multiprocessors * shape::RESIDENT; /* CTAs */
    const unsigned ctas = attention_blocks(fill_least(stay, p->image.most_items));
    struct sm90_maps maps = {};
    maps.tma_q = encode && sm90_map_make(&maps.q, encode, sm90_map_type(T()), run->q, q,
                                         (cuuint32_t)run->tile_rows);
    void *arguments[] = {(void *)p, (void *)&maps};
    cudaError_t code = launch_shared<shape::BYTES>(kernel);
    if (!code && ctas > 0)
        code = launch_early(kernel, dim3(ctas), shape::THREADS, shape::BYTES, arguments, stream);
    return code ? code : cuda_decode_combine(p, attention_type(T()), stream);
}

/* Bytes of shared memory of a CTA. */
template <class T, class, int D, int DV, int CONSUMERS>
static constexpr int64_t attention_columns_shared(void) {
    return sm90_columns_shape<D, DV, CONSUMERS>::BYTES;
}

#endif
