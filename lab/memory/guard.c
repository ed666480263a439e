/* Memory with canaries. The canary bytes are a NaN in f32, f16 and bf16 alike. */
#define _DEFAULT_SOURCE /* _SC_PHYS_PAGES */
#include "lab/memory/guard.h"

#include "lab/fill/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MARGIN ((size_t)256)

static unsigned char canary(size_t at) {
    return at & 1 ? 0xff : 0xb7;
}

/* Positions count from base, whose parity is data's. */
static void paint(struct lab_buffer *buffer, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++)
        buffer->base[i] = canary(i);
}

/* The first position of [begin, end) without its canary, or end. */
static size_t first_broken(const struct lab_buffer *buffer, size_t begin, size_t end) {
    size_t i = begin;
    while (i < end && buffer->base[i] == canary(i))
        i++;
    return i;
}

static size_t data_at(const struct lab_buffer *buffer) {
    return (size_t)(buffer->data - buffer->base);
}

int lab_buffer_make(struct lab_buffer *buffer, size_t size, size_t alignment) {
    memset(buffer, 0, sizeof *buffer);
    if (size > SIZE_MAX / 2)
        return -1;
    size_t before = MARGIN + (alignment < 64 ? alignment : 0);
    size_t total = (before + size + MARGIN + 255) / 256 * 256;
    buffer->base = aligned_alloc(256, total);
    if (!buffer->base)
        return -1;
    buffer->data = buffer->base + before;
    buffer->size = size;
    buffer->whole = total;
    paint(buffer, 0, total);
    return 0;
}

void lab_buffer_poison(struct lab_buffer *buffer) {
    paint(buffer, data_at(buffer), data_at(buffer) + buffer->size);
}

static int broken(char why[LAB_WHY], const char *name, const char *where, long long byte) {
    snprintf(why, LAB_WHY, "%s: a canary %s was overwritten, byte %lld of the data", name, where,
             byte);
    return -1;
}

int lab_buffer_check(const struct lab_buffer *buffer, const char *name, char why[LAB_WHY]) {
    size_t begin = data_at(buffer), end = begin + buffer->size;
    size_t at = first_broken(buffer, begin - MARGIN, begin);
    if (at < begin)
        return broken(why, name, "before the data", (long long)at - (long long)begin);
    at = first_broken(buffer, end, end + MARGIN);
    if (at < end + MARGIN)
        return broken(why, name, "behind the data", (long long)(at - begin));
    return 0;
}

void lab_buffer_free(struct lab_buffer *buffer) {
    free(buffer->base);
    memset(buffer, 0, sizeof *buffer);
}

int lab_memory_fits(const struct lab_case *c, char why[LAB_WHY]) {
    double queries = (double)c->b * (double)(c->h + 1) * (double)c->n;
    double keys = (double)c->b * (double)(c->hkv + 1) * (double)c->nkv;
    double d = (double)c->d, dv = (double)c->dv, element = (double)tess_type_size(c->type);
    double bytes = element * (queries * (d + 2 * dv) + keys * (d + dv)) + 8 * queries * dv;
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (bytes < memory)
        return 0;
    snprintf(why, LAB_WHY, "this case needs about %.0f GB of memory, the machine has %.0f GB",
             1e-9 * bytes, 1e-9 * memory);
    return -1;
}

int lab_tensor_make(struct lab_tensor *tensor, tess_type type, const int64_t size[4],
                    enum lab_layout layout, int64_t alignment) {
    return lab_tensor_make_shared(tensor, type, size, 0, layout, alignment);
}

int lab_tensor_make_shared(struct lab_tensor *tensor, tess_type type, const int64_t size[4],
                           int64_t shares, enum lab_layout layout, int64_t alignment) {
    int64_t own[4];
    memset(tensor, 0, sizeof *tensor);
    tess_tensor *view = &tensor->view;
    view->struct_size = sizeof *view;
    view->type = type;
    memcpy(view->size, size, sizeof view->size);
    for (int i = 0; i < 4; i++)
        own[i] = shares >> i & 1 ? 1 : size[i];
    lab_layout_strides(layout, own, view->stride);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)(own[0] * view->stride[0]), tess_type_size(type), &bytes) ||
        lab_buffer_make(&tensor->buffer, bytes, (size_t)alignment))
        return -1;
    for (int i = 0; i < 4; i++)
        view->stride[i] = shares >> i & 1 ? 0 : view->stride[i];
    view->data = tensor->buffer.data;
    return 0;
}

void lab_tensor_poison(struct lab_tensor *tensor) {
    lab_buffer_poison(&tensor->buffer);
}

/* Walks the rows in the order of memory: what lies between them must be canary. */
int lab_tensor_check(const struct lab_tensor *tensor, const char *name, char why[LAB_WHY]) {
    const tess_tensor *t = &tensor->view;
    if (lab_buffer_check(&tensor->buffer, name, why))
        return -1;
    size_t element = tess_type_size(t->type), begin = data_at(&tensor->buffer), at = begin;
    int heads_outside = t->stride[1] >= t->stride[2];
    int64_t batches = t->stride[0] ? t->size[0] : 1, heads = t->stride[1] ? t->size[1] : 1;
    int64_t rows = t->stride[2] ? t->size[2] : 1;
    int64_t outer = heads_outside ? heads : rows, inner = heads_outside ? rows : heads;
    for (int64_t b = 0; b < batches; b++)
        for (int64_t x = 0; x < outer; x++)
            for (int64_t y = 0; y < inner; y++) {
                int64_t row = heads_outside ? lab_row(t, b, x, y) : lab_row(t, b, y, x);
                size_t next = begin + (size_t)row * element;
                size_t bad = first_broken(&tensor->buffer, at, next);
                if (bad < next)
                    return broken(why, name, "between rows", (long long)(bad - begin));
                at = next + (size_t)t->size[3] * element;
            }
    size_t end = begin + tensor->buffer.size, bad = first_broken(&tensor->buffer, at, end);
    return bad < end ? broken(why, name, "between rows", (long long)(bad - begin)) : 0;
}

void lab_tensor_free(struct lab_tensor *tensor) {
    lab_buffer_free(&tensor->buffer);
    memset(tensor, 0, sizeof *tensor);
}

uint64_t lab_buffer_hash(const struct lab_buffer *buffer) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < buffer->size; i++)
        hash = (hash ^ buffer->data[i]) * UINT64_C(0x100000001b3);
    return hash;
}

int lab_tensor_same(const tess_tensor *a, const tess_tensor *b, const char *name,
                    char why[LAB_WHY]) {
    size_t element = tess_type_size(a->type), bytes = element * (size_t)a->size[3];
    for (int64_t i = 0; i < a->size[0]; i++)
        for (int64_t h = 0; h < a->size[1]; h++)
            for (int64_t n = 0; n < a->size[2]; n++) {
                const char *x = (const char *)a->data + (size_t)lab_row(a, i, h, n) * element;
                const char *y = (const char *)b->data + (size_t)lab_row(b, i, h, n) * element;
                if (memcmp(x, y, bytes) != 0) {
                    snprintf(why, LAB_WHY,
                             "%s differs in its bits at batch %lld, head %lld, query %lld", name,
                             (long long)i, (long long)h, (long long)n);
                    return -1;
                }
            }
    return 0;
}
