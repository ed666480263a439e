/* Outputs of a run, to files. */
#ifndef TOOLS_ATTENTION_OUTPUT_H
#define TOOLS_ATTENTION_OUTPUT_H

#include "io/tensor_file.h"

enum { OUTPUT_O, OUTPUT_LSE, OUTPUT_DQ, OUTPUT_DK, OUTPUT_DV, OUTPUTS };

/* Contiguous tensors, seen with the rank that the inputs had; the LSE lacks the last axis. */
struct attention_output {
    const char *name[OUTPUTS]; /* FILE or FILE:NAME; NULL: not wanted, and the view has no data */
    tess_tensor view[OUTPUTS];
    int rank;
};

/* Before computing: names, folders, two outputs in one file. */
bool attention_output_check(const char *const names[OUTPUTS], struct reason *reason);

/* Writes all files, or leaves none. */
bool attention_output_write(const struct attention_output *output, struct reason *reason);

#endif
