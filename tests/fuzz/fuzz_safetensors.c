/* Any bytes as a .safetensors file, plain and as block lists: refused, or within bounds. */
#include <stdlib.h>

#include "io/lists_file.h"
#include "io/safetensors.h"
#include "fuzz/seeded.h"

static void check_tensors(const uint8_t *data, size_t size) {
    struct safetensors file;
    struct reason reason;
    volatile uint8_t sum = 0;
    if (!safetensors_parse(&file, data, size, &reason))
        return;
    for (size_t t = 0; t < file.count; t++) {
        const struct tensor *tensor = &file.tensors[t].tensor;
        const uint8_t *begin = tensor->data;
        if (begin < data || begin + tensor->size > data + size)
            abort();
        for (size_t i = 0; i < tensor->size; i++)
            sum = (uint8_t)(sum + begin[i]);
    }
    safetensors_free(&file);
}

static void check_lists(const uint8_t *data, size_t size) {
    struct lists_file file;
    struct reason reason;
    tess_pattern_shape given = tess_pattern_shape_init();
    const struct pattern_sizes sizes = {1, 2, 1, 6, 6};
    given.n_q = given.n_kv = 6;
    if (!lists_file_parse(&file, data, size, &given, &sizes, &reason))
        return;
    tess_pattern *pattern;
    if (tess_pattern_from_lists(&pattern, &file.lists, NULL) == TESS_OK)
        tess_pattern_free(pattern);
    lists_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_tensors(data, size);
    check_lists(data, size);
    return 0;
}

/* The header ends at the last brace, if any. */
static void repair(uint8_t *data, size_t size) {
    size_t end = size;
    while (end > 8 && data[end - 1] != '}')
        end--;
    if (end <= 8)
        return;
    for (int i = 0; i < 8; i++)
        data[i] = (uint8_t)((end - 8) >> (8 * i));
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    static const struct fuzz_seed seeds[] = {
        FUZZ_SEED("\x3a\0\0\0\0\0\0\0"
                  "{\"q\":{\"dtype\":\"F16\",\"shape\":[1,2],\"data_offsets\":[0,4]}}  "
                  "abcd"),
        FUZZ_SEED("\xb4\0\0\0\0\0\0\0"
                  "{\"__metadata__\":{\"block_q\":\"2\",\"block_kv\":\"3\",\"n_q\":\"6\"},"
                  "\"row_ptr\":{\"dtype\":\"I64\",\"shape\":[1,4],\"data_offsets\":[0,32]},"
                  "\"col_idx\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[32,44]}}"
                  "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
                  "\0\0\0\0\1\0\0\0\0\0\0\0"),
        FUZZ_SEED("\2\0\0\0\0\0\0\0{}"),
    };
    return fuzz_mutate(data, size, max_size, seed, seeds, sizeof seeds / sizeof seeds[0], repair);
}
