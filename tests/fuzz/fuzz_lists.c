/*
 * Arrays and texts that a caller makes patterns of: SPEC strings, block lists, padded indices,
 * bytes and bits of blocks. Refused, or a pattern whose parts agree with one another. The first byte
 * chooses; the next four are small sizes.
 */
#include <stdlib.h>

#include "fuzz/seeded.h"
#include "tessera.h"

enum { KEYS = 64 }; /* more than any row lists here */

static void require(int holds) {
    if (!holds)
        abort();
}

static int64_t count_rows(const tess_lists *l) {
    return (l->n_q - 1) / l->block_q + 1;
}

/* Ascending places in col_idx? */
static int entries_hold(const int64_t *entry, int64_t n, int64_t n_tiles) {
    for (int64_t i = 0; i < n; i++)
        if (entry[i] < 0 || entry[i] >= n_tiles || (i > 0 && entry[i] <= entry[i - 1]))
            return 0;
    return 1;
}

/* Every rule of tess_lists, read off the header and nothing else. */
static int rules_hold(const tess_lists *l) {
    int64_t rows = count_rows(l), cols = (l->n_kv - 1) / l->block_kv + 1, end = 0;
    for (int64_t list = 0; list < l->batch * l->heads; list++) {
        const int64_t *ptr = l->row_ptr + list * (rows + 1);
        if (ptr[0] != end)
            return 0;
        for (int64_t i = 0; i < rows; i++) {
            if (ptr[i + 1] < ptr[i] || ptr[i + 1] > l->n_tiles)
                return 0;
            for (int64_t e = ptr[i]; e < ptr[i + 1]; e++)
                if (l->col_idx[e] < 0 || l->col_idx[e] >= cols ||
                    (e > ptr[i] && l->col_idx[e] <= l->col_idx[e - 1]))
                    return 0;
        }
        end = ptr[rows];
    }
    for (int64_t i = 0; i < l->n_bands; i++)
        for (int64_t j = 0; j < l->n_bitmasks; j++)
            if (l->band_entry[i] == l->bitmask_entry[j])
                return 0;
    return end == l->n_tiles && entries_hold(l->band_entry, l->n_bands, l->n_tiles) &&
           entries_hold(l->bitmask_entry, l->n_bitmasks, l->n_tiles);
}

/* Does tile e list its element (r, c)? */
static int tile_lists(const tess_lists *l, int64_t e, int64_t r, int64_t c) {
    for (int64_t i = 0; i < l->n_bands; i++)
        if (l->band_entry[i] == e)
            return l->band[2 * i] <= c - r && c - r <= l->band[2 * i + 1];
    for (int64_t i = 0; i < l->n_bitmasks; i++)
        if (l->bitmask_entry[i] == e) {
            int64_t bit = (i * l->block_q + r) * l->block_kv + c;
            return l->bits[bit / 64] >> (bit % 64) & 1;
        }
    return 1;
}

/* Do the lists, which hold the rules, list key k for query q? */
static int lists_list(const tess_lists *l, int64_t list, int64_t q, int64_t k) {
    const int64_t *ptr = l->row_ptr + list * (count_rows(l) + 1) + q / l->block_q;
    for (int64_t e = ptr[0]; e < ptr[1]; e++)
        if (l->col_idx[e] == k / l->block_kv)
            return tile_lists(l, e, q % l->block_q, k % l->block_kv);
    return 0;
}

/* The pattern's rows are those of lists that hold the rules: its own, or what it was made from. */
static void check_rows(const tess_pattern *pattern, const tess_lists *l) {
    int64_t keys[KEYS], count;
    for (int64_t list = 0; list < l->batch * l->heads; list++)
        for (int64_t q = 0; q < l->n_q; q++) {
            int64_t at = 0;
            require(tess_pattern_row(pattern, list / l->heads, list % l->heads, q, keys, KEYS,
                                     &count, NULL) == TESS_OK);
            for (int64_t k = 0; k < l->n_kv; k++)
                if (lists_list(l, list, q, k))
                    require(at < count && keys[at++] == k);
            require(at == count);
        }
}

/* Row by row the pattern lists what its description and its own lists say, ascending and within
 * range. */
static void check_pattern(const tess_pattern *pattern) {
    int64_t keys[KEYS], count, pairs = 0, empty = 0;
    tess_pattern_info info = tess_pattern_info_init();
    tess_lists own = tess_lists_init();
    require(tess_pattern_lists(pattern, &own, NULL) == TESS_OK && rules_hold(&own));
    check_rows(pattern, &own);
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
    const int64_t counts[] = {1, l.n_tiles, l.n_bands, l.n_bands, l.n_bitmasks, l.n_bitmasks};
    int good = 1;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        good = good && (arrays[i] || counts[i] == 0);
    good = good && rules_hold(&l);
    tess_pattern *pattern;
    require((tess_pattern_from_lists(&pattern, &l, NULL) == TESS_OK) == good);
    if (pattern) {
        check_rows(pattern, &l);
        check_pattern(pattern);
        tess_pattern_free(pattern);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
}

/* Padded indices; counts NULL: all of capacity. */
struct padded {
    int32_t *indices, *counts;
    int64_t capacity;
};

static int64_t padded_count(const struct padded *p, int64_t row) {
    return p->counts ? p->counts[row] : p->capacity;
}

/* Every rule of tess_pattern_from_counts. */
static int padded_hold(const struct padded *p, int64_t rows, int64_t cols) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t count = padded_count(p, row);
        if (count < 0 || count > p->capacity)
            return 0;
        for (int64_t i = 0; i < count; i++)
            if (p->indices[row * p->capacity + i] < -1 || p->indices[row * p->capacity + i] >= cols)
                return 0;
    }
    return 1;
}

/* Are the rows those of a byte for each block? */
static void check_block_rows(const tess_pattern *pattern, const tess_pattern_shape *shape,
                             const uint8_t *blocks) {
    int64_t keys[KEYS], count, rows = (shape->n_q - 1) / shape->block_q + 1;
    int64_t cols = (shape->n_kv - 1) / shape->block_kv + 1;
    for (int64_t x = 0; x < shape->batch * shape->heads * shape->n_q; x++) {
        int64_t list = x / shape->n_q, q = x % shape->n_q, at = 0;
        require(tess_pattern_row(pattern, list / shape->heads, list % shape->heads, q, keys, KEYS,
                                 &count, NULL) == TESS_OK);
        for (int64_t k = 0; k < shape->n_kv; k++)
            if (blocks[(list * rows + q / shape->block_q) * cols + k / shape->block_kv])
                require(at < count && keys[at++] == k);
        require(at == count);
    }
}

/* A byte for each block that good indices name. */
static uint8_t *padded_blocks(const struct padded *p, int64_t rows, int64_t cols) {
    uint8_t *blocks = calloc((size_t)(rows * cols), 1);
    require(blocks != NULL);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < padded_count(p, row); i++) {
            int32_t c = p->indices[row * p->capacity + i];
            if (c >= 0)
                blocks[row * cols + c] = 1;
        }
    return blocks;
}

/* The first byte says whether the indices are bytes or whole int32, and whether there are counts;
 * top-k indices have none. */
static void check_padded(tess_pattern_shape shape, int topk, const uint8_t *data, size_t size) {
    if (size < 1)
        return;
    int wide = data[0] % 2, counted = !topk && data[0] / 2 % 2;
    data++, size--;
    if (topk)
        shape.block_q = shape.block_kv = 1;
    int64_t rows = shape.batch * shape.heads * ((shape.n_q - 1) / shape.block_q + 1);
    int64_t cols = (shape.n_kv - 1) / shape.block_kv + 1;
    struct padded p = {.counts = counted ? take_bytes(&data, &size, rows, 4) : NULL};
    p.capacity = (int64_t)size / (wide ? 4 : 1) / rows;
    if ((p.counts || !counted) && p.capacity > 0) {
        p.indices = (wide ? take : take_bytes)(&data, &size, rows * p.capacity, 4);
        require(p.indices != NULL);
        int good = padded_hold(&p, rows, cols);
        tess_pattern *pattern;
        tess_status status =
            topk
                ? tess_pattern_from_topk(&pattern, p.indices, p.capacity, &shape, NULL)
                : tess_pattern_from_counts(&pattern, p.indices, p.counts, p.capacity, &shape, NULL);
        require((status == TESS_OK) == good);
        if (pattern) {
            uint8_t *blocks = padded_blocks(&p, rows, cols);
            check_block_rows(pattern, &shape, blocks);
            free(blocks);
            check_pattern(pattern);
            tess_pattern_free(pattern);
        }
    }
    free(p.indices);
    free(p.counts);
}

/* A byte for each block, and the same by bits; those past the last column are set. */
static void check_blocks(const tess_pattern_shape *shape, const uint8_t *data, size_t size) {
    int64_t rows = shape->batch * shape->heads * ((shape->n_q - 1) / shape->block_q + 1);
    int64_t cols = (shape->n_kv - 1) / shape->block_kv + 1, words = (cols + 63) / 64;
    uint8_t *blocks = take(&data, &size, rows * cols, 1);
    if (!blocks)
        return;
    uint64_t *bits = calloc((size_t)(rows * words), sizeof *bits);
    require(bits != NULL);
    for (int64_t i = 0; i < rows * 64 * words; i++)
        if (i % (64 * words) >= cols || blocks[i / (64 * words) * cols + i % (64 * words)])
            bits[i / 64] |= UINT64_C(1) << i % 64;
    tess_pattern *patterns[2];
    require(tess_pattern_from_blocks(&patterns[0], blocks, shape, NULL) == TESS_OK);
    require(tess_pattern_from_bits(&patterns[1], bits, shape, NULL) == TESS_OK);
    for (int i = 0; i < 2; i++) {
        check_block_rows(patterns[i], shape, blocks);
        check_pattern(patterns[i]);
        tess_pattern_free(patterns[i]);
    }
    free(blocks);
    free(bits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 5)
        return 0;
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = 1 + data[1] % 40, shape.n_kv = 1 + data[2] % 40;
    shape.block_q = 1 + data[3] % 9, shape.block_kv = 1 + data[4] % 9;
    shape.batch = 1 + data[3] / 128, shape.heads = 1 + data[4] / 128;
    int kind = data[0] % 5;
    if (kind == 0)
        check_spec(&shape, data + 5, size - 5);
    else if (kind == 1)
        check_lists(&shape, data + 5, size - 5);
    else if (kind < 4)
        check_padded(shape, kind == 2, data + 5, size - 5);
    else
        check_blocks(&shape, data + 5, size - 5);
    return 0;
}

static void repair(uint8_t *data, size_t size) {
    (void)data, (void)size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    static const struct fuzz_seed seeds[] = {
        FUZZ_SEED("\0\x20\x25\4\5dense&causal+window(3,4)"),
        FUZZ_SEED("\0\x20\x25\4\5(blockdiag(5)+dilated(2,3))&summary(4,8)"),
        FUZZ_SEED("\0\x20\x25\4\5global(2)+global_grid(3)+segments(4,9,20)"),
        FUZZ_SEED("\0\x20\x25\4\5strided(4,8)+each(30;fixed(8,2))"),
        FUZZ_SEED("\0\x20\x25\4\5each(9,0,20;bigbird(4,1,1,3)+each(5;summary(1,2)))&causal"),
        FUZZ_SEED("\0\x20\x25\4\5longformer(8,2)+bigbird(8,2,1,7)"),
        FUZZ_SEED("\0\x20\x25\4\5random(0.25,1)+random_row(0.5,2)&shared_random(0.5,0.5,3)"),
        FUZZ_SEED("\1\x05\x05\2\2\3\1\1\0\0\1\3\0\0\1\0\xff\1\1\xf0\xaa\xaa\xaa\xaa\xaa\xaa\xaa"),
        FUZZ_SEED("\2\2\5\0\0\0\0\1\xff\3\2\1"),
        FUZZ_SEED("\3\4\7\1\1\2\1\2\0\3\1\xff\0\2\x80\x7f\3"),
        FUZZ_SEED("\4\3\5\1\1\1\0\0\2\0\1"),
        FUZZ_SEED("\2\1\5\0\0\1\0\0\0\0\xff\xff\xff\xff\5\0\0\0\5\0\0\0"),
    };
    return fuzz_mutate(data, size, max_size, seed, seeds, sizeof seeds / sizeof seeds[0], repair);
}
