/* .npy in and out. The header is a Python dictionary of three known keys, parsed exactly. */
#include "io/npy.h"

#include <inttypes.h>
#include <string.h>

static const char magic[6] = "\x93NUMPY";

static const struct {
    const char *descr;
    enum element_type type;
} descrs[] = {
    {"<f2", ELEMENT_F16}, {"<f4", ELEMENT_F32}, {"<f8", ELEMENT_F64},
    {"<i4", ELEMENT_I32}, {"<i8", ELEMENT_I64}, {"<u8", ELEMENT_U64},
    {"|i1", ELEMENT_I8},  {"|u1", ELEMENT_U8},  {"|b1", ELEMENT_BOOL},
};

/* The header's text, being read. */
struct text {
    const char *at, *end;
};

static void skip_spaces(struct text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t'))
        t->at++;
}

static bool take(struct text *t, char c) {
    skip_spaces(t);
    if (t->at == t->end || *t->at != c)
        return false;
    t->at++;
    return true;
}

static bool take_word(struct text *t, const char *word) {
    skip_spaces(t);
    size_t length = strlen(word);
    if ((size_t)(t->end - t->at) < length || memcmp(t->at, word, length) != 0)
        return false;
    t->at += length;
    return true;
}

/* A quoted string without escapes, of at most size - 1 characters. */
static bool take_string(struct text *t, char *string, size_t size) {
    skip_spaces(t);
    if (t->at == t->end || (*t->at != '\'' && *t->at != '"'))
        return false;
    const char *begin = t->at + 1, *end = begin;
    while (end < t->end && *end != *t->at && *end != '\\' && *end >= ' ' && *end <= '~')
        end++;
    size_t length = (size_t)(end - begin);
    if (end == t->end || *end != *t->at || length >= size)
        return false;
    memcpy(string, begin, length);
    string[length] = '\0';
    t->at = end + 1;
    return true;
}

static bool take_axis(struct text *t, int64_t *axis, struct reason *reason) {
    skip_spaces(t);
    if (t->at < t->end && *t->at == '-')
        return reason_set(reason, "the shape has a negative axis");
    if (t->at == t->end || *t->at < '0' || *t->at > '9')
        return reason_set(reason, "the header's shape is not a tuple of numbers");
    int64_t value = 0;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *t->at - '0', &value))
            return reason_set(reason, "an axis of the shape does not fit 64 bits");
    *axis = value;
    return true;
}

/* (), (3,) or (3, 4) or (3, 4,) */
static bool take_shape(struct text *t, struct tensor *tensor, struct reason *reason) {
    if (!take(t, '('))
        return reason_set(reason, "the header's shape is not a tuple");
    tensor->rank = 0;
    bool comma = true;
    while (!take(t, ')')) {
        if (!comma)
            return reason_set(reason, "the header's shape is not a tuple of numbers");
        if (tensor->rank == TENSOR_MAX_RANK)
            return reason_set(reason, "the shape has more than %d axes", TENSOR_MAX_RANK);
        if (!take_axis(t, &tensor->shape[tensor->rank], reason))
            return false;
        tensor->rank++;
        comma = take(t, ',');
    }
    if (tensor->rank == 1 && !comma)
        return reason_set(reason, "the header's shape is not a tuple");
    return true;
}

static bool take_descr(struct text *t, struct tensor *tensor, struct reason *reason) {
    char descr[32];
    if (!take_string(t, descr, sizeof descr))
        return reason_set(reason, "the header's descr is not one plain type");
    if (descr[0] == '>')
        return reason_set(reason, "elements are big endian (%s); store them little endian", descr);
    for (size_t i = 0; i < sizeof descrs / sizeof descrs[0]; i++)
        if (strcmp(descr, descrs[i].descr) == 0) {
            tensor->type = descrs[i].type;
            return true;
        }
    return reason_set(reason, "element type %s is not read; f2 f4 f8 i4 i8 u8 i1 u1 b1 are", descr);
}

static bool take_order(struct text *t, struct reason *reason) {
    if (take_word(t, "False"))
        return true;
    if (take_word(t, "True"))
        return reason_set(reason, "stored in Fortran order; store it in C order");
    return reason_set(reason, "the header's fortran_order is neither True nor False");
}

static bool take_dictionary(struct text *t, struct tensor *tensor, struct reason *reason) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    enum { DESCR, ORDER, SHAPE, KEYS };
    bool seen[KEYS] = {false}, comma = true;
    if (!take(t, '{'))
        return reason_set(reason, "the header is not a dictionary");
    while (!take(t, '}')) {
        char name[32];
        if (!comma || !take_string(t, name, sizeof name) || !take(t, ':'))
            return reason_set(reason, "the header is not a dictionary of descr, fortran_order and "
                                      "shape");
        int key = 0;
        while (key < KEYS && strcmp(name, keys[key]) != 0)
            key++;
        if (key == KEYS || seen[key])
            return reason_set(reason, "the header has %s key %s",
                              key == KEYS ? "an unknown" : "twice", name);
        seen[key] = true;
        if (!(key == DESCR   ? take_descr(t, tensor, reason)
              : key == ORDER ? take_order(t, reason)
                             : take_shape(t, tensor, reason)))
            return false;
        comma = take(t, ',');
    }
    for (int key = 0; key < KEYS; key++)
        if (!seen[key])
            return reason_set(reason, "the header lacks %s", keys[key]);
    if (!take(t, '\n') || t->at != t->end)
        return reason_set(reason, "the header does not end in spaces and one newline");
    return true;
}

bool npy_parse(struct tensor *tensor, const void *data, size_t size, struct reason *reason) {
    const unsigned char *bytes = data;
    *tensor = (struct tensor){0};
    if (size < sizeof magic || memcmp(bytes, magic, sizeof magic) != 0)
        return reason_set(reason, "not a .npy file");
    if (size < 10)
        return reason_set(reason, "truncated: the header is not whole");
    if ((bytes[6] != 1 && bytes[6] != 2) || bytes[7] != 0)
        return reason_set(reason, ".npy version %d.%d is not read; 1.0 and 2.0 are", bytes[6],
                          bytes[7]);
    size_t begin = bytes[6] == 1 ? 10 : 12;
    if (size < begin)
        return reason_set(reason, "truncated: the header is not whole");
    size_t length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] == 2)
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (length > size - begin)
        return reason_set(reason, "truncated: the header claims %zu bytes, the file has %zu",
                          length, size - begin);
    struct text t = {(const char *)bytes + begin, (const char *)bytes + begin + length};
    if (!take_dictionary(&t, tensor, reason))
        return false;
    char shape[SHAPE_TEXT];
    if (!tensor_measure(tensor))
        return reason_set(reason, "shape %s overflows", tensor_shape_text(tensor, shape));
    size_t held = size - begin - length;
    if (held != tensor->size)
        return reason_set(reason, "%s: shape %s of %s takes %zu bytes, the file has %zu",
                          held < tensor->size ? "truncated" : "data past the end",
                          tensor_shape_text(tensor, shape), element_name(tensor->type),
                          tensor->size, held);
    tensor->data = bytes + begin + length;
    return true;
}

bool npy_write(FILE *file, const struct tensor *tensor) {
    size_t number = 0;
    while (number < sizeof descrs / sizeof descrs[0] && descrs[number].type != tensor->type)
        number++;
    if (number == sizeof descrs / sizeof descrs[0])
        return false;
    char shape[SHAPE_TEXT] = "", header[SHAPE_TEXT + 128];
    size_t used = 0;
    for (int i = 0; i < tensor->rank; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRId64, i ? ", " : "",
                                 tensor->shape[i]);
    int length = snprintf(header, sizeof header,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }",
                          descrs[number].descr, shape, tensor->rank == 1 ? "," : "");
    while ((10 + length + 1) % 64 != 0) /* the data begins at a multiple of 64 */
        header[length++] = ' ';
    header[length++] = '\n';
    unsigned char prefix[4] = {1, 0, (unsigned char)(length & 0xff), (unsigned char)(length >> 8)};
    return fwrite(magic, sizeof magic, 1, file) == 1 &&
           fwrite(prefix, sizeof prefix, 1, file) == 1 &&
           fwrite(header, (size_t)length, 1, file) == 1 &&
           (tensor->size == 0 || fwrite(tensor->data, tensor->size, 1, file) == 1);
}
