/* What the host hands to kernels of the stages: a plan's image in device memory, plain numbers. */
#ifndef TESSERA_CUDA_LAUNCH_H
#define TESSERA_CUDA_LAUNCH_H

#include "host/rows.h"
#include "host/staged_image.h"

/* What x / number is found by, for x of 32 bits: a division is some 20 instructions, one after the
 * other. As in "Division by Invariant Integers using Multiplication", Granlund and Montgomery. */
struct cuda_divisor {
    uint32_t factor, halve, shift;
};

struct staged_params {
    struct staged_image image;
    struct rows_view q, k, v, o, lse;
    float *scores;
    int64_t n_items;
    int64_t n_bands, n_bitmasks;
    int64_t n_q, n_kv;
    int64_t block_q, block_kv;
    struct cuda_divisor by_block_kv, by_heads_q, by_heads_per_kv;
    int64_t rows;    /* block rows */
    int64_t height;  /* queries of a block row at most: block_q, or n_q where that is less */
    int64_t columns; /* of all block rows together */
    int64_t batch;
    int32_t heads_q;
    int32_t heads_per_kv; /* query heads of one key/value head */
    int32_t d_qk, d_v;
    int32_t alignment;                     /* bytes, of rows of q, k, v and o */
    int64_t shared;                        /* bytes of shared memory of a block at most */
    int32_t multiprocessors, architecture; /* of the target */
    /* The scale is their product. q_scale is a power of two (cuda_scale_power). */
    float q_scale, score_scale;
    int32_t block_row_chunks; /* chunks of CUDA_CHUNK columns of a mean block row, at least 1 */
    int32_t even;             /* block rows have about the same width */
    int32_t in_order;         /* ... and rows share sectors with their neighbours */
    int64_t
        widest; /* columns of the widest block row of the first heads, which stand for the others */
};

/* An array of an image and where it comes from. */
struct device_part {
    void *to;
    const void *from;
    int64_t count;
    size_t size;
};

/* Copies parts of an image to the device, in the order of the stream. */
tess_status device_copy(const struct device_part *parts, size_t count, tess_stream stream,
                        tess_error *error);
/* Fills what an image of the stages derives of its other parts on the device. */
tess_status staged_derive(const struct staged_params *p, size_t tiles, tess_stream stream,
                          tess_error *error);

/*
 * What of a scale is folded into Q, as a power of two that bf16 has: 0, or for scales below 2^-8
 * what it takes to keep sums in range whose scaled size is. No more, since a product with Q may be
 * subnormal: it errs by 2^-150 at most in f32 and 2^-134 in bf16, which a score feels as d * 2^-30
 * and d * 2^-14 where K is as large as numbers are. Sums of f16 are always in range.
 */
int cuda_scale_power(double scale, tess_type type);

/* What the table asks of the stages (staged.c). */
size_t staged_image_size(const struct kernel_args *args);
tess_status staged_image_upload(const struct kernel_args *args, void *image, tess_error *error);
struct staged_params staged_params_of(const struct kernel_args *args, void *image);

#endif
