/*
 * Score modifiers of a case: the arrays that a run is given, and what the oracle does with them.
 *
 *   alibi   slopes of 2^(-8 (h + 1) / heads), as their paper has them; the seed draws each sign
 *   sink    standard normal; of every eight heads one -Inf, and with fill=extreme one +Inf
 *   seed    drawn from the case's
 */
#ifndef LAB_MODIFIERS_H
#define LAB_MODIFIERS_H

#include "lab/memory/mirror.h"
#include "lab/oracle/oracle.h"

/* Buffers of those that the case has; the others have no data. */
struct lab_modifiers {
    struct lab_buffer alibi, sink, seed;
};

/* Answers 0, or -1 without memory; lab_modifiers_free whichever it was. */
int lab_modifiers_make(struct lab_modifiers *m, const struct lab_case *c);
void lab_modifiers_free(struct lab_modifiers *m);

/* Places of the arrays on the mirror's backend. 0, or -1 and the mirror's why. */
int lab_modifiers_place(const struct lab_modifiers *m, struct lab_mirror *mirror,
                        tess_arguments *arguments);

/* Whether their canaries stand: 0, or -1 and why. What they hold, as a number. */
int lab_modifiers_check(const struct lab_modifiers *m, char why[LAB_WHY]);
uint64_t lab_modifiers_hash(const struct lab_modifiers *m);

/* Scoring by the arrays and the case's scale, for the oracle. */
struct lab_scoring lab_modifiers_scoring(const struct lab_modifiers *m, const struct lab_case *c);

#endif
