/* Rows of a tensor, as launch parameters have them. */
#ifndef TESSERA_CUDA_ROWS_H
#define TESSERA_CUDA_ROWS_H

#include "plan/kernels.h"

/* A struct view without its type, which kernels know when they are compiled: a launch has 4 KB of
 * parameters. */
struct rows_view {
    void *data;
    int64_t stride[3];
};

static inline struct rows_view rows_view_of(const struct view *view) {
    struct rows_view rows;
    rows.data = view->data;
    for (int i = 0; i < 3; i++)
        rows.stride[i] = view->stride[i];
    return rows;
}

#endif
