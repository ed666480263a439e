/* .safetensors in and out. */
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_LIMIT = 100000000 }; /* bytes, the limit that the format itself sets */

static const struct {
    const char *name;
    enum element_type type;
} dtypes[] = {
    {"BOOL", ELEMENT_BOOL}, {"U8", ELEMENT_U8},   {"I8", ELEMENT_I8},   {"I32", ELEMENT_I32},
    {"I64", ELEMENT_I64},   {"U64", ELEMENT_U64}, {"F16", ELEMENT_F16}, {"BF16", ELEMENT_BF16},
    {"F32", ELEMENT_F32},   {"F64", ELEMENT_F64},
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static bool parse_shape(struct tensor *tensor, const json_t *shape, const char *name,
                        struct reason *reason) {
    if (!json_is_array(shape))
        return reason_set(reason, "tensor %s: shape is not an array", name);
    if (json_array_size(shape) > TENSOR_MAX_RANK)
        return reason_set(reason, "tensor %s: more than %d axes", name, TENSOR_MAX_RANK);
    tensor->rank = (int)json_array_size(shape);
    for (int i = 0; i < tensor->rank; i++) {
        const json_t *axis = json_array_get(shape, (size_t)i);
        if (!json_is_integer(axis) || json_integer_value(axis) < 0)
            return reason_set(reason, "tensor %s: an axis is not a number from 0 up", name);
        tensor->shape[i] = json_integer_value(axis);
    }
    if (!tensor_measure(tensor))
        return reason_set(reason, "tensor %s: its shape overflows", name);
    return true;
}

static bool parse_tensor(struct named_tensor *named, const json_t *value, const char *data,
                         size_t size, struct reason *reason) {
    const char *name = named->name;
    const json_t *offsets = json_object_get(value, "data_offsets");
    if (!json_is_object(value) || json_object_size(value) != 3)
        return reason_set(reason, "tensor %s: not an object of dtype, shape, data_offsets", name);
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!dtype)
        return reason_set(reason, "tensor %s: no dtype", name);
    size_t number = 0;
    while (number < DTYPES && strcmp(dtype, dtypes[number].name) != 0)
        number++;
    if (number == DTYPES)
        return reason_set(reason, "tensor %s: dtype %s is not read", name, dtype);
    named->tensor.type = dtypes[number].type;
    if (!parse_shape(&named->tensor, json_object_get(value, "shape"), name, reason))
        return false;
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return reason_set(reason, "tensor %s: data_offsets are not two numbers", name);
    json_int_t first = json_integer_value(begin), last = json_integer_value(end);
    if (first < 0 || last < first || (uint64_t)last > size)
        return reason_set(reason, "tensor %s: data_offsets lie outside the %zu bytes of data", name,
                          size);
    if ((uint64_t)(last - first) != named->tensor.size)
        return reason_set(reason, "tensor %s: its shape takes %zu bytes, its data_offsets %lld",
                          name, named->tensor.size, (long long)(last - first));
    named->tensor.data = data + first;
    return true;
}

static bool check_metadata(const json_t *metadata, struct reason *reason) {
    if (!json_is_object(metadata))
        return reason_set(reason, "__metadata__ is not an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) {
        if (!json_is_string(value))
            return reason_set(reason, "__metadata__ entry %s is not a string", key);
    }
    return true;
}

/* By place; an empty tensor before the one that begins where it stands. */
static int by_place(const void *a, const void *b) {
    const struct tensor *x = &((const struct named_tensor *)a)->tensor;
    const struct tensor *y = &((const struct named_tensor *)b)->tensor;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->size > y->size) - (x->size < y->size);
}

static bool check_cover(struct safetensors *file, const char *data, size_t size,
                        struct reason *reason) {
    if (file->count > 1)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    size_t at = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct named_tensor *named = &file->tensors[i];
        size_t begin = (size_t)((const char *)named->tensor.data - data);
        if (begin < at)
            return reason_set(reason, "tensors %s and %s overlap", file->tensors[i - 1].name,
                              named->name);
        if (begin > at)
            return reason_set(reason, "bytes %zu to %zu of the data belong to no tensor", at,
                              begin);
        at += named->tensor.size;
    }
    if (at != size)
        return reason_set(reason, "the last %zu bytes of the data belong to no tensor", size - at);
    return true;
}

static bool parse_header(struct safetensors *file, const char *data, size_t size,
                         struct reason *reason) {
    size_t entries = json_object_size(file->header);
    file->tensors = calloc(entries ? entries : 1, sizeof *file->tensors);
    if (!file->tensors)
        return reason_set(reason, "out of memory");
    const char *key;
    json_t *value;
    json_object_foreach(file->header, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            if (!check_metadata(value, reason))
                return false;
            continue;
        }
        struct named_tensor *named = &file->tensors[file->count++];
        named->name = key;
        if (!parse_tensor(named, value, data, size, reason))
            return false;
    }
    return check_cover(file, data, size, reason);
}

bool safetensors_parse(struct safetensors *file, const void *data, size_t size,
                       struct reason *reason) {
    const unsigned char *bytes = data;
    *file = (struct safetensors){0};
    if (size < 8)
        return reason_set(reason, "not a .safetensors file");
    uint64_t length = 0;
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)bytes[i] << (8 * i);
    if (length > HEADER_LIMIT)
        return reason_set(reason, "not a .safetensors file, or its header is above 100 MB");
    if (length > size - 8)
        return reason_set(reason, "truncated: the header claims %zu bytes, the file has %zu",
                          (size_t)length, size - 8);
    const char *text = (const char *)bytes + 8;
    if (length == 0 || text[0] != '{')
        return reason_set(reason, "not a .safetensors file: the header is not JSON");
    json_error_t error;
    file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!file->header)
        return reason_set(reason, "the header is not valid JSON: %s", error.text);
    if (!parse_header(file, text + length, size - 8 - (size_t)length, reason)) {
        safetensors_free(file);
        return false;
    }
    return true;
}

void safetensors_free(struct safetensors *file) {
    json_decref(file->header);
    free(file->tensors);
    *file = (struct safetensors){0};
}

const struct tensor *safetensors_find(const struct safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i].tensor;
    return NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

/* The header's text, which the caller frees; NULL when memory is short. */
static char *header_text(const struct named_tensor *tensors, size_t count, json_t *metadata) {
    json_t *header = json_object();
    bool made = header && (!metadata || json_object_set(header, "__metadata__", metadata) == 0);
    json_int_t at = 0;
    for (size_t i = 0; made && i < count; i++) {
        const struct tensor *tensor = &tensors[i].tensor;
        size_t number = 0;
        while (number < DTYPES - 1 && dtypes[number].type != tensor->type)
            number++;
        json_t *shape = json_array();
        for (int axis = 0; axis < tensor->rank; axis++)
            made = json_array_append_new(shape, json_integer(tensor->shape[axis])) == 0 && made;
        json_int_t end = at + (json_int_t)tensor->size;
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[number].name, "shape",
                                  shape, "data_offsets", at, end);
        made = json_object_set_new(header, tensors[i].name, entry) == 0 && made;
        at = end;
    }
    char *text = made ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    return text;
}

bool safetensors_write(FILE *file, const struct named_tensor *tensors, size_t count,
                       json_t *metadata) {
    char *text = header_text(tensors, count, metadata);
    if (!text)
        return false;
    size_t length = strlen(text), padded = (length + 8 + 63) / 64 * 64 - 8;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)(padded >> (8 * i));
    bool written = fwrite(prefix, 8, 1, file) == 1 && fwrite(text, length, 1, file) == 1;
    free(text);
    for (size_t i = length; i < padded; i++) /* the data begins at a multiple of 64 */
        written = putc(' ', file) != EOF && written;
    for (size_t i = 0; i < count; i++)
        if (tensors[i].tensor.size > 0)
            written =
                fwrite(tensors[i].tensor.data, tensors[i].tensor.size, 1, file) == 1 && written;
    return written;
}
