/*
 * Fused attention for 16-bit types on Hopper. One block of three warpgroups on each multiprocessor
 * goes through the items that the plan has assigned to it; a query tile has 128 rows, a step 128 places
 * of its granules, or 64 where O takes the registers of more than 128 dims. One warpgroup fetches,
 * ahead and without regard to items; the other two compute, 64 rows each. For lists of 192 rows
 * there are shapes with a third that computes, and steps of 64 places.
 *
 * For lists of up to 64 rows there are shapes with one that computes, and steps of 64 places. Two
 * blocks share a multiprocessor then, or three of heads of up to 64 dims. Each has its own items, and
 * the one's softmax meets the others' products. Rows of a tile past those of the plan are zeros in Q.
 *
 * Shared memory, in KB for heads of                                of 192 rows        of 64
 *                            64      128     192     256  192/128    64     128     64     128 dims
 *
 *   Q [SLOTS][ROWS][D_QK]  2 x 16  2 x 32  2 x 48     64       48  2 x 24    48  2 x 8  2 x 16
 *   O [ROWS][64 O_PANELS]      16      32      16     16       16      24    24      8      16
 *   K [STAGES][KEYS][D_QK] 4 x 16  2 x 32  2 x 24  2 x 32  2 x 48   4 x 8  4 x 16  3 x 8  2 x 16
 *   V [STAGES][KEYS][D_V]  4 x 16  2 x 32  2 x 24  2 x 32  2 x 32   4 x 8  4 x 16  3 x 8  2 x 16
 *   barriers, JOBS items, the mask groups of steps, maxima and sums of O's rows
 *
 * Q is that of the item being computed, and of the next; O is rounded, on its way out.
 *
 * Heads of 32 dims have the panels of 64; the other columns are zeros in Q, K and V, and not
 * multiplied, and left as they were in O, and not stored.
 *
 * Wide heads, of more than 256 dims of V, have tiles of 64 rows, steps of 64 keys and one stage of
 * each, 64 KB of Q, of K and of V for 512 dims. Their dims are divided: both warpgroups have all rows,
 * but half of each panel of Q and K, and half of the panels of V and O. What they have of the scores
 * they add up where O will be staged, so that both know all weights and go on alone. With one stage,
 * products take turns: one tile is multiplied while the other's successor is fetched. Heads of more
 * than 512 dims are divided once more, between the two blocks of a cluster, whose memory has besides
 *
 *   S [64][KEYS], f32, 16 KB: what the other block has of a step's scores, before it is added
 *
 * Barriers, one of each for every stage or slot; a phase is one use of it:
 *
 *               filled by                  phase ends when         waited for by
 *   q_full      boxes | copies             Q and the item stand    all computing warpgroups
 *   q_empty                                all have used Q         whoever fills it
 *   k_full      boxes | copies             K stands                all, each before its Q K^T
 *   k_empty                                all have their scores   whoever fills it
 *   v_full, v_empty                        the same of V and P V
 *   o_full      a computing warpgroup      its O and sums stand    the warp that stores them
 *   o_empty     that warp                  they have been read     that warpgroup
 *   s_full      the other block            its scores stand        all computing warpgroups
 *   s_empty     its warps                  ours have been read     the same, before the next go
 *
 * and those by number: 1 ... GROUPS one warpgroup's own, 1 + GROUPS ... where the two take turns or
 * exchange scores.
 *
 * One item through a computing warpgroup; what stands in a line overlaps:
 *
 *   S(0)            with  P V of the last step of the item before
 *   softmax of S(0) with  the same
 *   S(1)            with  that item's O on its way out; then with P(0) V(0)
 *   softmax of S(1) with  P(0) V(0); then O is rescaled where a maximum has moved
 *   ...
 *
 * The other warpgroup does the same at its own pace, so that the one's softmax meets the other's
 * products. Steps whose granules all have no mask come first in an item; where the second may have
 * one, O goes out before its scores. With one slot of Q, the next item's comes while the last P V is
 * computed and O goes out, and S(0) stands in a line of its own.
 *
 * Heads of up to 64 dims have products that take no longer than exponentials, and two warpgroups that
 * are left to themselves end in step, at products together and then at softmax. Where boxes fetch,
 * long items therefore have two tiles of scores, S(i + 1) beside P(i - 1) V(i - 1) under the softmax
 * of S(i); in short ones the warpgroups hand in their products one after the other.
 */
#ifndef TESSERA_CUDA_SM90_SHAPE_CUH
#define TESSERA_CUDA_SM90_SHAPE_CUH

#include "forward/gather.cuh"
#include "forward/combine.cuh"
#include "device/sm90/tma.cuh"

#define SM90_SHARED_ALL (228 * 1024) /* of a multiprocessor, which keeps 1 KB of each block */
/* Items in shared memory: one is read until its O is out, when its slot of Q may hold the item after
 * the next. */
#define SM90_JOBS 4
/* Steps without masks from which on an item's are computed with two tiles of scores, where there are
 * registers for them; items of fewer are handed in by turns. */
#define SM90_LONG 32

/* Who fetches: boxes of a granule's keys each, or copies of 16 bytes, for granules of any size. */
enum { SM90_BOXES, SM90_COPIES };
#define SM90_BOX_BITS 3 /* of the smallest granule that boxes fetch */

/* Of a kernel for heads of these dims, 32 or multiples of 64, by so many warpgroups that compute; in
 * each block of a cluster, where that has several. Tiles are panels of 64 columns. */
template <int DIMS_QK, int DIMS_V, int COMPUTING = 2, int CLUSTER = 1> struct sm90_shape {
    static constexpr int D_QK = DIMS_QK, D_V = DIMS_V, GROUPS = COMPUTING, BLOCKS = CLUSTER;
    static constexpr int SHARE = D_V > 256 ? GROUPS : 1; /* warpgroups to a row: dims are divided */
    static constexpr int ROWS = 64 * GROUPS / SHARE, THREADS = 128 * (1 + GROUPS);
    /* Blocks that share a multiprocessor, each with its own items. */
    static constexpr int RESIDENT = GROUPS > 1 ? 1 : D_QK > 64 ? 2 : 3;
    static constexpr int ROOM = SM90_SHARED_ALL / RESIDENT / 128 * 128 - 1024;
    static constexpr int BITS = D_V > 128 || GROUPS != 2 ? 6 : 7, KEYS = 1 << BITS; /* of a step */
    static constexpr int GRANULES = KEYS / GRANULE_MAX; /* of a step, where they have that size */
    static constexpr int STAGES = SHARE > 1                  ? 1
                                  : GROUPS == 1              ? (D_QK > 64 ? 2 : 3)
                                  : D_QK > 64 && GROUPS == 2 ? 2
                                                             : 4;
    /* Floats of a thread's scores and outputs; of the scores that one of two adds up. */
    static constexpr int SCORES = KEYS / 2, OUTPUTS = D_V / 2 / SHARE, HALF = SCORES / 2;
    static constexpr int QK_PANELS = (D_QK + 63) / 64, V_PANELS = (D_V + 63) / 64;
    static constexpr int O_PANELS = D_QK > 128 || GROUPS > 2 ? 1 : V_PANELS; /* out at a time */
    static constexpr int Q_PANEL = ROWS * 128, PANEL = KEYS * 128;           /* bytes; of K and V */
    static constexpr int Q_TILE = QK_PANELS * Q_PANEL;
    static constexpr int O_GROUP = O_PANELS * 64 * 128, O_TILE = GROUPS * O_GROUP;
    static constexpr int S_TILE = BLOCKS == 1 ? 0 : 128 * 4 * SCORES;
    static_assert(SHARE == 1 || O_GROUP >= 128 * 4 * HALF,
                  "half of the scores, while O is computed");
    static constexpr int K_TILE = QK_PANELS * PANEL, V_TILE = V_PANELS * PANEL;
    static constexpr int BESIDE_Q = O_TILE + STAGES * (K_TILE + V_TILE) + 1024;
    static constexpr int SLOTS = SHARE == 1 && BESIDE_Q + 2 * Q_TILE <= ROOM ? 2 : 1; /* of Q */
    static constexpr int Q = 0, O = SLOTS * Q_TILE, K = O + O_TILE, V = K + STAGES * K_TILE;
    static constexpr int S = V + STAGES * V_TILE, BARRIERS = S + S_TILE;
    static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr int V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES;
    static constexpr int Q_FULL = V_EMPTY + 8 * STAGES, Q_EMPTY = Q_FULL + 8 * SLOTS;
    static constexpr int O_FULL = Q_EMPTY + 8 * SLOTS, O_EMPTY = O_FULL + 8 * GROUPS;
    static constexpr int S_FULL = O_EMPTY + 8 * GROUPS, S_EMPTY = S_FULL + 8;
    static constexpr int ITEMS = S_EMPTY + 8;
    static constexpr int MASKS = ITEMS + SM90_JOBS * (int)sizeof(struct granule_item);
    static constexpr int MASKS_OF = 2 * STAGES < 4 ? 4 : 2 * STAGES; /* steps */
    static constexpr int SUMS = MASKS + MASKS_OF * GRANULES * (int)sizeof(struct granule_group);
    static constexpr int BYTES = SUMS + ROWS * (int)sizeof(float2);
    static constexpr bool AHEAD = D_V <= 64 && GROUPS == 2; /* two tiles of scores fit */
    static_assert(BYTES <= ROOM, "what a block of Hopper can have");
    /* Registers of a thread that computes, and that fetches: by boxes, copies. */
    static constexpr int CLAIM[2] = {RESIDENT == 3   ? 120
                                     : RESIDENT == 2 ? 216
                                     : GROUPS > 2    ? 152
                                     : SHARE > 1     ? 224
                                                     : 232,
                                     RESIDENT == 3   ? 120
                                     : RESIDENT == 2 ? 184
                                     : GROUPS > 2    ? 152
                                     : D_V > 128     ? 224
                                                     : 216};
    static constexpr int LEAVE[2] = {SHARE > 1 ? 56 : 40, RESIDENT == 3             ? 40
                                                          : GROUPS > 2 || D_V > 128 ? 56
                                                                                    : 72};
    static_assert(BLOCKS <= SHARE && SHARE <= 2, "dims are divided by two, and again by two");
};

/* The tensors as boxes see them: K and V by one granule, and by two that are neighbours; O by the
 * rows of a warpgroup. */
struct sm90_maps {
    CUtensorMap q, k[2], v[2], o;
    bool queries, stores; /* whether boxes reach Q, and O */
};

/* Where the index-th use of a ring's stage is, and the parity of its phase. */
template <int STAGES> static __device__ __forceinline__ uint32_t ring_stage(uint32_t index) {
    return index % STAGES;
}
template <int STAGES> static __device__ __forceinline__ uint32_t ring_parity(uint32_t index) {
    return index / STAGES & 1;
}

/* Which block of its cluster this is. */
template <class shape> static __device__ __forceinline__ int sm90_rank(void) {
    return (int)(blockIdx.x % shape::BLOCKS);
}

/* The first row of a warpgroup in its tile. */
template <class shape> static __device__ __forceinline__ int sm90_group_row(int group) {
    return shape::SHARE == 1 ? 64 * group : 0;
}

/* Heads that the plan has stacked have tile_rows rows of a tile each, a power of two. */

/* The row of its head that row `at` of a tile is. */
static __device__ __forceinline__ int sm90_row_of_head(const struct attention_params &p, int at) {
    return p.stack > 1 ? at & (p.tile_rows - 1) : at;
}

/* The queries of an item's head from row `at` of its tile on: there may be none. */
struct sm90_queries {
    int32_t head, row, rows;
};
static __device__ __forceinline__ struct sm90_queries
sm90_queries_of(const struct attention_params &p, int32_t head, int32_t row, int32_t rows, int at) {
    const int of_head = sm90_row_of_head(p, at);
    const int number = p.stack > 1 ? at >> (__ffs(p.tile_rows) - 1) : 0;
    return {head + number, row + of_head, number < p.stack ? rows - of_head : 0};
}

/* Those of the 16 rows of a warp, 8 and 8: of two heads, where tiles have 8 rows of each. */
template <class shape>
static __device__ __forceinline__ void
sm90_queries_of_warp(struct sm90_queries (&of)[2], const struct attention_params &p,
                     const struct granule_item &item, int at) {
    of[0] = sm90_queries_of(p, item.head, item.row, item.rows, at);
    of[1] = {of[0].head, of[0].row + 8, of[0].rows - 8};
    if (shape::GROUPS == 1)
        of[1] = sm90_queries_of(p, item.head, item.row, item.rows, at + 8);
}

/* Where the mask groups of a step stand. More steps than K has stages: they are left before the stage
 * is free. */
template <class shape>
static __device__ __forceinline__ struct granule_group (
    &sm90_groups(char *memory, uint32_t step))[shape::GRANULES] {
    typedef struct granule_group of_step[shape::GRANULES];
    return reinterpret_cast<of_step *>(memory + shape::MASKS)[step % shape::MASKS_OF];
}

/* Where the job-th item of a block stands. */
template <class shape>
static __device__ __forceinline__ struct granule_item &sm90_item(char *memory, uint32_t job) {
    return reinterpret_cast<struct granule_item *>(memory + shape::ITEMS)[job % SM90_JOBS];
}

/* The maximum and the sum, in base 2, of row `row` of a tile, for who stores its O. */
template <class shape> static __device__ __forceinline__ float2 &sm90_sums(char *memory, int row) {
    return reinterpret_cast<float2 *>(memory + shape::SUMS)[row];
}

template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_barriers_make(uint32_t shared) {
    const uint32_t fillers = SOURCE == SM90_COPIES ? 64 : 1; /* threads */
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_make(shared + shape::K_FULL + 8 * i, fillers);
        barrier_make(shared + shape::V_FULL + 8 * i, fillers);
        barrier_make(shared + shape::K_EMPTY + 8 * i, 4 * shape::GROUPS); /* warps */
        barrier_make(shared + shape::V_EMPTY + 8 * i, shape::GROUPS);
    }
    for (int i = 0; i < shape::SLOTS; i++) {
        barrier_make(shared + shape::Q_FULL + 8 * i, fillers);
        barrier_make(shared + shape::Q_EMPTY + 8 * i, shape::GROUPS);
    }
    for (int i = 0; i < shape::GROUPS; i++) {
        barrier_make(shared + shape::O_FULL + 8 * i, 128);
        barrier_make(shared + shape::O_EMPTY + 8 * i, 32);
    }
    if (shape::BLOCKS > 1) {
        barrier_make(shared + shape::S_FULL, 1);
        barrier_make(shared + shape::S_EMPTY, 4 * shape::GROUPS); /* warps of the other */
    }
    barrier_made();
}

#endif
