/* Fused attention in small-M tiles: the map of shared memory, loading Q, storing O. kernel.cuh says
 * what each lane holds. */
#ifndef TESSERA_CUDA_SMALL_M_ROWS_CUH
#define TESSERA_CUDA_SMALL_M_ROWS_CUH

#include "device/tile_f32.cuh"
#include "forward/sm80_small_m/keys.cuh"
#include "work/base.cuh"

#define SMALL_M_ROWS 8   /* query rows (columns) of an MMA */
#define SMALL_M_P_ROW 20 /* floats between rows of P: 16, and 4 against bank conflicts */

/* Groups of 8 rows of a tile of `rows` rows, at most as many as registers allow for heads of D
 * dims. */
template <class T, int D>
static __host__ __device__ __forceinline__ constexpr int small_m_groups(int rows) {
    constexpr int MOST = sizeof(T) < 4 ? (D == 768 ? 2 : 4)
                         : D > 256     ? 2
                         : D > 192     ? 4
                         : D > 64      ? 2
                                       : 1;
    return rows / SMALL_M_ROWS < MOST ? rows / SMALL_M_ROWS : MOST;
}

/* attention_state for a lane here: twice the rows and half the dims of sm80's fragments. */
template <class T, int DIMS, int GROUPS>
using small_m_state = struct attention_state<T, DIMS / 2, 16 * GROUPS>;

template <class T, int D, int GROUPS, int WARPS> struct small_m_shape {
    static constexpr int DIMS = D / WARPS; /* dims of a warp */
    static constexpr int BATCHES = small_m_batches<T, D, WARPS>();
    /* Q of f32 is stored split: heads are small, or one thread block has the multiprocessor to
     * itself. */
    static constexpr bool SPLIT = sizeof(T) == 4 && (D <= 128 || WARPS > 8);
    static constexpr int Q_PIECE = SPLIT ? 1024 : 512; /* bytes: half a batch's dims of a group */
    static constexpr int Q_GROUP = 2 * BATCHES * Q_PIECE;
    static constexpr int P_AT = WARPS * GROUPS * Q_GROUP;
    static constexpr int P_GROUP = SMALL_M_ROWS * SMALL_M_P_ROW * 4;
    static constexpr int PARTS_AT = P_AT + GROUPS * P_GROUP;
    static constexpr int PARTS_WARP = GROUPS * 512;
    static constexpr int FLUSHED_AT = PARTS_AT + (WARPS > 1 ? WARPS * PARTS_WARP : 0);
    static constexpr int FLUSHED_PLACES = /* 16-byte places of a thread */
        sizeof(T) == 4 ? GROUPS * (DIMS / 16) + (GROUPS + 1) / 2 : 0;
    static constexpr int RING_AT = FLUSHED_AT + WARPS * FLUSHED_PLACES * 512;
    static constexpr int RING_WARP = small_m_stages<T, D, WARPS>() * SMALL_M_BATCH;
    static constexpr int ITEMS_AT = RING_AT + WARPS * RING_WARP;
    static constexpr int BYTES = ITEMS_AT + ATTENTION_JOBS * (int)sizeof(struct granule_item);
};

/* ---- Q ---- */

/* Stores a piece of Q, times a power of two; SPLIT: as high and low parts. */
template <bool SPLIT>
DEVICE void small_m_store_q(uint32_t to, const uint4 &piece, float scale, float) {
    uint32_t x[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = __float_as_uint(__uint_as_float(x[i]) * scale);
    const struct fragment<float, 2> b[2] = {
        fragment_of({x[0], x[1]}, 0.0f), fragment_of({x[2], x[3]}, 0.0f)
    };
    if (SPLIT) {
        shared_store_16(to, {b[0].high[0], b[0].high[1], b[0].low[0], b[0].low[1]});
        shared_store_16(to + 512, {b[1].high[0], b[1].high[1], b[1].low[0], b[1].low[1]});
    } else {
        shared_store_16(to, {x[0], x[1], x[2], x[3]});
    }
}
template <bool SPLIT, class T>
DEVICE void small_m_store_q(uint32_t to, const uint4 &piece, float scale, T) {
    uint32_t x[4] = {piece.x, piece.y, piece.z, piece.w};
    if (scale != 1)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = mma_unpack(x[i], T());
            x[i] = mma_pack(two.x * scale, two.y * scale, T());
        }
    shared_store_16(to, {x[0], x[1], x[2], x[3]});
}

/* Loads this lane's operands of Q, which no other lane reads: of rows g, g + 8, ... two pieces of
 * each 128 bytes of the warp's dims. */
template <class T, int D, int GROUPS, int WARPS>
DEVICE void small_m_load_q(uint32_t to, const struct attention_params &p,
                           const struct granule_item &item) {
    using shape = small_m_shape<T, D, GROUPS, WARPS>;
    constexpr int PIECES = 2 * shape::BATCHES, SIZE = (int)sizeof(T);
    const int lane = warp_lane_here();
    const int first = SIZE * small_m_dim<D, WARPS>() + lane % 4 * 32;
    to += (uint32_t)(16 * lane);
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const int row = SMALL_M_ROWS * n + lane / 4;
        const char *from = attention_head<T>(p.q, item.batch, item.head) + first +
                           (item.row + row) * p.q.stride[2] * SIZE;
        uint4 piece[PIECES];
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            const int at = c / 2 * 128 + c % 2 * 16;
            const int32_t bytes = SIZE * p.d_qk - first - at;
            piece[c] = {0, 0, 0, 0};
            if (row < item.rows && bytes > 0)
                piece[c] = p.copied ? small_m_load_16(from + at)
                                    : attention_load_16<T>(from + at, bytes, 1);
        }
#pragma unroll
        for (int c = 0; c < PIECES; c++, to += shape::Q_PIECE)
            small_m_store_q<shape::SPLIT>(to, piece[c], p.q_scale, T());
    }
}

/* The B operands of a piece of Q. */
template <bool SPLIT>
DEVICE void small_m_q_operand(struct fragment<float, 2> (&b)[2], uint32_t from) {
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
template <bool SPLIT, class T>
DEVICE void small_m_q_operand(struct fragment<T, 2> (&b)[2], uint32_t from) {
    const uint4 x = shared_load_16(from);
    b[0] = fragment_of({x.x, x.y}, T());
    b[1] = fragment_of({x.z, x.w}, T());
}

/* ---- O ---- */

/* This lane's dims of row r in batch c, times a factor. */
template <class T, int DIMS, int GROUPS>
DEVICE void small_m_dims(float (&x)[16 / sizeof(T)], const small_m_state<T, DIMS, GROUPS> &state,
                         int r, int c, float factor) {
    constexpr int PAIRS = 8 / (int)sizeof(T);
#pragma unroll
    for (int w = 0; w < PAIRS; w++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            x[2 * w + e] = state.o[r / 2][PAIRS * c + w][r % 2 * 2 + e] * factor;
}

template <class T, int D, int GROUPS, int WARPS>
DEVICE void small_m_store_partial(const struct attention_params &p, const struct granule_item &item,
                                  const small_m_state<T, D / WARPS, GROUPS> &state) {
    constexpr int PIECE = 16 / (int)sizeof(T); /* dims */
    const struct attention_slot slot = attention_slot_of(p, item.slot);
    const int lane = warp_lane_here(), first = small_m_dim<D, WARPS>();
#pragma unroll
    for (int r = 0; r < 2 * GROUPS; r++) {
        const int row = r / 2 * SMALL_M_ROWS + lane % 4 * 2 + r % 2;
        if (row >= item.rows)
            continue;
        if (lane < 4 && first == 0) {
            slot.m[row] = state.m[r];
            slot.l[row] = state.l[r] * attention_lower<T>();
        }
#pragma unroll
        for (int c = 0; c < small_m_batches<T, D, WARPS>(); c++) {
            const int dim = first + 8 * PIECE * c + lane / 4 * PIECE;
            float x[PIECE];
            small_m_dims<T, D / WARPS, GROUPS>(x, state, r, c, attention_lower<T>());
            if (dim >= p.slot_dims)
                continue;
#pragma unroll
            for (int i = 0; i < PIECE; i += 4)
                *reinterpret_cast<float4 *>(&slot.o[(int64_t)row * p.slot_dims + dim + i]) = {
                    x[i], x[i + 1], x[i + 2], x[i + 3]};
        }
    }
}

/* Stores a piece of a row of O, rounded; `left` dims of it exist. */
template <class T, int N>
DEVICE void small_m_store_piece(T *to, const float (&x)[N], int left, bool aligned,
                                float mean_below) {
    union {
        T x[N];
        uint4 all;
    } piece;
#pragma unroll
    for (int i = 0; i < N; i++)
        from_f32(&piece.x[i], mean_in_range(x[i], mean_below, T()));
    if (aligned && left >= N) {
        *reinterpret_cast<uint4 *>(to) = piece.all;
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < left)
            to[i] = piece.x[i];
}

template <class T, int D, int GROUPS, int WARPS>
DEVICE void small_m_store(const struct attention_params &p, const struct granule_item &item,
                          const small_m_state<T, D / WARPS, GROUPS> &state) {
    constexpr int PIECE = 16 / (int)sizeof(T); /* dims */
    const int lane = warp_lane_here(), first = small_m_dim<D, WARPS>();
    const int dim = first + lane / 4 * PIECE;
    const bool aligned = p.alignment >= 16;
    T *const o = reinterpret_cast<T *>(attention_head<T>(p.o, item.batch, item.head));
#pragma unroll
    for (int r = 0; r < 2 * GROUPS; r++) {
        const int row = r / 2 * SMALL_M_ROWS + lane % 4 * 2 + r % 2;
        /* Rows that list nothing are 0: their sums of 0 x V may be NaN. */
        const bool some = state.l[r] != 0;
        const float below =
            modify_denominator(p.modify, item.head, state.m[r] - attention_raise(T()), state.l[r]);
        const float factor = some ? p.modify.kept / below : 0;
        T *const to = o + (item.row + row) * p.o.stride[2] + dim;
        if (row >= item.rows)
            continue;
        float m = state.m[r], l = state.l[r] * attention_lower<T>();
        struct base_shares shares = {};
        if (p.base.o.data)
            shares = base_join(p, item.batch, item.head, item.row + row, m, l);
        shares.own *= attention_lower<T>();
        const T *const base = base_row<T>(p, item.batch, item.head, item.row + row) + dim;
        if (lane < 4 && first == 0)
            attention_store_lse(p, item.batch, item.head, item.row + row, m, l);
#pragma unroll
        for (int c = 0; c < small_m_batches<T, D, WARPS>(); c++) {
            const int left = p.d_v - (8 * PIECE * c + dim);
            float x[PIECE] = {};
            if (some)
                small_m_dims<T, D / WARPS, GROUPS>(x, state, r, c, p.base.o.data ? 1 : factor);
#pragma unroll
            for (int i = 0; i < PIECE; i++)
                if (p.base.o.data && i < left)
                    x[i] = base_add(shares, x[i], base + 8 * PIECE * c + i);
            small_m_store_piece(to + 8 * PIECE * c, x, left, aligned, p.modify.mean_below);
        }
    }
}

template <class T, int D, int GROUPS, int WARPS>
DEVICE void small_m_finish(const struct attention_params &p, const struct granule_item &item,
                           small_m_state<T, D / WARPS, GROUPS> &state) {
    attention_total(state);
#pragma unroll
    for (int r = 0; r < 2 * GROUPS; r++)
        for (int step = 4; step < 32; step *= 2)
            state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], step);
    if (item.parts > 1)
        small_m_store_partial<T, D, GROUPS, WARPS>(p, item, state);
    else
        small_m_store<T, D, GROUPS, WARPS>(p, item, state);
}

#endif
