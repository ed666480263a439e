/* Types and functions that the two files of the demonstration share. */
#ifndef TOOLS_DEMO_H
#define TOOLS_DEMO_H

#include "tessera.h"

/* q, k, v in f16, one batch. */
struct demo_input {
    int64_t heads, n, dim;
    tess_tensor q, k, v;
};

/* End the program with the reason, when the call before failed or memory is out. */
void demo_require(tess_status status, const tess_error *error);
void *demo_allocate(size_t count, size_t size); /* 64-byte aligned; free() releases it */

/* For each head and each `block` queries, the `top` key blocks of the greatest mean score. */
tess_pattern *demo_top_blocks(const struct demo_input *in, int64_t block, int64_t top);

/* Prints one list of each of two patterns of n x n side by side, a cell for `cell` tokens. */
struct demo_picture {
    const char *title;
    const tess_pattern *pattern;
    int64_t head;
};
void demo_draw(const struct demo_picture pictures[2], int64_t n, int64_t cell);

#endif
