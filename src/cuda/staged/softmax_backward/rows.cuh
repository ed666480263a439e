/*
 * Backward of stage 2: scores become weights, their gradients dP become dS, both in place. With what is
 * known of a query (struct query_stats), s' of a score s by softcap and ALiBi, and z of dropout,
 *
 *   P = 2^(s' log2(e) - base)        scores:     w z P, what dV is summed with
 *   dS' = P (w z dP - delta)         gradients:  scale (1 - tanh(s / c)^2) dS'
 *
 * Masked elements hold -Inf, and become 0 in both. Memory is the limit: a warp takes a row, and has
 * SOFTMAX_BACKWARD_AHEAD elements a lane of each array in flight.
 */
#ifndef TESSERA_CUDA_SOFTMAX_BACKWARD_ROWS_CUH
#define TESSERA_CUDA_SOFTMAX_BACKWARD_ROWS_CUH

#include "staged/block_row_warp.cuh"
#include "staged/softmax/dropout.cuh"

#define SOFTMAX_BACKWARD_AHEAD 4
#define SOFTMAX_BACKWARD_LOG2_E 1.4426950408889634f
#define SOFTMAX_BACKWARD_SLOPES 256 /* threads that add up a head's shares */

/* Values that the elements of a row share. */
struct softmax_backward_row {
    struct modify_query query; /* dropout's */
    uint64_t seed;
    int32_t r, i; /* the query, of its block row and of all */
    float base, left, delta, slope;
};

DEVICE struct softmax_backward_row softmax_backward_row_of(const struct staged_params &p,
                                                           const struct block_row &s, int64_t r) {
    const int64_t at = ((int64_t)s.b * p.heads_q + s.h) * p.n_q + s.first + r;
    struct softmax_backward_row row;
    row.r = (int32_t)r;
    row.i = (int32_t)(s.first + r);
    row.query = modify_query_of(p.modify, s.b, s.h, row.i);
    row.seed = p.modify.seed ? __ldg(p.modify.seed) : 0;
    row.base = p.stats.base[at];
    row.left = p.stats.left[at] * p.modify.kept;
    row.delta = p.stats.delta[at];
    row.slope = p.modify.alibi ? __ldg(p.modify.alibi + s.h) : 0;
    return row;
}

/* 1 - tanh(x)^2 = 4 e / (1 + e)^2 with e = exp(-2 |x|): 1 - tanh^2 loses its digits where tanh is
 * near 1. */
DEVICE float softmax_backward_steep(float x) {
    const float e = exp2f(-2 * SOFTMAX_BACKWARD_LOG2_E * fabsf(x)), below = 1 + e;
    return 4 * e / (below * below);
}

/* An element: *score becomes the weight, *gradient its dS. Answers its share of the slope's gradient.
 * Softcap makes a finite score of a listed -Inf, so whether a -Inf is listed is looked up there. */
DEVICE float softmax_backward_element(const struct staged_params &p, const struct block_row &s,
                                      const struct softmax_backward_row &row, int64_t x,
                                      float *score, float *gradient) {
    bool masked = *score == -INFINITY;
    float steep = 1, distance = 0, left = row.left;
    if (p.modify.each) {
        const struct column c = column_of(p, s, x);
        if (p.modify.scores && masked)
            masked = c.key < 0 || !column_lists(p, c.first, c.last, c.bit, row.r);
        if (p.modify.cap != 0) {
            const float of_cap = *score / p.modify.cap;
            steep = softmax_backward_steep(of_cap);
            *score = p.modify.cap * modify_tanh<true>(of_cap);
        }
        if (p.modify.alibi) {
            const int32_t place = modify_place(p.modify, c.key, (int32_t)p.n_kv);
            distance = modify_distance(p.modify, place, row.i);
            *score = fmaf(row.slope, distance, *score);
        }
        if (p.modify.seed && !softmax_keeps(p, c.key, row.query, row.seed))
            left = 0;
    }
    const float exponent = fmaf(*score, SOFTMAX_BACKWARD_LOG2_E, -row.base);
    const float prob = exp2f(exponent > 0 ? 0 : exponent); /* NaN stays */
    const float biased = prob * (left * *gradient - row.delta);
    masked |= row.base == INFINITY; /* an empty query */
    *score = masked ? 0 : left * prob;
    *gradient = masked ? 0 : biased * steep * p.scale;
    return masked ? 0 : biased * distance;
}

static __global__ void __launch_bounds__(32 * BLOCK_ROW_WARPS)
    softmax_backward_rows(const __grid_constant__ struct staged_params p) {
    constexpr int AHEAD = SOFTMAX_BACKWARD_AHEAD;
    struct block_row s;
    int64_t r;
    if (!block_row_of_warp(&s, &r, p))
        return;
    const struct softmax_backward_row row = softmax_backward_row_of(p, s, r);
    float *scores = s.scores + r * s.width;
    float *gradients = p.gradients ? p.gradients + (scores - p.scores) : nullptr;
    double share = 0;
#pragma unroll 1
    for (int64_t from = warp_lane(); from < s.width; from += 32 * AHEAD) {
        float score[AHEAD], gradient[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const bool exists = from + 32 * i < s.width;
            score[i] = exists ? scores[from + 32 * i] : -INFINITY;
            gradient[i] = exists && gradients ? gradients[from + 32 * i] : 0;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (from + 32 * i >= s.width)
                break;
            const float of_slope =
                softmax_backward_element(p, s, row, from + 32 * i, &score[i], &gradient[i]);
            if (p.slopes)
                share += of_slope;
            scores[from + 32 * i] = score[i];
            if (gradients)
                gradients[from + 32 * i] = gradient[i];
        }
    }
    if (!p.slopes)
        return;
    share = warp_sum(share);
    if (warp_lane() == 0)
        p.slopes[((int64_t)s.b * p.heads_q + s.h) * p.n_q + row.i] = share;
}

/* The gradient of a head's slope: shares of its queries, always added in one order. */
static __global__ void __launch_bounds__(SOFTMAX_BACKWARD_SLOPES)
    softmax_backward_slopes(const __grid_constant__ struct staged_params p) {
    __shared__ double sums[SOFTMAX_BACKWARD_SLOPES / 32];
    const int64_t h = blocks_unit();
    double sum = 0;
    if (h >= p.heads_q)
        return;
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t i = threadIdx.x; i < p.n_q; i += SOFTMAX_BACKWARD_SLOPES)
            sum += p.slopes[(b * p.heads_q + h) * p.n_q + i];
    sum = warp_sum(sum);
    if (warp_lane() == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int w = 1; w < SOFTMAX_BACKWARD_SLOPES / 32; w++)
        sum += sums[w];
    p.d_alibi[h] = (float)sum;
}

static inline cudaError_t softmax_backward_rows_launch(const struct staged_params *p,
                                                       cudaStream_t stream) {
    const cudaError_t code = block_row_warps_launch(softmax_backward_rows, p, stream);
    if (code || !p->slopes)
        return code;
    return blocks_launch(softmax_backward_slopes, p->heads_q, SOFTMAX_BACKWARD_SLOPES, p, stream);
}

#endif
