/*
 * The fused backward: a step of two warps that share 32 rows, where one has no registers for their sums. Each
 * computes half of the columns of S and dP. Sums need P or dS of all columns, so each warp sends the other's
 * half as fragments, in the order of lanes:
 *
 *                     side 0                      side 1
 *   columns of S, dP  [32, STEP / 2]              [32, STEP / 2]
 *   sends             P, over rows dS             dS                    [32, STEP / 2], bf16
 *   sums              dK [32, D]                  dV [32, D]            over keys
 *                     dQ [32, D / 2]              dQ [32, D / 2]        over rows
 *
 * Beside one warp of 16 rows, operands from shared memory serve twice the products.
 */
#ifndef TESSERA_CUDA_GRADIENT_PAIR_CUH
#define TESSERA_CUDA_GRADIENT_PAIR_CUH

#include "backward/step.cuh"

/* Columns of a step: those of this warp, and those of the other. */
struct gradient_halves {
    struct attention_groups own, other;
    bool cut; /* some pairs of this warp's are not listed */
};

/* Both warps find the same, as their rows are the same. */
template <class C>
DEVICE struct gradient_halves gradient_halves_of(const struct gradient_places &at, bool masked) {
    static_assert(C::GROUPS == 4 && C::STEP == 64, "the sides have half of a step each");
    const struct gradient_columns all = gradient_columns_of<C>(at.words, at.shift, masked);
    const struct attention_groups first = {all.order, min(all.n, 4)};
    const struct attention_groups second = {all.order >> 16, max(all.n - 4, 0)};
    return gradient_side<C>() ? gradient_halves{second, first, all.cut >> 4 != 0}
                              : gradient_halves{first, second, (all.cut & 15) != 0};
}

/* P and dS of this warp's columns, rounded: `keeps` for its own sums, `sends` for the other's. */
template <class C>
DEVICE void gradient_pair_weights(uint32_t (&keeps)[C::R / 16][C::GROUPS][2],
                                  uint32_t (&sends)[C::R / 16][C::GROUPS][2],
                                  const struct gradient_places &at, const struct gradient_params &p,
                                  const struct gradient_halves &columns) {
    using T = typename C::T;
    float s[C::R / 16][C::GROUPS][4], dp[C::R / 16][C::GROUPS][4] = {};
    attention_scores<C::D, C::R, C::GROUPS, C::ROW, false>(s, at.x0, at.y0, columns.own, T());
    if (p.out[0].data)
        attention_scores<C::D, C::R, C::GROUPS, C::ROW, false>(dp, at.x1, at.y1, columns.own, T());
    gradient_weights<C>(s, dp, at.known, p.score_scale, columns.own);
    if (columns.cut)
        gradient_mask<C>(at.words, at.shift, columns.own, s, dp);
    gradient_pack(keeps, dp);
    if (!C::OVER_KEYS) {
        gradient_pack(sends, dp);
        return;
    }
    const bool second = gradient_side<C>();
    gradient_pack(sends, s);
#pragma unroll
    for (int i = 0; i < C::R / 16; i++)
#pragma unroll
        for (int j = 0; j < C::GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t of_dk = keeps[i][j][e], of_dv = sends[i][j][e];
                keeps[i][j][e] = second ? of_dv : of_dk;
                sends[i][j][e] = second ? of_dk : of_dv;
            }
}

template <int TALL> DEVICE void gradient_send(uint32_t to, const uint32_t (&x)[TALL][4][2]) {
    to += (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < 4; j += 2)
            shared_store_16(to + (uint32_t)(512 * (2 * i + j / 2)),
                            {x[i][j][0], x[i][j][1], x[i][j + 1][0], x[i][j + 1][1]});
}

template <int TALL> DEVICE void gradient_receive(uint32_t (&x)[TALL][4][2], uint32_t from) {
    from += (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const uint4 two = shared_load_16(from + (uint32_t)(512 * (2 * i + j / 2)));
            x[i][j][0] = two.x, x[i][j][1] = two.y, x[i][j + 1][0] = two.z, x[i][j + 1][1] = two.w;
        }
}

/* One stage, by two warps. masked: as gradient_step has it. meanwhile: is called once, where most registers
 * are free. The next round overwrites a warp's message; before, all warps wait for one another. */
template <class C, class work>
DEVICE void gradient_step_pair(struct attention_state<typename C::T, C::SUMS, C::R> &sums,
                               uint32_t shared, int stage, bool masked,
                               const struct gradient_params &p, const work &meanwhile) {
    using T = typename C::T;
    const struct gradient_places at = gradient_places_of<C>(shared, stage);
    const struct gradient_halves columns = gradient_halves_of<C>(at, masked);
    const int warp = (int)threadIdx.x / 32;
    const uint32_t sent = shared + C::X + 2 * gradient_x_bytes<C>();
    const bool wanted = p.out[C::OVER_KEYS ? gradient_side<C>() : 0].data;
    const uint32_t y = (C::OVER_KEYS && gradient_side<C>() ? at.y1 : at.y0) +
                       (uint32_t)gradient_first_dim<C>(p) * (uint32_t)sizeof(T);
    uint32_t keeps[C::R / 16][C::GROUPS][2];
    if (columns.own.n) {
        uint32_t sends[C::R / 16][C::GROUPS][2];
        gradient_pair_weights<C>(keeps, sends, at, p, columns);
        gradient_send(sent + (uint32_t)(warp * C::SENT), sends);
    }
    meanwhile();
    if (columns.own.n + columns.other.n == 0)
        return;
    if (wanted && columns.own.n)
        attention_pv<T, C::SUMS, C::R, C::GROUPS, C::ROW, false>(sums, keeps, y, columns.own);
    gradient_pair_wait<C>();
    if (wanted && columns.other.n) {
        uint32_t gets[C::R / 16][C::GROUPS][2];
        gradient_receive(gets, sent + (uint32_t)((warp ^ 1) * C::SENT));
        attention_pv<T, C::SUMS, C::R, C::GROUPS, C::ROW, false>(sums, gets, y, columns.other);
    }
}

#endif
