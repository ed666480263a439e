/*
 * Files of cases: a case or a sweep a line, '#' begins a comment. A sweep has words in braces, with
 * commas between; it stands for a line for each of them, and so for the braces after:
 *
 *     h=2,d={64,128},pattern={causal,random(0.1,1)}    # four cases
 */
#ifndef LAB_CASES_H
#define LAB_CASES_H

#include "lab/case/case.h"

struct lab_cases {
    struct lab_case *at;
    int64_t count, room;
};

/* Adds a case. 0, or -1 without memory. */
int lab_cases_add(struct lab_cases *cases, const struct lab_case *c);

/* Adds the cases of a file. 0; or -1 and why, with the line: the file cannot be read or has no case, or
 * the line is no case. lab_cases_free in either case. */
int lab_cases_read(struct lab_cases *cases, const char *path, char why[LAB_WHY]);
void lab_cases_free(struct lab_cases *cases);

/* Takes a line without comment, blanks around it and braces. `where` is "FILE:LINE: ". */
typedef int lab_line(void *context, char *line, const char *where);

/* Gives all lines of a file to `take`, in order. 0; what `take` answered when that was not 0, which
 * ends it; or -1 and the reason in why. */
int lab_lines_read(const char *path, lab_line *take, void *context, char why[LAB_WHY]);

#endif
