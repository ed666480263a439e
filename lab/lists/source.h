/* The patterns of a case, by its words and by way of the constructor that it names. */
#ifndef LAB_SOURCE_H
#define LAB_SOURCE_H

#include "lab/case/case.h"

/* The case's pattern as its spec says, whatever its source; with lists on the device the keys of these. */
tess_status lab_case_spec(const struct lab_case *c, tess_pattern **pattern, tess_error *error);

/* Whether the case's pattern lists whole blocks only. */
int lab_case_whole_blocks(const struct lab_case *c);

/* The case's pattern, made through its source. */
tess_status lab_case_pattern(const struct lab_case *c, tess_pattern **pattern, tess_error *error);

#endif
