/* What the host hands to fused kernels: a plan's image in device memory, and plain numbers. */
#ifndef TESSERA_CUDA_ATTENTION_H
#define TESSERA_CUDA_ATTENTION_H

#include "granules.h"
#include "kernels.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

/* The image: arrays of struct granules, and the row masks of struct lists. */
struct attention_image {
    int32_t *keys;
    struct granule_mask *masks;
    uint64_t *words;
    struct granule_item *items, *merges;
    int64_t *worker_ptr;
};

/*
 * Slots of the workspace, one for each part of a split tile:
 *
 *   | slot 0: o[tile_rows][slot_dims] m[tile_rows] l[tile_rows] | slot 1 | ...      floats
 */
struct attention_params {
    struct attention_image image;
    struct view q, k, v, o, lse;
    float *slots;
    int64_t n_items, n_merges;
    int32_t granule_bits; /* log2 of the granule's size */
    int32_t tile_rows, slot_dims;
    int64_t slot_floats; /* of a slot */
    int32_t workers;
    bool thin; /* most granules have a mask: few rows of a tile share a key */
    int32_t batch, heads_q, heads_kv, n_q, n_kv;
    int32_t d_qk, d_v;
    int32_t alignment; /* bytes, of rows of q, k, v and o */
    bool copied;       /* rows of q, k and v can be copied 16 bytes at a time */
    /* The scale is their product. q_scale is a power of two, negative where the scale is, and 1 for
     * all but extreme scales: sums stay in range whose scaled size is, and maxima stay maxima. */
    float q_scale, score_scale;
};

/* Blocks of a tensor-core kernel, for heads of up to `head` dims and tiles of `rows` rows, that share
 * a multiprocessor: what registers and shared memory allow. */
#define ATTENTION_BLOCKS(head, rows)                                                               \
    ((head) > 128 ? 1 : (head) > 64 ? ((rows) > 32 ? 2 : 3) : (rows) > 64 ? 2 : (rows) > 32 ? 3 : 5)

#ifdef __cplusplus
extern "C" {
#endif

/* cuda_NAME: one launch function for each fused kernel. */
#define CUDA_ATTENTION(name, ...)                                                                  \
    cudaError_t cuda_##name(const struct attention_params *p, cudaStream_t stream);
#define CUDA_KERNEL(...)
#include "instances.def"
#undef CUDA_KERNEL
#undef CUDA_ATTENTION

/* What the table asks of every fused kernel (attention_cuda.c). */
size_t attention_image_size(const struct kernel_args *args);
tess_status attention_image_upload(const struct kernel_args *args, void *image, tess_error *error);
size_t attention_workspace(const struct kernel_args *args);
struct attention_params attention_params_of(const struct kernel_args *args);

#ifdef __cplusplus
}
#endif

#endif
