/* CUDA's current device, through the runtime. */
#include "lab/device/calls.h"

#include "lab/device/flush.h"

/* The runtime's words; clears an error that is not the context's end. */
static const char *words(cudaError_t code) {
    if (code == cudaSuccess)
        return NULL;
    cudaGetLastError();
    return cudaGetErrorString(code);
}

/* No driver and no device are absence; anything else is a device that does not work. */
static int cuda_available(void) {
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess)
        return count > 0;
    cudaGetLastError();
    return code != cudaErrorNoDevice && code != cudaErrorInsufficientDriver &&
           code != cudaErrorStubLibrary;
}

static void *cuda_alloc(size_t size) {
    void *memory = NULL;
    return words(cudaMalloc(&memory, size ? size : 1)) ? NULL : memory;
}

static void cuda_free(void *memory) {
    words(cudaFree(memory));
}

static const char *cuda_synchronize(void) {
    return words(cudaDeviceSynchronize());
}

/* A copy from pageable memory may return before it has arrived, which streams that do not wait for
 * the default one would not notice. */
static const char *cuda_to_device(void *device, const void *host, size_t size) {
    const char *why = words(cudaMemcpy(device, host, size, cudaMemcpyHostToDevice));
    return why ? why : cuda_synchronize();
}

static const char *cuda_to_host(void *host, const void *device, size_t size) {
    const char *why = cuda_synchronize();
    return why ? why : words(cudaMemcpy(host, device, size, cudaMemcpyDeviceToHost));
}

static const char *cuda_copy(void *to, const void *from, size_t size, tess_stream stream) {
    return words(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream));
}

static const char *cuda_bus(char text[LAB_BUS_TEXT]) {
    int device = 0;
    const char *why = words(cudaGetDevice(&device));
    return why ? why : words(cudaDeviceGetPCIBusId(text, LAB_BUS_TEXT, device));
}

static const char *cuda_stream_make(tess_stream *stream) {
    return words(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
}

static void cuda_stream_free(tess_stream stream) {
    words(cudaStreamDestroy(stream));
}

static const char *cuda_use(int32_t device) {
    return words(cudaSetDevice(device));
}

/* Global mode: an allocation, a synchronisation or a launch on another stream is an error. */
static const char *cuda_graph_begin(tess_stream stream) {
    return words(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
}

static const char *cuda_graph_stop(tess_stream stream, void **recorded) {
    cudaGraph_t graph = NULL;
    const char *why = words(cudaStreamEndCapture(stream, &graph));
    *recorded = graph;
    return why;
}

static const char *cuda_graph_ready(void *recorded, void **graph) {
    cudaGraphExec_t ready = NULL;
    const char *why = words(cudaGraphInstantiate(&ready, recorded, 0));
    words(cudaGraphDestroy(recorded));
    *graph = why ? NULL : ready;
    return why;
}

static const char *cuda_graph_launch(void *graph, tess_stream stream) {
    return words(cudaGraphLaunch(graph, stream));
}

static void cuda_graph_free(void *graph) {
    words(cudaGraphExecDestroy(graph));
}

static const char *cuda_timer_make(struct lab_device_timer *timer) {
    int device = 0, cache = 0;
    cudaEvent_t begin = NULL, end = NULL;
    const char *why = words(cudaGetDevice(&device));
    if (!why)
        why = words(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
    if (!why)
        why = words(cudaEventCreate(&begin));
    timer->begin = begin;
    if (!why)
        why = words(cudaEventCreate(&end));
    timer->end = end;
    timer->scratch_size = 2 * (size_t)cache;
    if (!why)
        why = words(cudaMalloc(&timer->scratch, timer->scratch_size));
    if (!why)
        why = words(cudaMemset(timer->scratch, 0, timer->scratch_size));
    return why ? why : cuda_synchronize();
}

static const char *cuda_timer_flush(struct lab_device_timer *timer, tess_stream stream) {
    return words(lab_device_flush_read(timer->scratch, timer->scratch_size, stream));
}

static const char *cuda_timer_start(struct lab_device_timer *timer, tess_stream stream) {
    return words(cudaEventRecord(timer->begin, stream));
}

static const char *cuda_timer_stop(struct lab_device_timer *timer, tess_stream stream, double *ms) {
    float between = 0;
    const char *why = words(cudaEventRecord(timer->end, stream));
    if (!why)
        why = words(cudaEventSynchronize(timer->end));
    if (!why)
        why = words(cudaEventElapsedTime(&between, timer->begin, timer->end));
    *ms = between;
    return why;
}

static void cuda_timer_free(struct lab_device_timer *timer) {
    if (timer->begin)
        words(cudaEventDestroy(timer->begin));
    if (timer->end)
        words(cudaEventDestroy(timer->end));
    words(cudaFree(timer->scratch));
}

const struct device_calls device_cuda = {
    .available = cuda_available,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .to_device = cuda_to_device,
    .to_host = cuda_to_host,
    .copy = cuda_copy,
    .synchronize = cuda_synchronize,
    .use = cuda_use,
    .bus = cuda_bus,
    .stream_make = cuda_stream_make,
    .stream_free = cuda_stream_free,
    .graph_begin = cuda_graph_begin,
    .graph_stop = cuda_graph_stop,
    .graph_ready = cuda_graph_ready,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .timer_make = cuda_timer_make,
    .timer_flush = cuda_timer_flush,
    .timer_start = cuda_timer_start,
    .timer_stop = cuda_timer_stop,
    .timer_free = cuda_timer_free,
};
