/*
 * Fused attention for 16-bit types on Hopper. One block of three warpgroups on each multiprocessor
 * goes through the items that the plan has assigned to it; a query tile has 128 rows, a step 128 places
 * of its granules, or 64 where O takes the registers of more than 128 dims. One warpgroup fetches,
 * ahead and without regard to items; the other two compute, 64 rows each. For lists of 192 rows
 * there are shapes with a third that computes, and steps of 64 places.
 *
 * Shared memory, in KB for heads of                                       and of 192 rows
 *                             64       128      192      256    192/128     64    128 dims
 *
 *   Q [SLOTS][ROWS][D_QK]   2 x 16   2 x 32   2 x 48       64       48  2 x 24     48   being
 *                                                                  computed; the next
 *   O [ROWS][64 O_PANELS]       16       32       16       16       16      24     24   rounded,
 *                                                                  on its way out
 *   K [STAGES][KEYS][D_QK]  4 x 16   2 x 32   2 x 24   2 x 32   2 x 48   4 x 8  4 x 16
 *   V [STAGES][KEYS][D_V]   4 x 16   2 x 32   2 x 24   2 x 32   2 x 32   4 x 8  4 x 16
 *   barriers, JOBS items and their halves, the masks of steps, maxima and sums of O's rows
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
 *   k_alone, v_alone   as k_full, v_full   the same               the one whose step it is alone
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
 * one, O goes out before its scores. Where granules are smaller than 64 keys, or many of them one
 * warpgroup's alone, so may steps be, and the other has the next (consumer_gather.cuh). With one slot of Q, the next item's comes
 * while the last P V is computed and O goes out, and S(0) stands in a line of its own.
 *
 * Heads of up to 64 dims have products that take no longer than exponentials, and two warpgroups that
 * are left to themselves end in step, at products together and then at softmax. Where boxes fetch,
 * long items therefore have two tiles of scores, S(i + 1) beside P(i - 1) V(i - 1) under the softmax
 * of S(i); in short ones the warpgroups hand in their products one after the other.
 */
#ifndef TESSERA_CUDA_SM90_CONFIG_CUH
#define TESSERA_CUDA_SM90_CONFIG_CUH

#include "forward/gather.cuh"
#include "forward/combine.cuh"
#include "device/sm90/tma.cuh"

#define SM90_PACKED 128          /* rows of a tile of heads that the plan has stacked */
#define SM90_SHARED (227 * 1024) /* what a block of Hopper can have */
/* Items in shared memory: one is read until its O is out, when its slot of Q may hold the item after
 * the next. */
#define SM90_JOBS 4
/* Steps without masks from which on an item's are computed with two tiles of scores, where there are
 * registers for them; items of fewer are handed in by turns. */
#define SM90_LONG 32

/* Who fetches: boxes of 64 consecutive keys, for granules of that size; boxes of a granule of 16, 32
 * or, in turns, 64 keys each; or copies of 16 bytes, for granules of any size. */
enum { SM90_TMA, SM90_TMA_GRANULE, SM90_CP_ASYNC };
#define SM90_TMA_GRANULE_BITS 4 /* of the smallest piece */

/* What computing warps have to know of a step's masks, written with K where boxes fetch granules of
 * 64 keys: a word of each granule for each warp (mask.cuh), and the place of its bits. */
template <int WARPS> struct sm90_masks {
    uint2 words[WARPS];
    int64_t bits[2];
};

/* Of a kernel for heads of these dims, 32 or multiples of 64, by so many warpgroups that compute; in
 * each block of a cluster, where that has several. Tiles are panels of 64 columns. */
template <int DIMS_QK, int DIMS_V, int N_CONSUMERS = 2, int CLUSTER = 1> struct sm90_shape {
    static constexpr int D_QK = DIMS_QK, D_V = DIMS_V, CONSUMERS = N_CONSUMERS, CTAS = CLUSTER;
    static constexpr int DIM_SPLIT =
        D_V > 256 ? CONSUMERS : 1; /* warpgroups to a row: dims are divided */
    static constexpr int ROWS = 64 * CONSUMERS / DIM_SPLIT, THREADS = 128 * (1 + CONSUMERS);
    static constexpr int BITS = D_V > 128 || CONSUMERS > 2 ? 6 : 7,
                         KEYS = 1 << BITS;              /* of a step */
    static constexpr int GRANULES = KEYS / GRANULE_MAX; /* of a step, where they have that size */
    static constexpr int STAGES = DIM_SPLIT > 1 ? 1 : D_QK > 64 && CONSUMERS == 2 ? 2 : 4;
    /* Floats of a thread's scores and outputs; of the scores that one of two adds up. */
    static constexpr int SCORES = KEYS / 2, OUTPUTS = D_V / 2 / DIM_SPLIT, HALF_SCORES = SCORES / 2;
    static constexpr int QK_PANELS = (D_QK + 63) / 64, V_PANELS = (D_V + 63) / 64;
    static constexpr int O_PANELS = D_QK > 128 || CONSUMERS > 2 ? 1 : V_PANELS; /* out at a time */
    static constexpr int Q_PANEL = ROWS * 128, PANEL = KEYS * 128; /* bytes; of K and V */
    static constexpr int Q_TILE = QK_PANELS * Q_PANEL;
    static constexpr int O_CONSUMER = O_PANELS * 64 * 128, O_TILE = CONSUMERS * O_CONSUMER;
    static constexpr int S_TILE = CTAS == 1 ? 0 : 128 * 4 * SCORES;
    static_assert(DIM_SPLIT == 1 || O_CONSUMER >= 128 * 4 * HALF_SCORES,
                  "half of the scores, while O is computed");
    static constexpr int K_TILE = QK_PANELS * PANEL, V_TILE = V_PANELS * PANEL;
    static constexpr int BESIDE_Q = O_TILE + STAGES * (K_TILE + V_TILE) + 2048;
    static constexpr int Q_STAGES =
        DIM_SPLIT == 1 && BESIDE_Q + 2 * Q_TILE <= SM90_SHARED ? 2 : 1; /* of Q */
    static constexpr int Q = 0, O = Q_STAGES * Q_TILE, K = O + O_TILE, V = K + STAGES * K_TILE;
    static constexpr int S = V + STAGES * V_TILE, BARRIERS = S + S_TILE;
    static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr int V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES;
    static constexpr int Q_FULL = V_EMPTY + 8 * STAGES, Q_EMPTY = Q_FULL + 8 * Q_STAGES;
    static constexpr int O_FULL = Q_EMPTY + 8 * Q_STAGES, O_EMPTY = O_FULL + 8 * CONSUMERS;
    static constexpr int S_FULL = O_EMPTY + 8 * CONSUMERS, S_EMPTY = S_FULL + 8;
    static constexpr int ITEMS = S_EMPTY + 8;
    static constexpr int MASKS = ITEMS + SM90_JOBS * (int)sizeof(struct granule_item);
    typedef struct sm90_masks<ROWS / 16> masks;
    static constexpr int K_FULL_SINGLE = MASKS + 2 * STAGES * (int)sizeof(masks);
    static constexpr int V_FULL_SINGLE = K_FULL_SINGLE + 8 * CONSUMERS * STAGES;
    static constexpr int CONSUMER_INFO = V_FULL_SINGLE + 8 * CONSUMERS * STAGES;
    static constexpr int SUMS =
        CONSUMER_INFO + SM90_JOBS * (int)sizeof(struct granule_consumer_info);
    static constexpr int BYTES = SUMS + ROWS * (int)sizeof(float2);
    static constexpr bool TWO_SCORE_TILES =
        D_V <= 64 && CONSUMERS == 2; /* two tiles of scores fit */
    static_assert(BYTES <= SM90_SHARED, "what a block of Hopper can have");
    /* Registers of a thread that computes, and that fetches: by boxes, pieces, copies. */
    static constexpr int CONSUMER_REGISTERS[3] = {CONSUMERS > 2   ? 152
                                                  : DIM_SPLIT > 1 ? 224
                                                                  : 232,
                                                  232,
                                                  CONSUMERS > 2 ? 152
                                                  : D_V > 128   ? 224
                                                                : 216};
    static constexpr int PRODUCER_REGISTERS[3] = {DIM_SPLIT > 1 ? 56 : 40, 40,
                                                  CONSUMERS > 2 || D_V > 128 ? 56 : 72};
    /* Whether a step is a chunk, of which a half of the tile's rows may have its turn (order.h). */
    static constexpr bool SINGLE_STEPS = KEYS == SCHEDULE_CHUNK && CONSUMERS == 2;
    static_assert(CTAS <= DIM_SPLIT && DIM_SPLIT <= 2, "dims are divided by two, and again by two");
};

/* Whether warpgroups have turns. */
template <class shape, int SOURCE>
static __device__ __forceinline__ constexpr bool sm90_has_single_steps(void) {
    return SOURCE != SM90_TMA && shape::SINGLE_STEPS;
}

/* granule_single_consumer on the device: the half that alone lists keys of step `at`; -1: both may. */
static __device__ __forceinline__ int
sm90_single_consumer(const struct granule_single_steps &single_steps, int32_t at) {
    if (at < single_steps.begin || at >= single_steps.tail_end)
        return -1;
    return at < single_steps.end ? (at - single_steps.begin) % 2 : single_steps.tail_consumer;
}

/* The tensors as boxes see them: K and V by one granule, and by two that are neighbours; O by the
 * rows of a warpgroup. */
struct sm90_maps {
    CUtensorMap q, k[2], v[2], o;
    bool tma_q, tma_o; /* whether boxes reach Q, and O */
};

/* Where the index-th use of a ring's stage is, and the parity of its phase. */
template <int STAGES> static __device__ __forceinline__ uint32_t ring_stage(uint32_t index) {
    return index % STAGES;
}
template <int STAGES> static __device__ __forceinline__ uint32_t ring_parity(uint32_t index) {
    return index / STAGES & 1;
}

/* Heads that the plan has stacked: a tile has as many rows of each, 128 or all of its rows
 * together. */
template <class shape>
static __device__ __forceinline__ int sm90_packed_heads(const struct attention_params &p) {
    return max(1, min(shape::ROWS, SM90_PACKED) / p.tile_rows);
}

/* Which block of its cluster this is. */
template <class shape> static __device__ __forceinline__ int sm90_rank(void) {
    return (int)(blockIdx.x % shape::CTAS);
}

/* The first row of a warpgroup in its tile. */
template <class shape> static __device__ __forceinline__ int sm90_consumer_row(int consumer) {
    return shape::DIM_SPLIT == 1 ? 64 * consumer : 0;
}

/* The row of its head that row `at` of a tile is. */
static __device__ __forceinline__ int sm90_row_of_head(const struct attention_params &p, int at) {
    return p.tile_rows < SM90_PACKED ? at & (p.tile_rows - 1) : at;
}

/* The queries of an item's head from row `at` of its tile on: there may be none. */
struct sm90_queries {
    int32_t head, row, rows;
};
static __device__ __forceinline__ struct sm90_queries
sm90_queries_of(const struct attention_params &p, int32_t head, int32_t row, int32_t rows, int at) {
    const int of_head = sm90_row_of_head(p, at);
    const int number = p.tile_rows < SM90_PACKED ? at >> (__ffs(p.tile_rows) - 1) : 0;
    return {head + number, row + of_head, rows - of_head};
}

/* Where the masks of a step stand. More than K has stages: they are left before the stage is free. */
template <class shape>
static __device__ __forceinline__ typename shape::masks &sm90_masks_of(char *memory,
                                                                       uint32_t step) {
    return reinterpret_cast<typename shape::masks *>(memory +
                                                     shape::MASKS)[step % (2 * shape::STAGES)];
}

/* Where the job-th item of a block stands. */
template <class shape>
static __device__ __forceinline__ struct granule_item &sm90_item(char *memory, uint32_t job) {
    return reinterpret_cast<struct granule_item *>(memory + shape::ITEMS)[job % SM90_JOBS];
}

template <class shape>
static __device__ __forceinline__ struct granule_consumer_info &sm90_consumer_info(char *memory,
                                                                                   uint32_t job) {
    return reinterpret_cast<struct granule_consumer_info *>(memory +
                                                            shape::CONSUMER_INFO)[job % SM90_JOBS];
}

/* The maximum and the sum, in base 2, of row `row` of a tile, for who stores its O. */
template <class shape> static __device__ __forceinline__ float2 &sm90_sums(char *memory, int row) {
    return reinterpret_cast<float2 *>(memory + shape::SUMS)[row];
}

template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_barriers_make(uint32_t shared) {
    const uint32_t producers = SOURCE == SM90_CP_ASYNC ? 64 : 1; /* threads */
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_init(shared + shape::K_FULL + 8 * i, producers);
        barrier_init(shared + shape::V_FULL + 8 * i, producers);
        barrier_init(shared + shape::K_EMPTY + 8 * i,
                     (SOURCE == SM90_TMA ? 4 : 1) * shape::CONSUMERS); /* warps */
        barrier_init(shared + shape::V_EMPTY + 8 * i, shape::CONSUMERS);
    }
    for (int i = 0; sm90_has_single_steps<shape, SOURCE>() && i < shape::CONSUMERS * shape::STAGES;
         i++) {
        barrier_init(shared + shape::K_FULL_SINGLE + 8 * i, producers);
        barrier_init(shared + shape::V_FULL_SINGLE + 8 * i, producers);
    }
    for (int i = 0; i < shape::Q_STAGES; i++) {
        barrier_init(shared + shape::Q_FULL + 8 * i, producers);
        barrier_init(shared + shape::Q_EMPTY + 8 * i, shape::CONSUMERS);
    }
    for (int i = 0; i < shape::CONSUMERS; i++) {
        barrier_init(shared + shape::O_FULL + 8 * i, 128);
        barrier_init(shared + shape::O_EMPTY + 8 * i, 32);
    }
    if (shape::CTAS > 1) {
        barrier_init(shared + shape::S_FULL, 1);
        barrier_init(shared + shape::S_EMPTY, 4 * shape::CONSUMERS); /* warps of the other */
    }
    barrier_init_fence();
}

#endif
