/* Costs of passes: formulas over a kernel's numbers (struct kernel_cost), which families answer by. Costs
 * are seconds of one CPU thread, or of a whole device. */
#ifndef TESSERA_COST_H
#define TESSERA_COST_H

#include "plan/kernels.h"

/* A pass by a kernel, as it might be run. */
struct trial {
    const struct kernel *kernel;
    const struct problem *problem; /* problem of the pass */
    const tess_target *target;
    int over_keys; /* its tiles are those of the transposed pattern */
    int joint;     /* over keys: it writes dQ as well */
    int64_t block_rows,
        block_columns;   /* queries and keys of a block; over keys, keys and queries */
    double heads, pairs; /* query heads that read each list; pairs that all heads list */
    /* A pass over lists: rows of a tile, of each of tile_heads heads, and what lists then are. */
    int32_t rows, tile_heads;
    const struct lists_sums *sums;
    const struct bcsr *tiles; /* tiles of a pass over the pattern */
};

/* Bytes at most of what a joint backward leaves between its passes, where the problem names none: twice that of
 * two causal heads of 16384 queries. */
#define SPILL_BYTES (INT64_C(9) << 27)
static inline int64_t spill_room(const struct problem *p) {
    return p->spill_size ? p->spill_size : SPILL_BYTES;
}

/* Dims of a key that are multiplied by a row's, over all products. */
double cost_dims(const struct trial *trial);

/* A launch; and an item, whatever it lists. */
double cost_launch(const struct trial *trial);
double cost_item(const struct trial *trial);

/* One key for a tile; over keys, one query for a key tile. */
double cost_key(const struct trial *trial);

/* Keys of a part of a split tile at least; and seconds that its partial results take, 0 where not known. */
int64_t cost_part_keys(const struct trial *trial);
double cost_part(const struct trial *trial);

/* Passes over lists, over the pattern's tiles, and over the rows of tensors alone. Launch, combines and
 * workers' uneven loads are left out. */
double cost_lists(const struct trial *trial);
double cost_tiles(const struct trial *trial);
double cost_rows(const struct trial *trial);

#endif
