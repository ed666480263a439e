/*
 * Output files that appear whole or not at all: written under a temporary name in the same folder,
 * NAME.PID-N.part, renamed when complete. A signal that ends the program takes the temporary files
 * with it, all but SIGKILL. A link is followed; a file that stood there hands on its permissions.
 */
#ifndef LAB_OUTPUT_H
#define LAB_OUTPUT_H

#include "lab/case/case.h"

#include <stdio.h>

struct lab_output {
    FILE *file;
    char *path, *temporary;
};

/* Answers 0, or -1 with one line in why: no such folder, a folder by that name, not allowed. On
 * failure *output needs no abandoning, but may be. */
int lab_output_open(struct lab_output *output, const char *path, char why[LAB_WHY]);

/* Whether two paths, of files that need not exist, lead to the same file. */
int lab_output_same(const char *a, const char *b);

/* Makes the file appear. On failure nothing is left behind. */
int lab_output_commit(struct lab_output *output, char why[LAB_WHY]);

/* Leaves nothing behind. Does nothing to an output that was committed or never opened. */
void lab_output_abandon(struct lab_output *output);

#endif
