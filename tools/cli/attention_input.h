/* Q, K and V, and what a backward reads, from files: loaded, converted, seen as [batch, head, sequence, dim]. */
#ifndef TOOLS_ATTENTION_INPUT_H
#define TOOLS_ATTENTION_INPUT_H

#include "io/tensor_file.h"

enum { INPUT_Q, INPUT_K, INPUT_V, INPUT_DO, INPUT_O, INPUT_LSE, INPUTS };

struct attention_input {
    struct tensor_file file[INPUTS];
    void *converted[INPUTS]; /* NULL where the file's own data serves */
    tess_tensor view[INPUTS];
    int rank; /* rank of all: 2 [N,D], 3 [H,N,D], 4 [B,H,N,D]; the LSE lacks the last axis */
};

/* Opens tensors of one rank; names NULL: none, and the view has no data. dtype -1: they must share one
 * type, and f64 becomes f32; otherwise the tess_type that they are converted to. O may be f32 beside any
 * type; the LSE becomes f32. */
bool attention_input_open(struct attention_input *input, const char *const names[INPUTS], int dtype,
                          struct reason *reason);
void attention_input_close(struct attention_input *input);

#endif
