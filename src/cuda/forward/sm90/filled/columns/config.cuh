/*
 * Fused attention on Hopper over filled lists of columns, blocks of 1 to 8 keys: the kernel of config.cuh with the
 * gather of its CP_ASYNC path. Producer warps walk the image's runs, as no granules are made before the run.
 *
 *   warps 0, 1   items, Q; rows of K, half of a step each        a lane finds a place's key, four warps copy rows
 *   warps 2, 3   rows of V likewise
 *   all four     items without keys, after that
 *
 * A run is a block, so a tile's places are found by a shift: place p is key p % width of run p / width. Full runs
 * come first, then bands, of which a row lists a key or does not. Row masks need no memory of the image: rows that
 * list a key are consecutive. Steps that may have masks find them in shared memory, a word of 16 bits a place:
 *
 *   rows [RING][KEYS]   first row, and how many rows
 *
 * They lie over the sums of config.cuh, which consumers of this path do not hand over. The threads that arrive at
 * k_full write them before. RING is twice as long as the ring of K: filled/config.cuh says why.
 */
#ifndef TESSERA_CUDA_SM90_COLUMNS_CONFIG_CUH
#define TESSERA_CUDA_SM90_COLUMNS_CONFIG_CUH

#include "forward/sm90/consumer.cuh"

template <int DIMS_QK, int DIMS_V, int N_CONSUMERS>
struct sm90_columns_shape : sm90_shape<DIMS_QK, DIMS_V, N_CONSUMERS> {
    using base = sm90_shape<DIMS_QK, DIMS_V, N_CONSUMERS>;
    static constexpr int RING = 2 * base::STAGES, LISTED = base::SUMS;
    static constexpr int PAST = LISTED + RING * base::KEYS * (int)sizeof(uint16_t);
    static constexpr int BYTES = PAST > base::BYTES ? PAST : base::BYTES;
    static_assert(BYTES <= base::ROOM && LISTED % 4 == 0, "what a CTA of Hopper can have");
    static_assert(base::ROWS <= UINT8_MAX, "a byte counts the rows of a tile");
};

/* Rows that list the places of a step. */
template <class shape> DEVICE uint16_t *sm90_columns_listed(char *memory, uint32_t step) {
    return reinterpret_cast<uint16_t *>(memory + shape::LISTED) +
           ring_stage<shape::RING>(step) * shape::KEYS;
}

/* Finds the listed scores of the step at `cursor` while its Q K^T is in flight: bits as sm90_filled_begin_mask has
 * them. */
template <class shape>
DEVICE void sm90_columns_begin_mask(struct sm90_fragments<shape> &w, const sm90_cursor &cursor) {
    const int row = sm90_consumer_row<shape>(cursor.consumer) + sm90_thread_here() / 32 * 16 +
                    warp_lane_here() / 4;
    const uint32_t *const pairs =
        reinterpret_cast<const uint32_t *>(sm90_columns_listed<shape>(cursor.memory, cursor.step)) +
        warp_lane_here() % 4;
#pragma unroll
    for (int group = 0; group < shape::GRANULES; group++) {
        uint32_t listed = 0;
#pragma unroll 1
        for (int j = 0; j < 8; j++) {
            const uint32_t pair = pairs[32 * group + 4 * j];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t at = (uint32_t)row - (pair >> 16 * e & 255);
                const uint32_t count = pair >> (16 * e + 8) & 255;
                listed |= (uint32_t)(at < count) << (2 * j + e);
                listed |= (uint32_t)(at + 8 < count) << (2 * j + e + 16);
            }
        }
        w.listed[group] = listed;
    }
}

#endif
