/* Which kernel chooses, and how large its launch is. */
#ifndef TESSERA_CUDA_SELECT_LAUNCH_CUH
#define TESSERA_CUDA_SELECT_LAUNCH_CUH

#include "select/short.cuh"
#include "select/stream.cuh"

#define SELECT_MOST_SHARED (224 * 1024) /* bytes of a CTA */
#define SELECT_LEAST_CHUNKS 48       /* a CTA's of a cluster: fewer gain nothing by another CTA */
#define SELECT_STREAM_LEAST 4096     /* columns from which many rows are sampled */
#define SELECT_STREAM_MOST (1 << 18) /* columns whose bits find room */
#define SELECT_MOST_GRID (1 << 20)   /* clusters */

struct select_device {
    int multiprocessors, shared, architecture;
};

static inline cudaError_t select_device_of(select_device *out) {
    int device = 0, major = 0, minor = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (!code)
        code =
            cudaDeviceGetAttribute(&out->multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (!code)
        code =
            cudaDeviceGetAttribute(&out->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (!code)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (!code)
        code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    out->architecture = 10 * major + minor;
    return code;
}

/* Few rows get clusters, so that all multiprocessors have one CTA; many rows get CTAs of fewer warps. */
template <class S, class M>
static cudaError_t select_launch_rows(const struct select_params *given,
                                      const select_device &device, cudaStream_t stream) {
    struct select_params p = *given;
    const int64_t chunks = (p.shape.n + SELECT_CHUNK - 1) / SELECT_CHUNK;
    int cluster = 1, warps = 4, held = 0;
    if (device.architecture >= 90) {
        const int64_t fits = device.multiprocessors / p.all, gains = chunks / SELECT_LEAST_CHUNKS;
        const int64_t wanted = fits < gains ? fits : gains;
        cluster = (int)(wanted < 1 ? 1 : wanted < CLUSTER_MAX ? wanted : CLUSTER_MAX);
    }
    const int most = p.all >= 4 * device.multiprocessors ? 16 : SELECT_WARPS;
    const int64_t fixed = sizeof(select_shared<M>);
    const int64_t room =
        (SELECT_MOST_SHARED < device.shared ? SELECT_MOST_SHARED : device.shared) - fixed;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config;
    cudaError_t code = launch_shared<SELECT_MOST_SHARED>((const void *)select_rows<S, M>);
    const int64_t clusters = p.all < SELECT_MOST_GRID ? p.all : SELECT_MOST_GRID;
    while (warps < most && warps * cluster < chunks)
        warps *= 2;
    const int64_t chunk = SELECT_CHUNK * (int64_t)sizeof(S) * warps;
    for (; !code; cluster--) {
        p.span = (int32_t)((chunks + warps * cluster - 1) / (warps * cluster));
        p.resident = (int32_t)(p.span < room / chunk ? p.span : room / chunk);
        config = cluster_config(&attribute, clusters * cluster, cluster, 32 * warps,
                                (size_t)(fixed + p.resident * chunk), stream);
        if (cluster == 1)
            break;
        code = cudaOccupancyMaxActiveClusters(&held, (const void *)select_rows<S, M>, &config);
        if (held >= p.all) /* all rows are under way at once */
            break;
    }
    if (code)
        return code;
    void *arguments[] = {&p};
    return cudaLaunchKernelExC(&config, (const void *)select_rows<S, M>, arguments);
}

template <class S>
static cudaError_t select_launch_stream(const struct select_params *given, cudaStream_t stream) {
    struct select_params p = *given;
    const int64_t n = p.shape.n, steps = (n + STREAM_STEP - 1) / STREAM_STEP;
    const int warps = steps >= 2 * STREAM_WARPS ? STREAM_WARPS : STREAM_WARPS / 2;
    p.span = (int32_t)((steps + warps - 1) / warps), p.words = (int32_t)steps * 32;
    p.resident = (int32_t)(n / (n > 1 << 15 ? 14 : 8));
    const int64_t bytes = (int64_t)sizeof(stream_shared) + 4 * stream_words(p.words) +
                          p.resident * (int64_t)sizeof(S);
    const cudaError_t code = launch_shared<SELECT_MOST_SHARED>((const void *)select_stream<S>);
    if (code)
        return code;
    void *arguments[] = {&p};
    return cudaLaunchKernel((const void *)select_stream<S>,
                            dim3((unsigned)(p.all < SELECT_MOST_GRID ? p.all : SELECT_MOST_GRID)),
                            dim3((unsigned)(32 * warps)), arguments, (size_t)bytes, stream);
}

template <class S, int CHUNKS>
static cudaError_t select_launch_short(const struct select_params *p, cudaStream_t stream) {
    void *arguments[] = {(void *)p};
    const int64_t blocks = (p->all + SHORT_WARPS - 1) / SHORT_WARPS;
    return cudaLaunchKernel((const void *)select_short<S, CHUNKS>,
                            dim3((unsigned)(blocks < SELECT_MOST_GRID ? blocks : SELECT_MOST_GRID)),
                            dim3(32 * SHORT_WARPS), arguments, 0, stream);
}

template <class S>
static cudaError_t select_launch_of(const struct select_params *p, const select_device &device,
                                    cudaStream_t stream) {
    if (p->shape.mode != TESS_SELECT_TOP_P && p->shape.n <= SHORT_CHUNKS * SELECT_CHUNK)
        return p->shape.n <= SELECT_CHUNK ? select_launch_short<S, 1>(p, stream)
                                          : select_launch_short<S, SHORT_CHUNKS>(p, stream);
    if (p->shape.mode != TESS_SELECT_TOP_P && !p->keep && p->whole &&
        p->all >= 4 * device.multiprocessors && p->shape.n >= SELECT_STREAM_LEAST &&
        p->shape.n <= SELECT_STREAM_MOST)
        return select_launch_stream<S>(p, stream);
    return p->shape.mode == TESS_SELECT_TOP_P
               ? select_launch_rows<S, unsigned long long>(p, device, stream)
               : select_launch_rows<S, uint32_t>(p, device, stream);
}

static inline cudaError_t select_launch(const struct select_params *p, cudaStream_t stream) {
    select_device device;
    const cudaError_t code = select_device_of(&device);
    if (code)
        return code;
    return p->keys.bits == 32 ? select_launch_of<uint32_t>(p, device, stream)
                              : select_launch_of<uint16_t>(p, device, stream);
}

#endif
