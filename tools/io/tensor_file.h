/*
 * Tensors on disk, whichever format: FILE.npy, FILE.safetensors:NAME, or FILE.safetensors when it
 * holds one tensor.
 */
#ifndef TOOLS_TENSOR_FILE_H
#define TOOLS_TENSOR_FILE_H

#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "io/tensor.h"

enum file_format { FORMAT_NPY, FORMAT_SAFETENSORS };

/* FILE:NAME taken apart. */
struct file_name {
    enum file_format format;
    char path[4096];
    const char *tensor; /* borrowed from the text; NULL when none is named */
};
bool file_name_parse(struct file_name *name, const char *text, struct reason *reason);

/* One tensor of a file. */
struct tensor_file {
    struct mapped_file map;
    struct safetensors safetensors; /* empty for a .npy file */
    void *copy;                     /* copy of misaligned data, else NULL */
    struct tensor tensor;           /* data are aligned to elements */
};

/* `text` is FILE or FILE:NAME. Reasons begin with the file's name. */
bool tensor_file_open(struct tensor_file *file, const char *text, struct reason *reason);
void tensor_file_close(struct tensor_file *file);

#endif
