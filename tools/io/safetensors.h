/*
 * The .safetensors format: a 64-bit header length, a JSON header, the data. Read strictly: every
 * byte of the data belongs to exactly one tensor. https://huggingface.co/docs/safetensors
 */
#ifndef TOOLS_SAFETENSORS_H
#define TOOLS_SAFETENSORS_H

#include <jansson.h>
#include <stdio.h>

#include "io/tensor.h"

struct named_tensor {
    const char *name; /* owned by the header */
    struct tensor tensor;
};

struct safetensors {
    json_t *header;
    struct named_tensor *tensors; /* in the order of their data */
    size_t count;
};

/* Reads a whole file of `size` bytes at `data`, which must outlive *file. */
bool safetensors_parse(struct safetensors *file, const void *data, size_t size,
                       struct reason *reason);
void safetensors_free(struct safetensors *file);

/* The tensor of that name, or NULL. */
const struct tensor *safetensors_find(const struct safetensors *file, const char *name);

/* An entry of the header's __metadata__, or NULL. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);

/* Writes a file: tensors in the order given, metadata an object of strings or NULL. */
bool safetensors_write(FILE *file, const struct named_tensor *tensors, size_t count,
                       json_t *metadata);

#endif
