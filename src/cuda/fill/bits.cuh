/*
 * Lists of block rows from bits. For each query tile, 32 columns being a word:
 *
 *     count    a warp's words, of which each lane takes every 32nd: full runs and bands
 *     sums     over the warps before
 *     write    the same words again, at places that follow from the sums
 */
#ifndef TESSERA_CUDA_FILL_BITS_CUH
#define TESSERA_CUDA_FILL_BITS_CUH

#include "fill/rows.cuh"

/* Bits of a word from which its warp writes it together. */
#define BITS_DENSE 6

/* Columns 32 w ... of the row that are listed. */
static __device__ __forceinline__ uint32_t bits_word(const struct row_under_way *r, int32_t w) {
    const uint32_t column = 32 * (uint32_t)w;
    return (uint32_t)(r->bits[w / 2] >> (column & 32)) & fill_bits_between(0, r->blocks, column);
}

/* Writes the columns of a word, full ones from place `at_full` on, others from at_band on. */
static __device__ __forceinline__ void
word_write(const struct fill_params *p, const struct row_under_way *r, struct tile_under_way *t,
           uint32_t first, uint32_t full, uint32_t band, int64_t at_full, int64_t at_band) {
    for (uint32_t word = full | band; word; word &= word - 1) {
        const int32_t c = __ffs((int)word) - 1;
        const int of_full = full >> c & 1;
        column_write(p, r, t, first + (uint32_t)c, of_full, of_full ? at_full++ : at_band++);
    }
}

/* Writing by the warp: each lane writes its column of each lane's word. */
static __device__ __forceinline__ void
words_write(const struct fill_params *p, const struct row_under_way *r, struct tile_under_way *t,
            uint32_t first, uint32_t full, uint32_t band, int64_t at_full, int64_t at_band) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const uint32_t below = (1u << lane) - 1;
    for (uint32_t busy = __ballot_sync(TEAM_LANES, (full | band) != 0); busy; busy &= busy - 1) {
        const int32_t from = __ffs((int)busy) - 1;
        const uint32_t its_full = __shfl_sync(TEAM_LANES, full, from);
        const uint32_t its_band = __shfl_sync(TEAM_LANES, band, from);
        const int64_t its_at_full = __shfl_sync(TEAM_LANES, at_full, from);
        const int64_t its_at_band = __shfl_sync(TEAM_LANES, at_band, from);
        const uint32_t column = first + (uint32_t)(32 * (from - lane) + lane);
        const int of_full = its_full >> lane & 1;
        if (of_full || its_band >> lane & 1)
            column_write(p, r, t, column, of_full,
                         of_full ? its_at_full + __popc(its_full & below)
                                 : its_at_band + __popc(its_band & below));
    }
}

/* Bits of a word that give a full run, and those that give a band. */
static __device__ __forceinline__ uint32_t word_full(const struct row_under_way *r,
                                                     const struct tile_under_way *t, uint32_t word,
                                                     uint32_t column) {
    if (!r->cut)
        return word;
    return word & fill_bits_between(t->columns.full, t->columns.full_end, column);
}
static __device__ __forceinline__ uint32_t word_band(const struct row_under_way *r,
                                                     const struct tile_under_way *t, uint32_t word,
                                                     uint32_t column) {
    if (!r->cut)
        return 0;
    return word & fill_bits_between(t->columns.live, t->columns.live_end, column) &
           ~fill_bits_between(t->columns.full, t->columns.full_end, column);
}

/* Writes the runs of a tile, and moves its places behind them. */
static __device__ __forceinline__ void bits_write(const struct fill_params *p,
                                                  const struct team *team,
                                                  const struct row_under_way *r,
                                                  struct tile_under_way *t) {
    const int32_t words = (int32_t)((r->blocks + 31) / 32);
    const int32_t lane = team_lane(team), warps = team_warps(team);
    const int32_t each = (words + 32 * warps - 1) / (32 * warps) * 32;
    const int32_t begin = team_warp(team) * each; /* may be past the last */
    const int32_t end = begin + each < words ? begin + each : words;
    uint64_t runs = 0;
    FILL_ROLLED
    for (int32_t w = begin + lane; w < end; w += 32) {
        const uint32_t word = bits_word(r, w), column = 32 * (uint32_t)w;
        runs += (uint64_t)__popc(word_full(r, t, word, column)) << 32 |
                (uint64_t)__popc(word_band(r, t, word, column));
    }
    const struct team_sums sums = team_sums_of(team, warp_sum(runs), team->runs);
    int64_t full = t->full + (int64_t)(sums.before >> 32);
    int64_t band = t->band + (int64_t)(sums.before & UINT32_MAX);
    FILL_ROLLED
    for (int32_t of_warp = begin; of_warp < end; of_warp += 32) {
        const int32_t w = of_warp + lane;
        const uint32_t word = w < end ? bits_word(r, w) : 0;
        const uint32_t column = 32 * (uint32_t)w;
        const uint32_t its_full = word_full(r, t, word, column);
        const uint32_t its_band = word_band(r, t, word, column);
        if (!__any_sync(TEAM_LANES, (its_full | its_band) != 0))
            continue;
        const uint64_t own = (uint64_t)__popc(its_full) << 32 | (uint64_t)__popc(its_band);
        const uint64_t through = warp_sums(own), before = through - own;
        const int64_t at_full = full + (int64_t)(before >> 32);
        const int64_t at_band = band + (int64_t)(before & UINT32_MAX);
        if (__any_sync(TEAM_LANES, __popc(its_full | its_band) > BITS_DENSE))
            words_write(p, r, t, column, its_full, its_band, at_full, at_band);
        else
            word_write(p, r, t, column, its_full, its_band, at_full, at_band);
        const uint64_t all = __shfl_sync(TEAM_LANES, through, 31);
        full += (int64_t)(all >> 32), band += (int64_t)(all & UINT32_MAX);
    }
    t->full += (int64_t)(sums.all >> 32), t->band += (int64_t)(sums.all & UINT32_MAX);
}

/* A barrier stands between any two uses of a sum's place: that of the other sum, of runs and of keys. */
static __device__ __forceinline__ void bits_fill(const struct fill_params *p,
                                                 const struct team *team, struct row_under_way *r) {
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
