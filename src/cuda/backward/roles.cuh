/*
 * The fused backward: a step of two warps that share rows, of which one computes dP and the other
 * scores. Neither loads, nor splits into TF32 parts, what the other's product is of:
 *
 *                     side 0                      side 1
 *   computes          dP = X1 Y1^T                S = X0 Y0^T, P          [R, STEP]
 *   sends             over rows left dP - delta   P                       [R, STEP], f32
 *   sums              dK [R, D]                   dV [R, D]               over keys
 *                     dQ [R, D / 2]               dQ [R, D / 2]           over rows
 *
 * Beside one warp of those rows, each has half of the sums, so that registers hold twice the warps.
 */
#ifndef TESSERA_CUDA_GRADIENT_ROLES_CUH
#define TESSERA_CUDA_GRADIENT_ROLES_CUH

#include "backward/step.cuh"

/* x to shared memory, as fragments in the order of the lanes. */
template <int TALL, int GROUPS>
DEVICE void gradient_role_send(uint32_t to, const float (&x)[TALL][GROUPS][4]) {
    to += (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            shared_store_16(to + (uint32_t)(512 * (GROUPS * i + j)),
                            {__float_as_uint(x[i][j][0]), __float_as_uint(x[i][j][1]),
                             __float_as_uint(x[i][j][2]), __float_as_uint(x[i][j][3])});
}

/* x times what the other warp sent. */
template <int TALL, int GROUPS>
DEVICE void gradient_role_multiply(float (&x)[TALL][GROUPS][4], uint32_t from) {
    from += (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            const uint4 y = shared_load_16(from + (uint32_t)(512 * (GROUPS * i + j)));
            x[i][j][0] *= __uint_as_float(y.x), x[i][j][1] *= __uint_as_float(y.y);
            x[i][j][2] *= __uint_as_float(y.z), x[i][j][3] *= __uint_as_float(y.w);
        }
}

/* One stage, by two warps. masked: as gradient_step has it. The next round overwrites a warp's message;
 * before, all warps wait for one another. */
template <class C>
DEVICE void gradient_step_roles(struct attention_state<typename C::T, C::SUMS, C::R> &sums,
                                uint32_t shared, int stage, bool masked,
                                const struct gradient_params &p) {
    static_assert(C::STEP == 8 * C::GROUPS, "a step is computed at once");
    using T = typename C::T;
    const struct gradient_places at = gradient_places_of<C>(shared, stage);
    const struct gradient_columns columns = gradient_columns_of<C>(at.words, at.shift, masked);
    const struct attention_groups groups = {columns.order, columns.n};
    const bool of_scores = gradient_side<C>(), multiplies = !C::OVER_KEYS || !of_scores;
    const bool wanted = p.out[C::OVER_KEYS ? gradient_side<C>() : 0].data;
    const uint32_t sent = shared + C::X + 2 * gradient_x_bytes<C>();
    const int warp = (int)threadIdx.x / 32;
    /* Over keys one warp of a pair sends, over rows both do. */
    const uint32_t to = sent + (uint32_t)((C::OVER_KEYS ? warp / 2 * 2 : warp) * C::SENT);
    const uint32_t from = sent + (uint32_t)((C::OVER_KEYS ? warp / 2 * 2 : warp ^ 1) * C::SENT);
    float w[C::R / 16][C::GROUPS][4] = {};
    if (columns.n == 0)
        return;
    if (of_scores) {
        attention_scores<C::D, C::R, C::GROUPS, C::ROW, false>(w, at.x0, at.y0, groups, T());
        gradient_each<C>(at.known, groups,
                         [&](int i, int j, int e, const struct gradient_known &one) {
                             w[i][j][e] = gradient_weight(w[i][j][e], p.score_scale, one);
                         });
        gradient_role_send(to, w);
        if (C::OVER_KEYS)
            gradient_each<C>(at.known, groups,
                             [&](int i, int j, int e, const struct gradient_known &one) {
                                 w[i][j][e] *= one.left;
                             });
    } else if (wanted) {
        /* No low x low: an error of dP is a product's, where that of a score is in an exponent. */
        attention_scores<C::D, C::R, C::GROUPS, C::ROW, false, false>(w, at.x1, at.y1, groups, T());
        gradient_each<C>(at.known, groups,
                         [&](int i, int j, int e, const struct gradient_known &one) {
                             w[i][j][e] = one.left * w[i][j][e] - one.delta;
                         });
        if (!C::OVER_KEYS)
            gradient_role_send(to, w);
    }
    gradient_pair_wait<C>();
    if (!wanted)
        return;
    if (multiplies)
        gradient_role_multiply(w, from);
    if (columns.cut)
        gradient_mask<C>(at.words, at.shift, groups, w);
    gradient_add<C::GROUPS, C::ROW>(sums, w,
                                    (C::OVER_KEYS && of_scores ? at.y1 : at.y0) +
                                        (uint32_t)gradient_first_dim<C>(p) * (uint32_t)sizeof(T),
                                    groups);
}

#endif
