/* Column sums of a case: the reference that a run reads, and what it writes. */
#ifndef LAB_SUMS_H
#define LAB_SUMS_H

#include "lab/case/case.h"
#include "lab/memory/guard.h"

/* Without memory where the case has no column sums. */
struct lab_sums {
    struct lab_tensor reference, sums;
};

/* The reference is drawn about the lse of scores of about 1; one query of eight has none (-Inf). Answers 0, or -1
 * without memory; lab_sums_free whichever it was. */
int lab_sums_make(struct lab_sums *sums, const struct lab_case *c);
void lab_sums_free(struct lab_sums *sums);

#endif
