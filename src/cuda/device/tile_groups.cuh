/* A warp's tile: which groups of 8 keys its rows list, in steps with masks. The warp skips groups that none of its rows
 * lists, and packs the others together. */
#ifndef TESSERA_CUDA_TILE_GROUPS_CUH
#define TESSERA_CUDA_TILE_GROUPS_CUH

#include "device/tile.cuh"

/* Takes the next GROUPS groups out of `left`, where a group has BITS bits, of which the first is
 * set. */
template <int GROUPS, int BITS>
DEVICE struct attention_groups attention_groups_next(uint32_t &left) {
    struct attention_groups groups = {0, 0};
    uint32_t group = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        if (left) {
            group = (uint32_t)(__ffs((int)left) - 1) / BITS;
            groups.n = j + 1;
        }
        left &= left - 1;
        groups.at |= group << 4 * j;
    }
    return groups;
}

/* Bits of a group of 8 keys in a 32-bit word; the first of them stands for the group. */
template <int KEYS> DEVICE constexpr int attention_group_bits(void) {
    return KEYS < 32 ? 8 : 256 / KEYS;
}

/* Groups of 8 keys that some row of this warp lists: the first bit of each is set. whole: all rows
 * list all keys. part, with PARTS: the same bits for groups of which not all rows list all keys. */
template <int R, int KEYS, int STRIDE, bool PARTS>
DEVICE uint32_t attention_listed(bool &whole, uint32_t &part, uint32_t masks, int shift) {
    constexpr int EACH = KEYS < 32 ? 1 : KEYS / 32;
    constexpr uint32_t GROUP = EACH == 1 ? 0x01010101u : EACH == 2 ? 0x11111111u : 0x55555555u;
    constexpr uint32_t ROWS = R == 32 ? ~0u : 0xffffu;
    uint32_t any = 0, all = ~0u;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int key = EACH * warp_lane() + i;
        if (key < KEYS) {
            const uint32_t word = shared_load_4(masks + (uint32_t)(key * STRIDE));
            any |= word;
            all &= word;
        }
    }
    whole = __all_sync(WARP_ALL, (all >> shift & ROWS) == ROWS);
    uint32_t lanes = __ballot_sync(WARP_ALL, (any >> shift & ROWS) != 0);
    part = PARTS ? __ballot_sync(WARP_ALL, (all >> shift & ROWS) != ROWS) : 0;
#pragma unroll
    for (int i = 1; i < 8 / EACH; i *= 2) {
        lanes |= lanes >> i;
        part |= part >> i;
    }
    part &= GROUP;
    return lanes & GROUP;
}

/* Lists of a warp's rows in a step, as attention_listed has it. */
struct attention_rows_list {
    bool whole;
    uint32_t some, part;
};

/* All groups of a step: the first bit of each is set. */
template <int KEYS> DEVICE constexpr uint32_t attention_all_groups(void) {
    uint32_t all = 0;
    for (int group = 0; group < KEYS / 8; group++)
        all |= 1u << group * attention_group_bits<KEYS>();
    return all;
}

#endif
