/* O and LSE to files. */
#ifndef TOOLS_ATTENTION_OUTPUT_H
#define TOOLS_ATTENTION_OUTPUT_H

#include "io/tensor_file.h"

enum { OUTPUT_O, OUTPUT_LSE, OUTPUTS };

/* What a run leaves: contiguous tensors, seen with the rank that the inputs had. lse->data is NULL
 * when it is not wanted. */
struct attention_output {
    const char *name[OUTPUTS]; /* FILE or FILE:NAME; name[OUTPUT_LSE] may be NULL */
    tess_tensor view[OUTPUTS];
    int rank;
};

/* Before computing: names, folders, two outputs in one file. */
bool attention_output_check(const char *const names[OUTPUTS], struct reason *reason);

/* Writes all files, or leaves none. */
bool attention_output_write(const struct attention_output *output, struct reason *reason);

#endif
