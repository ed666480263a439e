/* Fused attention for 16-bit types on Hopper: the kernel and its launch. config.cuh says how it
 * works; producer.cuh is one of its roles, consumer_steps.cuh the other. */
#ifndef TESSERA_CUDA_ATTENTION_SM90_CUH
#define TESSERA_CUDA_ATTENTION_SM90_CUH

#include "device/cluster.cuh"
#include "forward/sm90/consumer_steps.cuh"
#include "forward/sm90/producer.cuh"
#include "forward/sm90/tensor_maps.cuh"

/* What one warp of the warpgroup that does not compute does. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_fetch(char *memory, uint32_t shared,
                                                  const struct attention_params &p,
                                                  const struct sm90_maps &maps) {
    const int warp = sm90_uniform((int)threadIdx.x / 32);
    const int64_t begin = __ldg(p.image.worker_ptr + blockIdx.x / shape::BLOCKS);
    const int64_t end = __ldg(p.image.worker_ptr + blockIdx.x / shape::BLOCKS + 1);
    if (SOURCE == SM90_COPIES) {
        kernel_before_wait();
        if (warp < 2)
            sm90_fetch_copies<T, shape, true>(memory, shared, p, maps, warp, begin, end);
        else
            sm90_fetch_copies<T, shape, false>(memory, shared, p, maps, warp - 2, begin, end);
        if (sm90_rank<shape>() == 0)
            sm90_store_empty<T, shape>(p, begin, end, warp, 4);
    } else if (warp >= 2) {
        kernel_before_wait();
        if (sm90_rank<shape>() == 0)
            sm90_store_empty<T, shape>(p, begin, end, warp - 2, 2);
        if (sm90_hands_o<shape, SOURCE>() && warp - 2 < shape::GROUPS)
            sm90_store_items<T, shape, SOURCE>(memory, p, maps, shared, warp - 2, begin, end);
    } else if (warp == 0) {
        sm90_fetch_boxes<shape, true>(memory, shared, p, &maps.q, maps.k, begin, end);
    } else {
        sm90_fetch_boxes<shape, false>(memory, shared, p, &maps.q, maps.v, begin, end);
    }
}

template <class T, class shape, int SOURCE>
static __global__ void __launch_bounds__(shape::THREADS, shape::RESIDENT)
    attention_sm90(const __grid_constant__ struct attention_params p,
                   const __grid_constant__ struct sm90_maps maps) {
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    if (threadIdx.x == 0)
        sm90_barriers_make<shape, SOURCE>(shared);
    if (shape::BLOCKS > 1)
        cluster_wait();
    else
        __syncthreads();
    kernel_after_come();
    const int role = sm90_uniform((int)threadIdx.x / 128);
    if (role > 0) {
        /* All have as many registers at first; of what fetching leaves, computing takes as much. */
        registers_claim<shape::CLAIM[SOURCE]>();
        kernel_before_wait();
        sm90_consume<T, shape, SOURCE>(memory, shared, role - 1, p, p.q_scale * p.score_scale);
    } else {
        registers_release<shape::LEAVE[SOURCE]>();
        sm90_fetch<T, shape, SOURCE>(memory, shared, p, maps);
    }
    if (shape::BLOCKS > 1) /* none leaves while others write to it */
        cluster_wait();
}

template <class T, class shape, int SOURCE>
static cudaError_t attention_sm90_launch_from(const struct attention_params *p,
                                              const struct sm90_maps *maps, cudaStream_t stream) {
    void (*kernel)(const struct attention_params, const struct sm90_maps) =
        attention_sm90<T, shape, SOURCE>;
    cudaError_t code = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::BYTES);
    void *arguments[] = {(void *)p, (void *)maps};
    /* It may come to the multiprocessors that the kernel before it has left, and waits there.
     * Drivers before 12.3 cannot capture that. */
    int driver = 0;
    cudaDriverGetVersion(&driver);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t launch = cluster_config(attributes, (int64_t)p->workers * shape::BLOCKS,
                                               shape::BLOCKS, shape::THREADS, shape::BYTES, stream);
    if (driver >= 12030) {
        cudaLaunchAttribute &early = attributes[launch.numAttrs++];
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
    }
    return code ? code : cudaLaunchKernelExC(&launch, (const void *)kernel, arguments);
}

template <class T, class shape>
static cudaError_t attention_sm90_launch(const struct attention_params *p, cudaStream_t stream) {
    struct sm90_maps maps = {};
    maps.queries = sm90_maps_make(&maps, p, T());
    maps.stores = sm90_map_make_o(&maps.o, p, T());
    const bool boxes = maps.queries && p->granule_bits >= SM90_BOX_BITS;
    cudaError_t code = boxes ? attention_sm90_launch_from<T, shape, SM90_BOXES>(p, &maps, stream)
                             : attention_sm90_launch_from<T, shape, SM90_COPIES>(p, &maps, stream);
    return code ? code : attention_merge_launch<T>(p, stream);
}

#endif
