/* Thread block clusters and distributed shared memory, sm_90 and later. Elsewhere every cluster has
 * one thread block. All threads of all thread blocks of the cluster take part in each call. */
#ifndef TESSERA_CUDA_CLUSTER_CUH
#define TESSERA_CUDA_CLUSTER_CUH

#include "device/architecture.cuh"
#include "device/copy.cuh"
#include "device/launch.cuh"

#include <cuda_runtime.h>

#define CLUSTER_MAX 8

/* Thread blocks in the cluster, and the rank of this one. */
DEVICE int cluster_size(void) {
    int size = 1;
#if ARCHITECTURE_CLUSTERS
    asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
#endif
    return size;
}
DEVICE int cluster_rank(void) {
    int rank = 0;
#if ARCHITECTURE_CLUSTERS
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

/* Cluster barrier: what each thread block wrote to its shared memory before is visible to the others after. */
DEVICE void cluster_wait(void) {
    __syncwarp();
#if ARCHITECTURE_CLUSTERS
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#endif
}

/* The value at the address of `at` in the shared memory of thread block `rank`. */
DEVICE float cluster_load(const float *at, int rank) {
#if ARCHITECTURE_CLUSTERS
    uint32_t remote;
    float x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(remote)
                 : "r"(shared_address(at)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(remote) : "memory");
    return x;
#else
    return *at;
#endif
}
DEVICE double cluster_load(const double *at, int rank) {
#if ARCHITECTURE_CLUSTERS
    uint32_t remote;
    double x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(remote)
                 : "r"(shared_address(at)), "r"(rank));
    asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x) : "r"(remote) : "memory");
    return x;
#else
    return *at;
#endif
}

/* The place of `at` in the shared memory of thread block `rank`. */
template <class X> DEVICE X *cluster_at(X *at, int rank) {
#if ARCHITECTURE_CLUSTERS
    X *place;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(place) : "l"(at), "r"(rank));
    return place;
#else
    return at;
#endif
}

/* The launch configuration of `blocks` thread blocks (a multiple of `cluster`) with `shared` bytes
 * of dynamic shared memory. *attribute must outlive the configuration. */
static inline cudaLaunchConfig_t cluster_config(cudaLaunchAttribute *attribute, int64_t blocks,
                                                int cluster, int threads, size_t shared,
                                                cudaStream_t stream) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = (unsigned)cluster;
    attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = cluster > 1;
    return config;
}

/* Launches `blocks` thread blocks in clusters of `cluster`, with SHARED bytes of dynamic shared memory. */
template <int SHARED, class params>
static inline cudaError_t cluster_launch(void (*kernel)(const params), int64_t blocks, int cluster,
                                         int threads, const params *p, cudaStream_t stream) {
    if (blocks == 0)
        return cudaSuccess;
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    const cudaError_t code = launch_shared<SHARED>((const void *)kernel);
    if (code != cudaSuccess)
        return code;
    void *arguments[] = {(void *)p};
    cudaLaunchAttribute attribute = {};
    const cudaLaunchConfig_t config =
        cluster_config(&attribute, blocks, cluster, threads, SHARED, stream);
    return cudaLaunchKernelExC(&config, (const void *)kernel, arguments);
}

/* Launches as many clusters as are resident on the device at once, at most `wanted`. */
template <int SHARED, class params>
static inline cudaError_t cluster_launch_held(void (*kernel)(const params), int64_t wanted,
                                              int cluster, int threads, const params *p,
                                              cudaStream_t stream) {
    int held = 0;
    cudaError_t code = launch_shared<SHARED>((const void *)kernel);
    cudaLaunchAttribute attribute = {};
    const cudaLaunchConfig_t config =
        cluster_config(&attribute, cluster, cluster, threads, SHARED, stream);
    if (!code)
        code = cudaOccupancyMaxActiveClusters(&held, (const void *)kernel, &config);
    if (code)
        return code;
    held = held < 1 ? 1 : held; /* the launch then fails with the reason */
    return cluster_launch<SHARED>(kernel, (wanted < held ? wanted : held) * cluster, cluster,
                                  threads, p, stream);
}

#endif
