/*
 * The fused backward on Hopper: a consumer over rows, 64 of a tile's 128. Its Q and dO are register operands. Products
 * of a step of 64 keys:
 *
 *   S = Q K^T, dP = dO V^T     m64n64k16, D / 16 each
 *   dQ += dS K                 m64n(D)k16, four, of the step before: under this step's scores
 */
#ifndef TESSERA_CUDA_GRADIENT_SM90_ROWS_CUH
#define TESSERA_CUDA_GRADIENT_SM90_ROWS_CUH

#include "backward/sm90/modify.cuh"
#include "backward/sm90/operand.cuh"

/* Q and dO, sums, and dS of a step as a register operand; base, delta and left of this lane's rows. slope: this lane's
 * share of the slope's gradient. */
template <class shape> struct gradient_rows {
    static constexpr int HELD = shape::HELD ? shape::D / 4 : 4;
    uint32_t q[HELD], d_o[HELD], ds[GRADIENT_SCORES / 2];
    float dq[shape::D / 2], base[2], delta[2], left[2];
    double slope;
    struct gradient_factors<typename shape::T> of_dq;
};

/* This warp's rows of an X as A operands. */
template <class shape, int N> DEVICE void gradient_load_operand(uint32_t (&a)[N], uint32_t x) {
    const int row = warp_lane() % 16;
#pragma unroll
    for (int k = 0; k < shape::D / 16; k++)
        ldmatrix(reinterpret_cast<uint32_t(&)[4]>(a[4 * k]),
                 x + (uint32_t)(k / 4 * shape::X_PANEL + row * 128) +
                     swizzle_piece(row, k % 4 * 2 + warp_lane() / 16));
}

/* Begins an item: where its rows are held in registers, X is given back. */
template <class shape>
DEVICE void gradient_begin_rows(struct gradient_rows<shape> &w, const struct gradient_consumer &at,
                                const struct gradient_params &p, const struct granule_item &item) {
    const int first = 64 * at.number + 16 * at.warp;
    const uint32_t x = at.shared + shape::X + (uint32_t)first * 128;
    const int64_t head = ((int64_t)item.batch * p.heads_q + item.head) * p.n_q + item.row;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + warp_lane() / 4 + 8 * h;
        const bool inside = row < item.rows;
        w.base[h] = inside ? __ldg(p.stats.base + head + row) : INFINITY;
        w.delta[h] = inside ? __ldg(p.stats.delta + head + row) : 0;
        w.left[h] = shape::MODIFIED && inside ? __ldg(p.stats.left + head + row) : 0;
    }
    if constexpr (shape::HELD) {
        gradient_load_operand<shape>(w.q, x);
        gradient_load_operand<shape>(w.d_o, x + shape::X_TILE);
        gradient_release_x<shape>(at.shared);
    }
}

/* S or dP of a step: rows as they are held, or at `x`. */
template <class shape>
DEVICE void gradient_scores_of_rows(float (&s)[GRADIENT_SCORES], const uint32_t *held, uint32_t x,
                                    uint32_t y) {
    const uint64_t a = wgmma_k_major(x), b = wgmma_k_major(y);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < shape::D / 16; k++) {
        const uint64_t on_y = b + k / 4 * (shape::Y_PANEL / 16) + k % 4 * 2;
        if constexpr (shape::HELD)
            wgmma_rs_k_major(s, held + 4 * k, on_y, k > 0, typename shape::T());
        else
            wgmma_ss(s, a + k / 4 * (shape::X_PANEL / 16) + k % 4 * 2, on_y, k > 0,
                     typename shape::T());
    }
    wgmma_commit();
}

/* dQ of a step. add: it is not the first of its item. */
template <class shape>
DEVICE void gradient_add_rows(struct gradient_rows<shape> &w, uint32_t y, int add) {
    gradient_multiply<shape>(w.dq, w.ds, y, add);
    wgmma_commit();
}

/* dS of a step, with modifiers. */
template <class shape>
DEVICE void gradient_modify_rows(struct gradient_rows<shape> &w, float (&s)[GRADIENT_SCORES],
                                 float (&dp)[GRADIENT_SCORES], const struct gradient_consumer &at,
                                 const struct gradient_params &p, const struct granule_item &item,
                                 int is) {
    const struct gradient_lane lane = gradient_lane_of<shape>(at, item);
    const uint32_t kept = gradient_drawn<shape>(p, lane);
    const uint32_t listed = is & GRADIENT_CUT ? gradient_listed<shape>(at) : ~0u;
    uint32_t counted = 0; /* rows past the tile are empty as well */
    if (p.slopes)
        counted = listed & ((w.base[0] != INFINITY ? 0x33333333u : 0) |
                            (w.base[1] != INFINITY ? 0xccccccccu : 0));
    const struct gradient_known rows[2] = {{w.base[0], w.delta[0], w.left[0], 0},
                                           {w.base[1], w.delta[1], w.left[1], 0}};
    w.slope += gradient_modify_step<shape>(s, dp, at, p, lane, rows, kept, listed, counted);
}

/* Leaves this warp's share of the slope's gradient of item `job`. */
template <class shape>
DEVICE void gradient_store_slope(const struct gradient_params &p,
                                 const struct gradient_consumer &at, uint32_t job, double slope) {
    if (!shape::MODIFIED || !p.slopes)
        return;
    const double share = warp_sum(slope);
    const int64_t number = __ldg(p.image.worker_ptr + blockIdx.x) + job;
    if (warp_lane() == 0)
        p.slopes[number * p.slope_warps + 4 * at.number + at.warp] = share;
}

/* A step, the i-th of its item; answers its flags. Leaves dS, whose sums are the next step's to add. */
template <class shape>
DEVICE int gradient_step_rows(struct gradient_rows<shape> &w, const struct gradient_consumer &at,
                              const struct gradient_params &p, const struct granule_item &item,
                              int i) {
    const uint32_t y = gradient_y<shape>(at.shared, at.step);
    float s[GRADIENT_SCORES], dp[GRADIENT_SCORES];
    const int is = gradient_wait_step<shape>(at);
    const uint32_t x = at.shared + shape::X + (uint32_t)at.number * (64 * 128);
    gradient_scores_of_rows<shape>(s, w.q, x, y);
    gradient_scores_of_rows<shape>(dp, w.d_o, x + shape::X_TILE, y + shape::Y_TILE);
    if (i > 0) {
        gradient_add_rows(w, gradient_y<shape>(at.shared, at.step - 1), i > 1);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    wgmma_fence_operand(s);
    wgmma_fence_operand(dp);
    if constexpr (shape::MODIFIED) {
        gradient_modify_rows(w, s, dp, at, p, item, is);
    } else {
#pragma unroll
        for (int j = 0; j < GRADIENT_SCORES; j++)
            dp[j] = gradient_exp2(fmaf(s[j], p.score_scale, -w.base[j / 2 % 2])) *
                    (dp[j] - w.delta[j / 2 % 2]);
        if (is & GRADIENT_CUT)
            gradient_select(dp, gradient_listed<shape>(at));
    }
    wgmma_wait<0>();
    wgmma_fence_operand(w.dq);
    if (i > 0)
        gradient_release<shape>(at.shared, at.step - 1);
    gradient_round(w.ds, dp, w.dq, w.of_dq);
    return is;
}

template <class shape>
DEVICE void gradient_consume_rows(struct gradient_consumer &at, const struct gradient_params &p) {
    struct gradient_rows<shape> w;
#pragma unroll 1
    for (uint32_t job = 0;; job++) {
        barrier_wait(at.shared + shape::X_FULL, job & 1);
        const struct granule_item &item = gradient_item<shape>(at.memory, job);
        if (sm90_uniform(item.rows) == 0)
            break;
        gradient_begin_rows(w, at, p, item);
        if (sm90_uniform(item.count) == 0) {
            if (!shape::HELD)
                gradient_release_x<shape>(at.shared);
            gradient_store_zeros<shape>(p, at, item);
            gradient_store_slope<shape>(p, at, job, 0);
            continue;
        }
        int is = 0, steps = 0;
        w.slope = 0;
        gradient_begin_factors(w.of_dq);
#pragma unroll 1
        for (; !(is & GRADIENT_END); steps++, at.step++)
            is = gradient_step_rows(w, at, p, item, steps);
        gradient_add_rows(w, gradient_y<shape>(at.shared, at.step - 1), steps > 1);
        wgmma_wait<0>();
        wgmma_fence_operand(w.dq);
        gradient_release<shape>(at.shared, at.step - 1);
        if (!shape::HELD)
            gradient_release_x<shape>(at.shared);
        gradient_end_factors(w.dq, w.of_dq);
#pragma unroll
        for (int j = 0; j < shape::D / 2; j++) /* rows of empty queries, whatever their keys hold */
            if (w.base[j / 2 % 2] == INFINITY)
                w.dq[j] = 0;
        gradient_store_tile<shape>(p, at, item, 0, w.dq);
        gradient_store_slope<shape>(p, at, job, w.slope);
    }
}

#endif
