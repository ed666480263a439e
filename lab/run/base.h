/*
 * The base that a case's runs start from, and what the oracle does with it.
 *
 *   o      standard normal, of o's type
 *   lse    merge: about log(nkv) / 2; of every seven rows one -Inf, where o holds NaN
 *   beta   add: 1, -1 or 0.75, by the seed
 */
#ifndef LAB_BASE_H
#define LAB_BASE_H

#include "lab/memory/mirror.h"
#include "lab/oracle/oracle.h"

/* Tensors of a case without a base have no memory. */
struct lab_base {
    struct lab_tensor o, lse;
    struct lab_basing basing;
};

/* like_o, like_lse: tensors whose types, sizes and layout they have. Answers 0, or -1 without memory;
 * lab_base_free whichever it was. */
int lab_base_make(struct lab_base *base, const struct lab_case *c, const tess_tensor *like_o,
                  const tess_tensor *like_lse);
void lab_base_free(struct lab_base *base);

/* Places of its tensors on the mirror's backend, in a run's arguments; views are the caller's. 0, or -1 and the
 * mirror's why. */
int lab_base_place(const struct lab_base *base, struct lab_mirror *mirror, tess_tensor view[2],
                   tess_arguments *arguments);

#endif
