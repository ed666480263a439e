/* The CPU as a device, and forwarding to whichever backend is meant. */
#include "lab/device/calls.h"

#include "lab/device/timer.h"

#include <stdio.h>
#include <stdlib.h>

static const char no_device[] = "no device";

static int host_available(void) {
    return 1;
}

static void *host_alloc(size_t size) {
    if (size > SIZE_MAX - 255)
        return NULL;
    return aligned_alloc(256, size ? (size + 255) / 256 * 256 : 256);
}

static const char *host_copy(void *to, const void *from, size_t size) {
    memcpy(to, from, size);
    return NULL;
}

static const char *host_copy_on(void *to, const void *from, size_t size, tess_stream stream) {
    (void)stream;
    return host_copy(to, from, size);
}

static const char *host_synchronize(void) {
    return NULL;
}

static const char *host_bus(char text[LAB_BUS_TEXT]) {
    *text = '\0';
    return "the CPU is on no bus";
}

static const char *host_stream_make(tess_stream *stream) {
    *stream = NULL;
    return NULL;
}

static void host_stream_free(tess_stream stream) {
    (void)stream;
}

static const char *host_use(int32_t device) {
    return device == 0 ? NULL : no_device;
}

static const char *host_graph_begin(tess_stream stream) {
    (void)stream;
    return "the CPU has no graphs";
}

static const char *host_graph_stop(tess_stream stream, void **recorded) {
    *recorded = NULL;
    return host_graph_begin(stream);
}

static const char *host_graph_ready(void *recorded, void **graph) {
    (void)recorded;
    *graph = NULL;
    return host_graph_begin(NULL);
}

static const char *host_graph_launch(void *graph, tess_stream stream) {
    (void)graph;
    return host_graph_begin(stream);
}

static const char *host_timer_make(struct lab_device_timer *timer) {
    (void)timer;
    return NULL;
}

static const char *host_timer_flush(struct lab_device_timer *timer, tess_stream stream) {
    (void)timer, (void)stream;
    return NULL;
}

static const char *host_timer_start(struct lab_device_timer *timer, tess_stream stream) {
    (void)stream;
    timer->started = lab_seconds();
    return NULL;
}

static const char *host_timer_stop(struct lab_device_timer *timer, tess_stream stream, double *ms) {
    (void)stream;
    *ms = 1e3 * (lab_seconds() - timer->started);
    return NULL;
}

static void host_timer_free(struct lab_device_timer *timer) {
    (void)timer;
}

static const struct device_calls device_host = {
    .available = host_available,
    .alloc = host_alloc,
    .free = free,
    .to_device = host_copy,
    .to_host = host_copy,
    .copy = host_copy_on,
    .synchronize = host_synchronize,
    .use = host_use,
    .bus = host_bus,
    .stream_make = host_stream_make,
    .stream_free = host_stream_free,
    .graph_begin = host_graph_begin,
    .graph_stop = host_graph_stop,
    .graph_ready = host_graph_ready,
    .graph_launch = host_graph_launch,
    .graph_free = free,
    .timer_make = host_timer_make,
    .timer_flush = host_timer_flush,
    .timer_start = host_timer_start,
    .timer_stop = host_timer_stop,
    .timer_free = host_timer_free,
};

/* NULL where there is no device. */
static const struct device_calls *calls_of(tess_backend backend) {
    const struct device_calls *calls = backend == TESS_CUDA ? &device_cuda : &device_host;
    return calls->available() ? calls : NULL;
}

int lab_device_available(tess_backend backend) {
    return calls_of(backend) != NULL;
}

static int has_kernel(tess_backend backend, tess_stage stage) {
    for (int64_t k = 0; k < tess_kernel_count(); k++) {
        tess_kernel_info info = tess_kernel_info_init();
        if (tess_kernel_describe(k, &info, NULL) == TESS_OK && info.backend == backend &&
            info.stage == stage)
            return 1;
    }
    return 0;
}

const char *lab_device_lacks(tess_backend backend, tess_operation operation,
                             tess_pipeline pipeline) {
    enum { MOST = 5 };
    static const struct {
        const char *words;
        int n;
        tess_stage stages[MOST];
    } needs[3][2] = {
        [TESS_ATTENTION] = {{"no fused kernel", 1, {TESS_STAGE_ATTENTION}},
                            {"no staged kernel",
                             3,
                             {TESS_STAGE_SDDMM, TESS_STAGE_SOFTMAX, TESS_STAGE_SPMM}}},
        [TESS_ATTENTION_BACKWARD] =
            {{"no fused backward",
              3,
              {TESS_STAGE_DELTA, TESS_STAGE_GRADIENT_KEYS, TESS_STAGE_GRADIENT_ROWS}},
             {"no staged backward",
              MOST,
              {TESS_STAGE_DELTA, TESS_STAGE_SDDMM, TESS_STAGE_SOFTMAX_BACKWARD, TESS_STAGE_SPMM,
               TESS_STAGE_SPMM_TRANSPOSED}}},
        [TESS_MLP] = {{"no MLP", 2, {TESS_STAGE_MLP_UP, TESS_STAGE_MLP_DOWN}},
                      {"no staged MLP", 0, {TESS_STAGE_MLP_UP}}},
    };
    if (!lab_device_available(backend))
        return no_device;
    if (!needs[operation][pipeline].n)
        return needs[operation][pipeline].words;
    for (int s = 0; s < needs[operation][pipeline].n; s++)
        if (!has_kernel(backend, needs[operation][pipeline].stages[s]))
            return needs[operation][pipeline].words;
    return NULL;
}

int lab_device_case(const struct lab_case *c, char why[LAB_WHY]) {
    *why = '\0';
    for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            if (!lab_case_asks(c, backend, pipeline))
                continue;
            const char *lacks =
                lab_device_lacks((tess_backend)backend, c->operation, (tess_pipeline)pipeline);
            if (!lacks)
                return 0;
            if (!*why)
                snprintf(why, LAB_WHY, "%s: %s here", tess_backend_name((tess_backend)backend),
                         lacks);
        }
    return -1;
}

void *lab_device_alloc(tess_backend backend, size_t size) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->alloc(size) : NULL;
}

void lab_device_free(tess_backend backend, void *memory) {
    const struct device_calls *calls = calls_of(backend);
    if (calls && memory)
        calls->free(memory);
}

const char *lab_device_to_device(tess_backend backend, void *device, const void *host,
                                 size_t size) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->to_device(device, host, size) : no_device;
}

const char *lab_device_to_host(tess_backend backend, void *host, const void *device, size_t size) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->to_host(host, device, size) : no_device;
}

const char *lab_device_copy(tess_backend backend, void *to, const void *from, size_t size,
                            tess_stream stream) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->copy(to, from, size, stream) : no_device;
}

const char *lab_device_synchronize(tess_backend backend) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->synchronize() : no_device;
}

const char *lab_device_bus(tess_backend backend, char text[LAB_BUS_TEXT]) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->bus(text) : no_device;
}

const char *lab_device_stream_make(tess_backend backend, tess_stream *stream) {
    const struct device_calls *calls = calls_of(backend);
    *stream = NULL;
    return calls ? calls->stream_make(stream) : no_device;
}

void lab_device_stream_free(tess_backend backend, tess_stream stream) {
    const struct device_calls *calls = calls_of(backend);
    if (calls && stream)
        calls->stream_free(stream);
}

const char *lab_device_graph_begin(tess_backend backend, tess_stream stream) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->graph_begin(stream) : no_device;
}

const char *lab_device_graph_stop(tess_backend backend, tess_stream stream, void **recorded) {
    const struct device_calls *calls = calls_of(backend);
    *recorded = NULL;
    return calls ? calls->graph_stop(stream, recorded) : no_device;
}

const char *lab_device_graph_ready(tess_backend backend, void *recorded, void **graph) {
    const struct device_calls *calls = calls_of(backend);
    *graph = NULL;
    return calls ? calls->graph_ready(recorded, graph) : no_device;
}

const char *lab_device_graph_end(tess_backend backend, tess_stream stream, void **graph) {
    void *recorded;
    const char *why = lab_device_graph_stop(backend, stream, &recorded);
    *graph = NULL;
    return why ? why : lab_device_graph_ready(backend, recorded, graph);
}

const char *lab_device_use(tess_backend backend, int32_t device) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->use(device) : no_device;
}

const char *lab_device_graph_launch(tess_backend backend, void *graph, tess_stream stream) {
    const struct device_calls *calls = calls_of(backend);
    return calls ? calls->graph_launch(graph, stream) : no_device;
}

void lab_device_graph_free(tess_backend backend, void *graph) {
    const struct device_calls *calls = calls_of(backend);
    if (calls && graph)
        calls->graph_free(graph);
}

const char *lab_device_timer_make(struct lab_device_timer *timer, tess_backend backend) {
    const struct device_calls *calls = calls_of(backend);
    memset(timer, 0, sizeof *timer);
    timer->backend = backend;
    return calls ? calls->timer_make(timer) : no_device;
}

const char *lab_device_timer_flush(struct lab_device_timer *timer, tess_stream stream) {
    const struct device_calls *calls = calls_of(timer->backend);
    return calls ? calls->timer_flush(timer, stream) : no_device;
}

const char *lab_device_timer_start(struct lab_device_timer *timer, tess_stream stream) {
    const struct device_calls *calls = calls_of(timer->backend);
    return calls ? calls->timer_start(timer, stream) : no_device;
}

const char *lab_device_timer_stop(struct lab_device_timer *timer, tess_stream stream, double *ms) {
    const struct device_calls *calls = calls_of(timer->backend);
    *ms = 0;
    return calls ? calls->timer_stop(timer, stream, ms) : no_device;
}

void lab_device_timer_free(struct lab_device_timer *timer) {
    const struct device_calls *calls = calls_of(timer->backend);
    if (calls)
        calls->timer_free(timer);
    memset(timer, 0, sizeof *timer);
}
