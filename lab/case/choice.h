/*
 * Choices of columns in words, of cases and of the tool, as tess_select takes them:
 *
 *     topk(K), threshold(X) or top_p(P)     which columns of a row
 *     +first(N), +last(N)                   so many of its first and last ones before all others
 *     &causal                               none behind its last query
 */
#ifndef LAB_CHOICE_H
#define LAB_CHOICE_H

#include "lab/case/case.h"

/* 0, or -1 with one line in why. Sizes of blocks and tensors are the caller's to set. */
int lab_choice_parse(tess_selection *selection, const char *text, char why[LAB_WHY]);

#endif
