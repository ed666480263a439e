/* Fused attention on Hopper over filled lists: masks, from the windows of a step's granules. */
#ifndef TESSERA_CUDA_SM90_FILLED_MASK_CUH
#define TESSERA_CUDA_SM90_FILLED_MASK_CUH

#include "forward/sm90/consumer.cuh"
#include "forward/sm90/filled/config.cuh"

/* Finds the listed scores of the step at `cursor` while its Q K^T is in flight: 16 bits of each 64 places and
 * either row of this thread. */
template <class shape>
static __device__ __forceinline__ void sm90_filled_begin_mask(struct sm90_fragments<shape> &w,
                                                              const sm90_cursor &cursor,
                                                              const struct attention_params &p) {
    const int bits = p.granule_bits, each = GRANULE_GROUP >> bits, t2 = warp_lane_here() % 4 * 2;
    const int at = sm90_consumer_row<shape>(cursor.consumer) + sm90_thread_here() / 32 * 16 +
                   warp_lane_here() / 4;
    const int32_t rows[2] = {sm90_row_of_head(p, at), sm90_row_of_head(p, at + 8)};
#pragma unroll
    for (int group = 0; group < shape::GRANULES; group++) {
        uint32_t listed = 0;
#pragma unroll 1
        for (int i = 0; i < each; i++) {
            const uint32_t window =
                sm90_filled_granule<shape>(cursor.memory, cursor.step, group * each + i).window;
            const uint32_t both =
                fill_window_row(window, rows[0], t2) | fill_window_row(window, rows[1], t2) << 16;
            listed |= both << (i << (bits - 2));
        }
        w.listed[group] = shape::CONSUMERS == 1 && cursor.idle ? 0 : listed;
    }
}

#endif
