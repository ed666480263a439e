/* Decode: from an item of a filled image to keys, and their rows to shared memory by cp.async. A kernel that starts
 * early reads what kernels before it wrote by ordinary loads: the read-only path may hold what stood there before. */
#ifndef TESSERA_CUDA_DECODE_KEYS_CUH
#define TESSERA_CUDA_DECODE_KEYS_CUH

#include "decode/config.cuh"
#include "device/copy.cuh"
#include "work/rows.cuh"
#include "work/views.cuh"
#include <cuda_fp8.h>

/* ---- items ---- */

/* A CTA's item. */
struct decode_item : filled_tile {
    int64_t slot; /* place of its partial result */
    int32_t parts;
    uint32_t begin, end; /* keys of the tile's list */
};

DEVICE struct decode_item decode_item_of(const struct decode_params &p, const struct work_item &w) {
    struct decode_item item = {filled_tile_of(p, w), w.slot, w.parts};
    int64_t begin, end;
    fill_part(p.keys[item.T], w.part, w.parts, &begin, &end);
    item.begin = (uint32_t)begin;
    item.end = (uint32_t)end;
    return item;
}

/* ---- runs ---- */

/* The lists of a tile: full runs, then bands. */
struct decode_list {
    struct fill_runs full, bands;
};
#define DECODE_WORDS(run) ((int32_t)(sizeof(run) / sizeof(int32_t)))

/* Bounds of a tile's runs. */
struct decode_ends {
    int64_t keys, full, full_end, masked, masked_end;
};
DEVICE struct decode_ends decode_ends_of(const struct decode_params &p, int64_t T) {
    const int64_t masked = LIST_MASKED_KINDS * T + p.masked_kind;
    return {p.keys[T], p.full_ptr[T], p.full_end[T], p.masked_ptr[masked], p.masked_end[masked]};
}

DEVICE struct decode_list decode_list_of(const struct decode_params &p,
                                         const struct decode_ends &at) {
    return {fill_runs_of(&p.full[at.full].key, DECODE_WORDS(struct list_run), at.full_end - at.full,
                         at.keys),
            fill_runs_of(&p.masked[at.masked].key, DECODE_WORDS(struct list_masked),
                         at.masked_end - at.masked, at.keys)};
}

/* Row of a tile that is nearest to c - limit, or one beyond all rows. */
DEVICE int16_t decode_limit(int32_t c, int32_t limit) {
    const int64_t row = (int64_t)c - limit;
    return (int16_t)(row < -1 ? -1 : row > 256 ? 256 : row);
}

#define DECODE_NO_PLACE                                                                            \
    decode_place {                                                                                 \
        -1, -1, 1, 0                                                                               \
    }

/* Place of a mask's key, whose words of rows are looked up as scores are masked: of a key that all rows list, or
 * none, -1 stands there. */
DEVICE struct decode_place decode_masked_place(int32_t key, int32_t mask) {
    return {key, key, (int16_t)(uint16_t)mask, (int16_t)(mask >> 16)};
}
DEVICE int32_t decode_masked_key(const struct decode_place &place) {
    return (int32_t)((uint32_t)(uint16_t)place.first | (uint32_t)(uint16_t)place.last << 16);
}

/* Rows of a tile that list a key of a mask, of which the tile's runs of bits tell where its words are. */
DEVICE uint64_t decode_rows(const struct decode_params &p, const struct decode_list &l,
                            int32_t key) {
    const struct list_masked *const run = reinterpret_cast<const struct list_masked *>(l.bands.at);
    return p.words[run->u.word + (key - run->key)];
}

/* The place of key `at` of a tile's list, whose row is still to be found; none from `end` on. */
DEVICE struct decode_place decode_place_of(const struct decode_params &p,
                                           const struct decode_list &l, uint32_t at, uint32_t end) {
    if (at >= end)
        return DECODE_NO_PLACE;
    int32_t x = (int32_t)at;
    if (x < l.full.keys) {
        const int32_t run = fill_run_find(&l.full, &x), key = fill_run_key(&l.full, run) + x;
        return p.words ? decode_masked_place(key, -1) : decode_place{key, key, 0, 256};
    }
    x -= l.full.keys;
    const int32_t run = fill_run_find(&l.bands, &x);
    const struct list_masked *const band =
        reinterpret_cast<const struct list_masked *>(l.bands.at) + run;
    const int32_t key = band->key + x;
    if (p.words)
        return decode_rows(p, l, key) ? decode_masked_place(key, key) : DECODE_NO_PLACE;
    return {key, key, decode_limit(x, band->u.band.hi), decode_limit(x, band->u.band.lo)};
}

/* Place with its row: a page that is missing lists no key. */
DEVICE struct decode_place decode_paged(const struct decode_params &p,
                                        const struct decode_item &item, struct decode_place place) {
    if (!p.table || place.key < 0)
        return place;
    const int32_t page = filled_page(p, item.batch, place.key);
    place.row = page << p.shift | (place.key & ((1 << p.shift) - 1));
    return page >= 0 ? place : DECODE_NO_PLACE;
}
template <class lists>
DEVICE struct decode_place decode_find(const struct decode_params &p,
                                       const struct decode_item &item, const lists &l,
                                       uint32_t at) {
    return decode_paged(p, item, decode_place_of(p, l, at, item.end));
}

/* Finds the first `n` places of an item; answers its end. All threads have them then. meanwhile: copies to issue. */
template <int THREADS, class copies>
DEVICE uint32_t decode_look_up(struct decode_place *places, int n, const struct decode_params &p,
                               const struct decode_item &item, const struct decode_list &l, float *,
                               const copies &meanwhile) {
    meanwhile();
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        places[i] = decode_find(p, item, l, item.begin + (uint32_t)i);
    __syncthreads();
    return item.end;
}

/* ---- rows ---- */

/* Pieces of 16 bytes that a row has in a panel, less what decode_copy_rest adds. Rows of 8 bits are copied
 * behind the first half, until decode_widen. */
DEVICE int decode_pieces(const struct decode_stored &stored) {
    return (stored.eight_bit ? 2 : 1) * stored.rows.size / 16;
}

/* Copies this warp's share of KEYS rows into a panel with rows ROW bytes apart: an instruction copies 128 bytes of
 * four rows. Zeros where there is no key, and past a row's end unless REST (decode_copy_rest). */
template <int KEYS, int WARPS, int ROW, bool REST>
DEVICE void decode_copy(uint32_t to, const char *first, const struct decode_stored &stored,
                        int32_t shift, const struct decode_place *places) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
#pragma unroll
    for (int i = 0; i < KEYS / WARPS; i += 4) {
        const int row = (int)threadIdx.x / 32 * (KEYS / WARPS) + i + sub;
        const int32_t place = places[row].row;
        const bool is = place >= 0;
        const char *from = filled_row_at(first, stored.rows, shift, place) + 16 * piece;
        if (REST && stored.eight_bit) {
            const int half = stored.rows.size / 16;
#pragma unroll 1
            for (int c = piece; c < half; c += 8, from += 128)
                cp_async_16_l2_128(to + (uint32_t)(row * ROW) + swizzle_piece(row, half + c), from,
                                   is);
            continue;
        }
        const uint32_t at = to + (uint32_t)(row * ROW) + swizzle_piece(row, piece);
#pragma unroll
        for (int s = 0; s < ROW / 128; s++)
            if (!REST || 128 * s + 16 * piece < stored.rows.size)
                cp_async_16_l2_128(at + 128 * s, from + 128 * s,
                                   is && 128 * s + 16 * piece < stored.rows.size);
    }
}

/* Copies what rows have in second views behind what they have in the first ones, and zeros behind that. */
template <int KEYS, int WARPS, int ROW>
DEVICE void decode_copy_rest(uint32_t to, const struct decode_stored &stored, int32_t shift,
                             const struct decode_item &item, const struct decode_place *places) {
    const int begin = decode_pieces(stored);
    const char *const first = filled_head_rows(stored.rest, item);
    if (begin == ROW / 16)
        return;
#pragma unroll 1
    for (int i = 0; i < KEYS / WARPS; i += 4) {
        const int row = (int)threadIdx.x / 32 * (KEYS / WARPS) + i + warp_lane() / 8;
        const int32_t place = places[row].row;
        const char *const from = filled_row_at(first, stored.rest, shift, place);
#pragma unroll 1
        for (int c = warp_lane() % 8; begin + c < ROW / 16; c += 8)
            cp_async_16_l2_128(to + (uint32_t)(row * ROW) + swizzle_piece(row, begin + c),
                               from + 16 * c, place >= 0 && 16 * c < stored.rest.size);
    }
}

/* Two numbers of 8 bits, the lower half of x, as two of T, which holds every one: f16 does. */
template <class T, __nv_fp8_interpretation_t KIND> DEVICE uint32_t decode_widen_two(uint32_t x) {
    const __half2 two = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)x, KIND);
    if (attention_has_small(T())) /* f16 */
        return reinterpret_cast<const uint32_t &>(two);
    const float2 pair = __half22float2(two);
    return mma_pack(pair.x, pair.y, T());
}

/* Eight, as 16 bytes. */
template <class T, __nv_fp8_interpretation_t KIND>
DEVICE uint4 decode_widen_eight(uint32_t x, uint32_t y) {
    return {decode_widen_two<T, KIND>(x), decode_widen_two<T, KIND>(x >> 16),
            decode_widen_two<T, KIND>(y), decode_widen_two<T, KIND>(y >> 16)};
}

/* decode_widen of one KIND, `half` pieces of a row. */
template <class T, int KEYS, int WARPS, int ROW, __nv_fp8_interpretation_t KIND>
DEVICE void decode_widen_as(uint32_t panel, int half) {
#pragma unroll 1
    for (int i = 0; i < KEYS / WARPS; i += 4) {
        const int row = (int)threadIdx.x / 32 * (KEYS / WARPS) + i + warp_lane() / 8;
        const uint32_t at = panel + (uint32_t)(row * ROW);
#pragma unroll 1
        for (int first = 0; first < half; first += 8) {
            const int c = first + warp_lane() % 8;
            uint4 x = {0, 0, 0, 0};
            if (c < half)
                x = shared_load_16(at + swizzle_piece(row, half + c));
            __syncwarp();
            if (c >= half)
                continue;
            shared_store_16(at + swizzle_piece(row, 2 * c), decode_widen_eight<T, KIND>(x.x, x.y));
            shared_store_16(at + swizzle_piece(row, 2 * c + 1),
                            decode_widen_eight<T, KIND>(x.z, x.w));
        }
    }
}

/* Widens the rows of 8 bits that this warp has copied to rows of T, in place; all its lanes' copies are
 * complete. Piece c is read before pieces 2 c and 2 c + 1 are written, which cover copied pieces up to c. */
template <class T, int KEYS, int WARPS, int ROW>
DEVICE void decode_widen(uint32_t panel, const struct decode_stored &stored) {
    const int half = stored.rows.size / 16;
    if (stored.eight_bit == TESS_E4M3)
        decode_widen_as<T, KEYS, WARPS, ROW, __NV_E4M3>(panel, half);
    else if (stored.eight_bit == TESS_E5M2)
        decode_widen_as<T, KEYS, WARPS, ROW, __NV_E5M2>(panel, half);
}

/* Offset of the scales of a step's keys in shared memory, in bytes. */
template <class shape> DEVICE int decode_scales_at(int32_t step) {
    return shape::SCALES +
           step % shape::STAGES * shape::KEYS * shape::SCALES_KEY * (int)sizeof(float);
}

/* Copies the scales of a place, zeros where it has no key. */
DEVICE void decode_copy_scale(uint32_t to, const struct decode_params &p,
                              const struct decode_stored &stored, const struct decode_item &item,
                              const struct decode_place &place) {
    const char *from = filled_head_rows(stored.scale, item);
    if (place.key >= 0)
        from = filled_row_at(from, stored.scale, p.shift, place.row);
#pragma unroll 1
    for (int g = 0; g < stored.scales; g++)
        cp_async_4(to + (uint32_t)(4 * g), from + 4 * g, place.key >= 0);
}

/* Copies the scales of a step's keys, a thread those of a key: of K, and of V where keys have their own. */
template <class shape>
DEVICE void decode_copy_scales(uint32_t to, const struct decode_params &p,
                               const struct decode_item &item, const struct decode_place *places) {
    const int row = (int)threadIdx.x;
    if (row >= shape::KEYS)
        return;
    to += (uint32_t)(row * shape::SCALES_KEY) * (uint32_t)sizeof(float);
    decode_copy_scale(to, p, p.k, item, places[row]);
    if (!p.v_late)
        decode_copy_scale(to + shape::SCALES_K * (uint32_t)sizeof(float), p, p.v, item,
                          places[row]);
}

/* The scale of all values of a head. */
DEVICE float decode_scale_late(const struct decode_params &p, const struct decode_item &item) {
    return *reinterpret_cast<const float *>(filled_head_rows(p.v.scale, item));
}

/* Place of 8 dims of a row of Q: in the second view, from p.d_first on. Q: its type. */
template <class Q, bool REST>
DEVICE const char *decode_q_at(const struct decode_params &p, const struct decode_item &item,
                               int row, int dim) {
    const bool rest = REST && dim >= p.d_first;
    const struct rows_view &view = rest ? p.q_rest : p.run.q;
    return attention_head<Q>(view, item.batch, item.head + filled_row_head(p, row)) +
           ((item.row + filled_row_query(p, row)) * view.stride[2] + dim - (rest ? p.d_first : 0)) *
               (int64_t)sizeof(Q);
}

/* Copies the tile's rows of Q, times p.run.q_scale, a power of two: a warp takes a row, 16 bytes by a thread. */
template <class shape, bool REST>
DEVICE void decode_copy_q(uint32_t to, const struct decode_params &p,
                          const struct decode_item &item) {
    using T = typename shape::T;
    constexpr int PIECES = shape::ROW / 16;
    const int32_t rows = p.run.tile_rows * p.run.tile_heads;
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32; row < shape::M; row += shape::WARPS) {
        const int32_t query = filled_row_query(p, row);
        const int32_t dims = row < rows && query < item.rows ? p.run.d_qk : 0;
        const char *const first = decode_q_at<T, false>(p, item, row, 0);
        const char *const rest =
            REST ? decode_q_at<T, true>(p, item, row, p.d_first) - p.d_first * (int)sizeof(T)
                 : first;
#pragma unroll
        for (int e = 0; e < (PIECES + 31) / 32; e++) {
            const int piece = warp_lane() + 32 * e;
            const char *const from = (8 * piece < p.d_first ? first : rest) + 16 * piece;
            const uint32_t at = to + (uint32_t)(row * shape::ROW) + swizzle_piece(row, piece);
            if (piece >= PIECES)
                break;
            if (p.run.q_scale == 1)
                cp_async_16_l2_128(at, from, 8 * piece < dims);
            else
                shared_store_16(at, 8 * piece < dims ? attention_load_16<T>(from, 16, p.run.q_scale)
                                                     : uint4{0, 0, 0, 0});
        }
    }
}

/* ---- Q of f32 ---- */

/* The largest number of T. */
DEVICE constexpr float decode_most(__half) {
    return 65504;
}
DEVICE constexpr float decode_most(__nv_bfloat16) {
    return 0x1.fep127f;
}

/* Two elements as words of PARTS rows: rounded to T, what rounding took, rounded, and so on. Beyond T's largest
 * number stands that, but in the last part, which has Inf and NaN. */
template <class T, int PARTS> DEVICE void decode_split(uint32_t (&to)[PARTS], float x, float y) {
    constexpr float MOST = decode_most(T());
#pragma unroll
    for (int part = 0; part < PARTS - 1; part++) {
        to[part] = mma_pack(fminf(fmaxf(x, -MOST), MOST), fminf(fmaxf(y, -MOST), MOST), T());
        const float2 pair = mma_unpack(to[part], T());
        x -= pair.x, y -= pair.y;
    }
    to[PARTS - 1] = mma_pack(x, y, T());
}

/* Row of a part of q among the 16 of its group, after that of part 0. */
DEVICE constexpr int decode_part_row(int part) {
    return part == 2 ? 4 : 8 * part;
}

/* Exponent of the power of two that a row is raised by, `most` being its largest size: to within 2^14 ...
 * 2^15, so that rests keep f16's digits. */
DEVICE int decode_raise(float most) {
    return min(126, 127 + 14 - (int)(__float_as_uint(most) >> 23));
}
DEVICE float decode_power(int exponent) {
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

/* Eight elements of Q times p.run.q_scale, or zeros. Answers the largest size. */
DEVICE float decode_load_q(float (&x)[8], const struct decode_params &p, const char *from,
                           bool wanted) {
    float4 quads[2] = {};
    if (wanted)
        quads[0] = reinterpret_cast<const float4 *>(from)[0],
        quads[1] = reinterpret_cast<const float4 *>(from)[1];
    const float all[8] = {quads[0].x, quads[0].y, quads[0].z, quads[0].w,
                          quads[1].x, quads[1].y, quads[1].z, quads[1].w};
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x[i] = all[i] * p.run.q_scale;
        most = fmaxf(most, fabsf(x[i]));
    }
    return most;
}

/* Writes the tile's rows of Q of f32, PARTS for each (config.cuh), and by what scores of raised rows are
 * lowered. A warp takes a row. */
template <class shape, bool REST>
DEVICE void decode_split_q(uint32_t to, float *lower, const struct decode_params &p,
                           const struct decode_item &item) {
    using T = typename shape::T;
    constexpr int EACH = (shape::ROW / 16 + 31) / 32; /* pieces of a lane */
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32; row < shape::ROWS; row += shape::WARPS) {
        const int query = filled_row_query(p, row);
        const int at = row / shape::ROWS_GROUP * 16 + row % shape::ROWS_GROUP;
        const bool wanted = row < p.run.tile_rows * p.run.tile_heads && query < item.rows;
        float x[EACH][8], most = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int dim = 8 * (warp_lane() + 32 * e);
            most = fmaxf(most, decode_load_q(x[e], p, decode_q_at<float, REST>(p, item, row, dim),
                                             wanted && dim < p.run.d_qk));
        }
        const int raise = shape::RAISES ? decode_raise(warp_max(most)) : 0;
        if (shape::RAISES && warp_lane() == 0)
            lower[row] = decode_power(-raise);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int piece = warp_lane() + 32 * e;
            uint32_t word[4][shape::PARTS];
#pragma unroll
            for (int i = 0; i < 4; i++)
                decode_split<T>(word[i], x[e][2 * i] * decode_power(raise),
                                x[e][2 * i + 1] * decode_power(raise));
            if (piece >= shape::ROW / 16)
                continue;
#pragma unroll
            for (int part = 0; part < shape::PARTS; part++) {
                const int query_row = at + decode_part_row(part);
                shared_store_16(to + (uint32_t)(query_row * shape::ROW) +
                                    swizzle_piece(query_row, piece),
                                {word[0][part], word[1][part], word[2][part], word[3][part]});
            }
        }
    }
}

#endif
