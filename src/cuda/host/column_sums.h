/* Launch parameters of column sums, over lists of either kind. */
#ifndef TESSERA_CUDA_COLUMN_SUMS_H
#define TESSERA_CUDA_COLUMN_SUMS_H

#include "host/decode.h"

/* Query tiles are whole groups. */
struct column_sums_params {
    struct decode_params
        lists; /* filled lists; lists.run has the tensors, and an image of packed lists */
    tess_type type;
    int64_t groups; /* groups of a head */
    bool filled;    /* lists were written by a fill */
    bool dense;     /* all queries list all keys */
    bool copied;    /* rows of q and k can be copied 16 bytes at a time */
};

size_t column_sums_workspace(const struct kernel_args *args);
struct column_sums_params column_sums_params_of(const struct kernel_args *args);

#define COLUMN_SUMS_ROWS 256 /* queries of a group at most */

#endif
