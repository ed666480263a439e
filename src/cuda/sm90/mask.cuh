/*
 * Fused attention on Hopper: which of a thread's scores count. Those of rows that do not list the
 * key become -Inf, whatever they are. Granules of 64 keys, one or two to a step, are looked up 32
 * at a time, one to a lane, steps before they are needed; of smaller ones each lane looks up its
 * places of a step.
 */
#ifndef TESSERA_CUDA_SM90_MASK_CUH
#define TESSERA_CUDA_SM90_MASK_CUH

#include "sm90/shape.cuh"

/* Of a row mask, of 32 bits. */
static __device__ __forceinline__ int sm90_mask_words(const struct attention_params &p) {
    return (p.tile_rows + 63) / 64 * 2;
}

/* ---- granules of 64 keys ---- */

/* One granule to a lane: keys and kind, both in `keys` until looked at closer; and lo and hi of a
 * band, this warp's 16 rows of members, or the place of a granule's words. */
struct sm90_ahead {
    int32_t keys, kind, a, b;
};

/* A granule of a step, the same for all lanes, and where its V may hold anything. */
union sm90_granule_mask {
    int4 words;
    struct granule_mask mask;
};

/* Loads the masks of an item's granules from the `first` on: they are on their way until
 * sm90_look_closer. */
static __device__ __forceinline__ void sm90_look_ahead(struct sm90_ahead &ahead,
                                                       const struct attention_params &p,
                                                       const struct granule_item &item,
                                                       int64_t first) {
    const int64_t g = first + warp_lane_here();
    union sm90_granule_mask load;
    load.mask.count = g < item.count ? GRANULE_MAX : 0;
    load.mask.kind = GRANULE_ALL;
    if (g >= item.whole && g < item.count)
        load.words =
            __ldg(reinterpret_cast<const int4 *>(&p.image.masks[item.mask + g - item.whole]));
    ahead.keys = load.words.x;
    ahead.a = load.words.z;
    ahead.b = load.words.w;
}

/* What of them concerns rows `row` ... `row` + 15. Answers, a bit for each granule, which of them a
 * row of the warpgroup may list. */
static __device__ __forceinline__ uint32_t sm90_look_closer(struct sm90_ahead &ahead,
                                                            const struct attention_params &p,
                                                            int row) {
    union sm90_granule_mask load;
    load.words = {ahead.keys, 0, ahead.a, ahead.b};
    ahead.keys = load.mask.count;
    ahead.kind = load.mask.kind;
    bool listed = ahead.keys > 0;
    if (ahead.kind == LIST_MEMBERS) {
        const uint64_t rows = p.image.words[load.mask.u.word + row / 64];
        ahead.a = (int32_t)(rows >> row % 64);
        listed = rows != 0;
    } else if (ahead.kind == LIST_BAND) { /* limits that matter are small */
        ahead.a = max(min(ahead.a, 256), -256);
        ahead.b = max(min(ahead.b, 256), -256);
        const int last = ahead.keys - 1, group = row & ~63;
        listed = group + 63 + ahead.b >= 0 && group + ahead.a <= last;
        if (row + 15 + ahead.a <= 0 && row + ahead.b >= last)
            ahead.kind = GRANULE_ALL;
    }
    return __ballot_sync(WARP_ALL, listed);
}

/* Columns first ... last of 0 ... 63. */
static __device__ __forceinline__ uint64_t sm90_columns(int first, int last) {
    first = max(first, 0);
    last = min(last, 63);
    return first > last ? 0 : ~(uint64_t)0 << first & ~(uint64_t)0 >> (63 - last);
}

/* The columns that this thread's two rows list of a granule with a mask for each key. words: of the
 * warp's rows, first key; keys are `step` words apart. */
static __device__ __forceinline__ void sm90_bits(uint64_t (&listed)[2], const uint32_t *words,
                                                 int step, int keys, int row) {
    const int lane = warp_lane_here();
    uint32_t of[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        of[i] = lane + 32 * i < keys ? __ldg(words + (lane + 32 * i) * step) >> row % 32 : 0;
#pragma unroll 1
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t low = __ballot_sync(WARP_ALL, of[0] >> (r + 8 * h) & 1);
            const uint32_t high = __ballot_sync(WARP_ALL, of[1] >> (r + 8 * h) & 1);
            if (lane / 4 == r)
                listed[h] = (uint64_t)high << 32 | low;
        }
}

/* Masks the scores of the step that is `after` steps past the one looked up. Answers the keys of its
 * granules, 8 bits each: V may hold anything past them, where there are any. */
template <int N>
static __device__ __forceinline__ uint32_t sm90_mask_granules(float (&s)[N],
                                                              const struct sm90_ahead &ahead,
                                                              int after,
                                                              const struct attention_params &p,
                                                              int row) {
    const int lane = warp_lane_here(), g = lane / 4;
    uint32_t all_keys = 0;
#pragma unroll
    for (int i = 0; i < N / 32; i++) {
        const int keys = __shfl_sync(WARP_ALL, ahead.keys, N / 32 * after + i);
        const int kind = __shfl_sync(WARP_ALL, ahead.kind, N / 32 * after + i);
        const int a = __shfl_sync(WARP_ALL, ahead.a, N / 32 * after + i);
        const int b = __shfl_sync(WARP_ALL, ahead.b, N / 32 * after + i);
        uint64_t listed[2];
        all_keys |= (uint32_t)keys << 8 * i;
        if (kind == GRANULE_ALL && keys == GRANULE_MAX)
            continue;
        if (kind == LIST_BITS) {
            const int64_t word = (int64_t)((uint64_t)(uint32_t)b << 32 | (uint32_t)a);
            sm90_bits(listed, reinterpret_cast<const uint32_t *>(p.image.words + word) + row / 32,
                      sm90_mask_words(p), keys, row);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = g + 8 * h; /* of the warp */
                const bool band = kind == LIST_BAND, all = kind == GRANULE_ALL;
                const int first = band ? row + r + a : 0;
                const int last = band ? row + r + b : 63;
                const bool any = band || all || (a >> r & 1);
                listed[h] = any ? sm90_columns(first, min(last, keys - 1)) : 0;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t mine = (uint32_t)(listed[h] >> 32 * half) >> 2 * (lane % 4);
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (!(mine & 1u << (8 * j + e)))
                            s[32 * i + 16 * half + 4 * j + 2 * h + e] = -INFINITY;
            }
    }
    return all_keys;
}

/* Whether V has rows that no key fills, of granules with these keys. */
static __device__ __forceinline__ bool sm90_some_dead(uint32_t keys) {
    const uint32_t one = keys & 255, two = keys >> 8;
    return (one && one < GRANULE_MAX) || (two && two < GRANULE_MAX);
}

/* ---- granules of any size ---- */

/* What this warp's 16 rows list of a step of 64 N places. Lane l knows of 64 i + 2 l and + 1: their
 * row masks in the halves of rows[i]. */
template <int N> struct sm90_places {
    uint32_t rows[N];
};

/* Rows first ... last that lie within 0 ... 15. */
static __device__ __forceinline__ uint32_t sm90_row_range(int64_t first, int64_t last) {
    const int low = (int)max(first, (int64_t)0), high = (int)min(last, (int64_t)15);
    return first > 15 || last < 0 || low > high ? 0 : (2u << high) - (1u << low);
}

/* Looks up the places of step `step` of an item, for rows `row` ... `row` + 15: first all that is
 * known of their granules, then all row masks, so that each is waited for once. */
template <int N>
static __device__ __forceinline__ void sm90_look_up(struct sm90_places<N> &places,
                                                    const struct attention_params &p,
                                                    const struct granule_item &item, int32_t step,
                                                    int row) {
    const int64_t first = 64 * N * (int64_t)step + 2 * warp_lane_here();
    const int32_t size = 1 << p.granule_bits;
    union sm90_granule_mask of[2 * N];
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        const int64_t g = (first + 64 * (i / 2) + i % 2) >> p.granule_bits;
        of[i].mask.count = (int16_t)(g < item.count ? size : 0);
        of[i].mask.kind = GRANULE_ALL;
        if (g >= item.whole && g < item.count)
            of[i].words = __ldg(
                reinterpret_cast<const int4 *>(&p.image.masks[item.mask + g - item.whole]));
    }
    uint32_t rows[2 * N];
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        const struct granule_mask m = of[i].mask;
        const int32_t offset = ((int32_t)first + i % 2) & (size - 1);
        const bool listed = offset < m.count;
        rows[i] = listed ? 0xffff : 0;
        if (listed && m.kind == LIST_BAND)
            rows[i] = sm90_row_range((int64_t)offset - m.u.band.hi - row,
                                     (int64_t)offset - m.u.band.lo - row);
        if (listed && (m.kind == LIST_MEMBERS || m.kind == LIST_BITS))
            rows[i] = __ldg(reinterpret_cast<const uint32_t *>(p.image.words + m.u.word) +
                            (m.kind == LIST_BITS ? offset * sm90_mask_words(p) : 0) + row / 32) >>
                      row % 32;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        places.rows[i] = (rows[2 * i] & 0xffff) | rows[2 * i + 1] << 16;
}

template <int N>
static __device__ __forceinline__ void sm90_mask_places(float (&s)[32 * N],
                                                        const struct sm90_places<N> &places) {
    const int lane = warp_lane_here();
    const uint32_t row = 1u << lane / 4;
#pragma unroll
    for (int j = 0; j < 8 * N; j++) {
        const uint32_t rows = __shfl_sync(WARP_ALL, places.rows[j / 8], 4 * (j % 8) + lane % 4);
#pragma unroll
        for (int e = 0; e < 4; e++) /* row g, columns 2t and 2t + 1; then row g + 8 */
            if (!(rows & row << (16 * (e % 2) + 8 * (e / 2))))
                s[4 * j + e] = -INFINITY;
    }
}

/* ---- either ---- */

/* What a computing warpgroup knows of masks; listed: as sm90_look_ahead answers. */
template <class shape, int SOURCE> struct sm90_mask;
template <class shape> struct sm90_mask<shape, SM90_BOXES> {
    struct sm90_ahead ahead;
    uint32_t listed;
};
template <class shape> struct sm90_mask<shape, SM90_COPIES> {
    struct sm90_places<shape::GRANULES> places;
};

#endif
