/* Block lists in and out of files. */
#include "io/lists_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_PTR, COL_IDX, BAND_ENTRY, BAND, BITMASK_ENTRY, BITS };

static const struct {
    const char *name;
    enum element_type type;
    int rank;
} arrays[LISTS_ARRAYS] = {
    [ROW_PTR] = {"row_ptr", ELEMENT_I64, 2},
    [COL_IDX] = {"col_idx", ELEMENT_I32, 1},
    [BAND_ENTRY] = {"band_entry", ELEMENT_I64, 1},
    [BAND] = {"band", ELEMENT_I32, 2},
    [BITMASK_ENTRY] = {"bitmask_entry", ELEMENT_I64, 1},
    [BITS] = {"bits", ELEMENT_U64, 1},
};

/* Takes a file's tensors into `found` by their names, types and ranks. */
static bool find_arrays(struct lists_file *file, struct tensor found[LISTS_ARRAYS],
                        bool present[LISTS_ARRAYS], struct reason *reason) {
    for (size_t i = 0; i < file->safetensors.count; i++) {
        const struct named_tensor *named = &file->safetensors.tensors[i];
        int a = 0;
        while (a < LISTS_ARRAYS && strcmp(named->name, arrays[a].name) != 0)
            a++;
        if (a == LISTS_ARRAYS)
            return reason_set(reason, "tensor %s does not belong to block lists", named->name);
        found[a] = named->tensor;
        present[a] = true;
        bool type = found[a].type == arrays[a].type || (a == BITS && found[a].type == ELEMENT_I64);
        if (!type || found[a].rank != arrays[a].rank)
            return reason_set(reason, "%s: %s with %d axes; %s with %d are needed", named->name,
                              element_name(found[a].type), found[a].rank,
                              element_name(arrays[a].type), arrays[a].rank);
        if (!tensor_align(&found[a], &file->copy[a], reason))
            return false;
    }
    if (!present[ROW_PTR] || !present[COL_IDX])
        return reason_set(reason, "%s is missing",
                          arrays[present[ROW_PTR] ? COL_IDX : ROW_PTR].name);
    for (int a = BAND_ENTRY; a < LISTS_ARRAYS; a += 2)
        if (present[a] != present[a + 1])
            return reason_set(reason, "%s without %s", arrays[present[a] ? a : a + 1].name,
                              arrays[present[a] ? a + 1 : a].name);
    return true;
}

/* One size from the metadata and the command line, which must agree where both name it. */
static bool take_size(int64_t *size, const struct lists_file *file, const char *key, int64_t given,
                      struct reason *reason) {
    const char *text = safetensors_metadata(&file->safetensors, key);
    *size = given;
    if (!text)
        return true;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*text < '1' || *text > '9' || *end || errno)
        return reason_set(reason, "metadata %s is not a number from 1 up", key);
    if (given && given != value)
        return reason_set(reason, "made with %s = %lld, not %" PRId64, key, value, given);
    *size = value;
    return true;
}

/* Which batch and heads a number of lists stands for, where the metadata does not say. */
static bool deduce_heads(tess_lists *lists, int64_t count, const struct pattern_sizes *sizes,
                         struct reason *reason) {
    if (!sizes->heads_q) { /* nothing to fit: heads of one batch */
        lists->batch = 1;
        lists->heads = count;
        return true;
    }
    int64_t b = sizes->batch ? sizes->batch : 1, q = sizes->heads_q, kv = sizes->heads_kv;
    const int64_t kinds[][2] = {{1, 1}, {1, kv}, {1, q}, {b, kv}, {b, q}};
    int64_t found = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bool same = found && lists->batch == kinds[i][0] && lists->heads == kinds[i][1];
        if (count != kinds[i][0] * kinds[i][1] || same)
            continue;
        if (found++)
            return reason_set(reason,
                              "%" PRId64 " lists may be per head or per batch: name batch "
                              "and heads in the metadata",
                              count);
        lists->batch = kinds[i][0];
        lists->heads = kinds[i][1];
    }
    if (found || b == 1)
        return found || reason_set_count(reason, "lists", count, kv, q);
    return reason_set(reason,
                      "%" PRId64 " lists: 1, or one for each head of K (%" PRId64
                      ") or of Q (%" PRId64 "), of one batch or of each of %" PRId64 ", is needed",
                      count, kv, q, b);
}

/* Sizes, from the metadata, the command line and the tensors. */
static bool take_sizes(struct lists_file *file, const struct tensor *found,
                       const tess_pattern_shape *given, const struct pattern_sizes *sizes,
                       struct reason *reason) {
    tess_lists *l = &file->lists;
    if (!take_size(&l->block_q, file, "block_q", given->block_q, reason) ||
        !take_size(&l->block_kv, file, "block_kv", given->block_kv, reason) ||
        !take_size(&l->n_q, file, "n_q", given->n_q, reason) ||
        !take_size(&l->n_kv, file, "n_kv", given->n_kv, reason) ||
        !take_size(&l->batch, file, "batch", 0, reason) ||
        !take_size(&l->heads, file, "heads", 0, reason))
        return false;
    l->block_q = l->block_q ? l->block_q : 64;
    l->block_kv = l->block_kv ? l->block_kv : 64;
    l->n_kv = l->n_kv ? l->n_kv : l->n_q;
    if (!l->n_q)
        return reason_set(reason, "--n is needed: neither the file nor an option tells n_q");
    int64_t count = found[ROW_PTR].shape[0], rows = (l->n_q - 1) / l->block_q + 1, named;
    if (count < 1 || found[ROW_PTR].shape[1] != rows + 1)
        return reason_set(reason,
                          "row_ptr is [%" PRId64 ",%" PRId64 "]; %" PRId64
                          " queries in blocks of %" PRId64 " need [lists,%" PRId64 "]",
                          count, found[ROW_PTR].shape[1], l->n_q, l->block_q, rows + 1);
    if (!l->batch || !l->heads)
        return deduce_heads(l, count, sizes, reason);
    if (__builtin_mul_overflow(l->batch, l->heads, &named) || named != count)
        return reason_set(reason,
                          "metadata names %" PRId64 " batches of %" PRId64 " heads, row_ptr has "
                          "%" PRId64 " lists",
                          l->batch, l->heads, count);
    return true;
}

static bool take_partial(tess_lists *l, const struct tensor *found, struct reason *reason) {
    l->n_bands = found[BAND_ENTRY].shape[0];
    l->n_bitmasks = found[BITMASK_ENTRY].shape[0];
    if (l->n_bands && (found[BAND].shape[0] != l->n_bands || found[BAND].shape[1] != 2))
        return reason_set(reason, "band is [%" PRId64 ",%" PRId64 "]; [%" PRId64 ",2] is needed",
                          found[BAND].shape[0], found[BAND].shape[1], l->n_bands);
    int64_t area, bits, words;
    if (__builtin_mul_overflow(l->block_q, l->block_kv, &area) ||
        __builtin_mul_overflow(area, l->n_bitmasks, &bits))
        return reason_set(reason, "the bits of %" PRId64 " masks overflow", l->n_bitmasks);
    words = bits / 64 + (bits % 64 != 0);
    if (found[BITS].shape[0] != words)
        return reason_set(reason, "bits has %" PRId64 " words; %" PRId64 " masks need %" PRId64,
                          found[BITS].shape[0], l->n_bitmasks, words);
    return true;
}

bool lists_file_parse(struct lists_file *file, const void *data, size_t size,
                      const tess_pattern_shape *given, const struct pattern_sizes *sizes,
                      struct reason *reason) {
    struct tensor found[LISTS_ARRAYS] = {{0}};
    bool present[LISTS_ARRAYS] = {false};
    *file = (struct lists_file){.lists = tess_lists_init()};
    tess_lists *l = &file->lists;
    if (!safetensors_parse(&file->safetensors, data, size, reason) ||
        !find_arrays(file, found, present, reason) ||
        !take_sizes(file, found, given, sizes, reason) || !take_partial(l, found, reason)) {
        lists_file_close(file);
        return false;
    }
    l->n_tiles = found[COL_IDX].shape[0];
    l->row_ptr = found[ROW_PTR].data;
    l->col_idx = found[COL_IDX].data;
    l->band_entry = found[BAND_ENTRY].data;
    l->band = found[BAND].data;
    l->bitmask_entry = found[BITMASK_ENTRY].data;
    l->bits = found[BITS].data;
    return true;
}

bool lists_file_open(struct lists_file *file, const char *path, const tess_pattern_shape *given,
                     const struct pattern_sizes *sizes, struct reason *reason) {
    struct mapped_file map;
    struct reason why;
    if (!mapped_file_open(&map, path, reason))
        return false;
    if (!lists_file_parse(file, map.data, map.size, given, sizes, &why)) {
        mapped_file_close(&map);
        return reason_set(reason, "%.200s: %.270s", path, why.text);
    }
    file->map = map;
    return true;
}

void lists_file_close(struct lists_file *file) {
    safetensors_free(&file->safetensors);
    mapped_file_close(&file->map);
    for (int a = 0; a < LISTS_ARRAYS; a++)
        free(file->copy[a]);
    *file = (struct lists_file){0};
}

static json_t *metadata_of(const tess_lists *l) {
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"block_q", l->block_q}, {"block_kv", l->block_kv}, {"n_q", l->n_q},
                 {"n_kv", l->n_kv},       {"batch", l->batch},       {"heads", l->heads}};
    json_t *metadata = json_object();
    for (size_t i = 0; metadata && i < sizeof sizes / sizeof sizes[0]; i++) {
        char text[24];
        snprintf(text, sizeof text, "%" PRId64, sizes[i].value);
        if (json_object_set_new(metadata, sizes[i].key, json_string(text)) != 0) {
            json_decref(metadata);
            return NULL;
        }
    }
    return metadata;
}

bool lists_file_write(FILE *file, const tess_lists *l) {
    const int64_t shape[LISTS_ARRAYS][2] = {
        [ROW_PTR] = {l->batch * l->heads, (l->n_q - 1) / l->block_q + 2},
        [COL_IDX] = {l->n_tiles},
        [BAND_ENTRY] = {l->n_bands},
        [BAND] = {l->n_bands, 2},
        [BITMASK_ENTRY] = {l->n_bitmasks},
        [BITS] = {(l->n_bitmasks * l->block_q * l->block_kv + 63) / 64},
    };
    const void *data[LISTS_ARRAYS] = {l->row_ptr, l->col_idx,       l->band_entry,
                                      l->band,    l->bitmask_entry, l->bits};
    struct named_tensor tensors[LISTS_ARRAYS];
    size_t count = 0;
    for (int a = 0; a < LISTS_ARRAYS; a++) {
        if (a >= BAND_ENTRY && shape[a][0] == 0)
            continue;
        struct named_tensor *t = &tensors[count++];
        *t =
            (struct named_tensor){arrays[a].name, {.type = arrays[a].type, .rank = arrays[a].rank}};
        memcpy(t->tensor.shape, shape[a], (size_t)arrays[a].rank * sizeof shape[a][0]);
        tensor_measure(&t->tensor);
        t->tensor.data = data[a];
    }
    json_t *metadata = metadata_of(l);
    bool written = metadata && safetensors_write(file, tensors, count, metadata);
    json_decref(metadata);
    return written;
}
