/* Timings of fused attention on a device, read from the csv files of bench and of its peers. */
#ifndef TESTS_TIMINGS_H
#define TESTS_TIMINGS_H

#include "lab/case/case.h"

/* The time of one choice: a kernel, and rows of its query tiles. */
struct timing {
    struct lab_case shape;    /* without a kernel and rows of a tile */
    char text[LAB_CASE_TEXT]; /* the shape, printed */
    char kernel[64];
    int64_t rows;
    double ms;
};

struct timings {
    struct timing *all;
    size_t n;
};

/* Adds a file's timings of a device's fused kernels over lists of the host. Ends the test where the file cannot
 * be read or lacks a column. */
void timings_read(struct timings *timings, const char *path, const char *device);
void timings_free(struct timings *timings);

#endif
