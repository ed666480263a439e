/*
 * Fused attention for f32 in low tiles: where a tile's rows stand, how those of Q come and those of O
 * go. attention_low.cuh says what each lane has of them.
 */
#ifndef TESSERA_CUDA_ATTENTION_LOW_ROWS_CUH
#define TESSERA_CUDA_ATTENTION_LOW_ROWS_CUH

#include "attention_low_keys.cuh"
#include "attention_tile_f32.cuh"

#define LOW_ROWS 8     /* of a product */
#define LOW_WEIGHTS 20 /* floats from row to row of weights: 16, and what keeps banks apart */

/* Groups of 8 rows of a tile of `rows` rows, of which heads of D dims have few enough that their sums
 * fit registers. */
template <int D>
static __host__ __device__ __forceinline__ constexpr int attention_low_groups(int rows) {
    constexpr int MOST = D > 192 ? 4 : D > 64 ? 2 : 1;
    return rows / LOW_ROWS < MOST ? rows / LOW_ROWS : MOST;
}

/* A lane's rows and dims, counted as others do: of twice the rows and half the dims. */
template <int DIMS, int GROUPS>
using attention_low_state = struct attention_state<float, DIMS / 2, 16 * GROUPS>;

template <int D, int GROUPS, int WARPS> struct attention_low_shape {
    static constexpr int DIMS = D / WARPS;             /* of a warp */
    static constexpr bool SPLIT = D <= 128;            /* Q */
    static constexpr int Q_PIECE = SPLIT ? 1024 : 512; /* of 16 dims of a group */
    static constexpr int Q_GROUP = DIMS / 16 * Q_PIECE;
    static constexpr int WEIGHTS_AT = WARPS * GROUPS * Q_GROUP;
    static constexpr int WEIGHTS_GROUP = LOW_ROWS * LOW_WEIGHTS * 4;
    static constexpr int PARTS_AT = WEIGHTS_AT + GROUPS * WEIGHTS_GROUP;
    static constexpr int PARTS_WARP = GROUPS * 512;
    static constexpr int FAR_AT = PARTS_AT + (WARPS > 1 ? WARPS * PARTS_WARP : 0);
    static constexpr int FAR_PLACES = GROUPS * (DIMS / 16) + (GROUPS + 1) / 2; /* of a thread */
    static constexpr int RING_AT = FAR_AT + WARPS * FAR_PLACES * 512;
    static constexpr int RING_WARP = attention_low_ahead<D, WARPS>() * LOW_BATCH;
    static constexpr int ITEMS_AT = RING_AT + WARPS * RING_WARP;
    static constexpr int BYTES = ITEMS_AT + ATTENTION_JOBS * (int)sizeof(struct granule_item);
};

/* This lane's operands of Q, where it alone looks for them: of rows g, g + 8, ... two pieces of each
 * 32 of the warp's dims. */
template <int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void attention_low_load_q(uint32_t to,
                                                            const struct attention_params &p,
                                                            const struct granule_item &item) {
    constexpr int PIECES = D / WARPS / 16;
    const int lane = warp_lane_here();
    const int first = 4 * attention_low_dim<D, WARPS>() + lane % 4 * 32;
    to += (uint32_t)(16 * lane);
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const int row = LOW_ROWS * n + lane / 4;
        const char *from = attention_head<float>(p.q, item.batch, item.head) + first +
                           (item.row + row) * p.q.stride[2] * 4;
        uint4 piece[PIECES];
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            const int at = c / 2 * 128 + c % 2 * 16;
            const int32_t bytes = 4 * p.d_qk - first - at;
            piece[c] = {0, 0, 0, 0};
            if (row < item.rows && bytes > 0)
                piece[c] = p.copied ? attention_low_load_16(from + at)
                                    : attention_load_16<float>(from + at, bytes, 1);
        }
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            uint32_t x[4] = {piece[c].x, piece[c].y, piece[c].z, piece[c].w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = __float_as_uint(__uint_as_float(x[i]) * p.q_scale);
            const struct fragment<float, 2> b[2] = {fragment_of({x[0], x[1]}, 0.0f),
                                                    fragment_of({x[2], x[3]}, 0.0f)};
            if (attention_low_shape<D, GROUPS, WARPS>::SPLIT) {
                shared_store_16(to, {b[0].high[0], b[0].high[1], b[0].low[0], b[0].low[1]});
                shared_store_16(to + 512, {b[1].high[0], b[1].high[1], b[1].low[0], b[1].low[1]});
                to += 1024;
            } else {
                shared_store_16(to, {x[0], x[1], x[2], x[3]});
                to += 512;
            }
        }
    }
}

/* Those of a piece. */
template <bool SPLIT>
static __device__ __forceinline__ void attention_low_q(struct fragment<float, 2> (&b)[2],
                                                       uint32_t from) {
    const uint4 x = shared_load_16(from);
    if (SPLIT) {
        const uint4 y = shared_load_16(from + 512);
        b[0] = fragment_of_parts({x.x, x.y}, {x.z, x.w});
        b[1] = fragment_of_parts({y.x, y.y}, {y.z, y.w});
    } else {
        b[0] = fragment_of({x.x, x.y}, 0.0f);
        b[1] = fragment_of({x.z, x.w}, 0.0f);
    }
}

/* Where this lane's 4 dims of a row go, in O or in a slot. */
template <int DIMS, int GROUPS>
static __device__ __forceinline__ float4
attention_low_dims(const attention_low_state<DIMS, GROUPS> &state, int r, int c, float factor) {
    const float *x = state.o[r / 2][2 * c] + r % 2 * 2, *y = state.o[r / 2][2 * c + 1] + r % 2 * 2;
    return {x[0] * factor, x[1] * factor, y[0] * factor, y[1] * factor};
}

template <int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_store_part(const struct attention_params &p, const struct granule_item &item,
                         const attention_low_state<D / WARPS, GROUPS> &state) {
    const struct attention_slot slot = attention_slot_of(p, item.slot);
    const int lane = warp_lane_here(), first = attention_low_dim<D, WARPS>();
#pragma unroll
    for (int r = 0; r < 2 * GROUPS; r++) {
        const int row = r / 2 * LOW_ROWS + lane % 4 * 2 + r % 2;
        if (row >= item.rows)
            continue;
        if (lane < 4 && first == 0) {
            slot.m[row] = state.m[r];
            slot.l[row] = state.l[r];
        }
#pragma unroll
        for (int c = 0; c < D / WARPS / 32; c++) {
            const int dim = first + 32 * c + lane / 4 * 4;
            if (dim < p.slot_dims)
                *reinterpret_cast<float4 *>(&slot.o[(int64_t)row * p.slot_dims + dim]) =
                    attention_low_dims<D / WARPS, GROUPS>(state, r, c, 1);
        }
    }
}

template <int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_store(const struct attention_params &p, const struct granule_item &item,
                    const attention_low_state<D / WARPS, GROUPS> &state) {
    const int lane = warp_lane_here(), first = attention_low_dim<D, WARPS>();
    const int dim = first + lane / 4 * 4;
    const bool whole = p.d_v == D && p.alignment >= 16;
    float *const o = reinterpret_cast<float *>(attention_head<float>(p.o, item.batch, item.head));
#pragma unroll
    for (int r = 0; r < 2 * GROUPS; r++) {
        const int row = r / 2 * LOW_ROWS + lane % 4 * 2 + r % 2;
        /* Rows that list nothing are 0, whatever 0 times the values that others list has left. */
        const bool some = state.l[r] != 0;
        const float factor = some ? 1 / state.l[r] : 0;
        float *const to = o + (item.row + row) * p.o.stride[2] + dim;
        if (row >= item.rows)
            continue;
        if (lane < 4 && first == 0)
            attention_store_lse(p, item.batch, item.head, item.row + row, state.m[r], state.l[r]);
#pragma unroll
        for (int c = 0; c < D / WARPS / 32; c++) {
            float4 x = {0, 0, 0, 0};
            if (some)
                x = attention_low_dims<D / WARPS, GROUPS>(state, r, c, factor);
            if (whole) {
                *reinterpret_cast<float4 *>(to + 32 * c) = x;
                continue;
            }
            const int left = p.d_v - (32 * c + dim);
            const float all[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < left)
                    to[32 * c + i] = all[i];
        }
    }
}

template <int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_finish(const struct attention_params &p, const struct granule_item &item,
                     attention_low_state<D / WARPS, GROUPS> &state) {
    attention_total(state);
#pragma unroll
    for (int r = 0; r < 2 * GROUPS; r++)
        for (int step = 4; step < 32; step *= 2)
            state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], step);
    if (item.parts > 1)
        attention_low_store_part<D, GROUPS, WARPS>(p, item, state);
    else
        attention_low_store<D, GROUPS, WARPS>(p, item, state);
}

#endif
