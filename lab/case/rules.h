/* Rules between the keys of a case: what reading one ends with. */
#ifndef LAB_RULES_H
#define LAB_RULES_H

#include "lab/case/case.h"

/* Sets defaults that follow other keys. given: names of the keys that were read, ended by NULL. 0, or -1 with
 * one line in why. */
int lab_case_complete(struct lab_case *c, const char *const *given, char why[LAB_WHY]);

/* Whether a name is among those given. */
int lab_case_was_given(const char *const *given, const char *name);

/* Writes why, and answers -1. */
int lab_case_refuse(char why[LAB_WHY], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
