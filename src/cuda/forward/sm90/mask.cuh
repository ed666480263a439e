/* Fused attention on Hopper: masks. Scores of rows that do not list the key become -Inf. The plan
 * has one bit for each score, in the order of accumulator fragments (mask_groups.h). A consumer warp
 * loads its records two steps ahead and its words one step ahead. */
#ifndef TESSERA_CUDA_SM90_MASK_CUH
#define TESSERA_CUDA_SM90_MASK_CUH

#include "forward/sm90/config.cuh"

/* Groups of an item before the first that has a record. */
DEVICE int32_t sm90_groups_whole(const struct attention_params &p, int32_t granules) {
    return (int32_t)(((int64_t)granules << p.granule_bits) / GRANULE_GROUP);
}

/* A warp's records of an item. */
struct sm90_records {
    const uint32_t *groups; /* record of group `whole` is groups[whole] */
    int32_t whole;          /* groups without a record, all of whose keys all rows list */
};

/* For a warp that has rows 16 slice ... of their head. */
DEVICE struct sm90_records sm90_records_of(const struct attention_params &p,
                                           const struct granule_item &item, int slice) {
    const int32_t whole = sm90_groups_whole(p, item.whole);
    return {p.image.records + (slice * p.image.n_groups + item.mask - whole), whole};
}

DEVICE uint32_t sm90_load_record(const struct sm90_records &records, int32_t group) {
    return group < records.whole ? MASK_ALL : __ldg(records.groups + group);
}

/* Loads this lane's word. */
DEVICE uint32_t sm90_load_word(const struct attention_params &p, uint32_t record) {
    return __ldg(p.image.mask_bits + ((record << MASK_WORDS_BITS) + (uint32_t)warp_lane_here()));
}

/* Scores of a group that do not count become -Inf. ROWS: bits are those of a row's 16, then of the other's,
 * not of fragments. */
template <bool ROWS> DEVICE void sm90_mask_group(float *s, uint32_t listed) {
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (!(listed >> (ROWS ? i / 2 % 2 * 16 + i / 4 * 2 + i % 2 : i) & 1))
            s[i] = -INFINITY;
}

#endif
