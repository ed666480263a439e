/*
 * The rule of tess_unmerge for a row, in f32 on every backend. The file compiles as C11 and as CUDA C, where
 * FILL_RULE names its functions' qualifiers.
 */
#ifndef TESSERA_UNMERGE_RULES_H
#define TESSERA_UNMERGE_RULES_H

#include "lists/fill_rules.h"

#include <math.h>

#define UNMERGE_LEAST 0x1p-12f /* share of the rest below which there is none */

/* o_rest = (o_whole - kept o_kept) inverse. inverse 0: nothing is left, and o_rest is 0. kept 0: o_kept counts
 * for nothing, whatever stands there. */
struct unmerge_row {
    float kept, inverse, lse;
};

/* From lse_whole and lse_kept. 1 - w is taken from expm1: no digit is lost where w is near 1. */
FILL_RULE struct unmerge_row unmerge_row_of(float whole, float kept) {
    const int wrong = whole == INFINITY || kept == INFINITY;
    const float less = wrong ? NAN : whole == kept ? 0 : kept - whole;
    const float rest = -expm1f(less);
    struct unmerge_row row = {0, 0, -INFINITY};
    if (rest < UNMERGE_LEAST)
        return row;
    row.kept = expf(less), row.inverse = 1 / rest, row.lse = whole + logf(rest);
    return row;
}

FILL_RULE float unmerge_value(const struct unmerge_row *row, float whole, float kept) {
    const float rest = row->kept == 0 ? whole : whole - row->kept * kept;
    return row->inverse == 0 ? 0 : rest * row->inverse;
}

#endif
