/*
 * The fused backward on Hopper: a consumer over keys, 64 of a tile's 128. Products of a step, of D dims:
 *
 *   S^T = K Q^T, dP^T = V dO^T      m64n64k16, D / 16 each, from shared memory
 *   dV += P^T dO, dK += dS^T Q      m64n(D)k16, four each, P^T and dS^T from registers
 *
 * dV and dK of a step are issued with S of the next, in front of it, then dP. Consumers issue in turns:
 *
 *   consumer 0   | dV dK S | dP | exp ...         | dV dK S | dP | exp
 *   consumer 1   exp ...        | dV dK S | dP | exp ...         | dV dK S
 */
#ifndef TESSERA_CUDA_GRADIENT_SM90_KEYS_CUH
#define TESSERA_CUDA_GRADIENT_SM90_KEYS_CUH

#include "backward/sm90/modify.cuh"
#include "backward/sm90/operand.cuh"

/* Sums, and P and dS of a step as register operands. */
template <class shape> struct gradient_keys {
    float dk[shape::D / 2], dv[shape::D / 2];
    uint32_t weights[GRADIENT_SCORES / 2], ds[GRADIENT_SCORES / 2];
    struct gradient_factors<typename shape::T> of_dk, of_dv;
};

/* S^T or dP^T: K or V of the tile by Q or dO of the step. */
template <class shape>
DEVICE void gradient_scores_of_keys(float (&s)[GRADIENT_SCORES], uint32_t x, uint32_t y) {
    const uint64_t a = wgmma_k_major(x), b = wgmma_k_major(y);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < shape::D / 16; k++)
        wgmma_ss(s, a + k / 4 * (shape::X_PANEL / 16) + k % 4 * 2,
                 b + k / 4 * (shape::Y_PANEL / 16) + k % 4 * 2, k > 0, typename shape::T());
    wgmma_commit();
}

/* dV and dK of a step. add: it is not the first of its item. */
template <class shape>
DEVICE void gradient_add_keys(struct gradient_keys<shape> &w, uint32_t y, int add) {
    gradient_multiply<shape>(w.dv, w.weights, y + shape::Y_TILE, add);
    gradient_multiply<shape>(w.dk, w.ds, y, add);
    wgmma_commit();
}

/* S to P, and to the operand of dV. */
template <class shape>
DEVICE void gradient_weigh_keys(float (&s)[GRADIENT_SCORES], const float *base, float scale) {
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        const float2 less = reinterpret_cast<const float2 *>(base)[4 * j];
        s[4 * j] = gradient_exp2(fmaf(s[4 * j], scale, -less.x));
        s[4 * j + 1] = gradient_exp2(fmaf(s[4 * j + 1], scale, -less.y));
        s[4 * j + 2] = gradient_exp2(fmaf(s[4 * j + 2], scale, -less.x));
        s[4 * j + 3] = gradient_exp2(fmaf(s[4 * j + 3], scale, -less.y));
    }
}

/* dP to dS, of P in `s`. */
template <class shape>
DEVICE void gradient_ds_keys(float (&dp)[GRADIENT_SCORES], const float (&s)[GRADIENT_SCORES],
                             const float *delta) {
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        const float2 less = reinterpret_cast<const float2 *>(delta)[4 * j];
        dp[4 * j] = s[4 * j] * (dp[4 * j] - less.x);
        dp[4 * j + 1] = s[4 * j + 1] * (dp[4 * j + 1] - less.y);
        dp[4 * j + 2] = s[4 * j + 2] * (dp[4 * j + 2] - less.x);
        dp[4 * j + 3] = s[4 * j + 3] * (dp[4 * j + 3] - less.y);
    }
}

/* Stores dS of a step: this warp's blocks of the consumer's unit (spilled.cuh). */
template <class shape>
DEVICE void gradient_spill(const struct gradient_params &p, const struct gradient_consumer &at,
                           int32_t unit, const uint32_t (&ds)[GRADIENT_SCORES / 2]) {
    uint32_t *const to =
        reinterpret_cast<uint32_t *>(p.spill.units + (int64_t)(unit + at.number) * SPILL_UNIT) +
        at.warp * (2 * 1024 / 4) + warp_lane_here();
#pragma unroll
    for (int j = 0; j < GRADIENT_PLACES / 8; j++) {
        to[j * 32] = ds[2 * j];
        to[j * 32 + 1024 / 4] = ds[2 * j + 1];
    }
}

/* A step, the i-th of its item; answers its flags. Leaves P and dS, whose sums are the next step's to add. */
template <class shape>
DEVICE int gradient_step_keys(struct gradient_keys<shape> &w, const struct gradient_consumer &at,
                              const struct gradient_params &p, const struct granule_item &item,
                              int i) {
    const uint32_t x = at.shared + shape::X + (uint32_t)at.number * (64 * 128);
    const uint32_t y = gradient_y<shape>(at.shared, at.step);
    typename shape::known &known = gradient_known_of<shape>(at.memory, at.step);
    const int column = warp_lane() % 4 * 2;
    float s[GRADIENT_SCORES], dp[GRADIENT_SCORES];
    const int is = gradient_wait_step<shape>(at);
    if (shape::CONSUMERS > 1)
        named_barrier_sync(GRADIENT_TURN + at.number, GRADIENT_TURNS);
    if (i > 0)
        gradient_add_keys(w, gradient_y<shape>(at.shared, at.step - 1), i > 1);
    gradient_scores_of_keys<shape>(s, x, y);
    wgmma_wait<1>();
    wgmma_fence_operand(w.dk);
    wgmma_fence_operand(w.dv);
    if (i > 0)
        gradient_release<shape>(at.shared, at.step - 1);
    gradient_scores_of_keys<shape>(dp, x + shape::X_TILE, y + shape::Y_TILE);
    wgmma_wait<1>();
    wgmma_fence_operand(s);
    if (shape::CONSUMERS > 1)
        named_barrier_arrive(GRADIENT_TURN + 1 - at.number, GRADIENT_TURNS);
    if constexpr (shape::MODIFIED) {
        const struct gradient_lane lane = gradient_lane_of<shape>(at, item);
        const uint32_t kept = gradient_drawn<shape>(p, lane);
        const struct gradient_known none[2] = {};
        wgmma_wait<0>();
        wgmma_fence_operand(dp);
        const uint32_t listed = is & GRADIENT_CUT ? gradient_listed<shape>(at) : ~0u;
        gradient_modify_step<shape>(s, dp, at, p, lane, none, kept, listed, 0);
    } else {
        gradient_weigh_keys<shape>(s, known.base + column, p.score_scale);
        wgmma_wait<0>();
        wgmma_fence_operand(dp);
        gradient_ds_keys<shape>(dp, s, known.delta + column);
        if (is & GRADIENT_CUT) {
            const uint32_t listed = gradient_listed<shape>(at);
            gradient_select(s, listed);
            gradient_select(dp, listed);
        }
    }
    gradient_round(w.weights, s, w.dv, w.of_dv);
    gradient_round(w.ds, dp, w.dk, w.of_dk);
    if constexpr (shape::SPILLS)
        gradient_spill<shape>(p, at, known.unit, w.ds);
    return is;
}

template <class shape>
DEVICE void gradient_consume_keys(struct gradient_consumer &at, const struct gradient_params &p) {
    struct gradient_keys<shape> w;
    gradient_undefined(w.dk);
    gradient_undefined(w.dv);
    gradient_undefined(w.weights);
    gradient_undefined(w.ds);
    if (at.number == 1)
        named_barrier_arrive(GRADIENT_TURN, GRADIENT_TURNS);
#pragma unroll 1
    for (uint32_t job = 0;; job++) {
        barrier_wait(at.shared + shape::X_FULL, job & 1);
        const struct granule_item &item = gradient_item<shape>(at.memory, job);
        if (sm90_uniform(item.rows) == 0)
            break;
        if (sm90_uniform(item.count) == 0) {
            gradient_release_x<shape>(at.shared);
            gradient_store_zeros<shape>(p, at, item);
            continue;
        }
        int is = 0, steps = 0;
        gradient_begin_factors(w.of_dk);
        gradient_begin_factors(w.of_dv);
#pragma unroll 1
        for (; !(is & GRADIENT_END); steps++, at.step++)
            is = gradient_step_keys(w, at, p, item, steps);
        gradient_add_keys(w, gradient_y<shape>(at.shared, at.step - 1), steps > 1);
        wgmma_wait<0>();
        wgmma_fence_operand(w.dk);
        wgmma_fence_operand(w.dv);
        gradient_release<shape>(at.shared, at.step - 1);
        gradient_release_x<shape>(at.shared);
        gradient_end_factors(w.dk, w.of_dk);
        gradient_end_factors(w.dv, w.of_dv);
        gradient_store_tile<shape>(p, at, item, 0, w.dk);
        gradient_store_tile<shape>(p, at, item, 1, w.dv);
    }
}

#endif
