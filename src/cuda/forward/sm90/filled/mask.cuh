/* Fused attention on Hopper over filled lists: masks, from the windows of a step's granules. */
#ifndef TESSERA_CUDA_SM90_FILLED_MASK_CUH
#define TESSERA_CUDA_SM90_FILLED_MASK_CUH

#include "forward/sm90/consumer.cuh"
#include "forward/sm90/filled/config.cuh"

/* Scores of a granule of bits that this thread's two rows list, as fill_window_row has them: by the words of its
 * keys, of which those of `rows` are in one half. words: of the tile. */
DEVICE uint32_t sm90_filled_bits(const uint64_t *words, const struct attention_params &p,
                                 int32_t key, const int32_t (&rows)[2], int t2) {
    const int each = p.tile_rows > 64 ? 4 : 2; /* halves of words */
    const uint32_t *const halves = reinterpret_cast<const uint32_t *>(words) + rows[0] / 32;
    uint32_t both = 0;
#pragma unroll 4
    for (int i = 0; i < 1 << (p.granule_bits - 2); i++) {
        const uint32_t half = halves[(int64_t)(key + 8 * (i / 2) + t2 + i % 2) * each];
        both |= (half >> rows[0] % 32 & 1) << i | (half >> rows[1] % 32 & 1) << (16 + i);
    }
    return both;
}

/* Finds the listed scores of the step at `cursor` while its Q K^T is in flight: 16 bits of each 64 places and
 * either row of this thread. */
template <class shape>
DEVICE void sm90_filled_begin_mask(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                                   const struct attention_params &p) {
    const int bits = p.granule_bits, each = GRANULE_GROUP >> bits, t2 = warp_lane_here() % 4 * 2;
    const int at = sm90_consumer_row<shape>(cursor.consumer) + sm90_thread_here() / 32 * 16 +
                   warp_lane_here() / 4;
    const int32_t rows[2] = {sm90_row_of_head(p, at), sm90_row_of_head(p, at + 8)};
    const uint64_t *const words = p.image.words + sm90_item<shape>(cursor.memory, cursor.job).first;
#pragma unroll
    for (int group = 0; group < shape::GRANULES; group++) {
        uint32_t listed = 0;
#pragma unroll 1
        for (int i = 0; i < each; i++) {
            const struct fill_granule granule =
                sm90_filled_granule<shape>(cursor.memory, cursor.step, group * each + i);
            const uint32_t window = granule.window;
            uint32_t both;
            if (window == FILL_WINDOW_BITS)
                both = sm90_filled_bits(words, p, granule.key, rows, t2);
            else
                both = fill_window_row(window, rows[0], t2) | fill_window_row(window, rows[1], t2)
                                                                  << 16;
            listed |= both << (i << (bits - 2));
        }
        w.listed[group] = shape::CONSUMERS == 1 && cursor.idle ? 0 : listed;
    }
}

#endif
