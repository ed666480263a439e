/* Launch parameters of fused kernels: a plan's image in device memory, and plain numbers. */
#ifndef TESSERA_CUDA_ATTENTION_H
#define TESSERA_CUDA_ATTENTION_H

#include "host/image.h"
#include "host/modify.h"
#include "host/rows.h"
#include "lists/prepare.h"

#include <stdbool.h>

/* The image: arrays of struct granules, and the row masks of struct lists. Kernels read how many items
 * each worker has in worker_ptr, and those of the forward how many combines there are in the header. */
struct attention_image {
    int32_t *keys;
    struct granule_mask *masks;
    uint64_t *words;
    struct granule_item *items, *combines;
    int64_t *worker_ptr;
    /* For kernels that read mask groups: */
    int64_t n_groups;
    uint64_t *group_keys;
    uint32_t *records, *mask_bits;
};
#define ATTENTION_IMAGE_COMBINES 4 /* the array's number in the header */

/* A base that runs start from (work/base.cuh); o.data NULL: none. lse.data NULL: o is the base's and beta times
 * the run's own, else the base is one more part. */
struct base_params {
    struct rows_view o, lse;
    float beta;
};

/*
 * Slots of the workspace, one for each part of a split tile:
 *
 *   | slot 0: o[tile_rows][slot_dims] m[tile_rows] l[tile_rows] | slot 1 | ...      floats
 *
 * A slot is a multiple of four floats.
 */
struct attention_params {
    struct attention_image image;
    struct rows_view q, k, v, o, lse;
    float *slots;
    int64_t n_items, n_combines; /* at most: what grids are sized by */
    int32_t granule_bits;        /* log2 of the granule's size */
    int32_t tile_rows, slot_dims;
    int32_t tile_heads; /* query heads packed into a tile (GQA packing), tile_rows rows each */
    int64_t slot_floats;
    int32_t workers;
    bool thin; /* struct prepared's */
    bool tma;  /* the plan has K and V copied by TMA */
    int32_t batch, heads_q, heads_kv, n_q, n_kv;
    int32_t d_qk, d_v;
    int32_t alignment; /* bytes, of rows of q, k, v and o */
    bool copied;       /* rows of q, k and v can be copied 16 bytes at a time */
    /* Factors of the scale times log2(e). q_scale is a power of two (cuda_scale_power), negative where the scale
     * is, so that maxima stay maxima. */
    float q_scale, score_scale;
    struct modify_params modify;
    const struct image_header *header;
    struct base_params base;
    struct rows_view reference, column_sums; /* views of kernels that write column sums */
    tess_type sum_type;
};

/* CTAs of a tensor-core kernel on a multiprocessor, for heads of up to `head` dims and tiles of `rows` rows.
 * Registers and an H200's shared memory set the limit. */
#define ATTENTION_BLOCKS(head, rows)                                                               \
    ((head) > 128  ? ((rows) > 16 ? 1 : 3)                                                         \
     : (head) > 64 ? ((rows) > 32   ? 2                                                            \
                      : (rows) > 16 ? 3                                                            \
                                    : 5)                                                           \
     : (head) > 32 ? ((rows) > 64   ? 2                                                            \
                      : (rows) > 32 ? 3                                                            \
                      : (rows) > 16 ? 5                                                            \
                                    : 10)                                                          \
     : (rows) > 64 ? 2                                                                             \
     : (rows) > 32 ? 4                                                                             \
     : (rows) > 16 ? 8                                                                             \
                   : 16)

/* CTAs for f32, which shared memory limits further. */
#define ATTENTION_BLOCKS_F32(head, rows)                                                           \
    ((rows) > 64 && (head) > 64 ? 1 : (rows) > 32 ? 2 : (rows) > 16 ? 4 : 8)

/* Warps of a small-M tile (forward/sm80_small_m), over which the head dim is split; and its CTAs on a
 * multiprocessor. Registers and an H200's shared memory set the limit. */
#define ATTENTION_WARPS_SMALL_M(head, rows)                                                        \
    ((head) > 768                  ? ((rows) > 8 ? 8 : 16)                                         \
     : (head) > 512                ? ((rows) > 8 ? 12 : 6)                                         \
     : (head) > 256 || (rows) > 16 ? 4                                                             \
     : (head) > 128 || (rows) > 8  ? 2                                                             \
                                   : 1)
#define ATTENTION_BLOCKS_SMALL_M(head, rows)                                                       \
    ((head) > 512   ? ((head) > 768 || (rows) > 8 ? 1 : 2)                                         \
     : (head) > 256 ? ((rows) > 8 ? 2 : 3)                                                         \
     : (rows) > 16  ? 2                                                                            \
     : (rows) > 8   ? 4                                                                            \
     : (head) > 128 ? 6                                                                            \
     : (head) > 64  ? 12                                                                           \
                    : 16)

/* Warps for 16 bits. */
#define ATTENTION_WARPS_SMALL_M_16BIT(head) ((head) > 768 ? 8 : (head) > 512 ? 6 : 4)
#define ATTENTION_BLOCKS_SMALL_M_16BIT(head, rows)                                                 \
    ((head) > 768 ? ((rows) > 8 ? 1 : 2) : (head) > 512 || (rows) > 16 ? 2 : (rows) > 8 ? 3 : 4)

/* Keys of a step, and rows of a warp. High tiles have 32 rows a warp, which halves the shared memory traffic
 * of an MMA. Rows of more than 256 bytes have 16, since sums would not fit the registers. So have THIN lists
 * (attention_params) of up to 64 dims, whose rows have little in common. Tiles of up to 16 rows have short
 * steps: more CTAs then fit a multiprocessor, and a warp mostly waits. Keys of f32 take long, so all its
 * steps are short, and those of tiles of up to 16 rows half as long. Eight and four CTAs then fit a
 * multiprocessor of an H200, where steps of 32 keys allow five and two. */
#define ATTENTION_STEP(head, rows) ((rows) > 64 ? (head) > 64 ? 64 : 128 : (rows) > 16 ? 64 : 32)
#define ATTENTION_STEP_F32(rows) ((rows) > 16 ? 32 : 16)
#define ATTENTION_WARP(head, rows, thin)                                                           \
    ((rows) > 64 && (head) <= 128 && ((head) > 64 || !(thin)) ? 32 : 16)
#define ATTENTION_WARP_F32(head, rows) ((rows) > 64 && (head) <= 64 ? 32 : 16)

/* Keys of a granule of these kernels at most: a step of their lowest tiles. */
#define ATTENTION_GRANULE 32
#define ATTENTION_GRANULE_F32 16
#define ATTENTION_GRANULE_SMALL_M 16

/* Answers to the table for every fused kernel (forward.c). */
size_t attention_image_size(const struct kernel_args *args);
struct attention_image attention_image_of(const struct kernel_args *args);
size_t attention_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                             char *image);
size_t attention_workspace(const struct kernel_args *args);
struct attention_params attention_params_of(const struct kernel_args *args);
/* Parameters without lists: tensors, sizes, slots and modifiers. */
struct attention_params attention_params_shared(const struct kernel_args *args);
/* NULL, or why Hopper's kernels refuse a problem. */
const char *attention_sm90_refuses(const struct problem *problem, const tess_target *target);

#define LOG2_E 1.4426950408889634

/* Whether rows of q, k, v and `more` are copied 16 bytes at a time: as planned, where steps from row to row
 * fit 32 bits. */
bool attention_rows_copied(const struct kernel_args *args, const struct view *more);

#endif
