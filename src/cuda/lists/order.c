/* One walk over a tile's runs that both counts granules and, knowing how many there are of each
 * kind, puts them where they belong. */
#include "lists/order.h"

#include <string.h>

/* Where granules go; with `order` NULL they are only counted. */
struct cut_sink {
    const struct cut *order;
    int32_t *keys;
    struct granule_mask *masks;
    int64_t n[CUT_KINDS];
};

static int64_t chunk_granules(const struct cut *cut) {
    return SCHEDULE_CHUNK / cut->size;
}

static int64_t seam_of_all(const struct cut *cut) {
    return cut->seam[CUT_BOTH] + cut->seam[CUT_FIRST] + cut->seam[CUT_SECOND];
}

/* Where the i-th granule of a kind of uniform mask stands. */
static int64_t place_uniform(const struct cut *cut, int kind, int64_t i) {
    const int64_t each = chunk_granules(cut);
    int64_t place = cut->n[CUT_WHOLE];
    if (i < cut->seam[kind]) {
        for (int k = 0; k < kind; k++)
            place += cut->seam[k];
        return place + i;
    }
    place += seam_of_all(cut);
    i -= cut->seam[kind];
    if (kind != CUT_BOTH) {
        const int half = kind - CUT_FIRST;
        const int64_t chunk = i / each, other = cut->chunks[1 - half];
        if (chunk < cut->chunks[half])
            return place + (chunk < other ? 2 * chunk + half : chunk + other) * each + i % each;
        i -= cut->chunks[half] * each;
    }
    place += (cut->chunks[0] + cut->chunks[1]) * each;
    for (int k = 0; k < kind; k++)
        place += cut->n[k] - cut->seam[k] - (k == CUT_BOTH ? 0 : cut->chunks[k - CUT_FIRST] * each);
    return place + i;
}

static int64_t place_of(const struct cut *cut, int kind, int64_t i) {
    if (kind == CUT_WHOLE)
        return i;
    if (kind == CUT_PER_KEY)
        return cut_uniform(cut) + i;
    return place_uniform(cut, kind, i);
}

static void put(struct cut_sink *s, int kind, int64_t key, const struct granule_mask *mask) {
    const int64_t i = s->n[kind]++;
    if (!s->order)
        return;
    const int64_t place = place_of(s->order, kind, i);
    s->keys[place] = (int32_t)key;
    if (mask)
        s->masks[place - s->order->n[CUT_WHOLE]] = *mask;
}

/* The kind of a masked granule. */
static int kind_of(const struct lists *lists, const struct granule_mask *mask, int32_t size) {
    const int one = mask->kind == LIST_MEMBERS || (mask->kind == LIST_BITS && size == 1);
    if (!one || mask->count < size)
        return CUT_PER_KEY;
    const uint64_t *rows = lists->words_of_rows + mask->u.word;
    return lists->words != 2 ? CUT_BOTH : !rows[1] ? CUT_FIRST : !rows[0] ? CUT_SECOND : CUT_BOTH;
}

static void walk_masked(struct cut_sink *s, const struct lists *lists, int kind,
                        const struct list_masked *run, int32_t size) {
    for (int64_t at = 0; at < run->count; at += size) {
        int64_t count = run->count - at < size ? run->count - at : size;
        struct granule_mask mask = {.count = (int16_t)count, .kind = (int16_t)kind};
        if (kind == LIST_BAND)
            mask.u.band.lo = run->u.band.lo - (int32_t)at,
            mask.u.band.hi = run->u.band.hi - (int32_t)at;
        else
            mask.u.word = run->u.word + (kind == LIST_BITS ? at * lists->words : 0);
        put(s, kind_of(lists, &mask, size), run->key + at, &mask);
    }
}

static void walk(struct cut_sink *s, const struct lists *lists, int64_t T, int32_t size) {
    for (int64_t i = lists->full_ptr[T]; i < lists->full_ptr[T + 1]; i++) {
        const struct list_run *run = &lists->full[i];
        const int32_t rest = run->count & (size - 1);
        const struct granule_mask mask = {.count = (int16_t)rest, .kind = GRANULE_ALL};
        for (int64_t at = 0; at + size <= run->count; at += size)
            put(s, CUT_WHOLE, run->key + at, NULL);
        if (rest)
            put(s, CUT_PER_KEY, (int64_t)run->key + run->count - rest, &mask);
    }
    const int64_t *ptr = lists->masked_ptr + LIST_MASKED_KINDS * T;
    for (int kind = 0; kind < LIST_MASKED_KINDS; kind++)
        for (int64_t i = ptr[kind]; i < ptr[kind + 1]; i++)
            walk_masked(s, lists, kind, &lists->masked[i], size);
}

void cut_count(struct cut *cut, const struct lists *lists, int64_t T, int32_t size,
               int single_steps) {
    struct cut_sink sink = {.order = NULL};
    walk(&sink, lists, T, size);
    *cut = (struct cut){.size = size};
    memcpy(cut->n, sink.n, sizeof cut->n);
    if (!single_steps)
        return;
    const int64_t each = chunk_granules(cut);
    int64_t left = (each - cut->n[CUT_WHOLE] % each) % each;
    for (int kind = CUT_BOTH; kind <= CUT_SECOND; kind++) {
        cut->seam[kind] = min_i64(left, cut->n[kind]);
        left -= cut->seam[kind];
    }
    for (int half = 0; half < 2; half++)
        cut->chunks[half] = (cut->n[CUT_FIRST + half] - cut->seam[CUT_FIRST + half]) / each;
}

void cut_fill(const struct cut *cut, const struct lists *lists, int64_t T, int32_t *keys,
              struct granule_mask *masks) {
    struct cut_sink sink = {.order = cut, .keys = keys, .masks = masks};
    walk(&sink, lists, T, cut->size);
}

void cut_single_steps(struct granule_single_steps *single_steps, const struct cut *cut,
                      int64_t begin, int64_t end) {
    const int64_t each = chunk_granules(cut), a = cut->chunks[0], b = cut->chunks[1];
    const int64_t count = (end - begin + each - 1) / each;
    if (a + b == 0)
        return;
    const int64_t first = (cut->n[CUT_WHOLE] + seam_of_all(cut) - begin) / each;
    *single_steps =
        (struct granule_single_steps){.begin = (int32_t)first,
                                      .end = (int32_t)min_i64(first + 2 * min_i64(a, b), count),
                                      .tail_end = (int32_t)min_i64(first + a + b, count),
                                      .tail_consumer = b > a};
    int64_t steps[2] = {0, 0};
    for (int32_t chunk = 0; chunk < count; chunk++)
        for (int half = 0; half < 2; half++)
            steps[half] += granule_single_consumer(single_steps, chunk) != 1 - half;
    if (!steps[0] || !steps[1])
        *single_steps = (struct granule_single_steps){0};
}
