/*
 * Device patterns of cases with topk=: their arrays, drawn from the seed, and what they list, straight
 * from the definitions (docs/semantics.md, "Lists that live on the device").
 */
#ifndef LAB_LISTED_H
#define LAB_LISTED_H

#include "lab/mirror.h"

struct lab_listed {
    struct lab_case c;
    tess_device_pattern pattern; /* points to what follows */
    struct lab_buffer indices, counts, row_ptr, bits, lengths;
    int32_t *today; /* [b] lengths, 0 for those that cannot be; NULL: none are given */
};

/* Why a case can have no lists on the device; NULL: it can. */
const char *lab_listed_refuses(const struct lab_case *c);

/* Draws the arrays; set 0 is the case's, others are as many other draws. Answers 0, or -1 without memory;
 * lab_listed_free whichever it was. */
int lab_listed_make(struct lab_listed *listed, const struct lab_case *c, uint64_t set);
void lab_listed_free(struct lab_listed *listed);

/* The same keys as a pattern of the host. */
tess_status lab_listed_pattern(const struct lab_listed *listed, tess_pattern **pattern,
                               tess_error *error);
/* That of set 0. */
tess_status lab_listed_spec(const struct lab_case *c, tess_pattern **pattern, tess_error *error);

/* The pattern without its arrays, as a plan is reserved for it. */
tess_device_pattern lab_listed_declared(const struct lab_listed *listed);

/* The pattern as the mirror's backend sees it. 0, or -1 and the mirror's why. */
int lab_listed_place(const struct lab_listed *listed, struct lab_mirror *mirror,
                     tess_device_pattern *there);

/* Whether the arrays' canaries stand: 0, or -1 and why. What they hold, as a number. */
int lab_listed_check(const struct lab_listed *listed, char why[LAB_WHY]);
uint64_t lab_listed_hash(const struct lab_listed *listed);

#endif
