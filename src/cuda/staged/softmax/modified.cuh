/* Stage 2, softmax with sinks and dropout: a warp for each row, which is loaded three times. */
#ifndef TESSERA_CUDA_SOFTMAX_MODIFIED_CUH
#define TESSERA_CUDA_SOFTMAX_MODIFIED_CUH

#include "staged/block_row_warp.cuh"
#include "staged/softmax/dropout.cuh"
#include "staged/softmax/place.cuh"

/* NaN stays where its weight is dropped, so that its row has one. */
static __global__ void __launch_bounds__(32 * BLOCK_ROW_WARPS)
    softmax_modified(const __grid_constant__ struct staged_params p) {
    struct block_row s;
    int64_t r;
    if (!block_row_of_warp(&s, &r, p))
        return;
    const int32_t query = (int32_t)(s.first + r);
    const uint64_t seed = p.modify.seed ? __ldg(p.modify.seed) : 0;
    const struct modify_query q = modify_query_of(p.modify, s.b, s.h, query);
    float *row = s.scores + r * s.width, top = -INFINITY;
    double sum = 0;
    for (int64_t x = warp_lane(); x < s.width; x += 32)
        top = fmaxf(top, row[x]);
    top = warp_max(top);
    const float base = softmax_base(top);
    for (int64_t x = warp_lane(); x < s.width; x += 32)
        sum += softmax_exp(row[x], base);
    sum = warp_sum(sum);
    double below = sum;
    if (p.modify.sink && sum > 0)
        below += exp((double)__ldg(p.modify.sink + s.h) - top);
    const float factor = sum == 0 ? 0.0f : (float)(p.modify.kept / below);
    for (int64_t x = warp_lane(); x < s.width; x += 32) {
        const float prob = softmax_exp(row[x], base);
        float weight = isnan(factor) ? softmax_nan(prob) : prob * factor;
        if (p.modify.seed && weight > 0 && !softmax_keeps(p, column_of(p, s, x).key, q, seed))
            weight = 0;
        row[x] = weight;
    }
    if (warp_lane() == 0 && p.lse.data)
        *softmax_lse_at(p, s.b * p.heads_q + s.h, query) = softmax_lse(top, sum);
}

static inline cudaError_t softmax_modified_launch(const struct staged_params *p,
                                                  cudaStream_t stream) {
    return block_row_warps_launch(softmax_modified, p, stream);
}

#endif
