/* Fused attention with mma.sync: score modifiers of a warp's scores, in the fragments of tile.cuh. */
#ifndef TESSERA_CUDA_SM80_MODIFY_CUH
#define TESSERA_CUDA_SM80_MODIFY_CUH

#include "device/modify.cuh"
#include "forward/sm80/config.cuh"

/* Loads the places of this thread's two columns of the j-th group (modify_place). */
DEVICE void attention_load_places(int32_t (&to)[2], const struct attention_params &p,
                                  const struct attention_place &place,
                                  const struct attention_groups &groups, int j) {
    const struct granule_item &item = attention_item(place);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int column = 8 * attention_group<false>(groups, j) + warp_lane() % 4 * 2 + e;
        to[e] = modify_place(p.modify, attention_column(p, item, place.granule, column), p.n_kv);
    }
}

/* Softcap, then ALiBi, on the scores of groups of keys and of rows `first` ... of the tile. */
template <int R, int GROUPS>
DEVICE void attention_modify_scores(float (&s)[R / 16][GROUPS][4], const struct attention_params &p,
                                    const struct attention_place &place, int first,
                                    const struct attention_groups &groups) {
    if (!p.modify.scores)
        return;
    if (p.modify.cap != 0)
        modify_cap(reinterpret_cast<float(&)[R / 4 * GROUPS]>(s), p.score_scale / p.modify.cap);
    if (!p.modify.alibi)
        return;
    const struct granule_item &item = attention_item(place);
    const float unit = modify_unit(p.modify, p.score_scale);
    const float slope = __ldg(p.modify.alibi + item.head) * p.modify.unit;
    const float back = (float)(first + warp_lane() / 4);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        int32_t at[2];
        attention_load_places(at, p, place, groups, j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float far = modify_distance(p.modify, at[e % 2], item.row) - back;
#pragma unroll
            for (int i = 0; i < R / 16; i++) {
                float &x = s[i][j][e];
                x = fmaf(slope, far - (float)(16 * i + e / 2 * 8), x * unit);
            }
        }
    }
}

/* Dropout, on P. */
template <int R, int GROUPS>
DEVICE void attention_drop(float (&s)[R / 16][GROUPS][4], const struct attention_params &p,
                           const struct attention_place &place, int first,
                           const struct attention_groups &groups) {
    if (!p.modify.seed)
        return;
    const uint64_t seed = __ldg(p.modify.seed);
    const struct granule_item &item = attention_item(place);
    const int row = item.row + first + warp_lane() / 4;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        int32_t at[2];
        attention_load_places(at, p, place, groups, j);
        const uint32_t key[2] = {(uint32_t)at[0] + p.modify.first_key,
                                 (uint32_t)at[1] + p.modify.first_key};
#pragma unroll
        for (int i = 0; i < R / 16; i++) {
            const struct modify_query q[2] = {
                modify_query_of(p.modify, item.batch, item.head, row + 16 * i),
                modify_query_of(p.modify, item.batch, item.head, row + 16 * i + 8)};
            const uint32_t kept = modify_kept(q, key, p.modify.dropped, seed);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(kept >> e & 1))
                    s[i][j][e] = 0;
        }
    }
}

#endif
