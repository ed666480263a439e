/* Decode: masks and score modifiers of a warp's scores, by the warp that computes them. s[j] has rows
 * g, g + 8 of the warp's group and keys 8 j + 2t, + 1 of its own (device/mma.cuh). */
#ifndef TESSERA_CUDA_DECODE_MODIFY_CUH
#define TESSERA_CUDA_DECODE_MODIFY_CUH

#include "decode/step.cuh"
#include "device/modify.cuh"

/* Queries within the tile of a lane's two rows; split, of its one. DECODE_NO_QUERY lists no key. */
struct decode_lane {
    int32_t query[2];
};
#define DECODE_NO_QUERY (1 << 20)

template <class shape> DEVICE struct decode_lane decode_lane_of(const struct decode_params &p) {
    const int row = shape::ROWS_GROUP * decode_group<shape>() + warp_lane() / 4;
    if (!decode_has_rows<shape>(warp_lane()))
        return {{DECODE_NO_QUERY, DECODE_NO_QUERY}};
    return {{filled_row_query(p, row), filled_row_query(p, row + 8 * (shape::ROWS_LANE - 1))}};
}

/* Adds the scores of the parts of q of f32, small ones first, and multiplies them by `lower`, what the row was
 * raised by. An infinite one of part 0 stays. */
template <class shape> DEVICE void decode_join(float (&s)[shape::TILES][4], const float *lower) {
    if (!shape::SPLIT)
        return;
    const float by =
        shape::RAISES ? lower[shape::ROWS_GROUP * decode_group<shape>() + warp_lane() / 4] : 1;
#pragma unroll
    for (int j = 0; j < shape::TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float rest = s[j][e + 2];
            if (shape::PARTS == 3)
                rest += __shfl_down_sync(WARP_ALL, s[j][e], 16);
            const float sum = s[j][e] + (isfinite(s[j][e]) ? rest : 0.0f);
            s[j][e] = shape::RAISES ? sum * by : sum;
        }
}

/* Heads of a lane's two rows; of rows that there are not, one that there is. Found when they are
 * needed: registers are short. */
template <class shape>
DEVICE int32_t decode_head(const struct decode_params &p, const struct decode_item &item, int r) {
    const int row = shape::ROWS_GROUP * decode_group<shape>() + warp_lane_here() / 4 + 8 * r;
    return min(item.head + filled_row_head(p, row), p.run.heads_q - 1);
}

/* Softcap, then ALiBi. */
template <class shape>
DEVICE void decode_modify(float (&s)[shape::TILES][4], const struct decode_params &p,
                          const struct decode_item &item, const struct decode_lane &lane,
                          const struct decode_place *places) {
    const struct modify_params &m = p.run.modify;
    if (!m.scores)
        return;
    if (m.cap != 0)
        modify_cap(reinterpret_cast<float(&)[4 * shape::TILES]>(s), p.run.score_scale / m.cap);
    if (!m.alibi)
        return;
    const float unit = modify_unit(m, p.run.score_scale);
    float slope[shape::ROWS_LANE];
#pragma unroll
    for (int r = 0; r < shape::ROWS_LANE; r++)
        slope[r] = m.alibi[decode_head<shape>(p, item, r)] * m.unit;
#pragma unroll
    for (int j = 0; j < shape::TILES; j++)
#pragma unroll
        for (int e = 0; e < 2 * shape::ROWS_LANE; e++) {
            const int32_t key = places[8 * j + warp_lane() % 4 * 2 + e % 2].key;
            const int32_t far = (int32_t)((uint32_t)key - (uint32_t)item.first -
                                          (uint32_t)(item.row + lane.query[e / 2]));
            s[j][e] = fmaf(slope[e / 2], (float)far, s[j][e] * unit);
        }
}

/* Scores become -Inf where a mask does not list them: of places without a key, and by the rows that list a key. */
template <class shape, class rows_of_key>
DEVICE void decode_mask_bits(float (&s)[shape::TILES][4], const struct decode_lane &lane,
                             const struct decode_place *places, const rows_of_key &rows_of) {
#pragma unroll
    for (int j = 0; j < shape::TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const struct decode_place place = places[8 * j + warp_lane() % 4 * 2 + e];
            const int32_t key = decode_masked_key(place);
            const uint64_t rows = place.row < 0 ? 0 : key < 0 ? UINT64_MAX : rows_of(key);
#pragma unroll
            for (int r = 0; r < shape::ROWS_LANE; r++)
                if (lane.query[r] > 63 || !(rows >> lane.query[r] & 1))
                    s[j][e + 2 * r] = -INFINITY;
        }
}

/* Scores of rows that do not list the key, and of places without one, become -Inf. rows_of: rows that list a key of
 * a mask. */
template <class shape, class rows_of_key>
DEVICE void decode_mask(float (&s)[shape::TILES][4], const struct decode_params &p,
                        const struct decode_lane &lane, const struct decode_place *places,
                        const rows_of_key &rows_of) {
    if (p.words) {
        decode_mask_bits<shape>(s, lane, places, rows_of);
        return;
    }
#pragma unroll
    for (int j = 0; j < shape::TILES; j++)
#pragma unroll
        for (int e = 0; e < 2 * shape::ROWS_LANE; e++) {
            const struct decode_place place = places[8 * j + warp_lane() % 4 * 2 + e % 2];
            const int32_t query = lane.query[e / 2];
            if (query < place.first || query > place.last)
                s[j][e] = -INFINITY;
        }
}

/* Whether dropout keeps the weights, for every warp of these rows: bit l of word e of 8 keys is that of
 * lane l's s[j][e]. */
template <class shape>
DEVICE void decode_draw(uint32_t *kept, const struct decode_params &p,
                        const struct decode_item &item, const struct decode_lane &lane,
                        const struct decode_place *places) {
    const struct modify_params &m = p.run.modify;
    if (!m.seed)
        return;
    const uint64_t seed = *m.seed;
    const struct modify_query q[2] = {
        modify_query_of(m, item.batch, decode_head<shape>(p, item, 0), item.row + lane.query[0]),
        modify_query_of(m, item.batch, decode_head<shape>(p, item, shape::ROWS_LANE - 1),
                        item.row + lane.query[1])};
#pragma unroll 1
    for (int j = 0; j < shape::TILES; j++) {
        const struct decode_place *pair = places + 8 * j + warp_lane() % 4 * 2;
        const uint32_t key[2] = {(uint32_t)pair[0].key + m.first_key,
                                 (uint32_t)pair[1].key + m.first_key};
        const uint32_t bits = modify_kept(q, key, m.dropped, seed);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t word = __ballot_sync(WARP_ALL, bits >> e & 1);
            if (warp_lane() == e)
                kept[4 * j + e] = word;
        }
    }
}

/* Scales of values, of tokens or of this warp's dims, on P of DECODE_GROUPS groups of 8 keys. */
template <class shape>
DEVICE void decode_scale_weights(float (&s)[1][DECODE_GROUPS][4], const struct decode_params &p,
                                 const float *scales) {
    if (p.v.scales == 0 || p.v_late)
        return;
    scales += min(decode_column<shape>() * shape::DIMS_O / DECODE_SCALE_DIMS, p.v.scales - 1);
#pragma unroll
    for (int j = 0; j < DECODE_GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[0][j][e] *= scales[(8 * j + warp_lane() % 4 * 2 + e % 2) * shape::SCALES_KEY];
}

/* Dropout, on P of DECODE_GROUPS groups of 8 keys. */
DEVICE void decode_drop(float (&s)[1][DECODE_GROUPS][4], const struct decode_params &p,
                        const uint32_t *kept) {
    if (!p.run.modify.seed)
        return;
#pragma unroll
    for (int j = 0; j < DECODE_GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!(kept[4 * j + e] >> warp_lane() & 1))
                s[0][j][e] = 0;
}

#endif
