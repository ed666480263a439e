/* Element types and sizes. */
#include "io/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/fill/half.h"

static const struct {
    const char *name;
    size_t size;
} elements[ELEMENT_TYPES] = {
    [ELEMENT_BOOL] = {"bool", 1}, [ELEMENT_U8] = {"u8", 1},     [ELEMENT_I8] = {"i8", 1},
    [ELEMENT_I32] = {"i32", 4},   [ELEMENT_I64] = {"i64", 8},   [ELEMENT_U64] = {"u64", 8},
    [ELEMENT_F16] = {"f16", 2},   [ELEMENT_BF16] = {"bf16", 2}, [ELEMENT_F32] = {"f32", 4},
    [ELEMENT_F64] = {"f64", 8},
};

const char *element_name(enum element_type type) {
    return elements[type].name;
}

size_t element_size(enum element_type type) {
    return elements[type].size;
}

int element_storage(enum element_type type) {
    switch (type) {
    case ELEMENT_F16:
        return TESS_F16;
    case ELEMENT_BF16:
        return TESS_BF16;
    case ELEMENT_F32:
        return TESS_F32;
    default:
        return -1;
    }
}

double tensor_get(const struct tensor *tensor, int64_t e) {
    const int type = element_storage(tensor->type);
    return type < 0 ? ((const double *)tensor->data)[e] : lab_get(tensor->data, (tess_type)type, e);
}

bool tensor_measure(struct tensor *tensor) {
    uint64_t limit = PTRDIFF_MAX, size = elements[tensor->type].size;
    bool empty = false;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0)
            return false;
        empty = empty || tensor->shape[i] == 0;
    }
    /* The other axes of an empty tensor must fit too: views are made of them. */
    for (int i = 0; i < tensor->rank; i++) {
        uint64_t axis = tensor->shape[i] ? (uint64_t)tensor->shape[i] : 1;
        if (size > limit / axis)
            return false;
        size *= axis;
    }
    tensor->size = empty ? 0 : (size_t)size;
    return true;
}

bool tensor_align(struct tensor *tensor, void **copy, struct reason *reason) {
    *copy = NULL;
    if ((uintptr_t)tensor->data % elements[tensor->type].size == 0 || tensor->size == 0)
        return true;
    *copy = malloc(tensor->size);
    if (!*copy)
        return reason_set(reason, "out of memory for %zu bytes", tensor->size);
    tensor->data = memcpy(*copy, tensor->data, tensor->size);
    return true;
}

const char *tensor_shape_text(const struct tensor *tensor, char text[SHAPE_TEXT]) {
    size_t used = 0;
    text[used++] = '[';
    for (int i = 0; i < tensor->rank; i++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT - used, "%s%lld", i ? "," : "",
                                 (long long)tensor->shape[i]);
    text[used++] = ']';
    text[used] = '\0';
    return text;
}
