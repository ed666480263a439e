/*
 * Fused attention on Hopper: which of a thread's scores count. Those of rows that do not list the
 * key become -Inf, whatever they are. The plan has a bit for each score in the order in which threads
 * hold them (mask_groups.h); the warp that fetches K leaves beside it where those of a step are.
 */
#ifndef TESSERA_CUDA_SM90_MASK_CUH
#define TESSERA_CUDA_SM90_MASK_CUH

#include "forward/sm90/softmax.cuh"

/* Of a group of 64 places whose keys all count: no words. */
#define SM90_ALL (-1)

/* Group `number` of an item: of those before its first record all places count, of those past its
 * end none. */
static __device__ __forceinline__ struct granule_group
sm90_group_of(const struct attention_params &p, const struct granule_item &item, int32_t number) {
    struct granule_group group = {~UINT64_C(0), SM90_ALL};
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

/* Leaves the groups of step `at`, one by each of the first lanes, for whoever finds that K is there;
 * their words, 16 rows' to a lane, come closer meanwhile. */
template <class shape>
static __device__ __forceinline__ void
sm90_leave_groups(struct granule_group (&to)[shape::GRANULES], const struct attention_params &p,
                  const struct granule_item &item, int32_t at) {
    struct granule_group group = {0, SM90_ALL};
    if (warp_lane() < shape::GRANULES) {
        group = sm90_group_of(p, item, at * shape::GRANULES + warp_lane());
        to[warp_lane()] = group;
    }
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++) {
        const int64_t words = __shfl_sync(WARP_ALL, group.at, i);
        if (words >= 0 && (words & 1) == 0 && 16 * warp_lane() < p.tile_rows)
            prefetch_near(p.image.mask_bits + words / 2 + 32 * warp_lane());
    }
    __syncwarp();
}

/* Which of this thread's 32 scores of a group count: columns 8 j + 2 t + e of row g in bits 2 j + e,
 * of row g + 8 in bits 16 + 2 j + e. For a warp whose rows begin at `row`. */
static __device__ __forceinline__ uint32_t sm90_listed(const struct granule_group &group,
                                                       const struct attention_params &p, int row) {
    if (group.at < 0)
        return group.keys ? ~0u : 0;
    const uint32_t *words = p.image.mask_bits + group.at / 2;
    uint32_t x;
    if (group.at & 1) { /* a bit for each eight rows and places */
        x = __ldg(words + row / 16);
        x = (x & 0xff) | (x & 0xff00) << 8;
        x = (x | x << 4) & 0x0f0f0f0f;
        x = (x | x << 2) & 0x33333333;
        x = ((x | x << 1) & 0x55555555) * 3;
    } else {
        x = __ldg(words + 2 * row + warp_lane_here());
    }
    return p.tile_rows == 8 ? (x & 0xffff) * 0x10001 : x; /* of two heads that are stacked */
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
