/* Draws that the generators of cases share. */
#ifndef TOOLS_SWEEP_DRAW_H
#define TOOLS_SWEEP_DRAW_H

#include "lab/case/case.h"
#include "lab/fill/rng.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

/* Numbers drawn one after another. */
struct draw {
    uint64_t seed, stream, count;
};

static inline int64_t draw_below(struct draw *r, int64_t n) {
    return lab_below(r->seed, r->stream, r->count++, n);
}

static inline int draw_chance(struct draw *r, double p) {
    return lab_uniform(r->seed, r->stream, r->count++) < p;
}

static inline int64_t draw_pick(struct draw *r, const int64_t *table, int64_t count) {
    return table[draw_below(r, count)];
}

/* Score modifiers of a third of the cases. */
void draw_modifiers(struct lab_case *c, struct draw *r);

/* Strides of 0 of q, K and V. */
void draw_shares(struct lab_case *c, struct draw *r);

/* A base of one case of attention in seven. */
void draw_base(struct lab_case *c, struct draw *r);

#endif
