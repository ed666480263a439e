/*
 * Decode on Hopper: tiles of 64 rows, by WGMMA. A CTA of four warpgroups takes an item, KEYS keys a step. S is of
 * SPAN steps at once, because WGMMAs of 64 keys read Q half as often as those of 32 do:
 *
 *   warpgroup   0: rows of K and V           1: S, P                   2, 3: half of O's dims each
 *
 *   step n      gathers up to step           S = Q K^T (n ... n +      O += P V (n - 1)
 *               n + STAGES - 1               SPAN - 1), softmax, P (n)
 *
 *   S [64, SPAN KEYS] = Q [64, D] K [SPAN KEYS, D]^T         both from shared memory
 *   P [64, KEYS]      = exp2(scale S - row max)              online softmax, in registers
 *   O [64, DV / 2]   += P [64, KEYS] V [KEYS, DV / 2]        P from registers
 *
 * One warpgroup has all scores, so neither sums nor maxima are exchanged, and none is computed twice. P
 * goes through shared memory, a step at a time, with what O is rescaled by. V_IN_K: v is the first dims of k,
 * and one panel serves both products. Tiles are panels of 64 columns:
 *
 *   | K [D / 64][SPAN KEYS][64] V [DV / 64][SPAN KEYS][64] of SPAN steps | ... | Q [D / 64][64][64] |
 *   | P | factors | sums | kept | places | scales [STAGES][SCALES_KEY][KEYS] | ... | mbarriers |
 *
 * Scales of K multiply sums over 128 dims of S. P is then handed on cut off to 24 bits: for each 128 dims the
 * warpgroups of O multiply it by the scales of values, and round it.
 *
 *   barrier              completed by               phase ends when         waited for by
 *   k_full, v_full       warps of the producer      rows are there          warpgroup 1; 2, 3
 *   k_empty              warpgroup 1; V_IN_K: 2, 3  the rows have been used the producer
 *   v_empty              warpgroups 2, 3            the same                the producer
 *   p_full               warpgroup 1                P is there              warpgroups 2, 3
 *   p_empty              warpgroups 2, 3            registers have it       warpgroup 1
 */
#ifndef TESSERA_CUDA_DECODE_SM90_CONFIG_CUH
#define TESSERA_CUDA_DECODE_SM90_CONFIG_CUH

#include "decode/keys.cuh"
#include "decode/launch.cuh"
#include "decode/modify.cuh"
#include "decode/store.cuh"
#include "device/sm90/tma.cuh"
#include "device/sm90/wgmma.cuh"
#include "device/sm90/softmax.cuh"

/* D dims of q and k, DV of v. SHARED: v is the first dims of k. EIGHT_BIT: these are FP8. */
template <class TYPE, int DIMS, int DIMS_V, bool SHARED, bool EIGHT_BIT> struct decode_sm90_shape {
    using T = TYPE;
    static constexpr bool SPLIT = false; /* q of f32, decode/config.cuh */
    static constexpr int ROWS_LANE = 2, ROWS_GROUP = 16;
    static constexpr int D = DIMS, DV = DIMS_V, M = 64, KEYS = 32, THREADS = 512;
    static constexpr bool V_IN_K = SHARED, STORED = EIGHT_BIT;
    static constexpr int STAGES = SHARED ? 4 : 2; /* steps */
    static constexpr int SPAN = SHARED ? 2 : 1;
    static constexpr int S_STEPS = EIGHT_BIT ? 1 : SPAN; /* S of so many at once */
    static constexpr int TILES = KEYS / 8;               /* groups of 8 keys in a warp's scores */
    static constexpr int DIMS_O = DV / 2;                /* dims of a warpgroup */
    static constexpr int ROWS_WARP = KEYS / 4;           /* rows that a producer warp gathers */
    static constexpr int FILLERS =
        128 + 4; /* arrivals at a stage: threads by their copies, and warps */
    static constexpr int PANEL = SPAN * KEYS * 128, Q_PANEL = M * 128; /* bytes */
    static constexpr int K_PANELS = D / 64, V_PANELS = DV / 64;
    static constexpr int V = SHARED ? 0 : K_PANELS * PANEL;                    /* in SPAN steps */
    static constexpr int STEPS = (K_PANELS + (SHARED ? 0 : V_PANELS)) * PANEL; /* bytes of SPAN */
    static constexpr int Q = STAGES / SPAN * STEPS, P = Q + K_PANELS * Q_PANEL;
    static constexpr int P_ROW = KEYS * (STORED ? 3 : 2); /* bytes */
    static constexpr int FACTORS = P + M * P_ROW, MOVED = FACTORS + M * (int)sizeof(float);
    static constexpr int SUMS = MOVED + 4 * (int)sizeof(int32_t);
    static constexpr int KEPT_WARP = 4 * TILES; /* words: 8 keys by 16 rows take four */
    static constexpr int KEPT = SUMS + M * (int)sizeof(float2);
    static constexpr int PLACES = KEPT + 4 * KEPT_WARP * (int)sizeof(uint32_t);
    static constexpr int PARTIAL = PLACES + STAGES * KEYS * (int)sizeof(struct decode_place);
    static constexpr int SCALES_KEY =
        STORED ? D / DECODE_SCALE_DIMS : 0; /* scales of a key and its values */
    static constexpr int SCALES = PARTIAL + STAGES * 4 * (int)sizeof(uint32_t);
    static constexpr int BARRIERS = SCALES + STAGES * KEYS * SCALES_KEY * (int)sizeof(float);
    static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr int V_FULL = SHARED ? K_FULL : K_EMPTY + 8 * STAGES;
    static constexpr int V_EMPTY = SHARED ? K_EMPTY : V_FULL + 8 * STAGES;
    static constexpr int P_FULL = K_EMPTY + 8 * STAGES * (SHARED ? 1 : 3);
    static constexpr int P_EMPTY = P_FULL + 8;
    static constexpr int BYTES = P_EMPTY + 8;
    /* Registers of a thread. */
    static constexpr int PRODUCER = 64, SCORES = STORED ? 96 : 112, OUTPUTS = STORED ? 176 : 168;
    static_assert(PRODUCER + SCORES + 2 * OUTPUTS <= 512, "what a multiprocessor has");
    static_assert(BYTES <= 227 * 1024, "what a CTA of Hopper can have");
    static_assert(BARRIERS % 8 == 0 && PLACES % 16 == 0 && SCALES % 16 == 0 && P % 1024 == 0,
                  "aligned");
    static_assert(SHARED || !EIGHT_BIT, "rows of 8 bits have V in K");
    static_assert(D % 128 != 0 && DV % 128 == 0, "dims of 8 bits, and of the second view");
    static_assert(DIMS_O == 2 * DECODE_SCALE_DIMS, "each WGMMA of O has dims of one scale");

    /* Group of 16 rows of a warp; in warpgroups 2 and 3, its half of O's dims. */
    DEVICE int group(int warp) {
        return warp % 4;
    }
    DEVICE int column(int warp) {
        return warp / 4 - 2;
    }
};

/* Steps of an item, a multiple of SPAN: places behind its keys are empty. */
template <class shape> DEVICE int32_t decode_sm90_steps(const struct decode_item &item) {
    constexpr int KEYS = shape::SPAN * shape::KEYS;
    const uint32_t keys = item.end - item.begin;
    return shape::SPAN * sm90_uniform(keys > 0 ? (int)((keys + KEYS - 1) / KEYS) : 1);
}

/* Offset of a step's rows, in bytes from the first ones on. */
template <class shape> DEVICE uint32_t decode_sm90_rows(uint32_t step) {
    const uint32_t stage = step % shape::STAGES;
    return stage / shape::SPAN * shape::STEPS + stage % shape::SPAN * (shape::KEYS * 128);
}

/* The scales of a step's keys. */
template <class shape> DEVICE int decode_sm90_scales_at(uint32_t step) {
    return shape::SCALES + (int)(step % shape::STAGES) * shape::KEYS * shape::SCALES_KEY * 4;
}

/* Place of 16 bytes of P, rounded: of 64 in a row. */
template <class shape> DEVICE uint32_t decode_sm90_p_at(int row, int piece) {
    return shape::P + swizzle_row<shape::P_ROW>(row) + swizzle_piece(row, piece);
}

/* Place of 16 bytes of P of 24 bits, three of a lane: the lane of O's warps that has the same rows and keys reads them. */
template <class shape> DEVICE uint32_t decode_sm90_p_of_lane(int piece) {
    return shape::P + 16 * (uint32_t)((3 * decode_group<shape>() + piece) * 32 + warp_lane_here());
}

/* Arrives for a warp, after what its lanes did. */
DEVICE void decode_sm90_arrive(uint32_t barrier) {
    __syncwarp();
    if (warp_lane() == 0)
        barrier_arrive(barrier);
}

template <class shape> DEVICE void decode_sm90_barriers(uint32_t shared) {
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_init(shared + shape::K_FULL + 8 * i, shape::FILLERS);
        barrier_init(shared + shape::K_EMPTY + 8 * i, shape::V_IN_K ? 8 : 4);
        if (!shape::V_IN_K) {
            barrier_init(shared + shape::V_FULL + 8 * i, shape::FILLERS);
            barrier_init(shared + shape::V_EMPTY + 8 * i, 8);
        }
    }
    barrier_init(shared + shape::P_FULL, 4);
    barrier_init(shared + shape::P_EMPTY, 8);
    barrier_init_fence();
}

#endif
