/* Fused attention on Hopper: masks. Scores of rows that do not list the key become -Inf. On the TMA
 * path the producer warp of K looks masks up and writes one word for a warp and granule beside K.
 * On the other paths the plan has mask bits in accumulator-fragment layout (fragment_masks.h),
 * which are loaded a step ahead. */
#ifndef TESSERA_CUDA_SM90_MASK_CUH
#define TESSERA_CUDA_SM90_MASK_CUH

#include "forward/sm90/softmax.cuh"

/* 32-bit words of a row mask. */
static __device__ __forceinline__ int sm90_mask_words(const struct attention_params &p) {
    return (p.tile_rows + 63) / 64 * 2;
}

/* A granule's mask as it is loaded. Each of two lanes has one of a step's two masks. */
union sm90_granule_mask {
    int4 words;
    struct granule_mask mask;
};

/* ---- granules of 64 keys ---- */

/*
 * A mask word: how a warp's 16 rows list a granule.
 *
 *   bit  31 ... 24     23 ... 16     9        8 7        6 ... 0
 *        last          first         LISTED   RANGE      keys   row r: first + r ... last + r
 *        row r: bit 16 + r           LISTED   MEMBERS    keys   row r: all or no columns
 *                                    LISTED   BITS       keys   a row mask for each key
 *                                    LISTED   0          keys   all 64 columns
 *
 * LISTED: some row of the consumer may list a key.
 */
enum { SM90_RANGE = 1 << 7, SM90_MEMBERS = 2 << 7, SM90_BITS = 3 << 7, SM90_LISTED = 1 << 9 };
#define SM90_FAR_COLUMN 80 /* past 64 columns, from any of 16 rows */

/* Columns first + r ... last + r of row r. */
static __device__ __forceinline__ uint32_t sm90_range(int first, int last) {
    first = max(min(first, SM90_FAR_COLUMN), -SM90_FAR_COLUMN);
    last = max(min(last, SM90_FAR_COLUMN), -SM90_FAR_COLUMN);
    return SM90_RANGE | (uint32_t)(first & 255) << 16 | (uint32_t)last << 24;
}

/* The mask word of a granule for the warp whose rows begin at `row`. */
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
    } else if (mask.kind == LIST_BAND) { /* limits beyond +-256 change nothing */
        const int lo = max(min(mask.u.band.lo, 256), -256);
        const int hi = max(min(mask.u.band.hi, 256), -256);
        listed = group + 63 + hi >= 0 && group + lo <= last;
        if (row + 15 + lo > 0 || row + hi < last)
            word = sm90_range(row + lo, row + hi);
    }
    return word | (uint32_t)keys | (listed ? SM90_LISTED : 0);
}

/* Loads the mask of granule g + lane % 2 of an item; by the producer warp of K. */
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

/* Writes the mask words of a step, before K's full barrier completes. Lane 2 w + i computes the
 * word of granule i for warp w. Lane 0, which arrives at the barrier, writes all words. */
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

/* The lowest n of 16 bits, 0 <= n <= 16 after clamping. */
static __device__ __forceinline__ uint32_t sm90_low_bits(int n) {
    return (1u << max(min(n, 16), 0)) - 1;
}

/* How many of a thread's 16 columns 8 j + e (j = 0 ... 7, e = 0, 1) are <= `last`; may be negative
 * or > 16. */
static __device__ __forceinline__ int sm90_columns_to(int last) {
    return 2 * (last >> 3) + min((last & 7) + 1, 2);
}

/*
 * Which of this thread's scores of a granule count, 16 bits a row. With g = lane / 4, t = lane % 4:
 *
 *   bit 2 j + e         row g         column 8 j + 2 t + e      j = 0 ... 7, e = 0, 1
 *   bit 16 + 2 j + e    row g + 8     column 8 j + 2 t + e
 *
 * Here for granules with a row mask for each key: the warp's word of key k is words[k step].
 */
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

/* A word of shared memory, read by lane 0 and broadcast. Lane 0 also arrives at K's empty barrier,
 * after its read. */
static __device__ __forceinline__ uint32_t sm90_read(const uint32_t *word) {
    return __shfl_sync(WARP_ALL, warp_lane_here() == 0 ? *word : 0, 0);
}
static __device__ __forceinline__ int64_t sm90_read(const int64_t *word) {
    return __shfl_sync(WARP_ALL, warp_lane_here() == 0 ? *word : 0, 0);
}

/* Which of this thread's scores of a granule count, from its mask word and, for BITS, its row
 * masks. Row g + 8 has the range of row g, 8 columns further. */
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

/* Whether V has rows past the keys of its granules. */
static __device__ __forceinline__ bool sm90_has_dead_rows(uint32_t keys) {
    const uint32_t one = keys & 255, two = keys >> 8;
    return (one && one < GRANULE_MAX) || (two && two < GRANULE_MAX);
}

/* ---- granules of any size ---- */

/* Mask bits of this thread's scores of a step, as sm90_softmax takes them. fine: masks differ from
 * key to key, and x[1] is used too. */
struct sm90_bits {
    uint32_t x[2];
    bool fine;
};

/* Where a thread finds the mask bits of an item (fragment_masks.h). */
struct sm90_bits_place {
    const uint32_t *from;   /* bits of the first chunk that is not unmasked */
    int32_t whole, uniform; /* chunks without mask; the same and those of uniform masks */
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

/* Loads the mask bits of step `at`, which is not an unmasked one. */
template <int STEP_BITS>
static __device__ __forceinline__ void
sm90_load_bits(struct sm90_bits &bits, const struct sm90_bits_place &place,
               const struct attention_params &p, int at, int row) {
    const int chunk = at >> (7 - STEP_BITS);
    const uint32_t pairs = (uint32_t)p.tile_rows / 2; /* row pairs (r, r + 8), which share words */
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

/* ---- both paths ---- */

/* Masks that a consumer thread holds. TMA: for each granule, which scores of the step in flight
 * count. Others: those of the step in flight, those of the next step, and where to find more. */
template <class shape, int SOURCE> struct sm90_mask {
    struct sm90_listed_scores now;
    struct sm90_bits next;
    struct sm90_bits_place place;
};
template <class shape> struct sm90_mask<shape, SM90_TMA> { uint32_t listed[shape::GRANULES]; };

#endif
