/*
 * Lists of block rows from bits. For each query tile, in chunks of 64 columns for each lane of a warp:
 *
 *     count    a warp's words: full runs and bands; where a tile has several warps
 *     sums     over the warps before
 *     stage    a chunk's listed columns, ascending, in shared memory: each lane's behind those of the lanes before
 *     write    neighbouring lanes write neighbouring runs
 */
#ifndef TESSERA_CUDA_FILL_BITS_CUH
#define TESSERA_CUDA_FILL_BITS_CUH

#include "fill/rows.cuh"

/* Columns 64 w ... of the row that are listed. */
DEVICE uint64_t bits_word(const struct row_under_way *r, int32_t w) {
    return bits_masked(r->bits[w], w, r->blocks);
}

/* Columns within begin ... end - 1, of 64 that begin at `first`. */
DEVICE uint64_t bits_within(uint32_t begin, uint32_t end, uint32_t first) {
    return (uint64_t)fill_bits_between(begin, end, first + 32) << 32 |
           fill_bits_between(begin, end, first);
}

/* Bits of a word that give a full run, and those that give a band. */
DEVICE uint64_t word_full(const struct row_under_way *r, const struct tile_under_way *t,
                          uint64_t word, uint32_t column) {
    if (!r->cut)
        return word;
    return word & bits_within(t->columns.full, t->columns.full_end, column);
}
DEVICE uint64_t word_band(const struct row_under_way *r, const struct tile_under_way *t,
                          uint64_t word, uint32_t column) {
    if (!r->cut)
        return 0;
    return word & bits_within(t->columns.live, t->columns.live_end, column) &
           ~bits_within(t->columns.full, t->columns.full_end, column);
}

/* Stages the columns of set bits, bit 0 being column `first`, before place `past`; answers the first place. From the
 * highest bit down: the lowest takes a reversal more, and units of either are an eighth of those that add. */
DEVICE uint32_t half_stage(uint16_t *stage, uint32_t past, uint32_t half, uint32_t first) {
    while (half) {
        const uint32_t top = 31 - (uint32_t)__clz((int)half);
        stage[--past] = (uint16_t)(first + top);
        half ^= 1u << top;
    }
    return past;
}

/* Writes the runs of a chunk that begins at column `first`, full ones or bands, from place `at` on; answers how many.
 * word: this lane's. */
DEVICE uint32_t chunk_write(const struct fill_params *p, const struct team *team,
                            const struct row_under_way *r, struct tile_under_way *t, uint32_t first,
                            uint64_t word, int full, int64_t at) {
    const uint32_t lane = (uint32_t)team_lane(team), own = (uint32_t)__popcll(word);
    const uint32_t through = warp_sums_32(own), all = __shfl_sync(TEAM_LANES, through, 31);
    uint16_t *const stage =
        (uint16_t *)(void *)team->bitmap + FILL_STAGED(p->shape.cols) * team_warp(team);
    if (!all)
        return 0;
    const uint32_t past = half_stage(stage, through, (uint32_t)(word >> 32), 64 * lane + 32);
    half_stage(stage, past, (uint32_t)word, 64 * lane);
    __syncwarp(TEAM_LANES);
    FILL_ROLLED
    for (uint32_t i = lane; i < all; i += 32)
        column_write(p, r, t, first + stage[i], full, at + i);
    __syncwarp(TEAM_LANES); /* the stage has been read */
    return all;
}

/* Runs of words begin ... end - 1 by this warp: full ones in the high half. */
DEVICE uint64_t words_count(const struct row_under_way *r, const struct tile_under_way *t,
                            int32_t begin, int32_t end, int32_t lane) {
    uint64_t runs = 0;
    FILL_ROLLED
    for (int32_t w = begin + lane; w < end; w += 32) {
        const uint64_t word = bits_word(r, w);
        const uint32_t column = 64 * (uint32_t)w;
        runs += (uint64_t)__popcll(word_full(r, t, word, column)) << 32 |
                (uint64_t)__popcll(word_band(r, t, word, column));
    }
    return warp_sum(runs);
}

/* Writes the runs of a tile, and moves its places behind them. */
DEVICE void bits_write(const struct fill_params *p, const struct team *team,
                       const struct row_under_way *r, struct tile_under_way *t) {
    const int32_t words = (int32_t)((r->blocks + 63) / 64);
    const int32_t lane = team_lane(team), warps = team_warps(team);
    const int32_t each = (words + 32 * warps - 1) / (32 * warps) * 32;
    const int32_t begin = team_warp(team) * each; /* may be past the last */
    const int32_t end = begin + each < words ? begin + each : words;
    struct team_sums sums;
    sums.before = sums.all = 0;
    if (warps > 1)
        sums = team_sums_of(team, words_count(r, t, begin, end, lane), team->runs);
    int64_t full = t->full + (int64_t)(sums.before >> 32);
    int64_t band = t->band + (int64_t)(sums.before & UINT32_MAX);
    uint64_t next = begin + lane < end ? bits_word(r, begin + lane) : 0;
    FILL_ROLLED
    for (int32_t w = begin; w < end; w += 32) {
        const uint32_t first = 64 * (uint32_t)w, column = first + 64 * (uint32_t)lane;
        const uint64_t word = next;
        next = w + 32 + lane < end ? bits_word(r, w + 32 + lane) : 0;
        full += chunk_write(p, team, r, t, first, word_full(r, t, word, column), 1, full);
        if (r->cut)
            band += chunk_write(p, team, r, t, first, word_band(r, t, word, column), 0, band);
    }
    t->full = warps > 1 ? t->full + (int64_t)(sums.all >> 32) : full;
    t->band = warps > 1 ? t->band + (int64_t)(sums.all & UINT32_MAX) : band;
}

/* A barrier stands between any two uses of a sum's place: that of the other sum, of runs and of keys. */
DEVICE void bits_fill(const struct fill_params *p, const struct team *team,
                      struct row_under_way *r) {
    const struct fill_shape *s = &p->shape;
    const int64_t begin = r->tile, end = begin + r->tiles;
    row_read(p, r, 1);
    row_check(p, r, team->thread == 0);
    r->blocks = r->claim ? r->blocks : 0;
    for (int64_t tile = begin; tile < end; tile++) {
        struct tile_under_way t = tile_begin(p, r, tile, tile - begin);
        const int64_t full = t.full, band = t.band;
        bits_write(p, team, r, &t);
        const int64_t keys = tile_sums(team, &t, team->keys);
        if (team->thread == 0)
            tile_end(&p->arrays, r->list * s->tiles + tile, full, band, &t, keys);
    }
}

#endif
