/*
 * Memory and steps of the examples that run on either backend: a step is given once and launched many times.
 * With EXAMPLE_CUDA memory is seen by host and device, and a step is a captured graph; without it memory is the host's
 * and a step is its calls.
 */
#ifndef EXAMPLES_EITHER_H
#define EXAMPLES_EITHER_H

#include <stdio.h>
#include <stdlib.h>

#include <tessera.h>

struct step {
    void (*give)(const void *context, tess_stream stream);
    const void *context;
    void *ready; /* graph; NULL before the first launch */
};

static inline void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

#ifdef EXAMPLE_CUDA
#include <cuda_runtime_api.h>

static const tess_backend backend = TESS_CUDA;

static inline void cuda(cudaError_t code) {
    if (code != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
        exit(EXIT_FAILURE);
    }
}

static inline void *allocate(size_t size) {
    void *memory;
    cuda(cudaMallocManaged(&memory, size + 1, cudaMemAttachGlobal));
    return memory;
}

static inline void release(void *memory) {
    cuda(cudaFree(memory));
}

/* Memory that the host touched goes back to the device, or a step would wait for it page by page. */
static inline void bring(void *memory, size_t size) {
    int device;
    cuda(cudaGetDevice(&device));
#if CUDART_VERSION >= 13000
    const struct cudaMemLocation location = {.type = cudaMemLocationTypeDevice, .id = device};
    cuda(cudaMemPrefetchAsync(memory, size, location, 0, NULL));
#else
    cuda(cudaMemPrefetchAsync(memory, size, device, NULL));
#endif
    cuda(cudaStreamSynchronize(NULL));
}

/* Ends with the step. */
static inline void launch(struct step *step) {
    static cudaStream_t stream;
    if (!stream)
        cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (!step->ready) {
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        /* A kernel's first launch may load the kernel, which no capture can hold. */
        step->give(step->context, stream);
        cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        step->give(step->context, stream);
        cuda(cudaStreamEndCapture(stream, &graph));
        cuda(cudaGraphInstantiate(&ready, graph, 0));
        cuda(cudaGraphDestroy(graph));
        step->ready = ready;
    }
    cuda(cudaGraphLaunch(step->ready, stream));
    cuda(cudaStreamSynchronize(stream));
}

/* The next launch captures anew. */
static inline void forget(struct step *step) {
    if (step->ready)
        cuda(cudaGraphExecDestroy(step->ready));
    step->ready = NULL;
}
#else
static const tess_backend backend = TESS_CPU;

static inline void *allocate(size_t size) {
    void *memory = aligned_alloc(256, (size / 256 + 1) * 256);
    if (!memory)
        exit(EXIT_FAILURE);
    return memory;
}

static inline void release(void *memory) {
    free(memory);
}

static inline void bring(void *memory, size_t size) {
    (void)memory, (void)size;
}

static inline void launch(struct step *step) {
    step->give(step->context, NULL);
}

static inline void forget(struct step *step) {
    (void)step;
}
#endif

#endif
