/* Fused attention for 16-bit types on Hopper: the kernel and its launch. config.cuh describes the
 * pipeline; roles are in producer.cuh and consumer_steps.cuh. */
#ifndef TESSERA_CUDA_SM90_KERNEL_CUH
#define TESSERA_CUDA_SM90_KERNEL_CUH

#include "device/cluster.cuh"
#include "device/launch.cuh"
#include "forward/sm90/consumer_steps.cuh"
#include "forward/sm90/producer.cuh"
#include "forward/sm90/tensor_maps.cuh"
#include "work/launch.cuh"

/* A warp of the producer warpgroup. CP_ASYNC: warps 0, 1 fetch Q and K, warps 2, 3 fetch V. TMA:
 * warp 0 fetches Q and K, warp 1 V; warps 2, 3 run the epilogue, a warp for each consumer. */
template <class T, class shape, int SOURCE>
DEVICE void sm90_produce(char *memory, uint32_t shared, const struct attention_params &p,
                         const struct sm90_maps &maps) {
    const int warp = sm90_uniform((int)threadIdx.x / 32);
    const int64_t begin = __ldg(p.image.worker_ptr + blockIdx.x / shape::CTAS);
    const int64_t end = __ldg(p.image.worker_ptr + blockIdx.x / shape::CTAS + 1);
    const auto load = [&](int64_t first) { return sm90_load_items(p, first, end); };
    if (SOURCE == SM90_CP_ASYNC) {
        early_wait();
        if (warp < 2)
            sm90_produce_cp_async<T, shape, true>(memory, shared, p, maps, warp, begin, end);
        else
            sm90_produce_cp_async<T, shape, false>(memory, shared, p, maps, warp - 2, begin, end);
        if (sm90_rank<shape>() == 0)
            sm90_store_empty<T, shape, false>(p, load, begin, end, warp, 4);
    } else if (warp >= 2) {
        early_wait();
        if (sm90_rank<shape>() == 0)
            sm90_store_empty<T, shape, false>(p, load, begin, end, warp - 2, 2);
        if constexpr (shape::SUMMED)
            sm90_sums_items<shape>(memory, p, load, shared, warp - 2, begin, end);
        if (sm90_hands_o<shape, SOURCE>() && warp - 2 < shape::CONSUMERS)
            sm90_store_items<T, shape, SOURCE>(memory, p, maps, load, shared, warp - 2, begin, end);
    } else if (warp == 0) {
        sm90_produce_tma<shape, true>(memory, shared, p, &maps.q, maps.k, begin, end);
    } else {
        sm90_produce_tma<shape, false>(memory, shared, p, &maps.q, maps.v, begin, end);
    }
}

/* CTAs of kernels with modifiers: three of four, which share the registers of the fourth. The last quarter
 * of the plan's CTAs then begins when others have ended. */
template <class shape, bool MODIFIED>
static __host__ __device__ __forceinline__ constexpr int sm90_resident(void) {
    return shape::RESIDENT - (MODIFIED && shape::RESIDENT == 4);
}
template <class shape, int SOURCE, bool MODIFIED>
DEVICE constexpr int sm90_consumer_registers(void) {
    return MODIFIED && shape::RESIDENT == 4 ? 120 : shape::CONSUMER_REGISTERS[SOURCE];
}

template <class T, class shape, int SOURCE, bool MODIFIED>
static __global__ void __launch_bounds__(shape::THREADS, sm90_resident<shape, MODIFIED>())
    attention_sm90(const __grid_constant__ struct attention_params p,
                   const __grid_constant__ struct sm90_maps maps) {
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    if constexpr (shape::SUMMED && !shape::BY_REFERENCES)
        if (sm90_refers<T>(p) &&
            !sm90_sums_again<shape>(p, __ldg(p.image.worker_ptr + blockIdx.x),
                                    __ldg(p.image.worker_ptr + blockIdx.x + 1)))
            return;
    if (threadIdx.x == 0)
        sm90_barriers_make<shape, SOURCE>(shared);
    if (shape::CTAS > 1)
        cluster_wait();
    else
        __syncthreads();
    const int role = sm90_uniform((int)threadIdx.x / 128);
    if (role > 0) {
        /* setmaxnreg: consumers take the registers that the producer gives up. */
        registers_claim<sm90_consumer_registers<shape, SOURCE, MODIFIED>()>();
        const float scale = sm90_scale(p);
        sm90_consume<T, sm90_path<shape, SOURCE, MODIFIED>>(
            memory, shared, role - 1, p, MODIFIED ? modify_unit(p.modify, scale) : scale);
        if (sm90_rank<shape>() == 0) {
            const int64_t end = __ldg(p.image.worker_ptr + blockIdx.x / shape::CTAS + 1);
            const auto load = [&](int64_t first) { return sm90_load_items(p, first, end); };
            sm90_store_empty<T, shape, true>(p, load,
                                             __ldg(p.image.worker_ptr + blockIdx.x / shape::CTAS),
                                             end, sm90_consumer_warp_here(), 4 * shape::CONSUMERS);
        }
    } else {
        registers_release<shape::PRODUCER_REGISTERS[SOURCE]>();
        sm90_produce<T, shape, SOURCE>(memory, shared, p, maps);
    }
    if (shape::CTAS > 1) /* a CTA does not leave while the other may write to it */
        cluster_wait();
}

template <class T, class shape, int SOURCE, bool MODIFIED>
static cudaError_t attention_sm90_launch_from(const struct attention_params *p,
                                              const struct sm90_maps *maps, cudaStream_t stream) {
    void (*kernel)(const struct attention_params, const struct sm90_maps) =
        attention_sm90<T, shape, SOURCE, MODIFIED>;
    const cudaError_t code = launch_shared<shape::BYTES>((const void *)kernel);
    void *arguments[] = {(void *)p, (void *)maps};
    /* CTAs start on multiprocessors that the kernel before has left, and wait there. */
    return code ? code
                : launch_early((const void *)kernel, dim3((unsigned)p->workers * shape::CTAS),
                               shape::THREADS, shape::BYTES, arguments, stream, shape::CTAS);
}

/* NULL, or why a launch with column sums, whose producers have no warp left to gather, does not take the tensors. */
static inline const char *attention_sm90_sums_refused(const struct attention_params *p,
                                                      tess_type type) {
    struct sm90_maps maps = {};
    const bool made = type == TESS_F16 ? sm90_maps_make(&maps, p, __half())
                                       : sm90_maps_make(&maps, p, __nv_bfloat16());
    return p->tma && made ? NULL : "TMA cannot address these tensors";
}

/* The shape that computes by references what a shape does by maxima. */
template <class shape> struct sm90_referring;
template <int DIMS, int CONSUMERS>
struct sm90_referring<sm90_shape<DIMS, DIMS, CONSUMERS, 1, SM90_SUMS_BY_MAXIMA>> {
    using type = sm90_shape<DIMS, DIMS, CONSUMERS, 1, SM90_SUMS_BY_REFERENCES>;
};

template <class T, class shape>
static cudaError_t attention_sm90_launch_sums(const struct attention_params *p,
                                              cudaStream_t stream) {
    struct sm90_maps maps = {};
    maps.tma_q = sm90_maps_make(&maps, p, T());
    maps.tma_o = sm90_map_make_o(&maps.o, p, T());
    cudaError_t code = cudaSuccess;
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        if (sm90_refers<T>(*p))
            code = attention_sm90_launch_from<T, typename sm90_referring<shape>::type, SM90_TMA,
                                              false>(p, &maps, stream);
    if (!code)
        code = attention_sm90_launch_from<T, shape, SM90_TMA, false>(p, &maps, stream);
    return code ? code : cuda_attention_combine(p, attention_type(T()), stream);
}

/* The shape that takes lists of a shape by TMA, without modifiers: that itself, or one of long steps. */
template <class shape> struct sm90_long_of { using type = shape; };
template <int DIMS> struct sm90_long_of<sm90_shape<DIMS, DIMS, 3>> {
    using type = sm90_shape<DIMS, DIMS, 3, 1, SM90_NO_SUMS, (DIMS <= 64)>;
};

template <class T, class shape>
static cudaError_t attention_sm90_launch(const struct attention_params *p, cudaStream_t stream) {
    struct sm90_maps maps = {};
    maps.tma_q = sm90_maps_make(&maps, p, T());
    maps.tma_o = sm90_map_make_o(&maps.o, p, T());
    static cudaError_t (*const launch[2][2])(const struct attention_params *,
                                             const struct sm90_maps *, cudaStream_t) = {
        {attention_sm90_launch_from<T, typename sm90_long_of<shape>::type, SM90_TMA, false>,
         attention_sm90_launch_from<T, shape, SM90_TMA, true>},
        {attention_sm90_launch_from<T, shape, SM90_CP_ASYNC, false>,
         attention_sm90_launch_from<T, shape, SM90_CP_ASYNC, true>},
    };
    cudaError_t code = launch[p->tma && maps.tma_q ? SM90_TMA : SM90_CP_ASYNC][p->modify.each != 0](
        p, &maps, stream);
    return code ? code : cuda_attention_combine(p, attention_type(T()), stream);
}

#endif
