/*
 * Block lists as .safetensors: row_ptr I64 [lists, rows+1] and col_idx I32 [tiles]; where there are
 * partial tiles, band_entry I64 [n] with band I32 [n,2], and bitmask_entry I64 [n] with bits U64 or
 * I64. Metadata block_q, block_kv, n_q, n_kv, batch, heads: decimal, each optional.
 */
#ifndef TOOLS_LISTS_FILE_H
#define TOOLS_LISTS_FILE_H

#include <stdio.h>

#include "io/mapped_file.h"
#include "io/safetensors.h"

/* Sizes that the pattern must fit; 0 where the pattern itself decides. */
struct pattern_sizes {
    int64_t batch, heads_q, heads_kv, n_q, n_kv;
};

enum { LISTS_ARRAYS = 6 };

struct lists_file {
    struct mapped_file map;
    struct safetensors safetensors;
    void *copy[LISTS_ARRAYS]; /* copies of misaligned arrays */
    tess_lists lists;         /* points into the above */
};

/* `given` holds the sizes and blocks that the command line names (0 = none); they, the metadata and
 * the tensors' shapes must agree. The entries themselves are for tess_pattern_from_lists to judge.
 */
bool lists_file_open(struct lists_file *file, const char *path, const tess_pattern_shape *given,
                     const struct pattern_sizes *sizes, struct reason *reason);

/* Parses a whole file in memory, likewise. */
bool lists_file_parse(struct lists_file *file, const void *data, size_t size,
                      const tess_pattern_shape *given, const struct pattern_sizes *sizes,
                      struct reason *reason);
void lists_file_close(struct lists_file *file);

bool lists_file_write(FILE *file, const tess_lists *lists);

#endif
