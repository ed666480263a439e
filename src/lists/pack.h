/* One query tile of packed lists: the walk over its block rows that both counts and fills. */
#ifndef TESSERA_PACK_H
#define TESSERA_PACK_H

#include "lists/lists.h"

#define PACK_MAX_ROWS 256
#define PACK_MAX_WORDS (PACK_MAX_ROWS / 64)

/* Facts of a packing that do not change from tile to tile. */
struct packer {
    const struct bcsr *m;
    int32_t tile_rows, words; /* M, words of a row mask */
    int32_t
        members; /* block rows of a tile, or pieces of them; 1: a tile is part of one block row */
    int64_t member_rows; /* rows of each: block_q, or a part of it */
    int64_t tiles;       /* per list */
    /* Tiles begin every `step` rows, anew every `period` rows, which have tiles_of_period. */
    int64_t step, period, tiles_of_period;
};

/* The first query of tile t; of t = tiles, the number of queries. */
static inline int64_t packer_row(const struct packer *p, int64_t t) {
    return min_i64(t / p->tiles_of_period * p->period + t % p->tiles_of_period * p->step,
                   p->m->n_q);
}

/* Scratch of one thread. Tiles of one block row need none of the arrays. */
struct pack_scratch {
    uint64_t *member;  /* [cols][ceil(members / 64)] which members list the column */
    uint64_t *present; /* [cols / 64] columns that any of them lists */
    uint64_t *partial; /* [cols / 64] columns where one of them is partial */
    struct tile_walk walk[PACK_MAX_ROWS];
    struct tile tile[PACK_MAX_ROWS]; /* the tile at which each walk stands */
};

/* Zero, or -1 when memory ran out. */
int pack_scratch_make(struct pack_scratch *s, const struct packer *p);
void pack_scratch_free(struct pack_scratch *s);

/* Destination of runs. With full NULL runs are only counted. */
struct pack_sink {
    struct list_run *full;
    struct list_masked *masked[LIST_MASKED_KINDS];
    uint64_t *words;
    int64_t first_word; /* place of words[0] in lists.words_of_rows */
    int64_t n_full, n_masked[LIST_MASKED_KINDS], n_words;
    int64_t full_keys, masked_keys;
    int64_t masked_groups;                           /* see lists.h */
    int64_t full_end, masked_end[LIST_MASKED_KINDS]; /* key after the last run, -1 = none yet */
    uint64_t last_mask[PACK_MAX_WORDS];              /* row mask of the last members run */
};

void pack_sink_reset(struct pack_sink *sink);

/* Emits the runs of query tile t of a list. */
void pack_tile(const struct packer *p, int64_t list, int64_t t, struct pack_scratch *scratch,
               struct pack_sink *sink);

#endif
