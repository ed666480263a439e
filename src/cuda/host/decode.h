/* Launch parameters of decode kernels, which walk a filled image (docs/design/device_lists.md). */
#ifndef TESSERA_CUDA_DECODE_H
#define TESSERA_CUDA_DECODE_H

#include "host/forward.h"
#include "lists/fill.h"
#include "lists/fill_rules.h"

/* Place of a step: its key, -1 for none, its row of K and V, and the first and last tile row that list it; over a
 * mask's lists 32 bits that decode_masked_key reads. Row r is row r % 2^shift of page r / 2^shift. */
struct decode_place {
    int32_t key, row;
    int16_t first, last;
};

/* Layout of rows of keys, values or scales: strides and the size of a row, in bytes. Paged ones have no
 * batches, others no pages. */
struct decode_layout {
    const char *data;
    int64_t batch, head, page, row;
    int32_t size;
};

/* Storage of a cache's keys, or values. Rows of keys may go on in a second view, `rest`, with 16 bits and no
 * scales; its size is 0 where there is none. */
struct decode_stored {
    int32_t eight_bit; /* 0: of the type of products; else of 8 bits, TESS_E4M3 or TESS_E5M2 */
    int32_t scales; /* scales of a row, one for each DECODE_SCALE_DIMS dims or one alone; 0: none */
    int32_t scaled; /* dims that scales are of, in units of DECODE_SCALE_DIMS, rounded up */
    struct decode_layout rows, scale, rest;
};
#define DECODE_SCALE_DIMS 128

/* Lists of single keys or small blocks, or of ranges, that a kernel reads itself, as tess_device_pattern has them. */
struct decode_given {
    const int32_t *indices, *counts, *lengths; /* indices NULL: lists come by the image */
    int64_t capacity;
    int64_t lo, hi; /* the cut; none: what no position is beyond */
    int32_t bits;   /* log2 of a block's keys */
    int32_t n_kv;
    int32_t parts; /* CTAs of a tile, which deal its entries: the image has as many items */
    bool ranges;   /* an entry is a range of keys */
    bool shared;   /* lists of one batch, which all read */
};

struct decode_params {
    struct attention_params run; /* tensors, sizes, slots; its image is empty */
    struct filled_image image;
    const int32_t *lengths; /* arrays of the image */
    const int64_t *keys, *full_ptr, *full_end, *masked_ptr, *masked_end;
    const struct list_run *full;
    const struct list_masked *masked;
    const uint64_t
        *words; /* rows of a tile's keys, where masked runs are bits; NULL: they are bands */
    int32_t masked_kind;  /* LIST_BAND or LIST_BITS */
    int64_t tiles;        /* tiles of a list */
    const int32_t *table; /* [batch] rows, NULL: not paged, and pages hold 2^31 rows */
    int64_t columns;      /* entries from row to row of the table */
    int32_t pages, shift;
    int32_t rows;     /* rows of a page; not paged, of the capacity */
    int32_t block_kv; /* keys of a block; run.granule_bits: log2 of those of a granule */
    struct decode_stored k, v;
    struct rows_view q_rest; /* second view of q */
    int32_t d_first; /* dims of first views of q and k: d_qk where there are no second ones */
    bool o_f32;
    bool v_in_k; /* v is the first dims of k: it may be fetched with it */
    bool v_late; /* v has one scale, of the tensor or head, by which o is multiplied */
    bool stored; /* K or V has 8 bits */
    int32_t multiprocessors;
    int32_t packs; /* packed heads of all batches */
    struct decode_given given;
};

/* Bytes of shared memory that decode/direct.cuh has beside a kernel's own, at most: Q, and what an entry is. */
#define DECODE_DIRECT_ROOM(d) (128 + 16 * 2 * (d) + 96)

struct decode_params decode_params_of(const struct kernel_args *args);

/* Refusals that the table asks for: NULL, or why kernels refuse a problem. Products are of one type, which
 * keys and values of 8 bits become. */
const char *decode_types_refused(tess_type product, const struct problem *problem);
const char *decode_refuses(const struct problem *problem, const tess_target *target);
const char *decode_64_refuses(const struct problem *problem, const tess_target *target);
const char *decode_sm90_refuses(const struct problem *problem, const tess_target *target);
const char *decode_blocks_refuses(const struct problem *problem, const tess_target *target);
const char *decode_columns_refuses(const struct problem *problem, const tess_target *target);
/* Words that tess_plan_print has beside a kernel's name, as snprintf writes them. */
int decode_detail(const struct kernel_args *args, char *room, size_t size);

#endif
