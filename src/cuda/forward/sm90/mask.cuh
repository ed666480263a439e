/*
 * Fused attention on Hopper: which of a thread's scores count. Those of rows that do not list the
 * key become -Inf, whatever they are. The masks of granules of 64 keys, one or two to a step, are
 * looked up by the warp that fetches K, and stand beside it; of others, and where warpgroups have
 * turns, the plan has the bits of each thread's scores (fragment_masks.h), which are loaded a step ahead.
 */
#ifndef TESSERA_CUDA_SM90_MASK_CUH
#define TESSERA_CUDA_SM90_MASK_CUH

#include "forward/sm90/softmax.cuh"

/* Of a row mask, of 32 bits. */
static __device__ __forceinline__ int sm90_mask_words(const struct attention_params &p) {
    return (p.tile_rows + 63) / 64 * 2;
}

/* What the plan knows of a granule, as it is loaded: each of two lanes has one of a step's. */
union sm90_granule_mask {
    int4 words;
    struct granule_mask mask;
};

/* ---- granules of 64 keys ---- */

/* A word says how a warp's 16 rows list a granule: its number of keys in bits 0 ... 6; and all of 64
 * (0); or columns first + r ... last + r for row r, in bytes 2 and 3; or all or none, a bit for each
 * row in bits 16 ... 31; or a mask for each key. LISTED: some row of the warpgroup may list it. */
enum { SM90_RANGE = 1 << 7, SM90_MEMBERS = 2 << 7, SM90_BITS = 3 << 7, SM90_LISTED = 1 << 9 };
#define SM90_FAR_COLUMN 80 /* past 64 columns, from any of 16 rows */

/* Columns first + r ... last + r of row r. */
static __device__ __forceinline__ uint32_t sm90_range(int first, int last) {
    first = max(min(first, SM90_FAR_COLUMN), -SM90_FAR_COLUMN);
    last = max(min(last, SM90_FAR_COLUMN), -SM90_FAR_COLUMN);
    return SM90_RANGE | (uint32_t)(first & 255) << 16 | (uint32_t)last << 24;
}

/* The word of a granule for the warp whose rows begin at `row`. */
static __device__ __forceinline__ uint32_t sm90_word(const struct granule_mask &mask,
                                                     const struct attention_params &p, int row) {
    const int keys = mask.count, last = keys - 1, group = row & ~63;
    uint32_t word = keys == GRANULE_MAX ? 0 : sm90_range(-SM90_FAR_COLUMN, SM90_FAR_COLUMN);
    bool listed = keys > 0;
    if (mask.kind == LIST_BITS) {
        word = SM90_BITS;
    } else if (mask.kind == LIST_MEMBERS) {
        const uint64_t rows = p.image.words[mask.u.word + row / 64];
        word = SM90_MEMBERS | (uint32_t)(rows >> row % 64) << 16;
        listed = rows != 0;
    } else if (mask.kind == LIST_BAND) { /* limits that matter are small */
        const int lo = max(min(mask.u.band.lo, 256), -256);
        const int hi = max(min(mask.u.band.hi, 256), -256);
        listed = group + 63 + hi >= 0 && group + lo <= last;
        if (row + 15 + lo > 0 || row + hi < last)
            word = sm90_range(row + lo, row + hi);
    }
    return word | (uint32_t)keys | (listed ? SM90_LISTED : 0);
}

/* The mask of granule g + lane % 2 of an item, by the warp that fetches keys. */
static __device__ __forceinline__ union sm90_granule_mask
sm90_load_mask(const struct attention_params &p, const struct granule_item &item, int32_t g) {
    union sm90_granule_mask load = {};
    g += warp_lane() % 2;
    load.mask.count = g < item.count ? GRANULE_MAX : 0;
    load.mask.kind = GRANULE_ALL;
    if (g >= item.whole && g < item.count)
        load.words =
            __ldg(reinterpret_cast<const int4 *>(&p.image.masks[item.mask + g - item.whole]));
    return load;
}

/* Leaves the words of a step whose masks have been loaded, for whoever finds that K is there. Lane 2 w
 * + i finds that of granule i for warp w; lane 0, which arrives at K's barrier, writes all. */
template <int WARPS>
static __device__ __forceinline__ void sm90_write_masks(struct sm90_masks<WARPS> &to,
                                                        const union sm90_granule_mask &load,
                                                        const struct attention_params &p) {
    const int lane = warp_lane();
    const uint32_t word =
        lane < 2 * WARPS ? sm90_word(load.mask, p, sm90_row_of_head(p, 8 * (lane & ~1))) : 0;
    const int64_t bits[2] = {load.mask.u.word, __shfl_down_sync(WARP_ALL, load.mask.u.word, 1)};
#pragma unroll 1
    for (int i = 0; i < 2 * WARPS; i += 2) {
        const uint2 words = {__shfl_sync(WARP_ALL, word, i), __shfl_sync(WARP_ALL, word, i + 1)};
        if (lane == 0)
            to.words[i / 2] = words;
    }
    if (lane == 0)
        to.bits[0] = bits[0], to.bits[1] = bits[1];
}

/* Bits 0 ... n - 1 of 16. */
static __device__ __forceinline__ uint32_t sm90_low_bits(int n) {
    return (1u << max(min(n, 16), 0)) - 1;
}

/* How many of columns 8 j, 8 j + 1 for all j, also below 0, are not past column `last`; counted from
 * 0. */
static __device__ __forceinline__ int sm90_columns_to(int last) {
    return 2 * (last >> 3) + min((last & 7) + 1, 2);
}

/* Which of this thread's scores of a granule count: columns 8 j + 2 t + e of row g in bits 2 j + e,
 * of row g + 8 in bits 16 + 2 j + e. This one: where each key has a mask, from `words` of the
 * warp's rows on, `step` words apart. */
static __device__ __forceinline__ uint32_t sm90_listed_bits(const uint32_t *words, int step,
                                                            int keys, int row) {
    const int lane = warp_lane_here();
    uint32_t of[2], listed = 0;
#pragma unroll
    for (int i = 0; i < 2; i++)
        of[i] = lane + 32 * i < keys ? __ldg(words + (lane + 32 * i) * step) >> row % 32 : 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int from = 8 * (i / 2 % 4) + 2 * (lane % 4) + i % 2;
        const uint32_t rows = __shfl_sync(WARP_ALL, of[i / 8], from) >> lane / 4;
        listed |= (rows & 1) << i | (rows >> 8 & 1) << (16 + i);
    }
    return listed;
}

/* What a word of shared memory is, read by one lane: the one that tells that the warp has read it. */
static __device__ __forceinline__ uint32_t sm90_read(const uint32_t *word) {
    return __shfl_sync(WARP_ALL, warp_lane_here() == 0 ? *word : 0, 0);
}
static __device__ __forceinline__ int64_t sm90_read(const int64_t *word) {
    return __shfl_sync(WARP_ALL, warp_lane_here() == 0 ? *word : 0, 0);
}

/* The same of any granule, of its word and, if it has them, bits. Row g + 8 is 8 columns on. */
static __device__ __forceinline__ uint32_t sm90_listed(uint32_t word, const int64_t *bits,
                                                       const struct attention_params &p, int row) {
    const int keys = (int)(word & 127), kind = (int)(word & SM90_BITS);
    if (kind == 0)
        return ~0u;
    if (kind == SM90_BITS)
        return sm90_listed_bits(
            reinterpret_cast<const uint32_t *>(p.image.words + sm90_read(bits)) + row / 32,
            sm90_mask_words(p), keys, row);
    const int lane = warp_lane_here(), g = lane / 4, column = 2 * (lane % 4);
    uint32_t listed = (word >> (16 + g) & 1 ? 0xffff : 0) | (word >> (24 + g) & 1 ? ~0u << 16 : 0);
    if (kind == SM90_RANGE) {
        const int first = sm90_columns_to((int8_t)(word >> 16) + g - 1 - column);
        const int last = sm90_columns_to((int8_t)(word >> 24) + g - column);
        listed = (sm90_low_bits(last) & ~sm90_low_bits(first)) |
                 (sm90_low_bits(last + 2) & ~sm90_low_bits(first + 2)) << 16;
    }
    if (keys < GRANULE_MAX)
        listed &= sm90_low_bits(sm90_columns_to(keys - 1 - column)) * 0x10001;
    return listed;
}

/* Scores of a granule that do not count become -Inf. */
static __device__ __forceinline__ void sm90_mask_granule(float *s, uint32_t listed) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) /* row g, columns 2t and 2t + 1; then row g + 8 */
            if (!(listed >> (16 * (i / 2) + 2 * j + i % 2) & 1))
                s[4 * j + i] = -INFINITY;
}

/* Whether V has rows that no key fills, of granules with these keys. */
static __device__ __forceinline__ bool sm90_has_dead_rows(uint32_t keys) {
    const uint32_t one = keys & 255, two = keys >> 8;
    return (one && one < GRANULE_MAX) || (two && two < GRANULE_MAX);
}

/* ---- granules of any size ---- */

/* Of this thread's scores of a step, as sm90_softmax has them; x[1] only where the step is fine:
 * where columns 8 j ... 8 j + 7 may differ. */
struct sm90_bits {
    uint32_t x[2];
    bool fine;
};

/* Where a thread finds those of an item's steps (fragment_masks.h). */
struct sm90_bits_place {
    const uint32_t *from;   /* of the first chunk that has some, where it is not fine */
    int32_t whole, uniform; /* chunks of whole granules, and with the even ones */
};

/* For a warp whose rows begin at `row` of the tile. */
static __device__ __forceinline__ struct sm90_bits_place
sm90_bits_begin(const struct attention_params &p, const struct granule_item &item,
                const struct granule_consumer_info &consumer_info, int row) {
    const int to_chunk = 7 - p.granule_bits;
    const int32_t whole = sm90_uniform(item.whole >> to_chunk);
    const int32_t uniform = sm90_uniform(consumer_info.uniform >> to_chunk);
    return {p.image.score_bits + consumer_info.bits + row / 2 + warp_lane_here() / 4, whole,
            p.granule_bits < 3 ? whole : uniform};
}

/* Those of step `at`, which is not one of the whole ones, for a warp whose rows begin at `row`. */
template <int STEP_BITS>
static __device__ __forceinline__ void
sm90_load_bits(struct sm90_bits &bits, const struct sm90_bits_place &place,
               const struct attention_params &p, int at, int row) {
    const int chunk = at >> (7 - STEP_BITS);
    const uint32_t pairs = (uint32_t)p.tile_rows / 2; /* of rows, that share words */
    bits.fine = chunk >= place.uniform;
    if (bits.fine) {
        const int lane = warp_lane_here();
        const int64_t words = place.uniform - place.whole + 8 * (int64_t)(chunk - place.uniform);
        const uint2 both = __ldg(reinterpret_cast<const uint2 *>(
            place.from + words * pairs + 7 * (row / 2 + lane / 4) + 2 * (lane % 4)));
        bits.x[0] = both.x;
        bits.x[1] = both.y;
    } else {
        bits.x[0] = __ldg(place.from + (uint64_t)(uint32_t)(chunk - place.whole) * pairs);
    }
}

/* ---- either ---- */

/* What a computing thread knows of the step whose scores are on their way: of each granule of 64
 * keys which of them count, as sm90_listed has it; else which of all do, the bits of the step after,
 * and where there are more. */
template <class shape, int SOURCE> struct sm90_mask {
    struct sm90_listed_scores now;
    struct sm90_bits next;
    struct sm90_bits_place place;
};
template <class shape> struct sm90_mask<shape, SM90_TMA> { uint32_t listed[shape::GRANULES]; };

#endif
