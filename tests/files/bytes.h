/* Files in memory, for the tests of their readers: in allocations of their exact size, so that a
 * sanitizer sees the first byte read past the end. */
#ifndef TESTS_BYTES_H
#define TESTS_BYTES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct bytes {
    unsigned char *data;
    size_t size;
};

static inline struct bytes bytes_of(const void *data, size_t size) {
    struct bytes b = {malloc(size ? size : 1), size};
    assert_non_null(b.data);
    memcpy(b.data, data, size);
    return b;
}

/* An entry of a .safetensors header. */
#define ENTRY(name, dtype, shape, offsets)                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* A .safetensors file of a header text and n bytes of data that count up. */
static inline struct bytes safetensors_file(const char *header, size_t n) {
    unsigned char buffer[2048] = {0};
    size_t length = strlen(header);
    buffer[0] = (unsigned char)(length & 0xff);
    buffer[1] = (unsigned char)(length >> 8);
    memcpy(buffer + 8, header, length);
    for (size_t i = 0; i < n; i++)
        buffer[8 + length + i] = (unsigned char)i;
    return bytes_of(buffer, 8 + length + n);
}

/* All that was written into a stream, which is closed. */
static inline struct bytes slurp(FILE *file) {
    assert_int_equal(fflush(file), 0);
    long size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    struct bytes b = {malloc((size_t)size + 1), (size_t)size};
    assert_non_null(b.data);
    assert_int_equal(fread(b.data, 1, b.size, file), b.size);
    fclose(file);
    return b;
}

#endif
