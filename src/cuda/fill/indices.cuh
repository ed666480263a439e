/*
 * Lists of block rows from indices. What the row lists, in order and each once, is its `columns`; runs of a
 * query tile are one stretch of them, whose ends a search finds.
 *
 *     in order   listed ones ascend and the others are behind them: the columns are the row up to these
 *     else       set      a bit for each in a bitmap; who sets it counts it in its bucket of 128 columns
 *                sums     of the buckets before each
 *                place    sum of its bucket and the bits below: each index knows where it stands
 *
 * Each step is of all threads and of as many loads at once as they have, whatever the columns are. Where
 * these are more than a bitmap holds, they are taken in windows, ascending.
 */
#ifndef TESSERA_CUDA_FILL_INDICES_CUH
#define TESSERA_CUDA_FILL_INDICES_CUH

#include "fill/rows.cuh"

/* Indices e, e + team ... of a row, and those before them. */
#define INDICES_AT_ONCE 4
struct some_indices {
    int32_t index[INDICES_AT_ONCE], before[INDICES_AT_ONCE];
};

/* All loads are under way before one is looked at. Padding stands past the last. */
static __device__ __forceinline__ struct some_indices
indices_load(const struct team *team, const struct row_under_way *r, uint32_t e) {
    struct some_indices x;
    for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
        const uint32_t at = e + (uint32_t)(i * team->threads);
        x.index[i] = at < r->n ? r->index[at] : -1;
        x.before[i] = at < r->n && at ? r->index[at - 1] : -1;
    }
    return x;
}

/* The first of them are held in registers. */
static __device__ __forceinline__ struct some_indices
indices_some(const struct team *team, const struct row_under_way *r, uint32_t e,
             const struct some_indices *held) {
    return e < (uint32_t)(INDICES_AT_ONCE * team->threads) ? *held : indices_load(team, r, e);
}

/* Steps of a thread through its row. */
#define INDICES_EACH(team, r, e)                                                                   \
    for (uint32_t e = (uint32_t)(team)->thread; e < (r)->n;                                        \
         e += (uint32_t)(INDICES_AT_ONCE * (team)->threads))

/* Where a thread of the team leaves how many are listed: rows take turns, for of the row before it may still be read. */
static __device__ __forceinline__ uint32_t *row_end_place(const struct fill_params *p, int odd) {
    return (uint32_t *)(fill_shared + 64 + TALLIES) + threadIdx.x / (uint32_t)p->threads * 2 + odd;
}

/* Whether the row is in order, the same for all threads, and how many are listed if so; counts faults. As unsigned
 * numbers all that are not listed lie above those that are. Of a row in order one thread alone sees the end. */
static __device__ __forceinline__ int indices_ordered(const struct team *team,
                                                      const struct row_under_way *r,
                                                      const struct some_indices *held,
                                                      uint32_t *place, uint32_t *listed) {
    uint32_t faults = 0, end = 0; /* and 1 */
    int falls = 0;
    FILL_ROLLED
    INDICES_EACH(team, r, e) {
        const struct some_indices some = indices_some(team, r, e, held);
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t at = e + (uint32_t)(i * team->threads);
            const uint32_t x = (uint32_t)some.index[i], before = (uint32_t)some.before[i];
            const int is = x < r->blocks;
            faults += !is && fill_fault(some.index[i]);
            falls |= is && at && before >= x;
            if (at < r->n && (is ? at + 1 == r->n : !at || before < r->blocks))
                end = 1 + (is ? r->n : at);
        }
    }
    tally_warp(TALLY_FAULTS, faults);
    if (end)
        *place = end - 1;
    const int ordered = !team_any(team, falls);
    *listed = r->n ? *place : 0;
    return ordered;
}

/* Columns of a window, each bit's place in it. */
struct window {
    uint32_t first, columns;
    int32_t buckets;
};
static __device__ __forceinline__ int window_has(const struct window *w,
                                                 const struct row_under_way *r, int32_t index) {
    return fill_listed(index, (int32_t)r->blocks) && (uint32_t)index - w->first < w->columns;
}

/* Zeros, as windows leave them and expect them. */
static __device__ __forceinline__ void window_begin(const struct fill_params *p,
                                                    const struct team *team) {
    FILL_ROLLED
    for (int32_t i = team->thread; i < p->words / FILL_BUCKET; i += team->threads) {
        ((int4 *)(void *)team->bitmap)[i] = make_int4(0, 0, 0, 0);
        team->buckets[i] = 0;
    }
}

/* Sets bits, and counts them by buckets. */
static __device__ __forceinline__ void window_set(const struct team *team,
                                                  const struct row_under_way *r,
                                                  const struct window *w,
                                                  const struct some_indices *held) {
    FILL_ROLLED
    INDICES_EACH(team, r, e) {
        const struct some_indices some = indices_some(team, r, e, held);
        uint32_t was[INDICES_AT_ONCE];
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t at = (uint32_t)some.index[i] - w->first, bit = 1u << (at % 32);
            was[i] = bit;
            if (window_has(w, r, some.index[i]))
                was[i] = atomicOr(&team->bitmap[at / 32], bit) & bit;
        }
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++)
            if (!was[i])
                atomicAdd(
                    &team->buckets[((uint32_t)some.index[i] - w->first) / FILL_BUCKET_COLUMNS], 1u);
    }
}

/* Turns counts of buckets into sums over all before, from `sum` on; answers that behind them. A thread has
 * an odd number of neighbours, which lie in other banks than those of other lanes. */
static __device__ __forceinline__ uint32_t buckets_sum(const struct team *team, int32_t buckets,
                                                       uint32_t sum) {
    const int32_t each = (buckets + team->threads - 1) / team->threads | 1;
    const int32_t begin = team->thread * each;
    const int32_t end = begin + each < buckets ? begin + each : buckets;
    uint32_t own = 0;
    for (int32_t i = begin; i < end; i++)
        own += team->buckets[i];
    const uint64_t through = warp_sums(own);
    const struct team_sums sums =
        team_sums_of(team, __shfl_sync(TEAM_LANES, through, 31), team->runs);
    uint32_t before = sum + (uint32_t)(sums.before + through) - own;
    for (int32_t i = begin; i < end; i++) {
        const uint32_t count = team->buckets[i];
        team->buckets[i] = before;
        before += count;
    }
    return sum + (uint32_t)sums.all;
}

/* Columns of the row before the one at place `at` of a window. */
static __device__ __forceinline__ uint32_t window_place(const struct team *team, uint32_t at) {
    const int4 four = ((const int4 *)(const void *)team->bitmap)[at / FILL_BUCKET_COLUMNS];
    const uint32_t words[FILL_BUCKET] = {(uint32_t)four.x, (uint32_t)four.y, (uint32_t)four.z,
                                         (uint32_t)four.w};
    uint32_t place = team->buckets[at / FILL_BUCKET_COLUMNS];
    for (uint32_t i = 0; i < FILL_BUCKET; i++)
        place += (uint32_t)__popc(words[i] & ~fill_bits_from(at % FILL_BUCKET_COLUMNS, 32 * i));
    return place;
}

/* Puts the window's columns in their places. Equal ones have the same. */
static __device__ __forceinline__ void
window_take(const struct team *team, const struct row_under_way *r, const struct window *w,
            const struct some_indices *held, int32_t *columns) {
    FILL_ROLLED
    INDICES_EACH(team, r, e) {
        const struct some_indices some = indices_some(team, r, e, held);
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++)
            if (window_has(w, r, some.index[i]))
                columns[window_place(team, (uint32_t)some.index[i] - w->first)] = some.index[i];
    }
}

/* Leaves zeros. */
static __device__ __forceinline__ void window_clear(const struct team *team,
                                                    const struct row_under_way *r,
                                                    const struct window *w,
                                                    const struct some_indices *held) {
    FILL_ROLLED
    INDICES_EACH(team, r, e) {
        const struct some_indices some = indices_some(team, r, e, held);
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++)
            if (window_has(w, r, some.index[i]))
                team->bitmap[((uint32_t)some.index[i] - w->first) / 32] = 0;
    }
    for (int32_t i = team->thread; i < w->buckets; i += team->threads)
        team->buckets[i] = 0;
}

/* Puts the row's columns in order; answers how many there are. */
static __device__ __forceinline__ uint32_t indices_sort(const struct fill_params *p,
                                                        const struct team *team,
                                                        const struct row_under_way *r,
                                                        const struct some_indices *held,
                                                        int32_t *columns, int again) {
    struct window w;
    uint32_t taken = 0;
    w.columns = 32 * (uint32_t)p->words;
    for (w.first = 0; w.first < r->blocks; w.first += w.columns) {
        const uint32_t left = r->blocks - w.first;
        const int last = left <= w.columns;
        w.buckets =
            (int32_t)(((last ? left : w.columns) + FILL_BUCKET_COLUMNS - 1) / FILL_BUCKET_COLUMNS);
        window_set(team, r, &w, held);
        team_wait(team);
        taken = buckets_sum(team, w.buckets, taken);
        team_wait(team);
        window_take(team, r, &w, held, columns);
        team_wait(team);
        if (last && !again)
            break;
        window_clear(team, r, &w, held);
        if (last)
            break;
        team_wait(team);
    }
    return taken;
}

/* Of n columns in order those below x. */
static __device__ __forceinline__ uint32_t columns_below(const int32_t *columns, uint32_t n,
                                                         uint32_t x) {
    uint32_t begin = 0;
    while (n) {
        const uint32_t half = n / 2;
        const int below = (uint32_t)columns[begin + half] < x;
        begin += below ? half + 1 : 0;
        n = below ? n - half - 1 : half;
    }
    return begin;
}

/* Places of a tile's runs among the columns, from places of its limits: a lane finds each of them. */
static __device__ __forceinline__ struct fill_columns
columns_of(const struct fill_columns *limits, const int32_t *columns, uint32_t n) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const uint32_t limit = lane == 0   ? limits->live
                           : lane == 1 ? limits->full
                           : lane == 2 ? limits->full_end
                                       : limits->live_end;
    const uint32_t below = columns_below(columns, n, limit);
    struct fill_columns at;
    at.live = __shfl_sync(TEAM_LANES, below, 0);
    at.full = __shfl_sync(TEAM_LANES, below, 1);
    at.full_end = __shfl_sync(TEAM_LANES, below, 2);
    at.live_end = __shfl_sync(TEAM_LANES, below, 3);
    return at;
}

/* Writes the runs of a tile, and moves its places behind them. `over`: runs are written over columns, as
 * far as these have been read. */
static __device__ __forceinline__ void
columns_write(const struct fill_params *p, const struct team *team, const struct row_under_way *r,
              struct tile_under_way *t, const struct fill_columns *at, const int32_t *columns,
              int over) {
    const uint32_t step = (uint32_t)(INDICES_AT_ONCE * team->threads);
    FILL_ROLLED
    for (uint32_t first = at->live; first < at->live_end; first += step) {
        int32_t column[INDICES_AT_ONCE];
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t j = first + (uint32_t)(team->thread + i * team->threads);
            column[i] = j < at->live_end ? columns[j] : 0;
        }
        if (over)
            team_wait(team);
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t j = first + (uint32_t)(team->thread + i * team->threads);
            const int full = j >= at->full && j < at->full_end;
            const uint32_t before = j < at->full ? at->live : at->live + at->full_end - at->full;
            if (j < at->live_end)
                column_write(p, r, t, (uint32_t)column[i], full,
                             full ? t->full + (j - at->full) : t->band + (j - before));
        }
    }
    t->full += at->full_end - at->full;
    t->band += (at->full - at->live) + (at->live_end - at->full_end);
}

/* Block row `row` of a list. Where columns find no room in shared memory, they stand in the upper half of
 * the first tile's places for runs; that tile is written last. */
static __device__ __forceinline__ void indices_fill(const struct fill_params *p,
                                                    const struct team *team, int64_t list,
                                                    int64_t row, int cut, int fresh, int again,
                                                    int odd) {
    const struct fill_shape *s = &p->shape;
    const int64_t begin = row * s->row_tiles, end = fill_least(begin + s->row_tiles, s->tiles);
    struct row_under_way r = row_begin(p, list, row, 0, team->thread == 0);
    const struct some_indices held = indices_load(team, &r, (uint32_t)team->thread);
    if (fresh)
        window_begin(p, team);
    r.cut = cut;
    row_check(p, &r, team->thread == 0);
    uint32_t listed;
    const int ordered = indices_ordered(team, &r, &held, row_end_place(p, odd), &listed);
    const int staged = p->stage != 0;
    int32_t *place = staged ? team->stage : (int32_t *)(void *)(p->arrays.full + r.first) + r.claim;
    const uint32_t n = ordered ? listed : indices_sort(p, team, &r, &held, place, again);
    const int32_t *columns = ordered ? r.index : place;
    for (int64_t tile = end - 1; tile >= begin; tile--) {
        struct tile_under_way t = tile_begin(p, &r, tile, tile - begin);
        struct fill_columns at;
        at.live = at.full = 0, at.full_end = at.live_end = n;
        if (cut)
            at = columns_of(&t.columns, columns, n);
        const int64_t full = t.full, band = t.band;
        columns_write(p, team, &r, &t, &at, columns, !ordered && !staged);
        int64_t keys = at.live_end - at.live;
        if (s->block_kv > 1 || t.band > band) /* each thread knows its own */
            keys = tile_sums(team, &t, (end - tile) % 2 ? team->keys : team->runs);
        if (team->thread == 0)
            tile_end(&p->arrays, list * s->tiles + tile, full, band, &t, keys);
    }
}

#endif
