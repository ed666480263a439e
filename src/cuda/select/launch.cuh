/* Which kernel chooses, and how large its launch is. */
#ifndef TESSERA_CUDA_SELECT_LAUNCH_CUH
#define TESSERA_CUDA_SELECT_LAUNCH_CUH

#include "select/held.cuh"
#include "select/short.cuh"
#include "select/stream.cuh"

#include <math.h>

#define SELECT_MOST_SHARED (224 * 1024) /* bytes of a CTA */
#define SELECT_LEAST_CHUNKS 48         /* a CTA's of a cluster: fewer gain nothing by another CTA */
#define SELECT_HELD_MOST (1 << 14)     /* columns that registers of a CTA hold */
#define SELECT_HELD_FEW (1 << 13)      /* columns up to which few rows are sought by digits */
#define HELD_KEYS 32                   /* columns of a lane */
#define SELECT_HELD_SHARED (66 * 1024) /* bytes: a slot for each of them, of whole warps */
#define STREAM_PLACES 0.016            /* share of a row: a bracket covers two distributions */
#define STREAM_MOST_STEPS 512          /* a CTA's */
#define STREAM_CLUSTER_STEPS 4         /* a CTA's of a cluster, at least */
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

/* Entries of a lane's list: what a sample's bracket holds, and deviations more. Of few rows the slowest counts. */
template <class S>
static int64_t stream_deep(const struct select_params &p, bool many, int64_t warps,
                           int64_t columns) {
    const double k = (double)(p.row_k ? p.shape.n / 2 : p.shape.k);
    const double share = fmin(k / (double)p.shape.n, 1);
    const double sample = (double)(32 * warps) * 16 / (double)sizeof(S);
    const double within = 6 * sqrt(share * (1 - share) / sample) + STREAM_PLACES;
    const double most = (double)columns * fmin(within, 1);
    return (int64_t)(most + (many ? 5 : 7) * sqrt(most)) + 2;
}

/* Few rows get clusters of CTAs of many warps. What lists more than finds room is taken by digits. */
template <class S>
static cudaError_t select_launch_stream(const struct select_params *given,
                                        const select_device &device, cudaStream_t stream) {
    const void *const kernel = (const void *)select_stream<S>;
    struct select_params p = *given;
    const int64_t steps = (p.shape.n + STREAM_COLUMNS - 1) / STREAM_COLUMNS;
    const bool many = p.all > device.multiprocessors;
    int64_t cluster = fill_least(device.multiprocessors / p.all, steps / STREAM_CLUSTER_STEPS);
    cluster = fill_most(cluster, (steps + STREAM_MOST_STEPS - 1) / STREAM_MOST_STEPS);
    cluster = fill_least(fill_most(cluster, 1), CLUSTER_MAX);
    if (device.architecture < 90)
        cluster = 1;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config;
    cudaError_t code = launch_shared<SELECT_MOST_SHARED>(kernel);
    int held = 0;
    while (!code) {
        const int64_t of_cta = (steps + cluster - 1) / cluster;
        int64_t warps =
            many ? fill_least(fill_most(of_cta / 2, 4), 16) : fill_least(of_cta, STREAM_WARPS);
        p.span = (int32_t)of_cta;
        const int64_t columns = (of_cta + warps - 1) / warps * (STREAM_COLUMNS / 32);
        p.resident = (int32_t)stream_deep<S>(p, many, warps, columns);
        const int64_t lists = 32 * warps * p.resident * (int64_t)sizeof(stream_entry<S>);
        const int64_t stage = warps * 2 * SELECT_STAGE<uint32_t>;
        p.listed = (int32_t)fill_most(fill_most(lists, stage),
                                      (int64_t)sizeof(select_shared<uint32_t>::mass));
        const size_t bytes =
            STREAM_FIXED + (size_t)p.listed + (size_t)p.span * (STREAM_COLUMNS / 4);
        if (bytes > (size_t)fill_least(SELECT_MOST_SHARED, device.shared) ||
            p.all * cluster > INT32_MAX)
            return select_launch_rows<S, uint32_t>(given, device, stream);
        config = cluster_config(&attribute, p.all * cluster, (int)cluster, (int)(32 * warps), bytes,
                                stream);
        if (cluster == 1)
            break;
        code = cudaOccupancyMaxActiveClusters(&held, kernel, &config);
        if (held >= p.all || many) /* all rows are under way at once */
            break;
        cluster--;
    }
    if (code)
        return code;
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

template <class S>
static cudaError_t select_launch_held(const struct select_params *p, cudaStream_t stream) {
    const void *const kernel = (const void *)select_held<S, HELD_KEYS>;
    void *arguments[] = {(void *)p};
    const int64_t warps = (p->shape.n + 32 * HELD_KEYS - 1) / (32 * HELD_KEYS);
    const cudaError_t code = launch_shared<SELECT_HELD_SHARED>(kernel);
    return code ? code
                : cudaLaunchKernel(kernel, dim3((unsigned)fill_least(p->all, SELECT_MOST_GRID)),
                                   dim3((unsigned)(32 * warps)), arguments,
                                   (size_t)(warps * 32 * HELD_KEYS) * sizeof(float), stream);
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
    if (p->shape.n > SELECT_HELD_MOST)
        return select_launch_stream<S>(p, device, stream);
    if (p->keep) /* bits that keep columns: their number is not known before */
        return select_launch_rows<S, uint32_t>(p, device, stream);
    if (p->shape.n <= SHORT_MOST)
        return shorts[(p->shape.n - 1) / (32 * SHORT_KEYS)](p, stream);
    if (many)
        return select_launch_stream<S>(p, device, stream);
    return p->shape.n > SELECT_HELD_FEW ? select_launch_held<S>(p, stream)
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
