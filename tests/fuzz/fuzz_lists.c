/*
 * What a caller hands the library to make patterns of: SPEC strings, block lists, top-k indices.
 * Refused, or a pattern whose parts agree with one another. The first byte chooses; the next four
 * are small sizes.
 */
#include <stdlib.h>

#include "seeded.h"
#include "tessera.h"

static void require(int holds) {
    if (!holds)
        abort();
}

/* Row by row the pattern lists what its description says, ascending and within range. */
static void check_pattern(const tess_pattern *pattern) {
    enum { KEYS = 64 };
    int64_t keys[KEYS], count, pairs = 0, empty = 0;
    tess_pattern_info info = tess_pattern_info_init();
    require(tess_pattern_describe(pattern, &info, NULL) == TESS_OK);
    for (int64_t l = 0; l < info.batch * info.heads; l++)
        for (int64_t i = 0; i < info.n_q; i++) {
            require(tess_pattern_row(pattern, l / info.heads, l % info.heads, i, keys, KEYS, &count,
                                     NULL) == TESS_OK);
            require(count >= 0 && count <= info.n_kv);
            for (int64_t x = 0; x < count && x < KEYS; x++)
                require(keys[x] >= 0 && keys[x] < info.n_kv && (x == 0 || keys[x] > keys[x - 1]));
            pairs += count;
            empty += count == 0;
        }
    require(pairs == info.pairs && empty == info.empty_rows);
}

static void check_spec(const tess_pattern_shape *shape, const uint8_t *data, size_t size) {
    char spec[257];
    tess_pattern *pattern;
    tess_error error = tess_error_init();
    size = size < sizeof spec ? size : sizeof spec - 1;
    memcpy(spec, data, size);
    spec[size] = '\0';
    if (tess_pattern_from_spec(&pattern, spec, shape, &error) == TESS_OK) {
        check_pattern(pattern);
        tess_pattern_free(pattern);
    } else {
        require(pattern == NULL && error.message[0] && !strchr(error.message, '\n'));
    }
}

/* Takes n elements of a size off the front, as an allocation of exactly that; NULL when short. */
static void *take(const uint8_t **data, size_t *size, int64_t n, size_t element) {
    size_t bytes = (size_t)n * element;
    if (bytes > *size)
        return NULL;
    void *copy = malloc(bytes ? bytes : 1);
    require(copy != NULL);
    memcpy(copy, *data, bytes);
    *data += bytes;
    *size -= bytes;
    return copy;
}

/* Small signed bytes as indices, which are then near the limits. */
static void *take_bytes(const uint8_t **data, size_t *size, int64_t n, size_t element) {
    int8_t *bytes = take(data, size, n, 1);
    void *wide = bytes ? malloc((size_t)n * element + 1) : NULL;
    for (int64_t i = 0; wide && i < n; i++)
        if (element == 8)
            ((int64_t *)wide)[i] = bytes[i];
        else
            ((int32_t *)wide)[i] = bytes[i];
    free(bytes);
    return wide;
}

static void check_lists(const tess_pattern_shape *shape, const uint8_t *data, size_t size) {
    if (size < 4)
        return;
    tess_lists l = tess_lists_init();
    l.n_q = shape->n_q, l.n_kv = shape->n_kv;
    l.block_q = shape->block_q, l.block_kv = shape->block_kv;
    l.batch = shape->batch, l.heads = shape->heads;
    l.n_tiles = data[0], l.n_bands = data[1] % 8, l.n_bitmasks = data[2] % 8;
    void *(*reader)(const uint8_t **, size_t *, int64_t, size_t) = data[3] % 2 ? take : take_bytes;
    data += 4, size -= 4;
    int64_t rows = (l.n_q - 1) / l.block_q + 1;
    int64_t words = (l.n_bitmasks * l.block_q * l.block_kv + 63) / 64;
    void *arrays[] = {reader(&data, &size, l.batch * l.heads * (rows + 1), 8),
                      reader(&data, &size, l.n_tiles, 4),
                      reader(&data, &size, l.n_bands, 8),
                      reader(&data, &size, 2 * l.n_bands, 4),
                      reader(&data, &size, l.n_bitmasks, 8),
                      take(&data, &size, words, 8)};
    l.row_ptr = arrays[0], l.col_idx = arrays[1], l.band_entry = arrays[2];
    l.band = arrays[3], l.bitmask_entry = arrays[4], l.bits = arrays[5];
    tess_pattern *pattern;
    if (tess_pattern_from_lists(&pattern, &l, NULL) == TESS_OK) {
        check_pattern(pattern);
        tess_pattern_free(pattern);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
}

static void check_topk(tess_pattern_shape shape, const uint8_t *data, size_t size) {
    shape.block_q = shape.block_kv = 1;
    int64_t rows = shape.batch * shape.heads * shape.n_q, k = (int64_t)size / rows;
    int32_t *indices = k > 0 ? take_bytes(&data, &size, rows * k, 4) : NULL;
    tess_pattern *pattern;
    if (indices && tess_pattern_from_topk(&pattern, indices, k, &shape, NULL) == TESS_OK) {
        check_pattern(pattern);
        tess_pattern_free(pattern);
    }
    free(indices);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 5)
        return 0;
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = 1 + data[1] % 40, shape.n_kv = 1 + data[2] % 40;
    shape.block_q = 1 + data[3] % 9, shape.block_kv = 1 + data[4] % 9;
    shape.batch = 1 + data[3] / 128, shape.heads = 1 + data[4] / 128;
    int kind = data[0] % 3;
    if (kind == 0)
        check_spec(&shape, data + 5, size - 5);
    else if (kind == 1)
        check_lists(&shape, data + 5, size - 5);
    else
        check_topk(shape, data + 5, size - 5);
    return 0;
}

static void repair(uint8_t *data, size_t size) {
    (void)data, (void)size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    static const struct fuzz_seed seeds[] = {
        FUZZ_SEED("\0\x20\x25\4\5dense&causal+window(3,4)"),
        FUZZ_SEED("\0\x20\x25\4\5(blockdiag(5)+dilated(2,3))&strided(4,8)"),
        FUZZ_SEED("\0\x20\x25\4\5global(2)+global_grid(3)+segments(4,9,20)"),
        FUZZ_SEED("\0\x20\x25\4\5longformer(8,2)+bigbird(8,2,1,7)"),
        FUZZ_SEED("\0\x20\x25\4\5random(0.25,1)+random_row(0.5,2)&shared_random(0.5,0.5,3)"),
        FUZZ_SEED("\1\x05\x05\2\2\3\1\1\0\0\1\3\0\1\1\0\xff\1\1\xf0\xaa\xaa\xaa\xaa\xaa\xaa\xaa"),
        FUZZ_SEED("\2\2\5\0\0\0\1\xff\3\2\1"),
    };
    return fuzz_mutate(data, size, max_size, seed, seeds, sizeof seeds / sizeof seeds[0], repair);
}
