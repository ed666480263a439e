/*
 * The walk over a query tile's packed list: its keys, superblock by superblock, with the rows that
 * list each.
 */
#ifndef TESSERA_CPU_WALK_H
#define TESSERA_CPU_WALK_H

#include "tile/cache.h"

enum { KIND_FULL = -1 }; /* before the masked kinds of lists.h */

struct walk {
    const struct lists *lists;
    int64_t heads; /* whose rows a tile holds: each bit of a mask stands for as many */
    int64_t tile;  /* T */
    int kind;
    int64_t run, end;             /* runs of this kind */
    int64_t at;                   /* keys of the run that are behind */
    int64_t left;                 /* keys still to come */
    int32_t most;                 /* keys of a superblock */
    const struct cpu_head *paged; /* whose pages there must be; NULL: all are */
};

static inline int64_t run_count(const struct walk *w) {
    return w->kind == KIND_FULL ? w->lists->full[w->run].count : w->lists->masked[w->run].count;
}

/* Moves to the first run that has keys ahead, through the kinds. */
static inline void walk_settle(struct walk *w) {
    while (w->left > 0 && w->run == w->end) {
        const int64_t of_kind = LIST_MASKED_KINDS * w->tile + ++w->kind;
        w->run = w->lists->masked_ptr[of_kind];
        w->end = w->lists->masked_end[of_kind];
    }
}

/* Skips `keys` of the keys that are left. */
static inline void walk_skip(struct walk *w, int64_t keys) {
    w->left -= keys;
    w->at += keys;
    while (w->run != w->end && w->at >= run_count(w)) {
        w->at -= run_count(w);
        w->run++;
        walk_settle(w);
    }
}

/* Over keys [begin, end) of a tile's list. */
static inline struct walk walk_range(const struct lists *lists, int64_t tile, int64_t heads,
                                     int64_t begin, int64_t end) {
    struct walk w = {.lists = lists,
                     .heads = heads,
                     .tile = tile,
                     .kind = KIND_FULL,
                     .run = lists->full_ptr[tile],
                     .end = lists->full_end[tile],
                     .left = end,
                     .most = CPU_KEYS_SHORT};
    walk_settle(&w);
    walk_skip(&w, begin);
    return w;
}

static inline struct walk walk_begin(const struct lists *lists, int64_t tile, int64_t heads,
                                     int32_t part, int32_t parts) {
    int64_t begin, end;
    schedule_part(lists->keys[tile], part, parts, &begin, &end);
    return walk_range(lists, tile, heads, begin, end);
}

/* Rows r with lo <= c - r <= hi. */
static inline uint64_t band_mask(int64_t c, int64_t lo, int64_t hi) {
    int64_t first = c - hi < 0 ? 0 : c - hi, last = c - lo > 63 ? 63 : c - lo;
    return first > last ? 0 : (UINT64_MAX << first) & (UINT64_MAX >> (63 - last));
}

static inline uint64_t key_mask(const struct walk *w, const struct list_masked *run, int64_t c) {
    if (w->kind == LIST_BAND)
        return band_mask(c, run->u.band.lo, run->u.band.hi);
    return w->lists->words_of_rows[run->u.word + (w->kind == LIST_BITS ? c : 0)];
}

static inline int32_t least(int64_t a, int64_t b, int32_t c) {
    int64_t ab = a < b ? a : b;
    return ab < c ? (int32_t)ab : c;
}

#define WALK_SINGLES 16

/* Whether the next WALK_SINGLES runs are of one key each. */
static inline int walk_singles(const struct list_run *run) {
    int32_t others = 0;
    for (int i = 0; i < WALK_SINGLES; i++)
        others |= run[i].count ^ 1;
    return others == 0;
}

/* Takes whole runs of at most CPU_KEYS_SLACK keys: they are common, and need no branch each; of
 * single keys many at a time. */
static inline int32_t walk_short_runs(struct walk *w, struct cpu_keys *keys, int32_t n) {
    const struct list_run *run = w->lists->full + w->run;
    const struct list_run *const end = w->lists->full + w->end;
    const int32_t before = n, most = least(w->left + n, w->most, w->most);
    while (end - run >= WALK_SINGLES && n + WALK_SINGLES <= most && walk_singles(run)) {
        for (int i = 0; i < WALK_SINGLES; i++)
            keys->key[n + i] = run[i].key;
        run += WALK_SINGLES;
        n += WALK_SINGLES;
    }
    for (; run != end && run->count <= CPU_KEYS_SLACK && n + run->count <= most; run++) {
        for (int32_t i = 0; i < CPU_KEYS_SLACK; i++)
            keys->key[n + i] = run->key + i;
        n += run->count;
    }
    w->left -= n - before;
    w->run = run - w->lists->full;
    return n;
}

static inline void walk_next_full(struct walk *w, struct cpu_keys *keys) {
    int32_t n = 0;
    while (w->run != w->end && n < w->most && w->left > 0) {
        const struct list_run *run = &w->lists->full[w->run];
        const int64_t at = w->at;
        if (at == 0 && run->count <= CPU_KEYS_SLACK && n + run->count <= w->most &&
            run->count <= w->left) {
            n = walk_short_runs(w, keys, n);
            continue;
        }
        const int32_t take = least(run->count - at, w->left, w->most - n);
        for (int32_t i = 0; i < take; i++)
            keys->key[n + i] = run->key + (int32_t)at + i;
        n += take;
        w->left -= take;
        w->at = at + take == run->count ? 0 : at + take;
        w->run += w->at == 0;
    }
    keys->n = n;
}

/* Each of the lower 32 bits twice: bit i at 2 i and 2 i + 1. Bands have bits past a tile's rows. */
static inline uint64_t mask_double(uint64_t x) {
    x &= UINT32_MAX;
    x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
    x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
    x = (x | x << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    x = (x | x << 2) & UINT64_C(0x3333333333333333);
    x = (x | x << 1) & UINT64_C(0x5555555555555555);
    return x | x << 1;
}

static inline void walk_next_masked(struct walk *w, struct cpu_keys *keys) {
    int32_t n = 0;
    while (w->run != w->end && n < w->most && w->left > 0) {
        const struct list_masked *run = &w->lists->masked[w->run];
        const int64_t at = w->at;
        const int32_t take = least(run->count - at, w->left, w->most - n);
        for (int32_t i = 0; i < take;
             i++) { /* filled bits: keys that no row lists are passed over */
            keys->key[n] = run->key + (int32_t)at + i;
            keys->mask[n] = key_mask(w, run, at + i);
            n += keys->mask[n] != 0;
        }
        walk_skip(w, take);
    }
    for (int64_t heads = w->heads; heads > 1; heads /= 2)
        for (int32_t j = 0; j < n; j++)
            keys->mask[j] = mask_double(keys->mask[j]);
    keys->n = n;
}

/* The next superblock, all full or all masked; 0 at the end. */
static inline int walk_next(struct walk *w, struct cpu_keys *keys) {
    do {
        keys->n = 0;
        keys->masked = w->kind != KIND_FULL;
        if (keys->masked)
            walk_next_masked(w, keys);
        else
            walk_next_full(w, keys);
        walk_settle(w);
        if (w->paged)
            cpu_drop_keys(w->paged, keys);
    } while (keys->n == 0 && w->left > 0);
    return keys->n > 0;
}

#endif
