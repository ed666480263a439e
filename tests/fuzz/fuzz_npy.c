/* Any bytes as a .npy file: refused, or a tensor that lies within them. */
#include <stdlib.h>

#include "io/npy.h"
#include "fuzz/seeded.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tensor tensor;
    struct reason reason;
    volatile uint8_t sum = 0;
    if (!npy_parse(&tensor, data, size, &reason))
        return 0;
    const uint8_t *begin = tensor.data;
    if (begin < data || begin + tensor.size != data + size)
        abort();
    for (size_t i = 0; i < tensor.size; i++)
        sum = (uint8_t)(sum + begin[i]);
    return 0;
}

/* The header ends at the first newline, if any. */
static void repair(uint8_t *data, size_t size) {
    const uint8_t *end = size > 10 ? memchr(data + 10, '\n', size - 10) : NULL;
    if (!end)
        return;
    size_t length = (size_t)(end + 1 - data) - (data[6] == 2 ? 12 : 10);
    data[8] = (uint8_t)(length & 0xff);
    data[9] = (uint8_t)(length >> 8 & 0xff);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    static const struct fuzz_seed seeds[] = {
        FUZZ_SEED("\x93NUMPY\1\0\x3a\0{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2)}\n"
                  "abcd"),
        FUZZ_SEED(
            "\x93NUMPY\2\0\x3a\0\0\0{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}  \n"
            "abc"),
        FUZZ_SEED("\x93NUMPY\1\0\x35\0{'shape':(),'fortran_order':False,'descr':'<f8'}    \n"
                  "abcdefgh"),
    };
    return fuzz_mutate(data, size, max_size, seed, seeds, sizeof seeds / sizeof seeds[0], repair);
}
