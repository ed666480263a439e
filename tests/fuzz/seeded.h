/*
 * A mutator that knows what good inputs look like: now and then it starts again from one of the
 * target's seeds. It often repairs the length that a file's header claims, so that most inputs get
 * past the first check.
 */
#ifndef FUZZ_SEEDED_H
#define FUZZ_SEEDED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

struct fuzz_seed {
    const void *data;
    size_t size;
};
#define FUZZ_SEED(text)                                                                            \
    { text, sizeof text - 1 }

static inline size_t fuzz_mutate(uint8_t *data, size_t size, size_t max_size, unsigned seed,
                                 const struct fuzz_seed *seeds, size_t count,
                                 void (*repair)(uint8_t *data, size_t size)) {
    const struct fuzz_seed *start = &seeds[seed / 16 % count];
    if ((size < 4 || seed % 16 == 0) && start->size <= max_size) {
        memcpy(data, start->data, start->size);
        size = start->size;
    }
    size = LLVMFuzzerMutate(data, size, max_size);
    if (seed % 2 == 0)
        repair(data, size);
    return size;
}

#endif
