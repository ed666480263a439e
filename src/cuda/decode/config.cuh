/* Decode: sizes of a CTA and its shared memory. kernel.cuh says how they are used. */
#ifndef TESSERA_CUDA_DECODE_CONFIG_CUH
#define TESSERA_CUDA_DECODE_CONFIG_CUH

#include "device/tile.cuh"
#include "work/item.cuh"

#define DECODE_GROUPS 4 /* groups of 8 keys that a warp weighs at a time, in every instance */

/*
 * D dims of q and k, DV of v, tiles of up to ROWS rows: heads packed together, and queries. V_IN_K: v is
 * the first dims of k, and one panel serves both products.
 *
 *   | stage 0: K [KEYS][D] V [KEYS][DV] | stage 1 | ... | Q [M][D] | S [M][KEYS] f32 | kept | places |
 *   | lower [ROWS] f32 |                                                          where rows of q are raised
 *   | scales of stage 0 [KEYS][SCALES_KEY] f32 | of stage 1 | ... |                where K or V has 8 bits
 *
 * Where registers hold Q (Q_HELD), it comes by way of the last stage.
 *
 * TYPE_Q f32 (SPLIT): a row of q is PARTS rows of Q, whose scores add up to the row's. Part 0 is q rounded to
 * T, part 1 the rest, and so on. 16 rows of Q serve 8 of the tile in f16, 4 in bf16, which has fewer digits. A
 * thread has the first two sums, and lane + 16 the third (device/mma.cuh):
 *
 *   Q, of 16 rows                                      S, and P
 *             f16, g = 0 ... 7    bf16, g = 0 ... 3
 *   row g     part 0              part 0               the row's
 *   g + 4                         part 2               -Inf, and 0
 *   g + 8     part 1              part 1               -Inf, and 0
 *   g + 12                        nothing: not read    -Inf, and 0
 */
template <class TYPE, int DIMS, int DIMS_V, int TILE_ROWS, bool SHARED, class TYPE_Q = TYPE>
struct decode_shape {
    using T = TYPE;
    static constexpr bool SPLIT = sizeof(TYPE_Q) > sizeof(TYPE);
    static constexpr bool RAISES =
        SPLIT && attention_has_small(TYPE());                 /* rows of q, to T's range */
    static constexpr int PARTS = !SPLIT ? 1 : RAISES ? 2 : 3; /* 22 digits in f16, 24 in bf16 */
    /* Rows of the tile in a group, and those that a thread has of it. */
    static constexpr int ROWS_GROUP = PARTS == 1 ? 16 : PARTS == 2 ? 8 : 4;
    static constexpr int ROWS_LANE = SPLIT ? 1 : 2;
    static constexpr int D = DIMS, DV = DIMS_V, ROWS = TILE_ROWS, M = 16 / ROWS_GROUP * ROWS;
    static constexpr bool V_IN_K = SHARED, Q_HELD = M == 16;
    static constexpr bool Q_APART = false; /* registers hold Q, and no stage had it */
    /* Warps: M / 16 groups of rows by COLUMNS. Warps of one group deal its keys among them for S, and
     * the dims of O. */
    static constexpr int WARPS = M == 16 && D == 64 ? 4 : 8, THREADS = 32 * WARPS;
    static constexpr int COLUMNS = WARPS / (M / 16), DIMS_O = DV / COLUMNS;
    static constexpr int KEYS = D > 256             ? (M == 16 && SHARED ? 64 : 32)
                                : D > 128 && M > 16 ? 32
                                                    : 64;
    static constexpr int TILES =
        KEYS / COLUMNS < 8 ? 1 : KEYS / COLUMNS / 8; /* a warp's groups of 8 keys */
    static constexpr int STAGES = D > 256 ? (M > 16 && SHARED ? 3 : 2)
                                  : D > 64 && KEYS == 64 && (D > 128 || M > 16) ? 2
                                                                                : 3;

    static constexpr int ROW = 2 * D, ROW_V = SHARED ? ROW : 2 * DV; /* bytes */
    static constexpr int PANEL = KEYS * ROW;
    static constexpr int STAGE = PANEL + (SHARED ? 0 : KEYS * ROW_V);
    static constexpr int Q = Q_HELD ? (STAGES - 1) * STAGE : STAGES * STAGE;
    static constexpr int S = STAGES * STAGE + (Q_HELD ? 0 : M * ROW);
    static constexpr int S_PITCH = KEYS + 8; /* floats: pairs of eight rows use all banks */
    static constexpr int KEPT = S + M * S_PITCH * (int)sizeof(float);
    static constexpr int PLACES =
        KEPT + M / 16 * KEYS / 8 * 16; /* four words of 8 keys by 16 rows */
    static constexpr int LOWER = PLACES + (STAGES + 1) * KEYS * (int)sizeof(struct decode_place);
    static constexpr int SCALES = LOWER + (RAISES ? ROWS * (int)sizeof(float) : 0);
    /* Scales of a key: K's, then V's. */
    static constexpr int SCALES_K = D < DECODE_SCALE_DIMS ? 1 : D / DECODE_SCALE_DIMS;
    static constexpr int SCALES_V = DV < DECODE_SCALE_DIMS ? 1 : DV / DECODE_SCALE_DIMS;
    static constexpr int SCALES_KEY = SCALES_K + SCALES_V;
    static constexpr int BYTES = SCALES + STAGES * KEYS * SCALES_KEY * (int)sizeof(float);
    static_assert(!Q_HELD || M * ROW <= STAGE, "Q fits a stage");
    static_assert(ROW % 128 == 0 && ROW_V % 128 == 0, "the swizzle is of 128 bytes");
    static_assert(DIMS_O % 16 == 0 && KEYS % (8 * DECODE_GROUPS) == 0, "whole fragments");
    static_assert(KEYS % (4 * WARPS) == 0, "a warp copies four rows at a time");

    /* Group of 16 rows of a warp, and its number among the warps that share them. */
    DEVICE int group(int warp) {
        return warp / COLUMNS;
    }
    DEVICE int column(int warp) {
        return warp % COLUMNS;
    }
};

/* CTAs that share a multiprocessor, as registers and shared memory allow. */
template <class shape, bool MODIFIED> static constexpr int decode_blocks(void) {
    return shape::D > 128 || (shape::D > 64 && shape::M > 16 && MODIFIED) ? 1
           : shape::D > 64 || shape::M > 16                               ? 2
                                                                          : 4;
}

#endif
