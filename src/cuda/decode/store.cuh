/* Decode: the end of an item, a partial result or O and lse. */
#ifndef TESSERA_CUDA_DECODE_STORE_CUH
#define TESSERA_CUDA_DECODE_STORE_CUH

#include "decode/keys.cuh"
#include "decode/step.cuh"
#include "work/slots.cuh"

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

template <class shape>
DEVICE void
decode_store_partial(const struct decode_params &p, const struct decode_item &item,
                     const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    const float lower = attention_lower<typename shape::T>();
    const int lane = warp_lane(), first = decode_column<shape>() * shape::DIMS_O;
#pragma unroll
    for (int r = 0; r < shape::ROWS_LANE; r++) {
        const struct decode_row row =
            decode_row_of(p, item, shape::ROWS_GROUP * decode_group<shape>() + lane / 4 + 8 * r);
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

/* Offset of a row of o, in elements. */
DEVICE int64_t decode_o_at(const struct decode_params &p, const struct decode_item &item,
                           const struct decode_row &row) {
    return item.batch * p.run.o.stride[0] + row.of_head * p.run.o.stride[1] +
           (item.row + row.query) * p.run.o.stride[2];
}

/* Stores two dims of o, of f32 where F32. */
template <class T, bool F32>
DEVICE void decode_store_pair(const struct decode_params &p, int64_t at, const float2 &x) {
    if (F32 || p.o_f32)
        *reinterpret_cast<float2 *>(static_cast<float *>(p.run.o.data) + at) = x;
    else
        *reinterpret_cast<uint32_t *>(static_cast<T *>(p.run.o.data) + at) =
            mma_pack(mean_in_range(x.x, p.run.modify.mean_below, T()),
                     mean_in_range(x.y, p.run.modify.mean_below, T()), T());
}

/* Rows of o are whole 16-byte pieces: d_v is a multiple of 8. Rows that list nothing are 0: their sums
 * of 0 x V may be NaN. */
template <class shape>
DEVICE void
decode_store(const struct decode_params &p, const struct decode_item &item,
             const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    using T = typename shape::T;
    const int lane = warp_lane(), first = decode_column<shape>() * shape::DIMS_O;
#pragma unroll
    for (int r = 0; r < shape::ROWS_LANE; r++) {
        const struct decode_row row =
            decode_row_of(p, item, shape::ROWS_GROUP * decode_group<shape>() + lane / 4 + 8 * r);
        if (!row.is || !decode_has_rows<shape>(lane))
            continue;
        const float below = modify_denominator(p.run.modify, row.of_head,
                                               state.m[r] - attention_raise(T()), state.l[r]);
        const bool some = state.l[r] != 0;
        const float factor = some ? __fdividef(p.run.modify.kept, below) : 0.0f;
        if (first == 0 && lane % 4 == 0)
            attention_store_lse(p.run, item.batch, row.of_head, item.row + row.query, state.m[r],
                                state.l[r] * attention_lower<T>());
        const int64_t at = decode_o_at(p, item, row);
#pragma unroll
        for (int d = 0; d < shape::DIMS_O / 8; d++) {
            const int dim = first + 8 * d + lane % 4 * 2;
            const float *const x = &state.o[0][d][2 * r];
            if (dim >= p.run.d_v)
                continue;
            decode_store_pair<T, shape::SPLIT>(
                p, at + dim, some ? float2{x[0] * factor, x[1] * factor} : float2{0, 0});
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
