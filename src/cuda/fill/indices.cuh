/*
 * Lists of block rows from indices. The row's `columns` are those that it lists, ascending and each once. Runs
 * of a query tile are one stretch of columns, whose ends a search finds.
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

/* Two pairs of neighbouring indices of a row, and the one before each pair; -1 where there is none. */
#define INDICES_AT_ONCE 4
struct some_indices {
    int32_t index[INDICES_AT_ONCE], before[INDICES_AT_ONCE / 2];
};

/* Place of index i, e being the first: pairs of the team's threads lie side by side. */
DEVICE uint32_t index_at(const struct team *team, uint32_t e, int32_t i) {
    return e + (uint32_t)(i / 2 * 2 * team->threads + i % 2);
}

/* All loads are under way before one is looked at. */
DEVICE struct some_indices indices_load(const struct fill_params *p, const struct team *team,
                                        const struct row_under_way *r, uint32_t e) {
    struct some_indices x;
    for (int32_t i = 0; i < INDICES_AT_ONCE; i += 2) {
        const uint32_t at = index_at(team, e, i);
        if (p->pairs && at + 1 < r->n) {
            const int2 pair = *(const int2 *)(const void *)(r->index + at);
            x.index[i] = pair.x, x.index[i + 1] = pair.y;
        } else {
            x.index[i] = at < r->n ? r->index[at] : -1;
            x.index[i + 1] = at + 1 < r->n ? r->index[at + 1] : -1;
        }
        x.before[i / 2] = at && at < r->n ? r->index[at - 1] : -1;
    }
    return x;
}

/* Goes on to the next of a thread's indices. */
DEVICE void indices_next(const struct fill_params *p, const struct team *team,
                         const struct row_under_way *r, uint32_t *e, struct some_indices *some) {
    *e += (uint32_t)(INDICES_AT_ONCE * team->threads);
    if (*e < r->n)
        *some = indices_load(p, team, r, *e);
}

/* Steps of a thread through its row, of which the first indices are held in registers. */
#define INDICES_EACH(p, team, r, e, some)                                                          \
    FILL_ROLLED                                                                                    \
    for (uint32_t e = (uint32_t)(2 * (team)->thread); e < (r)->n;                                  \
         indices_next(p, team, r, &e, &some))

/* First fault among a thread's indices, which are looked at again: seldom, and out of the loop that counts. */
DEVICE uint64_t indices_first(const struct fill_params *p, const struct team *team,
                              const struct row_under_way *r) {
    const uint32_t step = (uint32_t)(INDICES_AT_ONCE * team->threads);
    uint64_t first = FILL_NOWHERE;
    FILL_ROLLED
    for (uint32_t e = (uint32_t)(2 * team->thread); e < r->n; e += step) {
        FILL_ROLLED
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t at = index_at(team, e, i);
            const int32_t index = at < r->n ? r->index[at] : -1;
            const enum fill_wrong wrong = fill_index_wrong(index, (int32_t)r->blocks);
            if (wrong != FILL_RIGHT)
                first = fill_earlier(first, row_order(p, r, wrong, FILL_AT_ENTRY(at)));
        }
    }
    return first;
}

/* Whether the row is in order, alike for all threads, and how many are listed if so; counts faults. Unlisted
 * ones, as unsigned numbers, lie above those that are listed. In an ordered row one thread alone sees the
 * end, and leaves it at `end`; else many do, and none reads it. last: whether this thread has the last of
 * today's columns. */
DEVICE int indices_ordered(const struct fill_params *p, const struct team *team,
                           const struct row_under_way *r, struct some_indices some, uint32_t *end,
                           uint32_t *listed, int *last) {
    uint32_t faults = 0;
    int falls = 0;
    *last = 0;
    INDICES_EACH(p, team, r, e, some) {
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t at = index_at(team, e, i), x = (uint32_t)some.index[i];
            const uint32_t before = (uint32_t)(i % 2 ? some.index[i - 1] : some.before[i / 2]);
            const int is = x < r->blocks, first = i == 0 && e == 0;
            faults += !is && fill_fault(some.index[i]);
            falls |= is && !first && before >= x;
            *last |= x == r->blocks - 1;
            if (is ? at + 1 == r->n : first || before < r->blocks)
                atomicExch(end, at + (uint32_t)is);
        }
    }
    if (__any_sync(TEAM_LANES, faults != 0)) {
        tally_warp(TALLY_FAULTS, faults);
        first_warp(faults ? indices_first(p, team, r) : FILL_NOWHERE);
    }
    const int ordered = !team_any(team, falls);
    *listed = r->n ? *end : 0;
    return ordered;
}

/* Columns of a window, each bit's place in it; today's. */
struct window {
    uint32_t first, columns, live;
    int32_t buckets;
};
DEVICE int window_has(const struct window *w, int32_t index) {
    return (uint32_t)index - w->first < w->live;
}

/* Zeros, as windows leave them and expect them: bits, and the counts behind them. */
DEVICE void window_begin(const struct fill_params *p, const struct team *team) {
    const int32_t fours = (p->words + p->words / FILL_BUCKET / 4) / 4;
    FILL_ROLLED
    for (int32_t i = team->thread; i < fours; i += team->threads)
        ((int4 *)(void *)team->bitmap)[i] = make_int4(0, 0, 0, 0);
}

/* Sets bits, and counts them by buckets. */
DEVICE void window_set(const struct fill_params *p, const struct team *team,
                       const struct row_under_way *r, const struct window *w,
                       struct some_indices some) {
    INDICES_EACH(p, team, r, e, some) {
        uint32_t was[INDICES_AT_ONCE];
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t at = (uint32_t)some.index[i] - w->first, bit = 1u << (at % 32);
            was[i] = bit;
            if (at < w->live)
                was[i] = atomicOr(&team->bitmap[at / 32], bit) & bit;
        }
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            const uint32_t bucket = ((uint32_t)some.index[i] - w->first) / FILL_BUCKET_COLUMNS;
            if (!was[i])
                atomicAdd(&team->counts[bucket / 4], 1u << bucket % 4 * 8);
        }
    }
}

/* Turns counts of buckets into sums over all before, from `sum` on; answers that behind them. A thread has
 * an odd number of neighbouring fours, which lie in other banks than those of other lanes. */
DEVICE uint32_t buckets_sum(const struct team *team, int32_t buckets, uint32_t sum) {
    const int32_t fours = (buckets + 3) / 4;
    const int32_t each = (fours + team->threads - 1) / team->threads | 1;
    const int32_t begin = team->thread * each;
    const int32_t end = begin + each < fours ? begin + each : fours;
    uint32_t own = 0;
    FILL_ROLLED
    for (int32_t i = begin; i < end; i++)
        own = __dp4a(team->counts[i], 0x01010101u, own);
    const uint32_t through = warp_sums_32(own);
    const struct team_sums sums =
        team_sums_of(team, __shfl_sync(TEAM_LANES, through, 31), team->runs);
    uint32_t before = sum + (uint32_t)sums.before + through - own;
    FILL_ROLLED
    for (int32_t i = begin; i < end; i++) {
        const uint32_t four = team->counts[i];
        const uint32_t one = before + (four & 255), two = one + (four >> 8 & 255),
                       three = two + (four >> 16 & 255);
        ((int4 *)(void *)team->buckets)[i] =
            make_int4((int32_t)before, (int32_t)one, (int32_t)two, (int32_t)three);
        before = three + (four >> 24);
    }
    return sum + (uint32_t)sums.all;
}

/* Columns of the row before the one at place `at` of a window. */
DEVICE uint32_t window_place(const struct team *team, uint32_t at) {
    const uint32_t bucket = at / FILL_BUCKET_COLUMNS, word = at / 32 % FILL_BUCKET;
    const int4 four = ((const int4 *)(const void *)team->bitmap)[bucket];
    const int32_t words[FILL_BUCKET] = {four.x, four.y, four.z, four.w};
    int32_t own = words[0];
    uint32_t place = team->buckets[bucket];
    for (uint32_t i = 1; i < FILL_BUCKET; i++) {
        place += i <= word ? (uint32_t)__popc((uint32_t)words[i - 1]) : 0;
        own = i <= word ? words[i] : own;
    }
    return place + (uint32_t)__popc((uint32_t)own & ((1u << at % 32) - 1));
}

/* Writes column number `place` of a row without a cut: all its tiles list it there. */
DEVICE void row_write(const struct fill_params *p, const struct row_under_way *r, uint32_t place,
                      int32_t column) {
    struct list_run *to = p->arrays.full + r->first + place;
    if (r->tokens) {
        run_store(to, column, 1);
        return;
    }
    const int32_t width = (int32_t)p->shape.block_kv, key = column * width;
    const int32_t count = (int32_t)fill_least(width, r->length - key);
    run_store(to, key, count);
    FILL_ROLLED
    for (uint32_t tile = 1; tile < r->tiles; tile++)
        run_store(to += r->claim, key, count);
}

/* Puts the window's columns in their places. Equal ones have the same. Without room for them they are written there. */
DEVICE void window_take(const struct fill_params *p, const struct team *team,
                        const struct row_under_way *r, const struct window *w,
                        struct some_indices some, int32_t *columns) {
    INDICES_EACH(p, team, r, e, some) {
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++) {
            if (!window_has(w, some.index[i]))
                continue;
            const uint32_t place = window_place(team, (uint32_t)some.index[i] - w->first);
            if (columns)
                columns[place] = some.index[i];
            else
                row_write(p, r, place, some.index[i]);
        }
    }
}

/* Leaves zeros. */
DEVICE void window_clear(const struct fill_params *p, const struct team *team,
                         const struct row_under_way *r, const struct window *w,
                         struct some_indices some) {
    INDICES_EACH(p, team, r, e, some) {
        for (int32_t i = 0; i < INDICES_AT_ONCE; i++)
            if (window_has(w, some.index[i]))
                team->bitmap[((uint32_t)some.index[i] - w->first) / 32] = 0;
    }
    for (int32_t i = team->thread; 4 * i < w->buckets; i += team->threads)
        team->counts[i] = 0;
}

/* Puts the row's columns in order; answers how many there are. columns: NULL where they are written at once. */
DEVICE uint32_t indices_sort(const struct fill_params *p, const struct team *team,
                             const struct row_under_way *r, const struct some_indices *held,
                             int32_t *columns, int again) {
    struct window w;
    uint32_t taken = 0;
    w.columns = 32 * (uint32_t)p->words;
    for (w.first = 0; w.first < r->blocks; w.first += w.columns) {
        const uint32_t left = r->blocks - w.first;
        const int last = left <= w.columns;
        w.live = last ? left : w.columns;
        w.buckets = (int32_t)((w.live + FILL_BUCKET_COLUMNS - 1) / FILL_BUCKET_COLUMNS);
        window_set(p, team, r, &w, *held);
        team_wait(team);
        taken = buckets_sum(team, w.buckets, taken);
        team_wait(team);
        window_take(p, team, r, &w, *held, columns);
        team_wait(team);
        if (last && !again)
            break;
        window_clear(p, team, r, &w, *held);
        if (last)
            break;
        team_wait(team);
    }
    return taken;
}

/* Columns below x, of n in ascending order. */
DEVICE uint32_t columns_below(const int32_t *columns, uint32_t n, uint32_t x) {
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
DEVICE struct fill_columns columns_of(const struct fill_columns *limits, const int32_t *columns,
                                      uint32_t n) {
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
DEVICE void columns_write(const struct fill_params *p, const struct team *team,
                          const struct row_under_way *r, struct tile_under_way *t,
                          const struct fill_columns *at, const int32_t *columns, int over) {
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

/* Writes a row's tiles from its columns, the first one last: columns may stand over its places. */
DEVICE void tiles_cut(const struct fill_params *p, const struct team *team,
                      const struct row_under_way *r, const int32_t *columns, uint32_t n, int over) {
    const struct fill_shape *s = &p->shape;
    int odd = 0; /* sums of tiles take two places in turns: some tiles have none, and no barrier */
    for (uint32_t of_row = r->tiles; of_row--;) {
        const int64_t tile = r->tile + (int64_t)of_row;
        struct tile_under_way t = tile_begin(p, r, tile, of_row);
        const struct fill_columns at = columns_of(&t.columns, columns, n);
        const int64_t full = t.full, band = t.band;
        columns_write(p, team, r, &t, &at, columns, over);
        int64_t keys = at.live_end - at.live;
        if (s->block_kv > 1 || t.band > band) { /* each thread knows its own */
            keys = tile_sums(team, &t, odd ? team->keys : team->runs);
            odd ^= 1;
        }
        if (team->thread == 0)
            tile_end(&p->arrays, r->list * s->tiles + tile, full, band, &t, keys);
    }
}

/* Writes columns number `at` and `at` + 1 of a row without a cut, those below n. */
DEVICE void row_write_pair(const struct fill_params *p, const struct row_under_way *r, uint32_t at,
                           uint32_t n, int32_t one, int32_t two) {
    if (r->tokens && p->pairs && at + 1 < n) {
        *(int4 *)(void *)(p->arrays.full + r->first + at) = make_int4(one, 1, two, 1);
        return;
    }
    if (at < n)
        row_write(p, r, at, one);
    if (at + 1 < n)
        row_write(p, r, at + 1, two);
}

DEVICE void row_write_ordered(const struct fill_params *p, const struct team *team,
                              const struct row_under_way *r, uint32_t n, struct some_indices some) {
    INDICES_EACH(p, team, r, e, some) {
        for (int32_t i = 0; i < INDICES_AT_ONCE; i += 2)
            row_write_pair(p, r, index_at(team, e, i), n, some.index[i], some.index[i + 1]);
    }
}
DEVICE void row_write_staged(const struct fill_params *p, const struct team *team,
                             const struct row_under_way *r, uint32_t n, const int32_t *columns) {
    FILL_ROLLED
    for (uint32_t at = (uint32_t)(2 * team->thread); at < n; at += (uint32_t)(2 * team->threads)) {
        const int2 two = *(const int2 *)(const void *)(columns + at);
        row_write_pair(p, r, at, n, two.x, two.y);
    }
}

/* A block row. With a cut, and where columns find no room in shared memory, they stand in the upper half of the first
 * tile's places for runs. */
DEVICE void indices_fill(const struct fill_params *p, const struct team *team,
                         struct row_under_way *r, int again, int odd) {
    const int64_t width = r->tokens ? 1 : p->shape.block_kv;
    row_read(p, r, 0);
    const struct some_indices held = indices_load(p, team, r, (uint32_t)(2 * team->thread));
    row_check(p, r, team->thread == 0);
    uint32_t n;
    int last; /* column, which may be shorter */
    const int ordered = indices_ordered(p, team, r, held, team->ends + odd, &n, &last);
    int32_t *columns = p->stage ? team->stage : 0;
    if (r->cut && !columns)
        columns = (int32_t *)(void *)(p->arrays.full + r->first) + r->claim;
    if (!ordered)
        n = indices_sort(p, team, r, &held, columns, again);
    if (r->cut) {
        tiles_cut(p, team, r, ordered ? r->index : columns, n, !ordered && !p->stage);
        return;
    }
    int64_t keys = n * width;
    if (width > 1 && team_any(team, last))
        keys -= r->blocks * width - r->length;
    tiles_end(p, team, r, n, keys);
    if (ordered)
        row_write_ordered(p, team, r, n, held);
    else if (columns)
        row_write_staged(p, team, r, n, columns);
}

#endif
