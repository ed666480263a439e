/*
 * The fused backward on Hopper, past 128 dims: tiles have 64 rows, and consumers share them, as one has no registers for
 * both sums:
 *
 *               consumer 0              consumer 1
 *   computes    S, P                    dP, dS
 *   sends       P [64][64] in f32
 *   sums        over keys dV += P dO    dK += dS Q, over rows dQ += dS K
 *
 * P goes through shared memory as it lies in registers, four floats of a lane after the other. Two named barriers tell
 * when it is there, and when it was read: consumer 0 is up to a step ahead.
 */
#ifndef TESSERA_CUDA_GRADIENT_SM90_WIDE_CUH
#define TESSERA_CUDA_GRADIENT_SM90_WIDE_CUH

#include "backward/sm90/keys.cuh"
#include "backward/sm90/rows.cuh"

/* Named barriers: P was sent, P was read. */
enum { GRADIENT_SENT = 4, GRADIENT_READ, GRADIENT_SHARING = 256 };

/* Sums of a consumer, and the operand that the next step adds. */
template <class shape> struct gradient_wide {
    float sums[shape::D / 2];
    uint32_t operand[GRADIENT_SCORES / 2];
    struct gradient_factors<typename shape::T> factors;
};

/* Address of group j of four floats of this thread's P. */
template <class shape> DEVICE uint32_t gradient_sent_at(const struct gradient_consumer &at, int j) {
    return at.shared + shape::SENT + (uint32_t)(16 * (128 * j + (int)threadIdx.x % 128));
}

template <class shape>
DEVICE void gradient_send_weights(const struct gradient_consumer &at,
                                  const float (&s)[GRADIENT_SCORES]) {
    named_barrier_sync(GRADIENT_READ, GRADIENT_SHARING);
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++)
        shared_store_16(gradient_sent_at<shape>(at, j),
                        {__float_as_uint(s[4 * j]), __float_as_uint(s[4 * j + 1]),
                         __float_as_uint(s[4 * j + 2]), __float_as_uint(s[4 * j + 3])});
    named_barrier_arrive(GRADIENT_SENT, GRADIENT_SHARING);
}

/* x times what the other consumer sent. */
template <class shape>
DEVICE void gradient_times_weights(float (&x)[GRADIENT_SCORES],
                                   const struct gradient_consumer &at) {
    named_barrier_sync(GRADIENT_SENT, GRADIENT_SHARING);
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        const uint4 y = shared_load_16(gradient_sent_at<shape>(at, j));
        x[4 * j] *= __uint_as_float(y.x), x[4 * j + 1] *= __uint_as_float(y.y);
        x[4 * j + 2] *= __uint_as_float(y.z), x[4 * j + 3] *= __uint_as_float(y.w);
    }
    named_barrier_arrive(GRADIENT_READ, GRADIENT_SHARING);
}

/* The operand of the step before, times its rows of Y at `y`. add: the step is not the first of its item. */
template <class shape>
DEVICE void gradient_add_wide(struct gradient_wide<shape> &w, uint32_t y, int add) {
    gradient_multiply<shape>(w.sums, w.operand, y, add);
    wgmma_commit();
}

/* Scores of a step to P: of this lane's rows or, over keys, of the step's queries. */
template <class shape>
DEVICE void gradient_weigh_wide(float (&s)[GRADIENT_SCORES], const float (&rows)[2],
                                const float *columns, float scale) {
    if constexpr (shape::OVER_KEYS) {
        gradient_weigh_keys<shape>(s, columns, scale);
    } else {
#pragma unroll
        for (int j = 0; j < GRADIENT_SCORES; j++)
            s[j] = gradient_exp2(fmaf(s[j], scale, -rows[j / 2 % 2]));
    }
}

/* dP less delta, likewise. */
template <class shape>
DEVICE void gradient_less_wide(float (&dp)[GRADIENT_SCORES], const float (&rows)[2],
                               const float *columns) {
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        float2 less = {};
        if (shape::OVER_KEYS)
            less = reinterpret_cast<const float2 *>(columns)[4 * j];
#pragma unroll
        for (int e = 0; e < 4; e++)
            dp[4 * j + e] -= shape::OVER_KEYS ? (e % 2 ? less.y : less.x) : rows[e / 2];
    }
}

/* A step, the i-th of its item, of consumer SIDE; answers its flags. known: base or delta of this lane's rows. */
template <class shape, int SIDE>
DEVICE int gradient_step_wide(struct gradient_wide<shape> &w, const struct gradient_consumer &at,
                              const struct gradient_params &p, const float (&known_rows)[2],
                              int i) {
    constexpr bool SUMS = shape::OVER_KEYS || SIDE == 1;
    constexpr int OF_SUMS = SIDE == 0 ? shape::Y_TILE : 0; /* dV is of dO; dK and dQ of Q and K */
    const int column = warp_lane_here() % 4 * 2;
    float s[GRADIENT_SCORES];
    const int is = gradient_wait_step<shape>(at);
    typename shape::known &known = gradient_known_of<shape>(at.memory, at.step);
    gradient_scores_of_keys<shape>(s, at.shared + shape::X + SIDE * shape::X_TILE,
                                   gradient_y<shape>(at.shared, at.step) + SIDE * shape::Y_TILE);
    if (SUMS && i > 0) {
        gradient_add_wide(w, gradient_y<shape>(at.shared, at.step - 1) + OF_SUMS, i > 1);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    wgmma_fence_operand(s);
    if (SIDE == 0) {
        gradient_weigh_wide<shape>(s, known_rows, known.base + column, p.score_scale);
        gradient_send_weights<shape>(at, s);
    } else {
        gradient_less_wide<shape>(s, known_rows, known.delta + column);
        gradient_times_weights<shape>(s, at);
    }
    if (!SUMS) {
        gradient_release<shape>(at.shared, at.step);
        return is;
    }
    if (is & GRADIENT_CUT)
        gradient_select(s, gradient_listed<shape>(at));
    wgmma_wait<0>();
    wgmma_fence_operand(w.sums);
    if (i > 0)
        gradient_release<shape>(at.shared, at.step - 1);
    gradient_round(w.operand, s, w.sums, w.factors);
    return is;
}

/* Base or delta of this lane's rows. */
template <class shape, int SIDE>
DEVICE void gradient_load_wide(float (&rows)[2], bool (&empty)[2],
                               const struct gradient_consumer &at, const struct gradient_params &p,
                               const struct granule_item &item) {
    const int64_t head = ((int64_t)item.batch * p.heads_q + item.head) * p.n_q + item.row;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * at.warp + warp_lane() / 4 + 8 * h;
        const bool inside = row < item.rows;
        const float base = inside ? __ldg(p.stats.base + head + row) : INFINITY;
        rows[h] = SIDE == 0 ? base : inside ? __ldg(p.stats.delta + head + row) : 0;
        empty[h] = base == INFINITY;
    }
}

template <class shape, int SIDE>
DEVICE void gradient_consume_wide(struct gradient_consumer &at, const struct gradient_params &p) {
    constexpr bool SUMS = shape::OVER_KEYS || SIDE == 1;
    constexpr int OUT = shape::OVER_KEYS && SIDE == 0 ? 1 : 0;
    constexpr int OF_SUMS = SIDE == 0 ? shape::Y_TILE : 0;
    struct gradient_wide<shape> w;
    if (SIDE == 1)
        named_barrier_arrive(GRADIENT_READ, GRADIENT_SHARING);
#pragma unroll 1
    for (uint32_t job = 0;; job++) {
        barrier_wait(at.shared + shape::X_FULL, job & 1);
        const struct granule_item &item = gradient_item<shape>(at.memory, job);
        if (sm90_uniform(item.rows) == 0)
            break;
        float rows[2] = {};
        bool empty[2] = {};
        if (!shape::OVER_KEYS)
            gradient_load_wide<shape, SIDE>(rows, empty, at, p, item);
        int is = sm90_uniform(item.count) == 0 ? GRADIENT_END : 0, steps = 0;
        if (is) {
            gradient_release_x<shape>(at.shared);
            if (SIDE == 0) /* both sums */
                gradient_store_zeros<shape>(p, at, item);
            continue;
        }
        gradient_begin_factors(w.factors);
#pragma unroll 1
        for (; !(is & GRADIENT_END); steps++, at.step++)
            is = gradient_step_wide<shape, SIDE>(w, at, p, rows, steps);
        if (SUMS) {
            gradient_add_wide(w, gradient_y<shape>(at.shared, at.step - 1) + OF_SUMS, steps > 1);
            wgmma_wait<0>();
            wgmma_fence_operand(w.sums);
            gradient_release<shape>(at.shared, at.step - 1);
        }
        gradient_release_x<shape>(at.shared);
        if (!SUMS)
            continue;
        gradient_end_factors(w.sums, w.factors);
        if (!shape::OVER_KEYS)
#pragma unroll
            for (int j = 0; j < shape::D / 2; j++) /* whatever their keys hold */
                if (empty[j / 2 % 2])
                    w.sums[j] = 0;
        gradient_store_tile<shape>(p, at, item, OUT, w.sums);
    }
}

#endif
