/*
 * The backward's dQ in the pass over keys: strips of key tiles whose part of dQ has sums of its own
 * (docs/design/backward.md). Pattern and declared numbers decide how tiles are cut into strips. So the bits of
 * dQ depend neither on threads nor on which gradients are wanted.
 */
#ifndef TESSERA_STRIPS_H
#define TESSERA_STRIPS_H

#include "lists/lists.h"

/* Strips of a K/V head at most. */
#define STRIPS_OF_HEAD 32

/* Queries whose sums are cleared when one of them is first met, and else not added up: strips have whole
 * groups of such queries. */
#define STRIPS_QUERIES 16

/* Floats of a row of sums of d dims: whole lines. */
static inline size_t strips_width(int64_t d) {
    return ((size_t)d + 15) / 16 * 16;
}

/* Key tiles first ... end - 1 of a K/V head, taken in order. For each query head of the group it has
 * sums of queries query ... query_end - 1, all that its tiles list, and rows past the last query. */
struct strip {
    int32_t batch_head; /* b * heads_kv + h_kv */
    int32_t first, end;
    int64_t query, query_end;
    int64_t at; /* the first row of its sums */
};

struct strips {
    int64_t n, heads;
    int64_t rows;        /* rows of sums, over all strips */
    int64_t tiles;       /* tiles of the longest strip */
    struct strip *strip; /* [n], head after head */
    int64_t *head;       /* [heads + 1]: the first strip of each K/V head, over all batches */
    int32_t *order;      /* [n]: which is run when, the longest first */
};

/*
 * Cuts the key tiles of `lists` for batch * heads_kv = heads K/V heads, whose `group` query heads read lists
 * list_of[head * group ...]. item: what a tile costs beside a query of a list, which costs 1. At most `most`
 * rows of sums: where they would be more, n is 0. Allocates *out, which strips_free releases whether or not
 * cutting succeeded.
 */
tess_status strips_make(struct strips *out, const struct lists *lists, const int64_t *list_of,
                        int64_t heads, int64_t group, double item, int64_t most, tess_error *error);
void strips_free(struct strips *strips);
size_t strips_memory(const struct strips *strips);

#endif
