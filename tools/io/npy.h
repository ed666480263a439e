/*
 * NumPy's .npy format, versions 1 and 2: little endian, C order, elements f2 f4 f8 i4 i8 u8 u1 i1
 * b1. The reader trusts nothing; the format is described at
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
 */
#ifndef TOOLS_NPY_H
#define TOOLS_NPY_H

#include <stdio.h>

#include "io/tensor.h"

/* Reads a whole file of `size` bytes at `data`; tensor->data then points into it. */
bool npy_parse(struct tensor *tensor, const void *data, size_t size, struct reason *reason);

/* Writes a file; bf16, which the format lacks, is refused. errno says why when writing fails. */
bool npy_write(FILE *file, const struct tensor *tensor);

#endif
