/*
 * Fused attention: how listed keys get into shared memory. A step is KEYS places of a tile's
 * granules; each warp gathers KEYS / WARPS rows of K and of V, whatever the granules are, and puts
 * the row masks beside them where a granule of the step has one. Places that hold no key get zeros,
 * and a mask without rows.
 */
#ifndef TESSERA_CUDA_ATTENTION_GATHER_CUH
#define TESSERA_CUDA_ATTENTION_GATHER_CUH

#include "attention.h"
#include "device/convert.cuh"
#include "device/copy.cuh"
#include "device/swizzle.cuh"
#include "device/warp.cuh"

/* Where the rows of one (batch, head) of a tensor begin. */
template <class T>
static __device__ __forceinline__ char *attention_head(const struct view &view, int32_t b,
                                                       int32_t h) {
    return reinterpret_cast<char *>(static_cast<T *>(view.data) + b * view.stride[0] +
                                    h * view.stride[1]);
}

/* 16 bytes of a row of elements that are not aligned, or not to be taken as they are. */
template <class T>
static __device__ __forceinline__ uint4 attention_load_16(const char *from, int32_t bytes,
                                                          float scale) {
    union {
        T x[16 / sizeof(T)];
        uint4 all;
    } piece;
    piece.all = {0, 0, 0, 0};
    const T *elements = reinterpret_cast<const T *>(from);
#pragma unroll
    for (int i = 0; i < (int)(16 / sizeof(T)); i++)
        if (i * (int)sizeof(T) < bytes)
            from_f32(&piece.x[i], to_f32(elements[i]) * scale);
    return piece.all;
}

/* How rows get from a tensor into a panel. */
struct attention_manner {
    int64_t stride; /* bytes from row to row */
    uint32_t step;  /* the same, where rows are copied */
    int32_t bytes;  /* of a row */
    bool copied;    /* 16 bytes at a time; else element by element, times `scale` */
    float scale;
};

template <class T>
static __device__ __forceinline__ struct attention_manner
attention_manner_of(const struct attention_params &p, const struct view &view, int32_t d,
                    float scale) {
    return {view.stride[2] * (int64_t)sizeof(T), (uint32_t)view.stride[2] * (uint32_t)sizeof(T),
            d * (int32_t)sizeof(T), p.copied && scale == 1, scale};
}

/* Each warp instruction copies a segment, 128 bytes, of four rows. Lane l names, in key[i], the one
 * that goes to row 32 i + l of the panel, -1 for zeros. */
template <class T, int DIMS, int ROWS, int ROW>
static __device__ __forceinline__ void
attention_copy_keys(uint32_t to, const char *from, const struct attention_manner &manner,
                    const int32_t (&key)[(ROWS + 31) / 32]) {
    constexpr int PIECES = DIMS * (int)sizeof(T) / 16, SEGMENTS = ROW / 128;
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
    from += 16 * piece;
    to += (uint32_t)(sub * ROW) + panel_piece(sub, piece);
    asm("" : "+l"(from)); /* one sum: else each row adds its two terms */
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        const int32_t k = __shfl_sync(WARP_ALL, key[i / 32], (i + sub) % 32);
        const char *row = from + (uint64_t)(uint32_t)max(k, 0) * manner.step;
        const uint32_t at = (to ^ (uint32_t)(i % 8 * 16)) + (uint32_t)(i * ROW);
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            if (8 * s + 7 < PIECES || 8 * s + piece < PIECES)
                copy_16_of_line(at + 128 * s, row + 128 * s,
                                k >= 0 && 128 * s + 16 * piece < manner.bytes);
    }
}

/* The same for rows that follow one another, the first `count`, which need no looking up. from, to:
 * where this lane's pieces of the first begin (attention_lane_*). */
template <class T, int DIMS, int ROWS, int ROW>
static __device__ __forceinline__ void
attention_copy_run(uint32_t to, const char *from, const struct attention_manner &manner,
                   int32_t count) {
    constexpr int PIECES = DIMS * (int)sizeof(T) / 16, SEGMENTS = ROW / 128;
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        const uint32_t at = (to ^ (uint32_t)(i % 8 * 16)) + (uint32_t)(i * ROW);
        const char *row = from + (uint64_t)manner.step * (uint32_t)i;
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            if (8 * s + 7 < PIECES || 8 * s + piece < PIECES)
                copy_16_of_line(at + 128 * s, row + 128 * s,
                                i + sub < count && 128 * s + 16 * piece < manner.bytes);
    }
}

/* This lane's pieces of rows: from the first row's begin, and of a panel. */
static __device__ __forceinline__ uint64_t attention_lane_from(int32_t first, uint32_t step) {
    return (uint64_t)(uint32_t)(first + warp_lane() / 8) * step + 16 * (warp_lane() % 8);
}
template <int ROW> static __device__ __forceinline__ uint32_t attention_lane_to(void) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
    return (uint32_t)(sub * ROW) + panel_piece(sub, piece);
}

/* The same element by element. */
template <class T, int ROWS, int ROW>
static __device__ __forceinline__ void
attention_copy_elements(uint32_t to, const char *from, const struct attention_manner &manner,
                        const int32_t (&key)[(ROWS + 31) / 32]) {
    const int piece = warp_lane_here() % 8, sub = warp_lane_here() / 8;
#pragma unroll 1
    for (int row = sub; row < ROWS; row += 4) {
        int32_t k = __shfl_sync(WARP_ALL, key[0], row % 32);
#pragma unroll
        for (int i = 1; i < (ROWS + 31) / 32; i++) {
            const int32_t other = __shfl_sync(WARP_ALL, key[i], row % 32);
            k = row / 32 == i ? other : k;
        }
#pragma unroll 1
        for (int c = piece; c < ROW / 16; c += 8) {
            const int32_t bytes = manner.bytes - 16 * c;
            uint4 x = {0, 0, 0, 0};
            if (k >= 0 && bytes > 0)
                x = attention_load_16<T>(from + k * manner.stride + 16 * c, bytes, manner.scale);
            shared_store_16(to + (uint32_t)(row * ROW) + panel_piece(row, c), x);
        }
    }
}

/* Rows of DIMS elements by one warp into a panel of rows that are ROW bytes apart, done after
 * copy_wait_all. */
template <class T, int DIMS, int ROWS, int ROW>
static __device__ __forceinline__ void attention_gather(uint32_t to, const char *from,
                                                        const struct attention_manner &manner,
                                                        const int32_t (&key)[(ROWS + 31) / 32]) {
    if (manner.copied)
        attention_copy_keys<T, DIMS, ROWS, ROW>(to, from, manner, key);
    else
        attention_copy_elements<T, ROWS, ROW>(to, from, manner, key);
}

/* Rows 64 w ... 64 w + 63 that list key c of a band. */
static __device__ __forceinline__ uint64_t attention_band(const struct granule_mask &mask,
                                                          int32_t c, int w) {
    const int64_t first = (int64_t)c - mask.u.band.hi - 64 * w;
    const int64_t last = (int64_t)c - mask.u.band.lo - 64 * w;
    if (first > last || first > 63 || last < 0)
        return 0;
    return (~(uint64_t)0 << (first < 0 ? 0 : first)) &
           (~(uint64_t)0 >> (last > 63 ? 0 : 63 - last));
}

/* ---- what is known of the keys of coming steps, in shared memory ---- */

#define ATTENTION_JOBS 4 /* items in flight: being computed, filled and looked up, and the next */

#define ATTENTION_WARPS 8 /* of a block at most */

/* What a warp's rows list of a granule of ATTENTION_GRANULE keys: those whose bits are set a range
 * of columns (attention_range), the others nothing. */
struct attention_share {
    uint32_t rows; /* of 32 rows, the warp's among them */
    uint32_t range;
};

/* keys, masks: of the granules of a step, which stand there one step before the gather needs them.
 * Of a stage: words, the row masks of the places, or, where `shared` says so, each warp's
 * shares. */
template <int KEYS, int WORDS> struct attention_lists {
    struct granule_mask masks[2][KEYS];
    uint64_t words[2][KEYS][WORDS];
    struct attention_share shares[2][ATTENTION_WARPS][(KEYS + ATTENTION_GRANULE - 1) /
                                                      ATTENTION_GRANULE];
    int32_t shared[2];
    struct granule_item jobs[ATTENTION_JOBS];
    const char *k[ATTENTION_JOBS], *v[ATTENTION_JOBS]; /* of the jobs that are looked up */
    int32_t keys[2][KEYS];
};

/* Fetches the item that comes as `job`. */
template <int KEYS, int WORDS>
static __device__ __forceinline__ void
attention_fetch_job(struct attention_lists<KEYS, WORDS> &lists, const struct attention_params &p,
                    int job, int64_t item) {
    const int at = (int)threadIdx.x;
    if (at < (int)sizeof(struct granule_item) / 8)
        copy_8(shared_address(&lists.jobs[job]) + 8 * at,
                    reinterpret_cast<const int64_t *>(&p.image.items[item]) + at);
}

/* Which of an item's `masked` granules comes as the v-th, where `whole` ones stand before them. Of
 * a window's two edges, and of blocks that half of a tile lists, some warps compute the first half
 * of these granules and others the second: taken in turns, each two of a step keep all warps. */
static __device__ __forceinline__ uint32_t attention_turn(uint32_t v, uint32_t whole,
                                                          uint32_t masked) {
    const uint32_t odd = whole & 1, early = (masked + 1 - odd) / 2, late = v / 2 + 1 - odd;
    return (v & 1) == odd ? v / 2 : early + (late == masked - early ? 0 : late);
}

/* Fetches the granules of a job's step, from number `first` on; by THREADS threads. */
template <int KEYS, int WORDS, int THREADS>
static __device__ __forceinline__ void
attention_look(struct attention_lists<KEYS, WORDS> &lists, const struct attention_params &p,
               int slot, const struct granule_item &item, uint32_t first) {
#pragma unroll
    for (int i = 0; i < KEYS; i += THREADS) {
        const uint32_t at = (uint32_t)i + threadIdx.x;
        if (at >= KEYS >> p.granule_bits)
            break;
        if (first + at >= (uint32_t)item.count) {
            lists.keys[slot][at] = -1;
            continue;
        }
        const uint32_t whole = (uint32_t)item.whole, masked = (uint32_t)item.count - whole;
        uint32_t from = first + at;
        if (from >= whole) {
            from -= whole;
            if (1 << p.granule_bits == ATTENTION_GRANULE)
                from = attention_turn(from, whole, masked);
            copy_16_of_line(shared_address(&lists.masks[slot][at]),
                            p.image.masks + item.mask + from, true);
            from += whole;
        }
        copy_4(shared_address(&lists.keys[slot][at]), p.image.keys + item.first + from, true);
    }
}

/* The key at place `row` of a step that begins with granule `begin`, -1 where there is none, and
 * where the step is `masked` its row mask, if it is to be kept, into a stage. */
template <int KEYS, int WORDS>
static __device__ __forceinline__ int32_t
attention_key(struct attention_lists<KEYS, WORDS> &lists, const struct attention_params &p,
              int slot, const struct granule_item &item, uint32_t begin, int row, bool masked,
              bool keep) {
    const int at = row >> p.granule_bits, offset = row & ((1 << p.granule_bits) - 1);
    const int32_t first = lists.keys[slot][at];
    if (!masked)
        return first + offset;
    uint64_t(&words)[WORDS] = lists.words[slot][row];
    const bool whole = begin + (uint32_t)at < (uint32_t)item.whole;
    const struct granule_mask &mask = lists.masks[slot][at];
    const bool none = first < 0 || (!whole && offset >= mask.count);
    if (!keep)
        return none ? -1 : first + offset;
    if (none || whole || mask.kind == GRANULE_ALL) {
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            words[w] = none ? 0 : ~(uint64_t)0;
    } else if (mask.kind == LIST_BAND) {
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            words[w] = attention_band(mask, offset, w);
    } else {
        const uint64_t *from =
            p.image.words + mask.u.word + (mask.kind == LIST_BITS ? offset * WORDS : 0);
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            copy_8(shared_address(&words[w]), from + w);
    }
    return none ? -1 : first + offset;
}

/* Whether a masked step's granules can be shared out: they are as wide as can be, and none has a
 * mask for each key. */
template <int KEYS, int WORDS>
static __device__ __forceinline__ bool
attention_shareable(const struct attention_lists<KEYS, WORDS> &lists,
                    const struct attention_params &p, int slot, const struct granule_item &item,
                    uint32_t begin) {
    bool some = 1 << p.granule_bits == ATTENTION_GRANULE;
#pragma unroll
    for (int g = 0; g < KEYS / ATTENTION_GRANULE; g++)
        if (begin + g >= (uint32_t)item.whole && begin + g < (uint32_t)item.count)
            some &= lists.masks[slot][g].kind != LIST_BITS;
    return some;
}

/* Columns first + r ... last + r of row r, of `count`; PARTLY: not all of R rows list all. */
#define ATTENTION_RANGE_PARTLY (1u << 24)
#define ATTENTION_RANGE_FAR 64 /* from any column of a granule and any of a warp's rows */
template <int R>
static __device__ __forceinline__ uint32_t attention_range(int first, int last, int count) {
    const bool all = first <= 1 - R && last >= ATTENTION_GRANULE - 1 && count == ATTENTION_GRANULE;
    first = max(min(first, ATTENTION_RANGE_FAR), -ATTENTION_RANGE_FAR);
    last = max(min(last, ATTENTION_RANGE_FAR), -ATTENTION_RANGE_FAR);
    return (uint32_t)(first & 255) | (uint32_t)(last & 255) << 8 | (uint32_t)count << 16 |
           (all ? 0 : ATTENTION_RANGE_PARTLY);
}

/* Leaves what this warp's rows, from `row` on, list of the granules of a step. */
template <int R, int KEYS, int WORDS>
static __device__ __forceinline__ void
attention_share_out(struct attention_lists<KEYS, WORDS> &lists, const struct attention_params &p,
                    int slot, const struct granule_item &item, uint32_t begin, int row) {
    const int g = warp_lane_here();
    if (g < KEYS / ATTENTION_GRANULE) {
        struct attention_share &share = lists.shares[slot][row / R][g];
        const struct granule_mask &mask = lists.masks[slot][g];
        const bool whole = begin + g < (uint32_t)item.whole;
        const bool here = begin + g < (uint32_t)item.count;
        const int count = whole ? ATTENTION_GRANULE : mask.count;
        int first = -ATTENTION_RANGE_FAR, last = ATTENTION_RANGE_FAR;
        if (here && !whole && mask.kind == LIST_BAND) { /* limits that matter are small */
            first = max(min(mask.u.band.lo, 256), -256) + row;
            last = max(min(mask.u.band.hi, 256), -256) + row;
        }
        share.range = attention_range<R>(first, last, count);
        if (here && !whole && mask.kind == LIST_MEMBERS)
            copy_4(shared_address(&share.rows),
                   reinterpret_cast<const uint32_t *>(p.image.words + mask.u.word) + row / 32,
                   true);
        else
            share.rows = here && first < count && last > -R ? ~0u : 0;
    }
    __syncwarp();
}

#endif
