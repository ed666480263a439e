/*
 * Memory with canaries. A buffer has them on both sides; a tensor also in the gaps between its
 * rows. The canary is a NaN in every type, so that reading it shows as well as writing it.
 */
#ifndef LAB_GUARD_H
#define LAB_GUARD_H

#include "lab/case/case.h"

struct lab_buffer {
    unsigned char *base; /* start of the allocation */
    unsigned char *data; /* size bytes, the caller's */
    size_t size;
    size_t whole; /* bytes from base: canaries included */
};

/* data is aligned to `alignment` (a power of two, at most 256) and, below 64, to no more. All of it
 * is filled with the canary. Answers 0, or -1 without memory. */
int lab_buffer_make(struct lab_buffer *buffer, size_t size, size_t alignment);
void lab_buffer_poison(struct lab_buffer *buffer); /* refills data */
/* 0 when the canaries around data stand, else -1 and where the first broken byte is. */
int lab_buffer_check(const struct lab_buffer *buffer, const char *name, char why[LAB_WHY]);
void lab_buffer_free(struct lab_buffer *buffer);

struct lab_tensor {
    tess_tensor view;
    struct lab_buffer buffer;
};

int lab_tensor_make(struct lab_tensor *tensor, tess_type type, const int64_t size[4],
                    enum lab_layout layout, int64_t alignment);
/* A tensor with strides of 0 in the dims of `shares`, a set of LAB_SHARES_..., which then have memory of one
 * alone. */
int lab_tensor_make_shared(struct lab_tensor *tensor, tess_type type, const int64_t size[4],
                           int64_t shares, enum lab_layout layout, int64_t alignment);
void lab_tensor_poison(struct lab_tensor *tensor);
/* Checks canaries like lab_buffer_check, and those of the gaps between rows. */
int lab_tensor_check(const struct lab_tensor *tensor, const char *name, char why[LAB_WHY]);
void lab_tensor_free(struct lab_tensor *tensor);

/* 0 when this machine's memory holds the tensors of a case and its oracle, else -1 and a line. */
int lab_memory_fits(const struct lab_case *c, char why[LAB_WHY]);

/* A number that changes with any bit of a buffer's data. */
uint64_t lab_buffer_hash(const struct lab_buffer *buffer);

/* Whether two tensors of one type and shape hold the same bits; if not, -1 and where they differ.
 */
int lab_tensor_same(const tess_tensor *a, const tess_tensor *b, const char *name,
                    char why[LAB_WHY]);

#endif
