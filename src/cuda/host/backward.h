/* Launch parameters of the fused backward on CUDA. */
#ifndef TESSERA_CUDA_BACKWARD_H
#define TESSERA_CUDA_BACKWARD_H

#include "host/forward.h"
#include "lists/spill.h"

/* A joint pass over keys: dQ's lists, in the image behind those of keys, and units of dS (lists/spill.h). */
struct gradient_spill {
    struct spill_step *steps;
    uint64_t *absent;
    struct granule_item *items;
    int64_t *worker_ptr;
    int32_t *unit_of;
    char *units; /* in the workspace; NULL: the pass is not joint */
    int32_t chunks, workers;
    struct rows_view d_q;
    bool wide; /* d_q is f32 */
    float factor;
};

/*
 * Both passes over tiles have rows, which stay, and the other side, which is streamed:
 *
 *                     rows x[0], x[1]    streamed y[0], y[1]    out[0], out[1]
 *   GRADIENT_ROWS     q, dO              k, v                   dQ
 *   GRADIENT_KEYS     k, v               q, dO                  dK, dV
 *
 * Slots of the workspace, one for each part of a split tile, hold sums in f32:
 *
 *   | slot 0: out[0] [tile_rows][slot_dims[0]], out[1] [tile_rows][slot_dims[1]] | slot 1 | ...
 */
struct gradient_params {
    struct attention_image image;
    struct rows_view x[2], y[2], out[2]; /* out: data NULL where it is not wanted */
    bool wide[2];                        /* out is f32, whatever the problem's type */
    float factor[2];                     /* factors of the sums */
    float x_scale, y_scale; /* scales of x[0], y[0]: q is multiplied by a power of two */
    float score_scale;      /* factor that takes scores to base 2 */
    struct query_stats stats;
    float *slots;
    int64_t slot_floats, n_combines;
    int32_t slot_dims[2];
    int32_t d[2]; /* dims of both tensors of a side, and of their gradients */
    int32_t granule_bits, tile_rows, words; /* words: 64-bit ones of a row mask */
    int32_t workers;
    int32_t heads_q, n_q;
    int32_t first_dim; /* first of the dims whose gradients a launch computes */
    int32_t alignment; /* bytes, of rows of all tensors */
    bool copied;       /* rows of x and y can be copied 16 bytes at a time */
    struct modify_params modify;
    float cap_scale; /* factor that takes scores to softcap's arguments */
    int32_t n_kv;
    int32_t slope_warps; /* warps of a thread block for the highest tile */
    double *slopes;      /* [items][slope_warps]: shares of d_alibi, or NULL */
    float *d_alibi;
    int32_t batch, heads_kv;
    bool after_keys; /* over rows: a pass over keys is in front, which has waited for the stats */
    struct gradient_spill spill;
};

/* Rows of a warp or pair: high tiles have 32 where registers hold their sums. That halves the shared memory
 * traffic of an MMA. */
#define GRADIENT_WARP(head, f16, rows) ((rows) > 32 && !(f16) && (head) <= 128 ? 32 : 16)

/* Pairs of warps, of which one computes scores, the other dP (roles.cuh). */
#define GRADIENT_ROLES(head, size) ((size) == 4 && (head) <= 128)

/* Warps that share the rows of a warp: two where one has no registers for their sums. */
#define GRADIENT_SHARE(head, size, warp)                                                           \
    (GRADIENT_ROLES(head, size) || ((warp) > 16 && (head) > 64) ? 2 : 1)

/* Low tiles, whose warps are few: more of them fit a multiprocessor where steps are short. */
#define GRADIENT_LOW(rows) ((rows) <= 32)

/* Warps that a multiprocessor has registers for, without score modifiers. */
#define GRADIENT_WARPS(keys, head, size, warp, low)                                                \
    (GRADIENT_ROLES(head, size) ? (warp) > 16 ? 8 : 16                                             \
     : (head) * (size) > 128    ? 8                                                                \
     : (low)                    ? 10                                                               \
     : (warp) <= 16             ? 16                                                               \
     : (keys)                   ? 8                                                                \
                                : 12)

/* Keys or queries of a step. */
#define GRADIENT_STEP(head, size, low)                                                             \
    ((size) == 4 ? (head) > 64 ? 16 : 32 : (head) * (size) > 256 || (low) ? 32 : 64)

/* Launches, for parts of a gradient's dims: of f32 registers hold sums of 128. */
#define GRADIENT_CUTS(head, size) ((size) == 4 && (head) > 128 ? (head) / 128 : 1)

/* Keys or queries of a granule at most: a step of the widest heads. */
#define GRADIENT_GRANULE 32
#define GRADIENT_GRANULE_F32 16

/* Terms of a sum in f16, by Hopper's kernels: tensor cores cut 2^13 sums of 16 terms off. */
#define GRADIENT_SM90_F16_ROWS (1 << 17)

/* CTAs of Hopper's kernels on a multiprocessor, for tiles of `rows` rows of `head` dims. */
#define GRADIENT_SM90_RESIDENT(head, rows) ((head) > 128 || (rows) > 64 ? 1 : 2)

/* The pass over delta: o and its rest, or a delta that is given. Views without data are absent. */
struct delta_params {
    struct rows_view d_o, o, o_rest, lse, d_lse, delta;
    struct query_stats stats; /* NULLs: delta is written, and nothing else */
    const float *sink;        /* [heads_q], or NULL */
    double *sums;             /* [batch * heads_q][chunks]: shares of d_sink, or NULL */
    float *d_sink;
    int64_t heads, heads_q, n_q, chunks; /* heads: of all batches */
    int32_t d_v;
    tess_type type, o_type;
    bool vector, o_vector; /* four elements can be loaded at once */
};

/* Queries of a chunk. */
#define DELTA_ROWS 64

/* The image of a joint pass: the forward's of lists of keys, then lists of dQ. */
size_t gradient_image_size(const struct kernel_args *args);
size_t gradient_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                            char *image);

/* Hopper's: why they do not compute a problem, or NULL; seconds of a pass, infinite where a joint one cannot be:
 * units are whole blocks. */
struct trial;
const char *gradient_sm90_refuses(const struct problem *problem, const tess_target *target);
const char *gradient_wide_refuses(const struct problem *problem, const tess_target *target);
double gradient_sm90_seconds(const struct trial *trial);

size_t gradient_workspace(const struct kernel_args *args);
struct gradient_params gradient_params_of(const struct kernel_args *args);
size_t delta_workspace(const struct kernel_args *args);
struct delta_params delta_params_of(const struct kernel_args *args);

#endif
