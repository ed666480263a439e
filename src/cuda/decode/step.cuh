/* Decode: what a warp computes of a step. S by its keys of the step, all dims; O by its dims, all
 * keys. Fragments are those of device/tile.cuh. */
#ifndef TESSERA_CUDA_DECODE_STEP_CUH
#define TESSERA_CUDA_DECODE_STEP_CUH

#include "decode/config.cuh"

/* This warp's group of 16 rows, and its number among the warps that share them. */
template <class shape> DEVICE int decode_group(void) {
    return shape::group((int)threadIdx.x / 32);
}
template <class shape> DEVICE int decode_column(void) {
    return shape::column((int)threadIdx.x / 32);
}

/* Whether a lane's sums are of rows of the tile: of three parts half the lanes have the third part's. */
template <class shape> DEVICE bool decode_has_rows(int lane) {
    return shape::ROWS_GROUP >= 8 || lane < 4 * shape::ROWS_GROUP;
}

/* A [16, D] of this warp's rows of Q, where registers hold it. */
template <class shape> struct decode_q { uint32_t a[shape::Q_HELD ? shape::D / 16 : 1][4]; };

/* The address of this lane's row of Q for ldmatrix: lanes 0 ... 15 dims 0 ... 7, the others 8 ... 15. */
template <class shape> DEVICE uint32_t decode_q_row(uint32_t q) {
    const int lane = warp_lane();
    return q + (uint32_t)((16 * decode_group<shape>() + lane % 16) * shape::ROW) +
           swizzle_piece(lane, lane / 16);
}

template <class shape> DEVICE void decode_hold_q(struct decode_q<shape> &held, uint32_t q) {
    const uint32_t from = decode_q_row<shape>(q);
    if (shape::Q_HELD)
#pragma unroll
        for (int d = 0; d < shape::D / 16; d++)
            ldmatrix(held.a[shape::Q_HELD ? d : 0], swizzle_piece_after(from, d));
}

/* Dims 16 d ... 16 d + 15 of this warp's rows. row: decode_q_row. */
template <class shape>
DEVICE void decode_q_of(uint32_t (&a)[4], const struct decode_q<shape> &held, uint32_t row, int d) {
    if (!shape::Q_HELD)
        ldmatrix(a, swizzle_piece_after(row, d));
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = held.a[shape::Q_HELD ? d : 0][i];
}

/* S [16, 8 TILES] = Q [16, D] K [8 TILES, D]^T. k: the first of the warp's keys. STORED: of K without its
 * scales, which stand from `scales` on; they multiply the sums over their dims. */
template <class shape, bool STORED>
DEVICE void decode_scores(float (&s)[shape::TILES][4], const struct decode_q<shape> &held,
                          uint32_t q, uint32_t k, const float *scales,
                          const struct decode_stored &of_k) {
    constexpr int TILES = shape::TILES, STEPS = shape::D / 16;
    const int lane = warp_lane();
    const int32_t n = of_k.scales;
    /* MMAs that add to the same sums wait for one another. With one tile alone every second has other sums,
     * or three of four where registers allow. */
    constexpr int MORE =
        TILES > 1 || STORED || (attention_has_small(typename shape::T()) && shape::D > 256) ? 1 : 3;
    float more[MORE][4] = {};
    const auto all = [&](int j, int e) {
        return TILES > 1   ? s[j][e]
               : MORE == 1 ? s[0][e] + more[0][e]
                           : (s[0][e] + more[0][e]) + (more[1 % MORE][e] + more[2 % MORE][e]);
    };
    float sum[STORED ? TILES : 1][4] = {};
    const auto scale =
        [&](int done) { /* after `done` steps of 16 dims */
                        if (!STORED || n == 0 || (done % (DECODE_SCALE_DIMS / 16) && done < STEPS))
                            return;
                        const float *const factors =
                            scales + min((done - 1) / (DECODE_SCALE_DIMS / 16), n - 1);
#pragma unroll
                        for (int j = 0; j < TILES; j++)
#pragma unroll
                            for (int e = 0; e < 4; e++) {
                                float by = 1; /* factor of the second view's dims */
                                if ((done - 1) / (DECODE_SCALE_DIMS / 16) < of_k.scaled)
                                    by =
                                        factors[(8 * j + lane % 4 * 2 + e % 2) * shape::SCALES_KEY];
                                sum[STORED ? j : 0][e] += all(j, e) * by;
                                s[j][e] = 0;
#pragma unroll
                                for (int i = 0; i < MORE; i++)
                                    more[i][e] = 0;
                            }
        };
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[j][e] = 0;
    q = decode_q_row<shape>(q);
    k += (uint32_t)(lane % 8 * shape::ROW);
    if (TILES == 1) {
        k += swizzle_piece(lane, lane / 8); /* 32 dims at a time */
#pragma unroll
        for (int d = 0; d < shape::D / 16; d += 2) {
            uint32_t b[4];
            uint32_t a[2][4];
            decode_q_of(a[0], held, q, d);
            decode_q_of(a[1], held, q, d + 1);
            ldmatrix(b, swizzle_piece_after(k, d));
            const bool first = MORE == 1 || d % 4 == 0;
            mma_sync(first ? s[0] : more[1 % MORE], a[0], b, typename shape::T());
            mma_sync(more[first ? 0 : 2 % MORE], a[1], b + 2, typename shape::T());
            scale(d + 2);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[0][e] = STORED && n ? sum[0][e] : all(0, e);
        return;
    }
    k += (uint32_t)(lane / 16 * 8 * shape::ROW) + swizzle_piece(lane, lane / 8 % 2);
#pragma unroll
    for (int d = 0; d < shape::D / 16; d++) {
        uint32_t a[4];
        decode_q_of(a, held, q, d);
#pragma unroll
        for (int j = 0; j < TILES; j += 2) {
            uint32_t b[4];
            ldmatrix(b, swizzle_piece_after(k, d) + (uint32_t)(8 * j * shape::ROW));
            mma_sync(s[j], a, b, typename shape::T());
            mma_sync(s[j + (TILES > 1)], a, b + 2, typename shape::T());
        }
        scale(d + 1);
    }
    if (STORED && n)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[j][e] = sum[STORED ? j : 0][e];
}

/* O [16, DIMS_O] += P [16, 8 GROUPS] V [keys, DIMS_O]. v: the first of the keys. */
template <class shape>
DEVICE void decode_pv(struct attention_state<typename shape::T, shape::DIMS_O, 16> &state,
                      const uint32_t (&probs)[DECODE_GROUPS][2], uint32_t v) {
    const int lane = warp_lane(), first = decode_column<shape>() * (shape::DIMS_O / 16);
    v += (uint32_t)(lane % 16 * shape::ROW_V) + swizzle_piece(lane, lane / 16);
    v = swizzle_piece_after(v, first);
#pragma unroll
    for (int j = 0; j < DECODE_GROUPS; j += 2) {
        const uint32_t a[4] = {probs[j][0], probs[j][1], probs[j + 1][0], probs[j + 1][1]};
        const uint32_t from = v + (uint32_t)(8 * j * shape::ROW_V);
#pragma unroll
        for (int d = 0; d < shape::DIMS_O / 16; d++) {
            uint32_t b[4];
            ldmatrix_transposed(b, swizzle_piece_after(from, d));
            mma_sync(state.o[0][2 * d], a, b, typename shape::T());
            mma_sync(state.o[0][2 * d + 1], a, b + 2, typename shape::T());
        }
    }
}

/* Softmax and P V of DECODE_GROUPS groups of 8 keys, from their scores. drop: what dropout does to P.
 * P too small for f16 is multiplied apart, as in device/tile.cuh. */
template <class shape, class drops>
DEVICE void decode_add(struct attention_state<typename shape::T, shape::DIMS_O, 16> &state,
                       float (&s)[1][DECODE_GROUPS][4], uint32_t v, float scale,
                       const drops &drop) {
    using T = typename shape::T;
    uint32_t probs[DECODE_GROUPS][2];
    const bool some_small =
        attention_softmax<T, shape::DIMS_O, 16, DECODE_GROUPS, false>(s, state, scale);
    drop();
    if (some_small) {
        const auto raised = [](float x) {
            return x < ATTENTION_SMALL ? x * ATTENTION_SMALL_RAISE : 0;
        };
#pragma unroll
        for (int j = 0; j < DECODE_GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *const x = s[0][j] + 2 * e;
                probs[j][e] = mma_pack(raised(x[0]), raised(x[1]), T());
                x[0] = x[0] < ATTENTION_SMALL ? 0 : x[0];
                x[1] = x[1] < ATTENTION_SMALL ? 0 : x[1];
            }
        attention_scale_o(state, ATTENTION_SMALL_RAISE);
        decode_pv<shape>(state, probs, v);
        attention_scale_o(state, 1 / ATTENTION_SMALL_RAISE);
    }
#pragma unroll
    for (int j = 0; j < DECODE_GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            probs[j][e] = mma_pack(s[0][j][2 * e], s[0][j][2 * e + 1], T());
    decode_pv<shape>(state, probs, v);
}

#endif
