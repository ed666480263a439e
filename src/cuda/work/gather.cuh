/* cp.async gather of keys that lists of the host name, by the read-only path. A step is KEYS places of a tile's granules (KV
 * chunks, lists/granules.h). Each warp gathers KEYS / WARPS rows of K and of V into shared memory,
 * for granules of any size. Where a granule of the step has a mask, the row masks are put beside
 * them. Places without a key get zeros and an empty row mask. */
#ifndef TESSERA_CUDA_GATHER_CUH
#define TESSERA_CUDA_GATHER_CUH

#include "device/copy.cuh"
#include "device/swizzle.cuh"
#include "device/warp.cuh"
#include "work/views.cuh"

/* Copy mode of a tensor's rows into a panel. */
struct attention_copy_mode {
    int64_t stride; /* bytes from row to row */
    uint32_t step;  /* the stride in 32 bits, where rows are copied by cp.async */
    int32_t bytes;  /* bytes of a row */
    bool copied;    /* by cp.async, 16 bytes each; else element by element, times `scale` */
    float scale;
};

template <class T>
DEVICE struct attention_copy_mode attention_copy_mode_of(const struct attention_params &p,
                                                         const struct rows_view &view, int32_t d,
                                                         float scale) {
    return {view.stride[2] * (int64_t)sizeof(T), (uint32_t)view.stride[2] * (uint32_t)sizeof(T),
            d * (int32_t)sizeof(T), p.copied && scale == 1, scale};
}

/* Address of row `row`, `step` bytes from row to row: one instruction, which the compiler misses where the
 * step is known to be even. */
DEVICE const char *attention_row(const char *from, uint32_t row, uint32_t step) {
    asm("" : "+r"(step));
    return from + (uint64_t)row * step;
}

/* Lanes that copy a row of DIMS elements: 16 bytes each, at most 128 bytes at a time. */
template <class T, int DIMS>
static __host__ __device__ __forceinline__ constexpr int attention_lanes(void) {
    constexpr int LANES = DIMS * (int)sizeof(T) < 128 ? DIMS * (int)sizeof(T) / 16 : 8;
    static_assert(8 % LANES == 0, "a warp's copies end with a row");
    return LANES;
}

/* Copies ROWS rows by cp.async. An instruction of the warp copies 128 bytes of four rows, or 64
 * bytes of eight. Lane l holds in key[i] the row for place 32 i + l of the panel; -1: zeros. */
template <class T, int DIMS, int ROWS, int ROW>
DEVICE void attention_copy_keys(uint32_t to, const char *from,
                                const struct attention_copy_mode &mode,
                                const int32_t (&key)[(ROWS + 31) / 32]) {
    constexpr int PIECES = DIMS * (int)sizeof(T) / 16, SEGMENTS = (ROW + 127) / 128;
    constexpr int LANES = attention_lanes<T, DIMS>();
    const int piece = warp_lane() % LANES, sub = warp_lane() / LANES;
    from += 16 * piece;
    to += swizzle_row<ROW>(sub) + swizzle_piece(sub, piece);
    asm("" : "+l"(from)); /* one sum: else each row would add both terms */
#pragma unroll
    for (int i = 0; i < ROWS; i += 32 / LANES) {
        const int32_t k = __shfl_sync(WARP_ALL, key[i / 32], (i + sub) % 32);
        const char *row = attention_row(from, (uint32_t)max(k, 0), mode.step);
        const uint32_t at = (to ^ (uint32_t)(i % 8 * 16)) + (uint32_t)(i * ROW);
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            if (8 * s + LANES <= PIECES || 8 * s + piece < PIECES)
                cp_async_16_l2_128(at + 128 * s, row + 128 * s,
                                   k >= 0 && 128 * s + 16 * piece < mode.bytes);
    }
}

/* Copies `count` consecutive rows; places past them get zeros. from, to: this lane's pieces of the
 * first row (attention_lane_from, attention_lane_to). */
template <class T, int DIMS, int ROWS, int ROW>
DEVICE void attention_copy_run(uint32_t to, const char *from,
                               const struct attention_copy_mode &mode, int32_t count) {
    constexpr int PIECES = DIMS * (int)sizeof(T) / 16, SEGMENTS = (ROW + 127) / 128;
    constexpr int LANES = attention_lanes<T, DIMS>();
    const int piece = warp_lane() % LANES, sub = warp_lane() / LANES;
#pragma unroll
    for (int i = 0; i < ROWS; i += 32 / LANES) {
        const uint32_t at = (to ^ (uint32_t)(i % 8 * 16)) + (uint32_t)(i * ROW);
        const char *row = from + (uint64_t)mode.step * (uint32_t)i;
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            if (8 * s + LANES <= PIECES || 8 * s + piece < PIECES)
                cp_async_16_l2_128(at + 128 * s, row + 128 * s,
                                   i + sub < count && 128 * s + 16 * piece < mode.bytes);
    }
}

/* Offset of this lane's first piece, in bytes: from the tensor's first row, and within a panel. */
template <int LANES> DEVICE uint64_t attention_lane_from(int32_t first, uint32_t step) {
    return (uint64_t)(uint32_t)(first + warp_lane() / LANES) * step + 16 * (warp_lane() % LANES);
}
template <int LANES, int ROW> DEVICE uint32_t attention_lane_to(void) {
    const int piece = warp_lane() % LANES, sub = warp_lane() / LANES;
    return swizzle_row<ROW>(sub) + swizzle_piece(sub, piece);
}

/* attention_copy_keys, element by element. */
template <class T, int ROWS, int ROW>
DEVICE void attention_copy_elements(uint32_t to, const char *from,
                                    const struct attention_copy_mode &mode,
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
            const int32_t bytes = mode.bytes - 16 * c;
            uint4 x = {0, 0, 0, 0};
            if (k >= 0 && bytes > 0)
                x = attention_load_16<T>(from + k * mode.stride + 16 * c, bytes, mode.scale);
            shared_store_16(to + swizzle_row<ROW>(row) + swizzle_piece(row, c), x);
        }
    }
}

/* Gathers rows of DIMS elements into a panel with rows ROW bytes apart, by one warp; complete after
 * cp_async_wait_all. */
template <class T, int DIMS, int ROWS, int ROW>
DEVICE void attention_gather(uint32_t to, const char *from, const struct attention_copy_mode &mode,
                             const int32_t (&key)[(ROWS + 31) / 32]) {
    if (mode.copied)
        attention_copy_keys<T, DIMS, ROWS, ROW>(to, from, mode, key);
    else
        attention_copy_elements<T, ROWS, ROW>(to, from, mode, key);
}

/* Rows 64 w ... 64 w + 63 of the tile that list key c of a granule with a band. */
DEVICE uint64_t attention_band(const struct granule_mask &mask, int32_t c, int w) {
    const int64_t first = (int64_t)c - mask.u.band.hi - 64 * w;
    const int64_t last = (int64_t)c - mask.u.band.lo - 64 * w;
    if (first > last || first > 63 || last < 0)
        return 0;
    return (~(uint64_t)0 << (first < 0 ? 0 : first)) &
           (~(uint64_t)0 >> (last > 63 ? 0 : 63 - last));
}

/* ---- granules and items of coming steps, in shared memory ---- */

#define ATTENTION_JOBS 4 /* items in flight: computed, gathered, looked up, and the next */

/* masks: of a step's granules, there one step before the gather. words: row masks of a stage's
 * places. */
template <int KEYS, int WORDS> struct attention_lists {
    struct granule_mask masks[2][KEYS];
    uint64_t words[2][KEYS][WORDS];
    struct granule_item jobs[ATTENTION_JOBS];
    const char *heads[ATTENTION_JOBS][2]; /* K and V of the items that are looked up */
};

/* Copies an item of the schedule to shared memory. */
template <class params>
DEVICE void attention_fetch_job(struct granule_item &job, const params &p, int64_t item) {
    const int at = (int)threadIdx.x;
    if (at < (int)sizeof(struct granule_item) / 8)
        cp_async_8(shared_address(&job) + 8 * at,
                   reinterpret_cast<const int64_t *>(&p.image.items[item]) + at);
}

/* A step: its item, by its place in shared memory, and its first granule of that. */
struct attention_place {
    const struct granule_item *jobs;
    int job;
    uint32_t granule;
};

DEVICE const struct granule_item &attention_item(const struct attention_place &place) {
    int job = place.job;
    asm volatile("" : "+r"(job)); /* looked up when it is needed: registers are short */
    return place.jobs[job & (ATTENTION_JOBS - 1)];
}

/* The key of a column of the step that begins with a granule of the item; any where there is none. */
template <class params>
DEVICE int32_t attention_column(const params &p, const struct granule_item &item, uint32_t granule,
                                int column) {
    const int bits = p.granule_bits;
    const int32_t at = min((int32_t)granule + (column >> bits), item.count - 1);
    return __ldg(p.image.keys + item.first + at) + (column & ((1 << bits) - 1));
}

/* Prefetches an item's rows of Q to L2. */
template <class T, int D, int THREADS>
DEVICE void attention_prefetch_q(const struct attention_params &p,
                                 const struct granule_item &item) {
    const int32_t bytes = p.d_qk * (int32_t)sizeof(T), rows = item.rows;
    const int64_t step = p.q.stride[2] * (int64_t)sizeof(T);
    const char *q = attention_head<T>(p.q, item.batch, item.head) + item.row * step;
#pragma unroll 1
    for (int row = (int)threadIdx.x; row < rows; row += THREADS)
#pragma unroll
        for (int at = 0; at < D * (int)sizeof(T); at += 128)
            if (at < bytes)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(q + row * step + at));
}

/* Copies the mask of a step's at-th granule, if it has one, to shared memory; granule: its number in the
 * item. */
template <class step_lists, class params>
DEVICE void attention_fetch_mask(step_lists &lists, const params &p, int slot,
                                 const struct granule_item &item, uint32_t granule, uint32_t at) {
    if (granule >= (uint32_t)item.whole && granule < (uint32_t)item.count)
        cp_async_16_l2_128(shared_address(&lists.masks[slot][at]),
                           p.image.masks + item.mask + (granule - (uint32_t)item.whole), true);
}

/* Key of place `row` in a masked step that begins with granule `begin`, or -1 where the place has none. With
 * `keep`, also writes the place's row mask, of `n_words` words, to the stage. */
template <class step_lists, class params>
DEVICE int32_t attention_masked_key(step_lists &lists, const params &p, int slot,
                                    const struct granule_item &item, uint32_t begin, int row,
                                    int32_t key, bool keep, int n_words) {
    const int at = row >> p.granule_bits, offset = row & ((1 << p.granule_bits) - 1);
    uint64_t *const words = lists.words[slot][row];
    const bool whole = begin + (uint32_t)at < (uint32_t)item.whole;
    const struct granule_mask &mask = lists.masks[slot][at];
    const bool none = key < 0 || (!whole && offset >= mask.count);
    if (!keep)
        return none ? -1 : key;
    if (none || whole || mask.kind == GRANULE_ALL) {
        for (int w = 0; w < n_words; w++)
            words[w] = none ? 0 : ~(uint64_t)0;
    } else if (mask.kind == LIST_BAND) {
        for (int w = 0; w < n_words; w++)
            words[w] = attention_band(mask, offset, w);
    } else {
        const uint64_t *from =
            p.image.words + mask.u.word + (mask.kind == LIST_BITS ? offset * n_words : 0);
        for (int w = 0; w < n_words; w++)
            cp_async_8(shared_address(&words[w]), from + w);
    }
    return none ? -1 : key;
}

#endif
