/*
 * A run's memory on its backend: whole buffers, canaries included, copied to the backend's memory and
 * back, so that what is checked on the host is what the device saw and left. A place is aligned as
 * the host's data is. On the CPU the mirror is the buffers themselves and nothing is copied.
 */
#ifndef LAB_MIRROR_H
#define LAB_MIRROR_H

#include "lab/memory/guard.h"

enum { LAB_MIRROR_PARTS = 20 };

struct lab_mirror {
    tess_backend backend;
    struct {
        const struct lab_buffer *host;
        unsigned char *device; /* stands for host->base */
    } part[LAB_MIRROR_PARTS];
    int n_parts;
    const char *why; /* the last lab_mirror_add that failed */
};

void lab_mirror_make(struct lab_mirror *mirror, tess_backend backend);

/* Place of a buffer's data on the backend, a copy of what it holds now; NULL and *why when
 * that fails. */
void *lab_mirror_add(struct lab_mirror *mirror, const struct lab_buffer *buffer);

/* Place of a buffer that was added; NULL: it was not. */
void *lab_mirror_at(const struct lab_mirror *mirror, const struct lab_buffer *buffer);

/* Adds a tensor: *view is its view there. 0, or -1 and *why. */
int lab_mirror_tensor(struct lab_mirror *mirror, const struct lab_tensor *tensor,
                      tess_tensor *view);

/* Copies all buffers to the backend again, as they are now. NULL, or why not. */
const char *lab_mirror_send(const struct lab_mirror *mirror);

/* Waits for the backend, then fills all buffers with what lies there now. NULL, or why not. */
const char *lab_mirror_fetch(const struct lab_mirror *mirror);

void lab_mirror_free(struct lab_mirror *mirror);

#endif
