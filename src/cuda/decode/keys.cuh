/* Decode: from an item of a filled image to keys, and their rows to shared memory by cp.async. */
#ifndef TESSERA_CUDA_DECODE_KEYS_CUH
#define TESSERA_CUDA_DECODE_KEYS_CUH

#include "decode/config.cuh"
#include "device/copy.cuh"
#include "device/swizzle.cuh"

/* ---- items ---- */

/* schedule_part, in 32 bits where the products fit them. */
static __device__ __forceinline__ void decode_part(int64_t keys, int32_t part, int32_t parts,
                                                   int64_t *begin, int64_t *end) {
    if (parts > 1 && keys >> 16) {
        schedule_part(keys, part, parts, begin, end);
        return;
    }
    const uint32_t chunks = ((uint32_t)keys + SCHEDULE_CHUNK - 1) / SCHEDULE_CHUNK;
    *begin = parts == 1 ? 0 : chunks * (uint32_t)part / (uint32_t)parts * SCHEDULE_CHUNK;
    *end =
        part + 1 == parts ? keys : chunks * (uint32_t)(part + 1) / (uint32_t)parts * SCHEDULE_CHUNK;
}

static __device__ __forceinline__ struct decode_item decode_item_of(const struct decode_params &p,
                                                                    const struct work_item &w) {
    const struct attention_params &of = p.of;
    const int32_t first = w.batch_head * of.tile_heads;
    struct decode_item item;
    const int32_t heads = (int32_t)p.image.heads; /* of a batch, with lists of their own */
    item.batch = decode_quotient(first, of.heads_q);
    item.head = first - item.batch * of.heads_q;
    item.head_kv = of.heads_kv == 1 ? 0 : item.head / (of.heads_q / of.heads_kv);
    const int64_t list =
        (int64_t)item.batch * heads + (heads == 1 ? 0 : item.head / (of.heads_q / heads));
    item.T = list * p.tiles + w.tile;
    int64_t begin, end;
    decode_part(__ldg(p.keys + item.T), w.part, w.parts, &begin, &end);
    item.begin = (uint32_t)begin;
    item.end = (uint32_t)end;
    item.row = decode_tile_query(p, w.tile);
    item.rows = decode_tile_query(p, w.tile + 1) - item.row;
    item.first = __ldg(p.lengths + item.batch) - of.n_q;
    item.slot = w.slot;
    item.parts = w.parts;
    return item;
}

/* ---- runs ---- */

/* The lists of a tile: full runs, then bands. */
struct decode_list {
    struct fill_runs full, bands;
};
#define DECODE_WORDS(run) ((int32_t)(sizeof(run) / sizeof(int32_t)))

static __device__ __forceinline__ struct decode_list decode_list_of(const struct decode_params &p,
                                                                    int64_t T) {
    const int64_t band = LIST_MASKED_KINDS * T + LIST_BAND, keys = __ldg(p.keys + T);
    const int64_t full = __ldg(p.full_ptr + T), masked = __ldg(p.masked_ptr + band);
    return {fill_runs_of(&p.full[full].key, DECODE_WORDS(struct list_run),
                         __ldg(p.full_end + T) - full, keys),
            fill_runs_of(&p.masked[masked].key, DECODE_WORDS(struct list_masked),
                         __ldg(p.masked_end + band) - masked, keys)};
}

/* Row of a tile that is nearest to c - limit, or one beyond all rows. */
static __device__ __forceinline__ int16_t decode_limit(int32_t c, int32_t limit) {
    const int64_t row = (int64_t)c - limit;
    return (int16_t)(row < -1 ? -1 : row > 256 ? 256 : row);
}

/* The place of key `at` of a tile's list; none from `end` on. */
static __device__ __forceinline__ struct decode_place decode_place_of(const struct decode_list &l,
                                                                      uint32_t at, uint32_t end) {
    if (at >= end)
        return {-1, 1, 0};
    int32_t x = (int32_t)at;
    if (x < l.full.keys) {
        const int32_t run = fill_run_find(&l.full, &x);
        return {fill_run_key(&l.full, run) + x, 0, 256};
    }
    x -= l.full.keys;
    const int32_t run = fill_run_find(&l.bands, &x);
    const struct list_masked *const band =
        reinterpret_cast<const struct list_masked *>(l.bands.at) + run;
    return {__ldg(&band->key) + x, decode_limit(x, __ldg(&band->u.band.hi)),
            decode_limit(x, __ldg(&band->u.band.lo))};
}

/* ---- rows ---- */

/* Rows of a head: its first, and bytes from one to the next and of each. */
struct decode_rows {
    const char *first;
    int64_t stride;
    int32_t bytes;
};
template <class T>
static __device__ __forceinline__ struct decode_rows
decode_rows_of(const struct rows_view &view, int32_t batch, int32_t head, int32_t d) {
    return {attention_head<T>(view, batch, head), view.stride[2] * (int64_t)sizeof(T),
            d * (int32_t)sizeof(T)};
}

/* Copies rows of keys into a panel with rows ROW bytes apart: of KEYS places this warp's share, four
 * at a time, 128 bytes of each by an instruction. Zeros where there is no key, and past a row's end. */
template <int KEYS, int WARPS, int ROW>
static __device__ __forceinline__ void decode_copy(uint32_t to, const struct decode_rows &rows,
                                                   const struct decode_place *places) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
#pragma unroll
    for (int i = 0; i < KEYS / WARPS; i += 4) {
        const int row = (int)threadIdx.x / 32 * (KEYS / WARPS) + i + sub;
        const int32_t key = places[row].key;
        const char *from = rows.first + key * rows.stride + 16 * piece;
        const uint32_t at = to + (uint32_t)(row * ROW) + swizzle_piece(row, piece);
#pragma unroll
        for (int s = 0; s < ROW / 128; s++)
            cp_async_16_l2_128(at + 128 * s, from + 128 * s,
                               key >= 0 && 128 * s + 16 * piece < rows.bytes);
    }
}

/* Copies the tile's rows of Q, times p.of.q_scale, a power of two: 16 bytes by a thread. */
template <class shape>
static __device__ __forceinline__ void decode_copy_q(uint32_t to, const struct decode_params &p,
                                                     const struct decode_item &item) {
    using T = typename shape::T;
    constexpr int PIECES = shape::ROW / 16;
    const int32_t rows = p.of.tile_rows * p.of.tile_heads;
    for (int i = (int)threadIdx.x; i < shape::M * PIECES; i += shape::THREADS) {
        const int row = i / PIECES, piece = i % PIECES, query = decode_row_query(p, row);
        const bool wanted = row < rows && query < item.rows && 8 * piece < p.of.d_qk;
        const char *from =
            attention_head<T>(p.of.q, item.batch, item.head + decode_row_head(p, row)) +
            (item.row + query) * p.of.q.stride[2] * (int64_t)sizeof(T) + 16 * piece;
        const uint32_t at = to + (uint32_t)(row * shape::ROW) + swizzle_piece(row, piece);
        if (p.of.q_scale == 1)
            cp_async_16_l2_128(at, from, wanted);
        else
            shared_store_16(at, wanted ? attention_load_16<T>(from, 16, p.of.q_scale)
                                       : uint4{0, 0, 0, 0});
    }
}

#endif
