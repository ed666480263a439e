/* A tensor as a file holds it: what both readers produce and both writers take. */
#ifndef TOOLS_TENSOR_H
#define TOOLS_TENSOR_H

#include <stdint.h>

#include "io/report.h"

enum element_type {
    ELEMENT_BOOL,
    ELEMENT_U8,
    ELEMENT_I8,
    ELEMENT_I32,
    ELEMENT_I64,
    ELEMENT_U64,
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_F32,
    ELEMENT_F64,
    ELEMENT_TYPES
};

enum { TENSOR_MAX_RANK = 8 };

struct tensor {
    enum element_type type;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    size_t size;      /* bytes of data */
    const void *data; /* little endian, C order, borrowed from the file, perhaps misaligned */
};

const char *element_name(enum element_type type); /* "f32" */
size_t element_size(enum element_type type);

/* The storage type of an element type, or -1. */
int element_storage(enum element_type type);

/* Element e of a tensor of f16, bf16, f32 or f64. */
double tensor_get(const struct tensor *tensor, int64_t e);

/* Sets tensor->size from its type and shape; false when an axis is negative or the product does
 * not fit a size. */
bool tensor_measure(struct tensor *tensor);

/* When the data is misaligned for its type, moves it to a copy: *copy, for the caller to free; NULL
 * when there was no need. */
bool tensor_align(struct tensor *tensor, void **copy, struct reason *reason);

/* Writes the shape as "[2,3]" to text. */
enum { SHAPE_TEXT = 24 * TENSOR_MAX_RANK };
const char *tensor_shape_text(const struct tensor *tensor, char text[SHAPE_TEXT]);

#endif
