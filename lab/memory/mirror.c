/* A run's memory on its backend. */
#include "lab/memory/mirror.h"

#include "lab/device/device.h"

void lab_mirror_make(struct lab_mirror *mirror, tess_backend backend) {
    memset(mirror, 0, sizeof *mirror);
    mirror->backend = backend;
}

void *lab_mirror_add(struct lab_mirror *mirror, const struct lab_buffer *buffer) {
    if (mirror->backend == TESS_CPU)
        return buffer->data;
    mirror->why = "out of device memory";
    if (mirror->n_parts == LAB_MIRROR_PARTS)
        return NULL;
    unsigned char *device = lab_device_alloc(mirror->backend, buffer->whole);
    if (!device) { /* perhaps not for want of memory, but since an earlier run ended the context */
        const char *why = lab_device_synchronize(mirror->backend);
        mirror->why = why ? why : mirror->why;
        return NULL;
    }
    mirror->part[mirror->n_parts].host = buffer;
    mirror->part[mirror->n_parts++].device = device;
    mirror->why = lab_device_to_device(mirror->backend, device, buffer->base, buffer->whole);
    return mirror->why ? NULL : device + (buffer->data - buffer->base);
}

void *lab_mirror_at(const struct lab_mirror *mirror, const struct lab_buffer *buffer) {
    if (mirror->backend == TESS_CPU)
        return buffer->data;
    for (int i = 0; i < mirror->n_parts; i++)
        if (mirror->part[i].host == buffer)
            return mirror->part[i].device + (buffer->data - buffer->base);
    return NULL;
}

int lab_mirror_tensor(struct lab_mirror *mirror, const struct lab_tensor *tensor,
                      tess_tensor *view) {
    *view = tensor->view;
    view->data = lab_mirror_add(mirror, &tensor->buffer);
    return view->data ? 0 : -1;
}

const char *lab_mirror_send(const struct lab_mirror *mirror) {
    const char *why = NULL;
    for (int i = 0; i < mirror->n_parts && !why; i++)
        why = lab_device_to_device(mirror->backend, mirror->part[i].device,
                                   mirror->part[i].host->base, mirror->part[i].host->whole);
    return why;
}

const char *lab_mirror_fetch(const struct lab_mirror *mirror) {
    const char *why = lab_device_synchronize(mirror->backend);
    for (int i = 0; i < mirror->n_parts && !why; i++)
        why = lab_device_to_host(mirror->backend, mirror->part[i].host->base,
                                 mirror->part[i].device, mirror->part[i].host->whole);
    return why;
}

void lab_mirror_free(struct lab_mirror *mirror) {
    for (int i = 0; i < mirror->n_parts; i++)
        lab_device_free(mirror->backend, mirror->part[i].device);
    lab_mirror_make(mirror, mirror->backend);
}
