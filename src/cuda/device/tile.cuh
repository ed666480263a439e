/*
 * A warp's tile with mma.sync: what it computes of its R rows and GROUPS groups of 8 keys. S,
 * P and O stay in registers, as fragments. With g = lane / 4, t = lane % 4, for rows 16 i + g, + 8:
 *
 *   S: s[i][j], C [16, 8] of key group j    P: pairs of s[i], A [16, 16] of two groups   O: o[i][d]
 *
 *                  columns (keys)
 *                  8 j + 2t, + 1            group j            group j + 1
 *   row g          s[i][j][0 1]   round     A[0]               A[2]
 *   row g + 8      s[i][j][2 3]   ----->    A[1]               A[3]          O [R, D] += P V
 *
 * This file has 16-bit operands and what both share; tile_f32.cuh has f32.
 */
#ifndef TESSERA_CUDA_TILE_CUH
#define TESSERA_CUDA_TILE_CUH

#include "device/mma.cuh"
#include "device/shared.cuh"
#include "device/softmax.cuh"
#include "device/swizzle.cuh"
#include "device/warp.cuh"

/* Whether P may underflow in T: elements below ATTENTION_SMALL lose bits. */
DEVICE constexpr bool attention_has_small(__half) {
    return true;
}
template <class T> DEVICE constexpr bool attention_has_small(T) {
    return false;
}

/* Calls `each` with the places of a fragment [I][J][E], in order. */
template <int I, int J, int E, class call> DEVICE void tile_each(const call &each) {
#pragma unroll
    for (int i = 0; i < I; i++)
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 0; e < E; e++)
                each(i, j, e);
}

/* Running state of a warp's rows: row lane / 4 + 8 i, i = 0 ... R / 8 - 1. */
template <class T, int D, int R> struct attention_state {
    float o[R / 16][D / 8][4];
    float m[R / 8], l[R / 8]; /* base 2; l: of this thread's columns */
};

/* Lag of this tile's maxima (softmax.cuh): P stays below 2^(raise + lag), just below 2^16 in f16. Elements that
 * are still small, less than e^-19 of their row's largest, have MMAs of their own (attention_pv_small). */
DEVICE constexpr float attention_lag(__half) {
    return 1.75f;
}
template <class T> DEVICE constexpr float attention_lag(T) {
    return 7.0f;
}

#define ATTENTION_SMALL 0x1p-14f
#define ATTENTION_SMALL_RAISE 0x1p29f /* raises small P to below f16's largest number */

/* 2^-raise */
template <class T> DEVICE constexpr float attention_lower(void) {
    return attention_raise(T()) == 0 ? 1.0f : 0x1p-14f;
}

/* Groups of 8 keys that are computed together. ALL: groups 0, 1, ...; the struct is not read. Else the j-th
 * group is nibble j of `at`, and the first n count. */
struct attention_groups {
    uint32_t at;
    int n;
};

template <bool ALL> DEVICE int attention_group(const struct attention_groups &groups, int j) {
    return ALL ? j : (int)(groups.at >> 4 * j & 15);
}

/* Offsets of this lane's first piece from a panel's begin. In 16 bits half of the lanes address rows of
 * the second of two groups of K or V. */
struct attention_lanes {
    uint32_t q, k, v;
};
template <int ROW, class T>
DEVICE struct attention_lanes attention_lanes_of(T, int lane = warp_lane()) {
    return {swizzle_row<ROW>(lane % 16) + swizzle_piece(lane, lane / 16),
            swizzle_row<ROW>(lane % 8) + swizzle_piece(lane, lane / 8 % 2) + lane / 16 * (8 * ROW),
            swizzle_row<ROW>(lane % 8) + swizzle_piece(lane, lane / 16) + lane / 8 % 2 * (8 * ROW)};
}

/* Offset of two groups for a lane that addresses the second of them, or not. */
template <int ROW> DEVICE uint32_t attention_two_groups(int first, int second, bool is_second) {
    return (uint32_t)(8 * ROW * (is_second ? second - 1 : first));
}

/* S [R, 8 GROUPS] = Q [R, D] K [groups, D]^T */
template <int D, int R, int GROUPS, int ROW, bool ALL, class T>
DEVICE void attention_scores(float (&s)[R / 16][GROUPS][4], uint32_t q, uint32_t k,
                             const struct attention_groups &groups, T,
                             const struct attention_lanes &lanes = attention_lanes_of<ROW>(T())) {
    const bool is_second = warp_lane() >= 16;
    q += lanes.q;
    k += lanes.k;
    tile_each<R / 16, GROUPS, 4>([&](int i, int j, int e) { s[i][j][e] = 0; });
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t a[R / 16][4];
#pragma unroll
        for (int i = 0; i < R / 16; i++)
            ldmatrix(a[i], swizzle_piece_after(q, d) + (uint32_t)(16 * i * ROW));
#pragma unroll
        for (int j = 0; j < GROUPS; j += 2) {
            uint32_t b[4];
            ldmatrix(b,
                     swizzle_piece_after(k, d) +
                         attention_two_groups<ROW>(attention_group<ALL>(groups, j),
                                                   attention_group<ALL>(groups, j + 1), is_second));
#pragma unroll
            for (int i = 0; i < R / 16; i++) {
                mma_sync(s[i][j], a[i], b, T());
                mma_sync(s[i][j + 1], a[i], b + 2, T());
            }
        }
    }
}

/* Scores of rows that do not list the key become -Inf. masks: this warp's 32-bit words of row
 * masks, STRIDE bytes apart; shift: bit of the warp's first row. */
template <int R, int GROUPS, int STRIDE>
DEVICE void attention_mask_scores(float (&s)[R / 16][GROUPS][4], uint32_t masks, int shift,
                                  const struct attention_groups &groups) {
    const int row = shift + warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        const uint32_t at =
            masks + (uint32_t)((8 * attention_group<false>(groups, j) + column) * STRIDE);
        uint32_t word[2] = {shared_load_4(at) >> row, shared_load_4(at + STRIDE) >> row};
        if (j >= groups.n) /* a repeated group */
            word[0] = word[1] = 0;
#pragma unroll
        for (int i = 0; i < R / 16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(word[e % 2] & 1u << (16 * i + 8 * (e / 2))))
                    s[i][j][e] = -INFINITY;
    }
}

/* Scores of repeated groups become -Inf, in steps without masks. */
template <int R, int GROUPS>
DEVICE void attention_mask_repeated(float (&s)[R / 16][GROUPS][4],
                                    const struct attention_groups &groups) {
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
        if (j >= groups.n)
#pragma unroll
            for (int i = 0; i < R / 16; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[i][j][e] = -INFINITY;
}

/* Whether a row's maximum `top` exceeds m by more than the lag. */
template <class T> DEVICE bool attention_moves(float m, float top) {
    return top - m > attention_lag(T());
}

/* Flushed sums (tile_f32.cuh): their address, keys added, total, rescaling. 16-bit types have
 * none. */
template <class T, int D, int R>
DEVICE void attention_flush_to(struct attention_state<T, D, R> &, uint32_t) {
}
template <class T, int D, int R>
DEVICE void attention_count(struct attention_state<T, D, R> &, int) {
}
template <class T, int D, int R> DEVICE void attention_total(struct attention_state<T, D, R> &) {
}
template <class T, int D, int R>
DEVICE void attention_rescale_flushed(const struct attention_state<T, D, R> &, int, float) {
}

/* Moves the maxima that lag behind `top`, and rescales O and l. Nothing to rescale at an item's
 * first keys. */
template <class T, int D, int R>
DEVICE void attention_rescale(struct attention_state<T, D, R> &state, const float (&top)[R / 8]) {
    bool some = false;
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        some |= state.m[r] != -INFINITY;
    some = __any_sync(WARP_ALL, some);
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int i = r / 2, e = r % 2 * 2;
        const float before = state.m[r];
        state.m[r] = attention_moves<T>(before, top[r]) ? top[r] : before;
        if (!some)
            continue;
        const float factor = attention_exp2(before - attention_base(state.m[r]));
        state.l[r] *= factor;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            state.o[i][d][e] *= factor;
            state.o[i][d][e + 1] *= factor;
        }
        attention_rescale_flushed(state, r, factor);
    }
}

/* State before an item's first key. */
template <class T, int D, int R>
DEVICE void attention_clear(struct attention_state<T, D, R> &state, uint32_t far) {
    asm volatile(
        "" ::
            : "memory"); /* keeps this a branch: without it, one selection for each register */
    state = {};
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        state.m[r] = -INFINITY;
    attention_flush_to(state, far);
}

/* Whether a maximum is too far from 0 for an FMA (ATTENTION_FAR). */
DEVICE bool attention_far(float m) {
    return fabsf(attention_base(m)) >= ATTENTION_FAR;
}

/* Scores to exponents of P. Where a row's maximum is far, the product is rounded as the maximum
 * was, so the row's largest P is exactly 1. Decided row by row: the bits of a row do not depend on
 * other rows. */
template <class T, int GROUPS, int D, int R>
DEVICE void attention_exponents(float (&s)[R / 16][GROUPS][4],
                                const struct attention_state<T, D, R> &state, float scale) {
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const float m = attention_base(state.m[r]);
        const bool far = attention_far(m);
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++) {
                float &x = s[r / 2][j][e];
                x = far ? __fmul_rn(x, scale) - m + attention_raise(T())
                        : fmaf(x, scale, -(m - attention_raise(T())));
            }
    }
}

/* The largest x of the lanes that share a row: four neighbours, or, APART, every fourth lane. */
template <bool APART> DEVICE float attention_row_max(float x) {
#pragma unroll
    for (int step = APART ? 4 : 1; step < (APART ? 32 : 4); step *= 2)
        x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    return x;
}

/* S to P; maxima move, O and l are rescaled. Answers whether some P of the warp is too small for
 * T. */
template <class T, int D, int R, int GROUPS, bool APART>
DEVICE bool attention_softmax(float (&s)[R / 16][GROUPS][4], struct attention_state<T, D, R> &state,
                              float scale) {
    float top[R / 8], base[R / 8];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int i = r / 2, e = r % 2 * 2;
        top[r] = fmaxf(s[i][0][e], s[i][0][e + 1]);
#pragma unroll
        for (int j = 1; j < GROUPS; j++)
            top[r] = fmaxf(top[r], fmaxf(s[i][j][e], s[i][j][e + 1]));
        top[r] = attention_row_max<APART>(top[r]) * scale;
        moves |= attention_moves<T>(state.m[r], top[r]);
    }
    bool far = false;
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        far |= attention_far(state.m[r]);
    }
    if (__builtin_expect(__any_sync(WARP_ALL, moves || far), false)) {
        attention_rescale<T>(state, top);
        far = false;
#pragma unroll
        for (int r = 0; r < R / 8; r++)
            far |= attention_far(state.m[r]);
        far = __any_sync(WARP_ALL, far);
        if (far)
            attention_exponents<T, GROUPS>(s, state, scale);
        scale = far ? 1 : scale;
    }
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        base[r] = far ? 0.0f : attention_base(state.m[r]) - attention_raise(T());
    uint32_t least = ~0u; /* smallest bits of P, less 1: 0 is not small */
#pragma unroll
    for (int j = 0; j < GROUPS; j += 2) {
#pragma unroll
        for (int r = 0; r < R / 8; r++) {
            float x[4] = {};
#pragma unroll
            for (int e = 0; e < (GROUPS > 1 ? 4 : 2); e++) {
                float &score = s[r / 2][j + e / 2][r % 2 * 2 + e % 2];
                score = x[e] = attention_exp2(fmaf(score, scale, -base[r]));
                if (attention_has_small(T()))
                    least = __viaddmin_u32(__float_as_uint(x[e]), ~0u, least);
            }
            state.l[r] += GROUPS > 1 ? (x[0] + x[1]) + (x[2] + x[3]) : x[0] + x[1];
        }
    }
    return attention_has_small(T()) &&
           __any_sync(WARP_ALL, least < __float_as_uint(ATTENTION_SMALL) - 1);
}

/* O [R, D] += P [R, 8 GROUPS] V [groups, D] */
template <class T, int D, int R, int GROUPS, int ROW, bool ALL>
DEVICE void attention_pv(struct attention_state<T, D, R> &state,
                         const uint32_t (&probs)[R / 16][GROUPS][2], uint32_t v,
                         const struct attention_groups &groups,
                         const struct attention_lanes &lanes = attention_lanes_of<ROW>(T())) {
    const bool is_second = warp_lane() / 8 % 2;
    v += lanes.v;
#pragma unroll
    for (int j = 0; j < GROUPS; j += 2) {
        const uint32_t at = attention_two_groups<ROW>(
            attention_group<ALL>(groups, j), attention_group<ALL>(groups, j + 1), is_second);
        uint32_t a[R / 16][4];
#pragma unroll
        for (int i = 0; i < R / 16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[i][e] = probs[i][j + e / 2][e % 2];
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            ldmatrix_transposed(b, swizzle_piece_after(v, d) + at);
#pragma unroll
            for (int i = 0; i < R / 16; i++) {
                mma_sync(state.o[i][2 * d], a[i], b, T());
                mma_sync(state.o[i][2 * d + 1], a[i], b + 2, T());
            }
        }
    }
}

/* O times a power of two. */
template <class T, int D, int R>
DEVICE void attention_scale_o(struct attention_state<T, D, R> &state, float factor) {
    tile_each<R / 16, D / 8, 4>([&](int i, int d, int e) { state.o[i][d][e] *= factor; });
}

/* Adds the P V of elements of P too small for f16, and removes them from `probs`. Small P and O are
 * multiplied by a power of two, which f32 has room for. Rows without small P keep their bits. */
template <class T, int D, int R, int GROUPS, int ROW, bool ALL>
DEVICE void
attention_pv_small(struct attention_state<T, D, R> &state, uint32_t (&probs)[R / 16][GROUPS][2],
                   const float (&x)[R / 16][GROUPS][4], uint32_t v,
                   const struct attention_groups &groups, const struct attention_lanes &lanes) {
    uint32_t small[R / 16][GROUPS][2];
    tile_each<R / 16, GROUPS, 2>([&](int i, int j, int e) {
        const float a = x[i][j][2 * e], b = x[i][j][2 * e + 1];
        const bool a_small = a < ATTENTION_SMALL, b_small = b < ATTENTION_SMALL;
        small[i][j][e] = mma_pack(a_small ? a * ATTENTION_SMALL_RAISE : 0,
                                  b_small ? b * ATTENTION_SMALL_RAISE : 0, T());
        probs[i][j][e] = mma_pack(a_small ? 0 : a, b_small ? 0 : b, T());
    });
    attention_scale_o(state, ATTENTION_SMALL_RAISE);
    attention_pv<T, D, R, GROUPS, ROW, ALL>(state, small, v, groups, lanes);
    attention_scale_o(state, 1 / ATTENTION_SMALL_RAISE);
}

/* Softmax and P V of GROUPS groups of 8 keys, from their scores. drop: what dropout does to P. */
template <int GROUPS, int ROW, bool ALL, class T, int D, int R, class drops>
DEVICE void attention_add(struct attention_state<T, D, R> &state, float (&s)[R / 16][GROUPS][4],
                          uint32_t v, float scale, const struct attention_groups &groups,
                          const struct attention_lanes &lanes, const drops &drop) {
    uint32_t probs[R / 16][GROUPS][2];
    const bool small = attention_softmax<T, D, R, GROUPS, false>(s, state, scale);
    drop();
    tile_each<R / 16, GROUPS, 2>([&](int i, int j, int e) {
        probs[i][j][e] = mma_pack(s[i][j][2 * e], s[i][j][2 * e + 1], T());
    });
    if (small)
        attention_pv_small<T, D, R, GROUPS, ROW, ALL>(state, probs, s, v, groups, lanes);
    attention_pv<T, D, R, GROUPS, ROW, ALL>(state, probs, v, groups, lanes);
}

#endif
