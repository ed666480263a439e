/* What the table (C) hands to the kernels (CUDA): plain numbers and device pointers, and one launch
 * function for each instance. Launches only: nothing is allocated, copied or waited for. */
#ifndef TESSERA_CUDA_LAUNCH_H
#define TESSERA_CUDA_LAUNCH_H

#include "host/staged_image.h"

#include <cuda_runtime_api.h>

/* What x / number is found by, for x of 32 bits: a division is some 20 instructions, one after the
 * other. As in "Division by Invariant Integers using Multiplication", Granlund and Montgomery. */
struct cuda_divisor {
    uint32_t factor, halve, shift;
};

struct cuda_params {
    struct cuda_image image;
    struct view q, k, v, o, lse;
    float *values;
    int64_t n_items;
    int64_t n_bands, n_bitmasks;
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    struct cuda_divisor by_block_kv, by_heads_q, by_heads_per_kv;
    int64_t rows;    /* block rows */
    int64_t height;  /* queries of a block row at most: block_q, or n_q where that is less */
    int64_t columns; /* of all strips together */
    int64_t batch;
    int32_t heads_q;
    int32_t heads_per_kv; /* query heads of one key/value head */
    int32_t d_qk, d_v;
    int32_t alignment;                     /* bytes, of rows of q, k, v and o */
    int64_t shared;                        /* bytes of shared memory of a block at most */
    int32_t multiprocessors, architecture; /* of the target */
    /* The scale is their product. q_scale is a power of two (cuda_scale_power). */
    float q_scale, score_scale;
    int32_t strip_chunks; /* of a strip of mean width, CUDA_CHUNK columns each; 1 at least */
    int32_t even;         /* strips are about as wide */
    int32_t in_order;     /* ... and rows share sectors with their neighbours */
    int64_t widest;       /* columns of the widest strip of the first heads: what others are like */
};

/* An array of an image and where it comes from. */
struct cuda_part {
    void *to;
    const void *from;
    int64_t count;
    size_t size;
};

#ifdef __cplusplus
extern "C" {
#endif

/* What both images ask of the table (kernels_cuda.c): copies in the order of the stream, and a CUDA
 * error as a status. */
tess_status cuda_parts_upload(const struct cuda_part *parts, size_t count, cudaStream_t stream,
                              tess_error *error);
tess_status cuda_failed(tess_error *error, cudaError_t code, const char *function,
                        const char *argument, const char *call);

/*
 * What of a scale is folded into Q, as a power of two that bf16 has: 0, or for scales below 2^-8
 * what it takes to keep sums in range whose scaled size is. No more, since a product with Q may be
 * subnormal: it errs by 2^-150 at most in f32 and 2^-134 in bf16, which a score feels as d * 2^-30
 * and d * 2^-14 where K is as large as numbers are. Sums of f16 are always in range.
 */
int cuda_scale_power(double scale, tess_type type);

/* What the table asks of the stages (staged_cuda.c). */
size_t staged_image_size(const struct kernel_args *args);
tess_status staged_image_upload(const struct kernel_args *args, void *image, tess_error *error);
struct cuda_params staged_params_of(const struct kernel_args *args, void *image);

/* Fills `partial`, `rows`, `strips` and `chunks` of an image whose other parts are in place. */
cudaError_t cuda_image_derive(const struct cuda_params *p, cudaStream_t stream);

/* cuda_NAME: one launch function for each kernel. */
#define CUDA_KERNEL(name, ...)                                                                     \
    cudaError_t cuda_##name(const struct cuda_params *p, cudaStream_t stream);
#define CUDA_ATTENTION(...)
#include "instances.def"
#undef CUDA_KERNEL
#undef CUDA_ATTENTION

/* The same on Hopper alone, where boxes can fetch keys; cudaErrorNotSupported: they cannot, and
 * nothing is launched. */
cudaError_t cuda_sddmm_f16_sm90(const struct cuda_params *p, cudaStream_t stream);
cudaError_t cuda_sddmm_bf16_sm90(const struct cuda_params *p, cudaStream_t stream);
cudaError_t cuda_softmax_f32_sm90(const struct cuda_params *p, cudaStream_t stream);
cudaError_t cuda_spmm_f16_sm90(const struct cuda_params *p, cudaStream_t stream);
cudaError_t cuda_spmm_bf16_sm90(const struct cuda_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
