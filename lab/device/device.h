/*
 * Device memory, streams, graphs and clocks for tests, bench and tools: with cuda.c behind
 * it, the one place outside src/cuda that may speak to CUDA. On the CPU backend memory is the
 * host's, copies are plain copies and there are no streams. In a build without CUDA the CUDA
 * backend is never available. CUDA means the current device.
 *
 * A call that answers a text answers NULL when it is done, else why it is not.
 */
#ifndef LAB_DEVICE_H
#define LAB_DEVICE_H

#include "lab/case/case.h"

/* Whether a backend has a device here. One that is there and broken counts: using it then fails. */
int lab_device_available(tess_backend backend);

/* Why an operation's pipeline cannot run on a backend here: "no device", "no fused kernel", "no staged
 * kernel"; of a backward "no fused backward", "no staged backward". NULL: the library has kernels for all
 * stages of the pipeline, usable or not. */
const char *lab_device_lacks(tess_backend backend, tess_operation operation,
                             tess_pipeline pipeline);

/* 0 when something that a case asks for is here; else -1 and the first that is lacking. */
int lab_device_case(const struct lab_case *c, char why[LAB_WHY]);

/* Memory aligned to 256 bytes, or NULL. */
void *lab_device_alloc(tess_backend backend, size_t size);
void lab_device_free(tess_backend backend, void *memory);

/* Copies that are done when they return, for every stream. */
const char *lab_device_to_device(tess_backend backend, void *device, const void *host, size_t size);
const char *lab_device_to_host(tess_backend backend, void *host, const void *device, size_t size);

/* A copy within the backend's memory, as work of the stream. */
const char *lab_device_copy(tess_backend backend, void *to, const void *from, size_t size,
                            tess_stream stream);

/* Makes a device the current one of this thread. */
const char *lab_device_use(tess_backend backend, int32_t device);

/* Waits for all work given to the device, and tells of a failure in it. */
const char *lab_device_synchronize(tess_backend backend);

/* The device on its bus, as the driver's tools name it. The CPU is on none. */
#define LAB_BUS_TEXT 32
const char *lab_device_bus(tess_backend backend, char text[LAB_BUS_TEXT]);

/* A stream that does not wait for the default one. The CPU's is NULL. */
const char *lab_device_stream_make(tess_backend backend, tess_stream *stream);
void lab_device_stream_free(tess_backend backend, tess_stream stream);

/* A graph: what a stream is given between begin and end is recorded instead of run. A begin that
 * succeeded needs its end; a graph that end made needs its free. The CPU has none. */
const char *lab_device_graph_begin(tess_backend backend, tess_stream stream);
const char *lab_device_graph_end(tess_backend backend, tess_stream stream, void **graph);
/* The two parts of an end: what was recorded, and the graph that is made of it, whose record is freed. */
const char *lab_device_graph_stop(tess_backend backend, tess_stream stream, void **recorded);
const char *lab_device_graph_ready(tess_backend backend, void *recorded, void **graph);
const char *lab_device_graph_launch(tess_backend backend, void *graph, tess_stream stream);
void lab_device_graph_free(tess_backend backend, void *graph);

/* Times what a stream is given between start and stop: by events on CUDA, by the clock on the CPU.
 */
struct lab_device_timer {
    tess_backend backend;
    void *begin, *end; /* events */
    void *scratch;     /* zeros, twice the L2 cache */
    size_t scratch_size;
    double started;
};

/* Needs its free whatever it answers. */
const char *lab_device_timer_make(struct lab_device_timer *timer, tess_backend backend);
/* Gives the stream work that leaves nothing of before in the L2 cache. Nothing on the CPU. */
const char *lab_device_timer_flush(struct lab_device_timer *timer, tess_stream stream);
const char *lab_device_timer_start(struct lab_device_timer *timer, tess_stream stream);
/* Waits for the work between. */
const char *lab_device_timer_stop(struct lab_device_timer *timer, tess_stream stream, double *ms);
void lab_device_timer_free(struct lab_device_timer *timer);

#endif
