/* Device patterns for tests: sizes of all kinds, whose arrays the lab draws, and checks of fills. */
#ifndef TESTS_DEVICE_LISTS_H
#define TESTS_DEVICE_LISTS_H

#include "lab/lists/listed.h"
#include "lab/fill/rng.h"
#include "support/support.h"

/* Draw `what` of a seed: one of the numbers that follow. */
static inline int64_t pick(uint64_t seed, uint64_t what, const int64_t *from, int64_t n) {
    return from[lab_below(seed, 77, what, n)];
}
#define PICK(what, ...)                                                                            \
    pick(seed, what, (const int64_t[]){__VA_ARGS__},                                               \
         sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* Sizes of a draw; what is 0 has no default. */
struct device_sizes {
    tess_form form;
    int64_t batch, heads_q, heads_kv; /* the problem's */
    int64_t list_batch, list_heads;   /* the pattern's */
    int64_t n_q, n_kv, block_q, block_kv;
    int64_t capacity; /* see tess_device_pattern */
    int64_t cut_lo, cut_hi, promises;
    int counts, lengths; /* whether they are given */
    int hostile;         /* entries, counts, rows and lengths that are not to be */
};

/* Two heads of three queries and 40 keys, an index a place. */
extern const struct device_sizes device_small;

/* Rows of that pattern's indices: paddings first, last, between and alone, duplicates, any order, and what
 * no key is. */
enum { DEVICE_PADDINGS = 8, DEVICE_PADDING = 6 };
extern const int32_t device_paddings[DEVICE_PADDINGS][DEVICE_PADDING];

/* A pattern, its arrays and what they list. */
struct device_lists {
    struct device_sizes sizes;
    struct lab_listed listed; /* tests may change what its arrays hold */
    uint8_t *mask;            /* [batch][list_heads][n_q][n_kv] */
    int32_t *today;           /* [batch] lengths, 0 for those that cannot be */
    tess_fill_report report;  /* report that a fill must give, but for keys and items */
};

/* Sizes of every form, with and without counts, lengths, cuts, promises and what is not to be. */
struct device_sizes device_sizes_draw(uint64_t seed);

/* Draws arrays; what cannot be made ends the test. */
void device_lists_make(struct device_lists *l, const struct device_sizes *sizes, uint64_t seed);
void device_lists_free(struct device_lists *l);

/* Updates what the arrays list, as they are now, after a test changed them. */
void device_lists_expect(struct device_lists *l);

/* A pattern of the host with the arrays' keys. */
tess_pattern *device_lists_pattern(const struct device_lists *l);

/* A problem of the sizes, f32, with d dims. */
tess_problem device_problem(const struct device_sizes *sizes, int64_t d);

/* A reserved plan, and room for its image filled with 0xaa; ends the test on failure. */
tess_plan *device_plan(const struct device_lists *l, const tess_problem *problem,
                       struct lab_buffer *image);
/* Place of the image in its buffer, which is aligned to less. */
static inline void *device_image(const struct lab_buffer *image) {
    const uintptr_t at = (uintptr_t)image->data;
    return image->data + ((at + 255) / 256 * 256 - at);
}

/* Fills the image and holds the report against what is expected. */
void device_fill(const struct device_lists *l, const tess_plan *plan, struct lab_buffer *image);

#endif
