/* Fused attention on Hopper: masks. Scores of rows that do not list the key become -Inf. The plan has
 * one bit for each score, in the order of accumulator fragments (mask_groups.h). Each consumer warp
 * loads the records of 32 groups at a time, one a lane, and the words of a step one step ahead. */
#ifndef TESSERA_CUDA_SM90_MASK_CUH
#define TESSERA_CUDA_SM90_MASK_CUH

#include "forward/sm90/softmax.cuh"

/* Record of group `number` of an item. Groups before the first record list all keys; groups past the
 * end list none. */
static __device__ __forceinline__ struct granule_group
sm90_group_of(const struct attention_params &p, const struct granule_item &item, int32_t number) {
    struct granule_group group = {~UINT64_C(0), GROUP_NO_WORDS};
    const int32_t whole = (int32_t)(((int64_t)item.whole << p.granule_bits) / GRANULE_GROUP);
    if (number >= whole) {
        group.keys = 0;
        if ((int64_t)number * GRANULE_GROUP < (int64_t)item.count << p.granule_bits) {
            const longlong2 both = __ldg(
                reinterpret_cast<const longlong2 *>(p.image.groups + item.mask + number - whole));
            group = {(uint64_t)both.x, both.y};
        }
    }
    return group;
}

/* Loads this lane's word of a group, for a warp whose rows begin at `row` of their head. */
static __device__ __forceinline__ uint32_t sm90_load_word(const struct attention_params &p,
                                                          int64_t at, int row) {
    if (at < 0)
        return 0;
    return __ldg(p.image.mask_bits + (at >> GROUP_SHIFT) +
                 (at & GROUP_COARSE ? row / 16 : 2 * row + warp_lane_here()));
}

/* Bits of sm90_listed where all rows list `keys`: of each byte, bits 2 t and 2 t + 1. */
static __device__ __forceinline__ uint32_t sm90_listed_by_all(uint64_t keys) {
    const int t2 = warp_lane_here() % 4 * 2;
    uint32_t x[2] = {(uint32_t)keys >> t2 & 0x03030303, (uint32_t)(keys >> 32) >> t2 & 0x03030303};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x[i] = (x[i] | x[i] >> 6) & 0x000f000f;
        x[i] = (x[i] | x[i] >> 12) & 0xff;
    }
    return (x[0] | x[1] << 8) * 0x10001;
}

/* Which of this thread's 32 scores of a group count, from its word. With g = lane / 4, t = lane % 4:
 *
 *   bit 2 j + e         row g         column 8 j + 2 t + e      j = 0 ... 7, e = 0, 1
 *   bit 16 + 2 j + e    row g + 8     column 8 j + 2 t + e
 */
static __device__ __forceinline__ uint32_t sm90_listed(const struct granule_group &group,
                                                       uint32_t x, int tile_rows) {
    if (group.at < 0)
        return sm90_listed_by_all(group.keys);
    if (group.at & GROUP_COARSE) { /* one bit for 8 rows and 8 columns */
        x = (x & 0xff) | (x & 0xff00) << 8;
        x = (x | x << 4) & 0x0f0f0f0f;
        x = (x | x << 2) & 0x33333333;
        x = ((x | x << 1) & 0x55555555) * 3;
    }
    return tile_rows == 8 ? (x & 0xffff) * 0x10001 : x; /* of two packed heads */
}

/* Scores of a group that do not count become -Inf. */
static __device__ __forceinline__ void sm90_mask_group(float *s, uint32_t listed) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) /* row g, columns 2t and 2t + 1; then row g + 8 */
            if (!(listed >> (16 * (i / 2) + 2 * j + i % 2) & 1))
                s[4 * j + i] = -INFINITY;
}

#endif
