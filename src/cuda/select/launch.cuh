/* Which kernel chooses, and how large its launch is. */
#ifndef TESSERA_CUDA_SELECT_LAUNCH_CUH
#define TESSERA_CUDA_SELECT_LAUNCH_CUH

#include "select/held.cuh"
#include "select/short.cuh"
#include "select/stream.cuh"

#define SELECT_MOST_SHARED (224 * 1024) /* bytes of a CTA */
#define SELECT_LEAST_CHUNKS 48     /* a CTA's of a cluster: fewer gain nothing by another CTA */
#define SELECT_HELD_MOST (1 << 14) /* columns that registers of a CTA hold */
#define SELECT_HELD_FEW                                                                            \
    (1                                                                                             \
     << 13) /* columns up to which few rows are sought by digits, many by half the scores a lane */
#define SELECT_HELD_SHARED (66 * 1024) /* bytes: a slot for each of them, of whole warps */
#define STREAM_LEAST_SHARE 24          /* one in so many columns is listed however few are chosen */
#define STREAM_MORE 1024               /* columns listed beyond a fourth more than are chosen */
#define STREAM_CLUSTER_STEPS 8         /* a CTA's of a cluster, at least */
#define SELECT_MOST_GRID (1 << 20)     /* clusters */

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

/* Few rows get clusters of CTAs of many warps, many rows as many CTAs as there is room for. What lists more than finds
 * room is taken by digits. */
template <class S>
static cudaError_t select_launch_stream(const struct select_params *given,
                                        const select_device &device, cudaStream_t stream) {
    const void *const kernel = (const void *)select_stream<S>;
    struct select_params p = *given;
    const int64_t steps = (p.shape.n + STREAM_STEP<S> - 1) / STREAM_STEP<S>;
    const int64_t k = p.row_k || p.shape.mode != TESS_SELECT_EXACT ? p.shape.capacity : p.shape.k;
    const int64_t listed = fill_most(k + k / 4, p.shape.n / STREAM_LEAST_SHARE) + STREAM_MORE;
    const bool many = p.all > device.multiprocessors;
    int64_t cluster = fill_least(device.multiprocessors / p.all, steps / STREAM_CLUSTER_STEPS);
    cluster = device.architecture < 90 ? 1 : fill_least(fill_most(cluster, 1), CLUSTER_MAX);
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config;
    cudaError_t code = launch_shared<SELECT_MOST_SHARED>(kernel);
    int held = 0;
    for (int ctas = many ? 2 : 1; !code;) {
        const int warps = STREAM_WARPS / ctas;
        const int64_t bytes = SELECT_MOST_SHARED / ctas, all = warps * cluster;
        p.span = (int32_t)((steps + all - 1) / all);
        const int64_t fixed = (int64_t)sizeof(stream_shared) +
                              warps * (STREAM_AHEAD * STREAM_BYTES + 4 * (int64_t)p.span);
        p.resident = (int32_t)((bytes - fixed) / (int64_t)sizeof(stream_entry<S>));
        if (p.resident * cluster < listed && ctas == 1)
            return select_launch_rows<S, uint32_t>(given, device, stream);
        if (p.resident * cluster < listed) {
            ctas = 1;
            continue;
        }
        config =
            cluster_config(&attribute, cluster, (int)cluster, 32 * warps, (size_t)bytes, stream);
        if (cluster == 1)
            code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, kernel, 32 * warps,
                                                                 (size_t)bytes);
        else
            code = cudaOccupancyMaxActiveClusters(&held, kernel, &config);
        if (cluster == 1 || held >= p.all) /* all rows are under way at once */
            break;
        cluster--;
    }
    if (code)
        return code;
    const int64_t room = cluster == 1 ? held * (int64_t)device.multiprocessors : held;
    config.gridDim.x = (unsigned)(cluster * fill_least(p.all, fill_most(room, 1)));
    void *arguments[] = {&p};
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

template <class S, int KEYS>
static cudaError_t select_launch_short(const struct select_params *p, cudaStream_t stream) {
    void *arguments[] = {(void *)p};
    const int64_t blocks = (p->all + SHORT_WARPS - 1) / SHORT_WARPS;
    return cudaLaunchKernel((const void *)select_short<S, KEYS>,
                            dim3((unsigned)(blocks < SELECT_MOST_GRID ? blocks : SELECT_MOST_GRID)),
                            dim3(32 * SHORT_WARPS), arguments, 0, stream);
}

template <class S, int KEYS>
static cudaError_t select_launch_held(const struct select_params *p, cudaStream_t stream) {
    const void *const kernel = (const void *)select_held<S, KEYS>;
    void *arguments[] = {(void *)p};
    const int64_t warps = (p->shape.n + 32 * KEYS - 1) / (32 * KEYS);
    const cudaError_t code = launch_shared<SELECT_HELD_SHARED>(kernel);
    return code ? code
                : cudaLaunchKernel(kernel, dim3((unsigned)fill_least(p->all, SELECT_MOST_GRID)),
                                   dim3((unsigned)(32 * warps)), arguments,
                                   (size_t)(warps * 32 * KEYS) * sizeof(float), stream);
}

template <class S>
static cudaError_t select_launch_of(const struct select_params *p, const select_device &device,
                                    cudaStream_t stream) {
    typedef cudaError_t launch(const struct select_params *p, cudaStream_t stream);
    static launch *const shorts[] = {select_launch_short<S, 8>, select_launch_short<S, 16>,
                                     select_launch_short<S, 24>, select_launch_short<S, 32>};
    const bool many = p->all >= 2 * device.multiprocessors;
    if (p->shape.mode == TESS_SELECT_TOP_P)
        return select_launch_rows<S, unsigned long long>(p, device, stream);
    if (p->shape.n > SELECT_HELD_MOST && p->whole)
        return select_launch_stream<S>(p, device, stream);
    if (p->keep) /* bits that keep columns: their number is not known before */
        return select_launch_rows<S, uint32_t>(p, device, stream);
    if (p->shape.n <= SHORT_MOST)
        return shorts[(p->shape.n - 1) / (32 * SHORT_KEYS)](p, stream);
    if (p->shape.n <= SELECT_HELD_MOST && (many || p->shape.n > SELECT_HELD_FEW))
        return p->shape.n <= SELECT_HELD_FEW ? select_launch_held<S, 16>(p, stream)
                                             : select_launch_held<S, 32>(p, stream);
    return select_launch_rows<S, uint32_t>(p, device, stream);
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
