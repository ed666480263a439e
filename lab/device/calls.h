/* Calls of one backend, to which device.c forwards; see device.h. */
#ifndef LAB_DEVICE_CALLS_H
#define LAB_DEVICE_CALLS_H

#include "lab/device/device.h"

struct device_calls {
    int (*available)(void);
    void *(*alloc)(size_t size);
    void (*free)(void *memory);
    const char *(*to_device)(void *device, const void *host, size_t size);
    const char *(*to_host)(void *host, const void *device, size_t size);
    const char *(*copy)(void *to, const void *from, size_t size, tess_stream stream);
    const char *(*synchronize)(void);
    const char *(*use)(int32_t device);
    const char *(*bus)(char text[LAB_BUS_TEXT]);
    const char *(*stream_make)(tess_stream *stream);
    void (*stream_free)(tess_stream stream);
    const char *(*graph_begin)(tess_stream stream);
    const char *(*graph_stop)(tess_stream stream, void **recorded);
    const char *(*graph_ready)(void *recorded, void **graph);
    const char *(*graph_launch)(void *graph, tess_stream stream);
    void (*graph_free)(void *graph);
    const char *(*timer_make)(struct lab_device_timer *timer);
    const char *(*timer_flush)(struct lab_device_timer *timer, tess_stream stream);
    const char *(*timer_start)(struct lab_device_timer *timer, tess_stream stream);
    const char *(*timer_stop)(struct lab_device_timer *timer, tess_stream stream, double *ms);
    void (*timer_free)(struct lab_device_timer *timer);
};

/* cuda.c, or none.c in builds without CUDA, where all calls but available stay NULL. */
extern const struct device_calls device_cuda;

#endif
