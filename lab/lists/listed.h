/*
 * Device patterns. draw.c draws arrays from a seed; chosen.c draws scores, of which tess_select makes them. listed.c
 * says what arrays list, straight from the definitions (docs/semantics.md, "Lists that live on the device").
 * place.c copies arrays to a backend's memory.
 */
#ifndef LAB_LISTED_H
#define LAB_LISTED_H

#include "lab/memory/mirror.h"

/* How arrays are drawn. */
struct lab_listing {
    /* Sizes, form, cuts, promises. capacity of BLOCK_ROWS and BLOCK_BITS, 0: as many blocks as are drawn. */
    tess_device_pattern pattern;
    int64_t batch;   /* the problem's */
    int64_t entries; /* LAB_ENTRIES_...; without OVERFLOW blocks fit the capacity */
    int64_t most;    /* entries of a block row; of RANGES, ranges; of MASK, blocks */
    double valid;    /* share of `most` that names a block */
    int uneven;      /* 1: each row draws how many, up to that share */
    int chosen;      /* 1: tess_select chooses them, by: */
    tess_selection selection;
    uint64_t seed;
};

struct lab_listed {
    struct lab_listing listing;
    tess_device_pattern pattern; /* points to what follows */
    struct lab_buffer indices, counts, row_ptr, bits, lengths, mask;
    /* Chosen lists: scores f32 [batch][heads][rows][columns], and what tess_select makes of them, where plans find
     * it; the arrays above are the definition's. */
    struct {
        struct lab_buffer scores, indices, counts, bits;
    } chosen;
    int32_t *today; /* [b] lengths as drawn, 0 for those that cannot be; NULL: none are given */
};

/* Draws the arrays; set 0 is the first draw, others are as many other draws. Answers 0, or -1 without
 * memory; lab_listed_free whichever it was. */
int lab_listed_draw(struct lab_listed *listed, const struct lab_listing *listing, uint64_t set);
void lab_listed_free(struct lab_listed *listed);

/* How a case with lists on the device draws, and the draw. */
struct lab_listing lab_listing_of(const struct lab_case *c);
int lab_listed_make(struct lab_listed *listed, const struct lab_case *c, uint64_t set);

/* The length of batch b as the arrays are now; 0: that length cannot be. */
int64_t lab_listed_length(const struct lab_listed *listed, int64_t b);

/* The mask [batches][heads][n_q][n_kv] of listed keys, as the arrays are now. 0, or -1 without memory. */
int lab_listed_mask(const struct lab_listed *listed, int64_t batches, uint8_t *mask);

/* Faults and overflows that a fill of the arrays must report, and the place of the first; the rest is 0.
 * Answers 0, or -1 without memory. */
int lab_listed_report(const struct lab_listed *listed, tess_fill_report *report);

/* A pattern of the host that lists the keys of the arrays. */
tess_status lab_listed_pattern(const struct lab_listed *listed, tess_pattern **pattern,
                               tess_error *error);

/* The pattern without its arrays, as a plan is reserved for it. */
tess_device_pattern lab_listed_declared(const struct lab_listed *listed);

/* The pattern as the mirror's backend sees it. 0, or -1 and the mirror's why. */
int lab_listed_place(const struct lab_listed *listed, struct lab_mirror *mirror,
                     tess_device_pattern *placed);

/* tess_select of lists that are chosen, between the arrays that were placed in the mirror: before each fill. Others
 * are there already. */
tess_status lab_listed_choose(const struct lab_listed *listed, const struct lab_mirror *mirror,
                              tess_error *error, tess_stream stream);

/* Draws scores, and writes what the definition chooses of them. 0, or -1 without memory. */
int lab_chosen_draw(struct lab_listed *listed, uint64_t set);

/* Whether the arrays' canaries stand, and what was chosen is the definition's: 0, or -1 and why. What they hold, as a number. */
int lab_listed_check(const struct lab_listed *listed, char why[LAB_WHY]);
uint64_t lab_listed_hash(const struct lab_listed *listed);

#endif
