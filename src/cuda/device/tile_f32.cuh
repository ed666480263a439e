/*
 * A warp's tile of f32 with mma.sync: tile.cuh with three TF32 MMAs for one (fragment.cuh). Panels hold f32; each
 * warp splits its fragments. With g = lane / 4, t = lane % 4:
 *
 *   Q K^T   A: rows g, g + 8 of Q              B: key g; of 8 dims, dims t and t + 4
 *   P V     A: P of keys 2t, 2t + 1, as in S   B: dim g of those keys
 *
 * Sums are short (compensated summation). Accumulators leave the tensor cores, which truncate,
 * after 16 dims or keys. Every ATTENTION_FLUSH_KEYS keys, O and l are flushed: added to a total in
 * shared memory by a two-sum, whose rounding error the registers keep.
 */
#ifndef TESSERA_CUDA_TILE_F32_CUH
#define TESSERA_CUDA_TILE_F32_CUH

#include "device/fragment.cuh"
#include "device/tile.cuh"

#define ATTENTION_FLUSH_KEYS 256

template <int D, int R> struct attention_state<float, D, R> {
    float o[R / 16][D / 8][4];
    float m[R / 8], l[R / 8]; /* base 2; l: of this thread's columns */
    uint32_t flushed;         /* address of this thread's first flushed sum */
    int keys; /* since the last flush; more by ATTENTION_FLUSHED after the first flush */
};
#define ATTENTION_FLUSHED (1 << 20)

/* Addresses of flushed sums: four floats of a thread are consecutive, threads are side by side. */
template <int D, int R>
DEVICE uint32_t attention_flushed_o(const struct attention_state<float, D, R> &state, int i,
                                    int d) {
    return state.flushed + (uint32_t)(i * (D / 8) + d) * 16 * blockDim.x;
}
template <int D, int R>
DEVICE uint32_t attention_flushed_l(const struct attention_state<float, D, R> &state, int r) {
    return attention_flushed_o(state, R / 16, r / 4) + (uint32_t)(4 * (r % 4));
}

template <int D, int R>
DEVICE void attention_flush_to(struct attention_state<float, D, R> &state, uint32_t flushed) {
    state.flushed = flushed + 16 * threadIdx.x;
}

/* The sum flushed + near; near becomes its rounding error (Knuth's two-sum). */
DEVICE uint32_t attention_two_sum(float &near, uint32_t flushed) {
    const float a = __uint_as_float(flushed), sum = a + near, from = sum - a;
    near = (a - (sum - from)) + (near - from);
    return __float_as_uint(sum);
}

/* Flushes O and l to shared memory. */
template <int D, int R> DEVICE void attention_flush(struct attention_state<float, D, R> &state) {
    const bool holds = state.keys >= ATTENTION_FLUSHED;
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const uint32_t at = attention_flushed_l(state, r);
        shared_store_4(at, attention_two_sum(state.l[r], holds ? shared_load_4(at) : 0));
    }
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const uint32_t at = attention_flushed_o(state, i, d);
            uint4 flushed = {0, 0, 0, 0};
            if (holds)
                flushed = shared_load_16(at);
            float(&o)[4] = state.o[i][d];
            shared_store_16(
                at, {attention_two_sum(o[0], flushed.x), attention_two_sum(o[1], flushed.y),
                     attention_two_sum(o[2], flushed.z), attention_two_sum(o[3], flushed.w)});
        }
    state.keys = ATTENTION_FLUSHED;
}

DEVICE void attention_scale_flushed(uint32_t at, float factor) {
    shared_store_4(at, __float_as_uint(__uint_as_float(shared_load_4(at)) * factor));
}

/* Rescales a row's flushed sums after its maximum moved. */
template <int D, int R>
DEVICE void attention_rescale_flushed(const struct attention_state<float, D, R> &state, int r,
                                      float factor) {
    if (state.keys < ATTENTION_FLUSHED)
        return;
    attention_scale_flushed(attention_flushed_l(state, r), factor);
#pragma unroll 1
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            attention_scale_flushed(
                attention_flushed_o(state, r / 2, d) + (uint32_t)(r % 2 * 8 + 4 * e), factor);
}

/* Adds the flushed sums to O and l. */
template <int D, int R> DEVICE void attention_total(struct attention_state<float, D, R> &state) {
    if (state.keys < ATTENTION_FLUSHED)
        return;
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        state.l[r] += __uint_as_float(shared_load_4(attention_flushed_l(state, r)));
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const uint4 flushed = shared_load_16(attention_flushed_o(state, i, d));
            state.o[i][d][0] += __uint_as_float(flushed.x);
            state.o[i][d][1] += __uint_as_float(flushed.y);
            state.o[i][d][2] += __uint_as_float(flushed.z);
            state.o[i][d][3] += __uint_as_float(flushed.w);
        }
}

/* One score in double: row `row` of panel q times row `key` of panel k. */
template <int D, int ROW> DEVICE float attention_score(uint32_t q, int row, uint32_t k, int key) {
    double sum = 0;
#pragma unroll 1
    for (int d = 0; d < D; d++) {
        const uint32_t x = q + (uint32_t)(row * ROW + d % 4 * 4) + swizzle_piece(row, d / 4);
        const uint32_t y = k + (uint32_t)(key * ROW + d % 4 * 4) + swizzle_piece(key, d / 4);
        sum += (double)__uint_as_float(shared_load_4(x)) * __uint_as_float(shared_load_4(y));
    }
    return (float)sum;
}

/* Recomputes scores that are NaN, one by one: infinities cannot be split into parts. */
template <int D, int R, int GROUPS, int ROW, bool ALL>
DEVICE void attention_recompute_nan(float (&s)[R / 16][GROUPS][4], uint32_t q, uint32_t k,
                                    const struct attention_groups &groups) {
    const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                bad |= isnan(s[i][j][e]);
    if (!__any_sync(WARP_ALL, bad))
        return;
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (isnan(s[i][j][e]))
                    s[i][j][e] = attention_score<D, ROW>(q, 16 * i + 8 * (e / 2) + row, k,
                                                         8 * attention_group<ALL>(groups, j) +
                                                             column + e % 2);
    __syncwarp(); /* MMAs need all lanes converged */
}

/* part = A B over 16 columns, small terms first: ALL four MMAs of parts, or without low x low. part
 * is 0 on entry. */
template <bool ALL>
DEVICE void attention_split_mma(float (&part)[4], const struct fragment<float, 4> (&a)[2],
                                const struct fragment<float, 2> (&b)[2]) {
    if (ALL) {
#pragma unroll
        for (int n = 0; n < 2; n++)
            fragment_mma_tf32(part, a[n].low, b[n].low);
#pragma unroll
        for (int e = 0; e < 4; e++)
            part[e] *= 1 / FRAGMENT_LOW;
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        fragment_mma_tf32(part, a[n].high, b[n].low);
        fragment_mma_tf32(part, a[n].low, b[n].high);
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        part[e] *= 1 / FRAGMENT_LOW;
#pragma unroll
    for (int n = 0; n < 2; n++)
        fragment_mma_tf32(part, a[n].high, b[n].high);
}

template <bool ALL>
DEVICE void attention_split_mma_add(float (&sum)[4], const struct fragment<float, 4> (&a)[2],
                                    const struct fragment<float, 2> (&b)[2]) {
    float part[4] = {};
    attention_split_mma<ALL>(part, a, b);
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum[e] += part[e];
}

/* S [R, 8 GROUPS] += Q [R, 16] K [groups, 16]^T; rows, keys: addresses of this lane's pieces of Q
 * and K. LOWEST: with low x low. */
template <int R, int GROUPS, int ROW, bool ALL, bool LOWEST>
DEVICE void attention_scores_16(float (&s)[R / 16][GROUPS][4], uint32_t rows, uint32_t keys,
                                const struct attention_groups &groups) {
    struct fragment<float, 4> a[R / 16][2];
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t word[4];
            ldmatrix(word, (rows ^ (uint32_t)(32 * n)) + (uint32_t)(16 * i * ROW));
            a[i][n] = fragment_of(word, 0.0f);
        }
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        if (!ALL && j >= groups.n) /* masked whatever it holds */
            break;
        uint32_t word[4];
        ldmatrix(word, keys + (uint32_t)(8 * ROW * attention_group<ALL>(groups, j)));
        const struct fragment<float, 2> b[2] = {
            fragment_of({word[0], word[1]}, 0.0f), fragment_of({word[2], word[3]}, 0.0f)
        };
#pragma unroll
        for (int i = 0; i < R / 16; i++)
            attention_split_mma_add<LOWEST>(s[i][j], a[i], b);
    }
}

/* Lanes of f32, half of which address further dims of the same group. */
template <int ROW> DEVICE struct attention_lanes attention_lanes_of(float, int lane = warp_lane()) {
    const int g = lane / 4, t = lane % 4;
    return {(uint32_t)(lane % 16 * ROW) + swizzle_piece(lane, lane / 16),
            (uint32_t)(lane % 8 * ROW) + swizzle_piece(lane, lane / 8),
            (uint32_t)(2 * t * ROW + g % 4 * 4) + swizzle_piece(2 * t, g / 4)};
}

/* S [R, 8 GROUPS] = Q [R, D] K [groups, D]^T */
template <int D, int R, int GROUPS, int ROW, bool ALL, bool LOWEST = true>
DEVICE void attention_scores(float (&s)[R / 16][GROUPS][4], uint32_t q, uint32_t k,
                             const struct attention_groups &groups, float,
                             const struct attention_lanes &lanes = attention_lanes_of<ROW>(0.0f)) {
    uint32_t rows = q + lanes.q, keys = k + lanes.k;
    tile_each<R / 16, GROUPS, 4>([&](int i, int j, int e) { s[i][j][e] = 0; });
#pragma unroll 1
    for (int d = 0; d < ROW; d += 128, rows += 128, keys += 128)
#pragma unroll
        for (int half = 0; half < 2; half++)
            attention_scores_16<R, GROUPS, ROW, ALL, LOWEST>(s, rows ^ (uint32_t)(64 * half),
                                                             keys ^ (uint32_t)(64 * half), groups);
    attention_recompute_nan<D, R, GROUPS, ROW, ALL>(s, q, k, groups);
}

/* O [R, D] += P [R, 8 GROUPS] V [groups, D], without low x low. */
template <int GROUPS, int ROW, bool ALL, int D, int R>
DEVICE void attention_pv(struct attention_state<float, D, R> &state,
                         const float (&x)[R / 16][GROUPS][4], uint32_t v,
                         const struct attention_groups &groups,
                         const struct attention_lanes &lanes = attention_lanes_of<ROW>(0.0f)) {
    v += lanes.v;
#pragma unroll
    for (int j = 0; j < GROUPS; j += 2) {
        if (!ALL && j >= groups.n)
            break;
        uint32_t group[2]; /* offsets of two groups from v */
        struct fragment<float, 4> a[R / 16][2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            group[n] = (uint32_t)(8 * ROW * attention_group<ALL>(groups, j + n));
#pragma unroll
            for (int i = 0; i < R / 16; i++) {
                const float(&w)[4] = x[i][j + n];
                a[i][n] = fragment_of({__float_as_uint(w[0]), __float_as_uint(w[2]),
                                       __float_as_uint(w[1]), __float_as_uint(w[3])},
                                      0.0f);
            }
        }
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            struct fragment<float, 2> b[2];
#pragma unroll
            for (int n = 0; n < 2; n++)
                b[n] = fragment_of({shared_load_4(swizzle_piece_after(v, d) + group[n]),
                                    shared_load_4(swizzle_piece_after(v ^ 16, d) + ROW + group[n])},
                                   0.0f);
#pragma unroll
            for (int i = 0; i < R / 16; i++)
                attention_split_mma_add<false>(state.o[i][d], a[i], b);
        }
    }
}

/* Counts keys added to O, and flushes when they are many. */
template <int D, int R>
DEVICE void attention_count(struct attention_state<float, D, R> &state, int keys) {
    state.keys += keys;
    if (state.keys % ATTENTION_FLUSHED >= ATTENTION_FLUSH_KEYS)
        attention_flush(state);
}

template <int GROUPS, int ROW, bool ALL, int D, int R, class drops>
DEVICE void attention_add(struct attention_state<float, D, R> &state, float (&s)[R / 16][GROUPS][4],
                          uint32_t v, float scale, const struct attention_groups &groups,
                          const struct attention_lanes &lanes, const drops &drop) {
    attention_softmax<float, D, R, GROUPS, false>(s, state, scale);
    drop();
    attention_pv<GROUPS, ROW, ALL>(state, s, v, groups, lanes);
    attention_count(state, 8 * GROUPS);
}

#endif
