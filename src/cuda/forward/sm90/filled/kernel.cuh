/* Fused attention on Hopper over filled lists: the kernel and its launch. config.cuh describes it. */
#ifndef TESSERA_CUDA_SM90_FILLED_KERNEL_CUH
#define TESSERA_CUDA_SM90_FILLED_KERNEL_CUH

#include "device/launch.cuh"
#include "forward/sm90/consumer_steps.cuh"
#include "forward/sm90/filled/mask.cuh"
#include "forward/sm90/filled/producer.cuh"
#include "forward/sm90/tensor_maps.cuh"
#include "work/launch.cuh"

/* A warp of the producer warpgroup. */
template <class T, class shape, bool MASKS>
DEVICE void sm90_filled_role(char *memory, uint32_t shared, const struct decode_params &p,
                             const struct sm90_maps &maps) {
    const int warp = sm90_uniform((int)threadIdx.x / 32);
    if (warp == 0) {
        sm90_filled_produce<shape, true, MASKS>(memory, shared, p, &maps.q, maps.k);
    } else if (warp == 1) {
        sm90_filled_produce<shape, false, MASKS>(memory, shared, p, &maps.q, maps.v);
    } else {
        const int64_t end = sm90_filled_items(p);
        if (end == 0 && filled_foreign(p))
            filled_store_nan(p, (int)threadIdx.x - 64, 64);
        const auto load = [&](int64_t first) { return sm90_filled_load_items(p, first, end); };
        sm90_store_empty<T, shape, false>(p.run, load, 0, end, warp - 2, 2);
        if (warp - 2 < shape::CONSUMERS)
            sm90_store_items<T, shape, SM90_FILLED>(memory, p.run, maps, load, shared, warp - 2, 0,
                                                    end);
    }
}

template <class T, class shape, bool MODIFIED>
static __global__ void __launch_bounds__(shape::THREADS, shape::RESIDENT)
    attention_sm90_filled(const __grid_constant__ struct decode_params p,
                          const __grid_constant__ struct sm90_maps maps) {
    static_assert(sm90_hands_o<shape, SM90_FILLED>(), "producer warps store O");
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    if (threadIdx.x == 0)
        sm90_barriers_make<shape, SM90_FILLED>(shared);
    __syncthreads();
    /* A fill writes the image. The combine reads it before it waits, so it may begin from here on. */
    early_wait();
    early_next();
    constexpr int HANDED = sm90_filled_handed<T, shape, MODIFIED>();
    const int role = sm90_uniform((int)threadIdx.x / 128);
    if (role > 0) {
        registers_claim<shape::CONSUMER_REGISTERS[SM90_FILLED] - HANDED>();
        const float scale = sm90_scale(p.run);
        sm90_consume<T, sm90_path<shape, SM90_FILLED, MODIFIED>>(
            memory, shared, role - 1, p.run, MODIFIED ? modify_unit(p.run.modify, scale) : scale);
        sm90_filled_store_based<T, shape>(p);
    } else {
        registers_release<shape::PRODUCER_REGISTERS[SM90_FILLED] + HANDED>();
        sm90_filled_role<T, shape, sm90_filled_masks<T, shape, MODIFIED>()>(memory, shared, p,
                                                                            maps);
    }
}

/* Maps of K or V, of pages where there are some: tiles of one granule, and of two. Tensors broadcast by a
 * stride of 0 have one batch or head. */
static bool sm90_filled_maps_kv(CUtensorMap (&maps)[2], sm90_encode encode,
                                CUtensorMapDataType type, const struct decode_params *p,
                                const struct rows_view &view, int64_t d) {
    const int64_t batch = p->table ? p->pages : p->run.batch;
    const int64_t size[4] = {view.stride[0] ? batch : 1, view.stride[1] ? p->run.heads_kv : 1,
                             p->rows, d};
    const cuuint32_t rows = 1u << p->run.granule_bits;
    return sm90_map_make(&maps[0], encode, type, view, size, rows) &&
           sm90_map_make(&maps[1], encode, type, view, size, 2 * rows);
}

/* False where TMA cannot address a tensor, or the driver encodes no maps. */
template <class T>
static bool sm90_filled_maps(struct sm90_maps *maps, const struct decode_params *p) {
    const sm90_encode encode = sm90_encode_find();
    const CUtensorMapDataType type = sm90_map_type(T());
    const struct attention_params *run = &p->run;
    const int64_t q[4] = {run->batch, run->heads_q, run->n_q, run->d_qk};
    maps->tma_q = encode &&
                  sm90_map_make(&maps->q, encode, type, run->q, q, (cuuint32_t)run->tile_rows) &&
                  sm90_filled_maps_kv(maps->k, encode, type, p, run->k, run->d_qk) &&
                  sm90_filled_maps_kv(maps->v, encode, type, p, run->v, run->d_v);
    maps->tma_o = sm90_map_make_o(&maps->o, run, T());
    return maps->tma_q;
}

template <class T, class shape, bool MODIFIED>
static cudaError_t attention_filled_launch_one(const struct decode_params *p,
                                               const struct sm90_maps *maps, cudaStream_t stream) {
    const void *kernel = (const void *)attention_sm90_filled<T, shape, MODIFIED>;
    const int64_t stay = (int64_t)p->multiprocessors * shape::RESIDENT; /* CTAs */
    const unsigned ctas = attention_blocks(fill_least(stay, p->image.most_items));
    void *arguments[] = {(void *)p, (void *)maps};
    const cudaError_t code = launch_shared<shape::BYTES>(kernel);
    return code || ctas == 0
               ? code
               : launch_early(kernel, dim3(ctas), shape::THREADS, shape::BYTES, arguments, stream);
}

/* Refusal of tensors before a launch that has no fallback. */
template <class T> static const char *attention_filled_refuses_run(const struct decode_params *p) {
    struct sm90_maps maps = {};
    return sm90_filled_maps<T>(&maps, p) ? NULL : sm90_encode_find() ? SM90_NO_MAP : SM90_NO_ENCODE;
}

/* other: what takes the same image where TMA cannot address the tensors, or registers do not hold masks; NULL:
 * nothing. */
template <class T, class, int D, int DV, int CONSUMERS>
static cudaError_t attention_filled_launch(const struct decode_params *p, cudaStream_t stream,
                                           cudaError_t (*other)(const struct decode_params *,
                                                                cudaStream_t) = NULL) {
    using shape = sm90_filled_shape<D, DV, CONSUMERS>;
    struct sm90_maps maps = {};
    const bool masks = p->run.modify.each ? sm90_filled_masks<T, shape, true>()
                                          : sm90_filled_masks<T, shape, false>();
    if ((p->words && !masks) || !sm90_filled_maps<T>(&maps, p))
        return other ? other(p, stream) : cudaErrorInvalidValue;
    const cudaError_t code = p->run.modify.each
                                 ? attention_filled_launch_one<T, shape, true>(p, &maps, stream)
                                 : attention_filled_launch_one<T, shape, false>(p, &maps, stream);
    return code ? code : cuda_decode_combine(p, attention_type(T()), stream);
}

/* Bytes of shared memory of a CTA. */
template <class T, class, int D, int DV, int CONSUMERS>
static constexpr int64_t attention_filled_shared(void) {
    return sm90_filled_shape<D, DV, CONSUMERS>::BYTES;
}

#endif
