/* What the host hands to decode kernels, which walk a filled image (docs/design/device_lists.md). */
#ifndef TESSERA_CUDA_DECODE_H
#define TESSERA_CUDA_DECODE_H

#include "host/forward.h"
#include "lists/fill.h"
#include "lists/fill_rules.h"

/* A place of a step: its key, -1 for none, and the rows of the tile that list it, from the first to the
 * last. */
struct decode_place {
    int32_t key;
    int16_t first, last;
};

struct decode_params {
    struct attention_params of; /* its image is empty: a filled one is laid out otherwise */
    struct filled_image image;
    const int32_t *lengths; /* arrays of the image */
    const int64_t *keys, *full_ptr, *full_end, *masked_ptr, *masked_end;
    const struct list_run *full;
    const struct list_masked *masked;
    int64_t tiles; /* of a list */
    bool early;    /* the merge may start before its predecessor ends */
    int32_t multiprocessors;
    int32_t packs; /* packed heads of all batches */
};

struct decode_params decode_params_of(const struct kernel_args *args);

#endif
