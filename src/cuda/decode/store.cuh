/* Decode: the end of an item, a partial result or O and lse. */
#ifndef TESSERA_CUDA_DECODE_STORE_CUH
#define TESSERA_CUDA_DECODE_STORE_CUH

#include "decode/keys.cuh"
#include "decode/step.cuh"
#include "work/base.cuh"

/* Row of the tile: its head, its query, or whether there is none. */
struct decode_row {
    int32_t head, of_head, query; /* head: within the tile */
    bool is;
};
DEVICE struct decode_row decode_row_of(const struct decode_params &p,
                                       const struct decode_item &item, int row) {
    const int32_t head = filled_row_head(p, row), query = filled_row_query(p, row);
    return {head, item.head + head, query, head < p.run.tile_heads && query < item.rows};
}

/* Row of the tile of a lane's r-th, found anew at each call: rows are stored one by one, as registers are short. */
template <class shape> DEVICE int decode_place_here(int r) {
    int place = shape::ROWS_GROUP * decode_group<shape>() + warp_lane() / 4 + 8 * r;
    asm volatile("" : "+r"(place)::"memory");
    return place;
}

template <class shape>
DEVICE void
decode_store_partial(const struct decode_params &p, const struct decode_item &item,
                     const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    const float lower = attention_lower<typename shape::T>();
    const int lane = warp_lane(), first = decode_column<shape>() * shape::DIMS_O;
#pragma unroll
    for (int r = 0; r < shape::ROWS_LANE; r++) {
        const struct decode_row row = decode_row_of(p, item, decode_place_here<shape>(r));
        if (!row.is || !decode_has_rows<shape>(lane))
            continue;
        const struct attention_slot slot =
            attention_slot_of(p.run, item.slot * p.run.tile_heads + row.head);
        if (first == 0 && lane % 4 == 0) {
            slot.m[row.query] = state.m[r];
            slot.l[row.query] = state.l[r] * lower;
        }
        float *const to = slot.o + (int64_t)row.query * p.run.slot_dims;
#pragma unroll
        for (int d = 0; d < shape::DIMS_O / 8; d++) {
            const int dim = first + 8 * d + lane % 4 * 2;
            if (dim < p.run.slot_dims)
                *reinterpret_cast<float2 *>(to + dim) = {state.o[0][d][2 * r] * lower,
                                                         state.o[0][d][2 * r + 1] * lower};
        }
    }
}

/* Element d of a row, of 4 bytes or 2. */
DEVICE char *decode_row_at(const struct rows_view &view, int32_t b, int32_t h, int32_t row, int d,
                           bool wide) {
    return static_cast<char *>(view.data) +
           (b * view.stride[0] + h * view.stride[1] + row * view.stride[2] + d) * (wide ? 4 : 2);
}

/* Two elements from the d-th on: f32, or of type T. */
template <class T> DEVICE float2 decode_load_pair(const char *row, int d, bool wide) {
    return wide ? *reinterpret_cast<const float2 *>(row + 4 * d)
                : mma_unpack(*reinterpret_cast<const uint32_t *>(row + 2 * d), T());
}

/* Stores two elements from the d-th on likewise. */
template <class T>
DEVICE void decode_store_pair(const struct attention_params &run, char *row, int d, bool wide,
                              const float2 &x) {
    if (wide)
        *reinterpret_cast<float2 *>(row + 4 * d) = x;
    else
        *reinterpret_cast<uint32_t *>(row + 2 * d) =
            mma_pack(mean_in_range(x.x, run.modify.mean_below, T()),
                     mean_in_range(x.y, run.modify.mean_below, T()), T());
}

/* Rows of o are whole 16-byte pieces: d_v is a multiple of 8. Rows that list nothing are 0: their sums
 * of 0 x V may be NaN. */
template <class shape>
DEVICE void
decode_store(const struct decode_params &p, const struct decode_item &item,
             const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    using T = typename shape::T;
    const int lane = warp_lane(), first = decode_column<shape>() * shape::DIMS_O;
    const bool wide = shape::SPLIT || p.o_f32;
    const struct attention_params &run = p.run;
#pragma unroll
    for (int r = 0; r < shape::ROWS_LANE; r++) {
        const struct decode_row row = decode_row_of(p, item, decode_place_here<shape>(r));
        if (!row.is || !decode_has_rows<shape>(lane))
            continue;
        const float below = modify_denominator(run.modify, row.of_head,
                                               state.m[r] - attention_raise(T()), state.l[r]);
        const int32_t query = item.row + row.query;
        float m = state.m[r], l = state.l[r] * attention_lower<T>();
        struct base_shares shares = {l != 0 ? __fdividef(run.modify.kept, below) : 0.0f, 0};
        if (run.base.o.data) {
            shares = base_join(run, item.batch, row.of_head, query, m, l);
            shares.own *= attention_lower<T>();
        }
        if (first == 0 && lane % 4 == 0)
            attention_store_lse(run, item.batch, row.of_head, query, m, l);
        const int dim = first + lane % 4 * 2;
        char *const to = decode_row_at(run.o, item.batch, row.of_head, query, dim, wide);
        const char *const base =
            decode_row_at(run.base.o, item.batch, row.of_head, query, dim, wide);
#pragma unroll
        for (int d = 0; d < shape::DIMS_O / 8; d++) {
            const float *const x = &state.o[0][d][2 * r];
            if (dim + 8 * d >= run.d_v)
                continue;
            float2 two = {shares.own == 0 ? 0 : x[0] * shares.own,
                          shares.own == 0 ? 0 : x[1] * shares.own};
            if (shares.base != 0) {
                const float2 joins = decode_load_pair<T>(base, 8 * d, wide);
                two = {fmaf(shares.base, joins.x, two.x), fmaf(shares.base, joins.y, two.y)};
            }
            decode_store_pair<T>(run, to, 8 * d, wide, two);
        }
    }
}

template <class shape>
DEVICE void
decode_finish(const struct decode_params &p, const struct decode_item &item,
              const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    if (item.parts > 1)
        decode_store_partial<shape>(p, item, state);
    else
        decode_store<shape>(p, item, state);
}

#endif
