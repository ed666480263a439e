/* Whether an answer is accurate: exactly the table "Accuracy" of docs/semantics.md. */
#ifndef LAB_COMPARE_H
#define LAB_COMPARE_H

#include "lab/case.h"
#include "lab/oracle.h"

struct lab_report {
    int ok;
    double worst;           /* largest error / bound met */
    struct lab_place place; /* where; -1 for the whole tensor */
    char message[LAB_WHY];  /* one line; "" when ok */
};

/*
 * o (and lse unless NULL) against the oracle: positions of non-finite values first, then each row,
 * the whole tensor, and the lse. NaN in a listed V row may reach rows less than `reach` away in the
 * same head (the height of a query tile; 256 when it is not known).
 */
void lab_compare(struct lab_report *report, const struct lab_oracle *oracle, const tess_tensor *o,
                 const tess_tensor *lse, int64_t reach);

#endif
