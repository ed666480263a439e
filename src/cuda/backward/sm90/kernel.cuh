/* The fused backward on Hopper: the kernel of a pass, and its launch. config.cuh describes the pipeline. */
#ifndef TESSERA_CUDA_GRADIENT_SM90_KERNEL_CUH
#define TESSERA_CUDA_GRADIENT_SM90_KERNEL_CUH

#include "backward/sm90/producer.cuh"
#include "backward/sm90/spilled.cuh"
#include "backward/sm90/wide.cuh"
#include "work/early.cuh"
#include "work/launch.cuh"

#include <type_traits>

template <class shape>
static __global__ void __launch_bounds__(shape::THREADS, shape::RESIDENT)
    gradient_sm90(const __grid_constant__ struct gradient_params p,
                  const __grid_constant__ struct gradient_maps maps) {
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    if (threadIdx.x == 0)
        gradient_barriers_make<shape>(shared);
    /* CTAs over rows start on multiprocessors that those over keys have left: nothing of theirs is read. */
    if (!p.after_keys)
        early_wait();
    early_next();
    __syncthreads();
    const int role = sm90_uniform((int)threadIdx.x / 128);
    const int warp = sm90_uniform((int)threadIdx.x / 32 % 4);
    if (role > 0) {
        registers_claim<shape::CONSUMER_REGISTERS>();
        struct gradient_consumer at = {memory, shared, shape::ROWS > 64 ? role - 1 : 0, warp, 0};
        if constexpr (shape::WIDE) {
            if (role == 1)
                gradient_consume_wide<shape, 0>(at, p);
            else
                gradient_consume_wide<shape, 1>(at, p);
        } else if constexpr (shape::OVER_KEYS) {
            gradient_consume_keys<shape>(at, p);
        } else {
            gradient_consume_rows<shape>(at, p);
        }
    } else {
        registers_release<shape::PRODUCER_REGISTERS>();
        const int64_t begin = __ldg(p.image.worker_ptr + blockIdx.x);
        const int64_t end = __ldg(p.image.worker_ptr + blockIdx.x + 1);
        const struct gradient_pieces all = {p.image.items + begin, (int32_t)(end - begin)};
        if (warp == 0)
            gradient_produce_y<shape>(shared, p, maps, all);
        else if (warp == 1)
            gradient_produce_known<shape>(memory, shared, p, all);
        else if (warp == 2)
            gradient_produce_x<shape>(memory, shared, p, maps, all);
    }
    if (p.after_keys) /* kernels behind wait for this one alone */
        early_wait();
}

/* ---- launches ---- */

/* Maps of a side's tensors, in boxes of `rows` rows. False where TMA cannot address one. */
template <class T>
static bool gradient_maps_make(CUtensorMap (&maps)[2], const struct gradient_params *p,
                               const struct rows_view (&views)[2], int64_t heads, int64_t n,
                               cuuint32_t rows) {
    const sm90_encode encode = sm90_encode_find();
    bool made = encode != NULL;
    for (int i = 0; i < 2 && made; i++) {
        const int64_t size[4] = {p->batch, heads, n, p->d[i]};
        made = sm90_map_make(&maps[i], encode, sm90_map_type(T()), views[i], size, rows);
    }
    return made;
}

/* Whether passes may be joint (spilled.cuh): f16 has dS in powers of two of its own. */
template <class T, int D, bool OVER_KEYS> static constexpr bool gradient_spills(void) {
    return OVER_KEYS && D <= 128 && std::is_same<T, __nv_bfloat16>::value;
}

/* Launches of a joint pass: one more than there are chunks. */
template <class T, int D, int ROWS>
static cudaError_t gradient_spilled_launch(const struct gradient_params *p,
                                           const struct gradient_maps &maps, cudaStream_t stream) {
    using shape = gradient_sm90_shape<T, D, ROWS, true, false, true>;
    void (*kernel)(const struct gradient_params, const struct gradient_params,
                   const struct gradient_spilled_maps, int32_t) = gradient_spilled<shape>;
    static_assert(shape::BYTES <= gradient_sm90_shape<T, D, ROWS, true, true>::BYTES,
                  "the table's");
    struct gradient_params rows = *p;
    struct gradient_spilled_maps all = {maps, {}, false};
    const int64_t size[4] = {p->batch, p->heads_kv, p->n_kv, p->d[0]};
    const sm90_encode encode = sm90_encode_find();
    all.tma_k =
        encode && sm90_map_make(&all.k, encode, sm90_map_type(T()), p->x[0], size, SPILL_SIDE);
    rows.out[0] = p->spill.d_q, rows.out[1].data = NULL;
    rows.wide[0] = p->spill.wide, rows.factor[0] = p->spill.factor;
    int32_t chunk = 0;
    void *arguments[] = {(void *)p, &rows, &all, &chunk};
    cudaError_t code = launch_shared<shape::BYTES>((const void *)kernel);
    for (; !code && chunk <= p->spill.chunks; chunk++)
        code = launch_early((const void *)kernel, dim3((unsigned)p->spill.workers), shape::THREADS,
                            shape::BYTES, arguments, stream);
    return code;
}

template <class T, int D, int ROWS, bool OVER_KEYS, bool MODIFIED>
static cudaError_t gradient_sm90_launch_tiles(const struct gradient_params *p,
                                              cudaStream_t stream) {
    using shape = gradient_sm90_shape<T, D, ROWS, OVER_KEYS, MODIFIED>;
    void (*kernel)(const struct gradient_params, const struct gradient_maps) = gradient_sm90<shape>;
    const int64_t heads[2] = {p->heads_q, p->heads_kv}, n[2] = {p->n_q, p->n_kv};
    struct gradient_maps maps = {};
    maps.tma_x = gradient_maps_make<T>(maps.x, p, p->x, heads[OVER_KEYS], n[OVER_KEYS], ROWS);
    maps.tma_y =
        gradient_maps_make<T>(maps.y, p, p->y, heads[!OVER_KEYS], n[!OVER_KEYS], GRADIENT_PLACES);
    void *arguments[] = {(void *)p, &maps};
    cudaError_t code = launch_shared<shape::BYTES>((const void *)kernel);
    if constexpr (gradient_spills<T, D, OVER_KEYS>() && !MODIFIED)
        if (p->spill.units)
            return gradient_spilled_launch<T, D, ROWS>(p, maps, stream);
    return code ? code
                : launch_early((const void *)kernel, dim3((unsigned)p->workers), shape::THREADS,
                               shape::BYTES, arguments, stream);
}

/* Whether kernels compute score modifiers (families.c). */
static constexpr bool gradient_sm90_modified(int d) {
    return d <= 128;
}

/* Bytes of shared memory of a CTA: with modifiers, which take more. */
template <class T, int D, int ROWS, bool OVER_KEYS>
static constexpr int gradient_sm90_shared(void) {
    return gradient_sm90_shape<T, D, ROWS, OVER_KEYS, gradient_sm90_modified(D)>::BYTES;
}

template <class T, int D, int ROWS, bool OVER_KEYS>
static cudaError_t gradient_sm90_launch(const struct gradient_params *p, cudaStream_t stream) {
    constexpr bool CAN = gradient_sm90_modified(D);
    cudaError_t code = CAN && (p->modify.each || p->modify.sink)
                           ? gradient_sm90_launch_tiles<T, D, ROWS, OVER_KEYS, CAN>(p, stream)
                           : gradient_sm90_launch_tiles<T, D, ROWS, OVER_KEYS, false>(p, stream);
    if (!code && !OVER_KEYS)
        code = gradient_slopes_launch(p, stream);
    return code ? code : gradient_combine_launch<T, OVER_KEYS>(p, stream);
}

#endif
