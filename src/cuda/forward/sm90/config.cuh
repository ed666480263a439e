/*
 * Fused attention for 16-bit types on Hopper: a persistent, warp-specialised kernel. One CTA of three
 * warpgroups on each multiprocessor goes through the items that the plan assigned to it. Warpgroup 0 is the
 * producer; warpgroups 1 and 2 are consumers of 64 rows each. A query tile has M = 128 rows. A step has N = 128
 * keys, or 64 where O takes the registers of over 128 dims:
 *
 *   S [M, N]   = Q [M, D_QK] K [N, D_QK]^T      WGMMA, 64 rows a consumer
 *   P [M, N]   = exp2(scale S - row max)        online softmax, in registers
 *   O [M, D_V] += P [M, N] V [N, D_V]           WGMMA, P from registers
 *
 * Keys come as granules: KV chunks of up to 64 consecutive keys (lists/granules.h). Places of a
 * step past a granule's keys count as keys that no row lists. Row masks come as mask groups of 64
 * places each: bits in accumulator-fragment layout (lists/mask_groups.h).
 *
 * Lists of 192 rows have a shape with a third consumer and steps of 64 keys; by TMA, heads of up to 64 dims have
 * steps of 128 keys, of as many bytes in half the stages (LONG). Tiles of up to 64 rows
 * have a shape with one consumer and steps of 64 keys. Two such CTAs share a multiprocessor, with
 * heads of up to 64 dims three, of up to 32 four. Each CTA has items, list and K/V ring of its own, and softmax of
 * one CTA overlaps WGMMAs of the others. Rows past those of the tile are zeros in Q.
 *
 * Shared memory, in KB for heads of                               and tiles of 192 rows
 *                              64   128   192   256  192/128     64    128 dims
 *
 *   Q [Q_STAGES][ROWS][D_QK]  2x16  2x32  2x48    64       48   2x24     48
 *   O [ROWS][64 O_PANELS]       16    32    16    16       16     24     24
 *   K [STAGES][KEYS][D_QK]    4x16  2x32  2x24  2x32     2x48    4x8   4x16
 *   V [STAGES][KEYS][D_V]     4x16  2x32  2x24  2x32     2x32    4x8   4x16
 *
 *   the same, tiles of 64      32    64   128   192   256  192/128
 *
 *   Q                            8   2x8  2x16  2x24    32       24
 *   O                            8     8    16     8     8        8
 *   K                          2x8   3x8  2x16    24    32     2x24
 *   V                          2x8   3x8  2x16    24    32     2x16
 *
 * and mbarriers, SM90_JOBS items, row maxima and sums. With one stage of K, the other CTA's
 * products are computed while the next keys are loaded.
 *
 * O is staged there, rounded, for the epilogue. Heads of 32 dims have panels of 64 columns. The other columns
 * are zeros in Q, K and V, not multiplied, and not stored in O.
 *
 * Wide heads, of more than 256 dims of V, have tiles of 64 rows, steps of 64 keys and one stage.
 * With 512 dims, Q, K and V take 64 KB each. Dims are divided between the two consumers
 * (DIM_SPLIT). Each consumer has all rows, half of each panel of Q and K, and half of the panels of
 * V and O. The consumers add up their partial scores in the memory of O, so both get all of P. With
 * one stage, Q K^T and P V alternate: one tile is multiplied while the next tile of the other is
 * loaded. Heads of more than 512 dims are divided once more, between the two CTAs of a cluster,
 * which have besides
 *
 *   S [64][KEYS], f32, 16 KB: partial scores of the other CTA, before they are added
 *
 * Rings and mbarriers. The K ring, here of 2 stages; the V ring likewise, with P V:
 *
 *   time      1            2            3            4            5
 *   stage 0   load K(0)    Q K^T (0)    load K(2)    Q K^T (2)    load K(4)
 *   stage 1                load K(1)    Q K^T (1)    load K(3)    Q K^T (3)
 *
 *   load, then Q K^T       the load completes k_full[stage], for which each consumer waits
 *   Q K^T, then load       each consumer arrives at k_empty[stage], for which the producer waits
 *
 *   barrier              completed by            phase ends when            waited for by
 *   q_full               TMA | cp.async          Q and the item are there   all consumers
 *   q_empty              consumers               all have used Q            producer
 *   k_full               TMA | cp.async          K is there                 each before its Q K^T
 *   k_empty              consumers               all have their scores      producer
 *   v_full, v_empty      as k_full, k_empty      for V and P V
 *   o_full               consumer                its O and sums are staged  epilogue warp
 *   o_empty              epilogue warp           they have been read        that consumer
 *   s_full               the other CTA           its scores are there       all consumers
 *   s_empty              the other CTA's warps   our scores have been read  the next sender
 *
 * One item in a consumer; entries of one line overlap:
 *
 *   Q K^T (0)       P V of the last step of the item before
 *   softmax (0)     the same
 *   Q K^T (1)       epilogue of the item before; then P V (0)
 *   softmax (1)     P V (0); then O is rescaled where a row maximum has moved
 *   ...
 *
 * The other consumer does the same at its own pace, so softmax of one overlaps WGMMAs of the other.
 * Steps without masks come first in an item. Where the second step may have a mask, the epilogue
 * comes before its Q K^T. With one stage of Q, the next item's Q is loaded during the last P V and
 * the epilogue, and Q K^T (0) overlaps nothing.
 *
 * With up to 64 dims, WGMMAs take no longer than exponentials. Two consumers left alone fall into step: both at
 * WGMMAs, then both at softmax. Long items on the TMA path therefore hold two score tiles. Q K^T (i + 1) and P
 * V (i - 1) run under the softmax of step i. In shorter items the consumers issue their WGMMAs alternately
 * (ping-pong scheduling). So do the three of LONG, and those of column sums, in items of any length.
 */
#ifndef TESSERA_CUDA_SM90_CONFIG_CUH
#define TESSERA_CUDA_SM90_CONFIG_CUH

#include "device/copy.cuh"
#include "device/sm90/softmax.cuh"
#include "device/sm90/tma.cuh"
#include "device/swizzle.cuh"
#include "work/early.cuh"
#include "work/slots.cuh"
#include "work/views.cuh"

/* Bytes of shared memory of a multiprocessor. 1 KB of each CTA's part is reserved. */
#define SM90_SHARED_ALL (228 * 1024)
/* Items in shared memory. An item is read until its O is stored; the Q stage of that item may then
 * already hold the item after the next. */
#define SM90_JOBS 4
/* Unmasked steps from which on an item holds two score tiles, where registers allow. Shorter items
 * use ping-pong scheduling. */
#define SM90_LONG 32

/* Operand paths. TMA: one tile copy for each granule of 8 keys and more, or for two neighbouring
 * granules of 64 keys. CP_ASYNC: a gather by 16-byte copies, for granules of any size. FILLED and COLUMNS: as
 * these, of lists that a fill has written (filled/config.cuh, filled/columns/config.cuh). */
enum { SM90_TMA, SM90_CP_ASYNC, SM90_FILLED, SM90_COLUMNS };

static __host__ __device__ __forceinline__ constexpr bool sm90_gathers(int path) {
    return path == SM90_CP_ASYNC || path == SM90_COLUMNS;
}
static __host__ __device__ __forceinline__ constexpr bool sm90_is_filled(int path) {
    return path == SM90_FILLED || path == SM90_COLUMNS;
}

/* Named barriers. Consumers that divide dims exchange scores and take no turns (ping-pong). */
enum {
    SM90_CONSUMER = 1, /* and on: the threads of one consumer */
    SM90_EXCHANGE = 3,
    SM90_TURN = 4, /* and on: whose turn it is */
};
#define SM90_BOTH 256 /* threads of two consumers */

/* Bases of weights in runs with column sums: running maxima, or references (column_sums.cuh). */
enum { SM90_NO_SUMS, SM90_SUMS_BY_MAXIMA, SM90_SUMS_BY_REFERENCES };
#define SM90_SUMS_RAISE 20.0f /* log2 of what P is raised by, by references */

/* Config of a kernel for heads of these dims, 32 or multiples of 64. N_CONSUMERS: consumer
 * warpgroups of a CTA. CLUSTER: CTAs that share a tile's dims. Tiles in shared memory are panels of
 * 64 columns. COLUMN_SUMS: with slabs for column sums (column_sums.cuh), for which Q has one stage and O one panel.
 * LONG_STEPS: steps of 128 keys for three consumers, whose registers hold no masks ahead. */
template <int DIMS_QK, int DIMS_V, int N_CONSUMERS = 2, int CLUSTER = 1,
          int COLUMN_SUMS = SM90_NO_SUMS, bool LONG_STEPS = false>
struct sm90_shape {
    static constexpr bool SUMMED = COLUMN_SUMS != SM90_NO_SUMS, LONG = LONG_STEPS;
    static constexpr bool BY_REFERENCES = COLUMN_SUMS == SM90_SUMS_BY_REFERENCES;
    static constexpr int D_QK = DIMS_QK, D_V = DIMS_V, CONSUMERS = N_CONSUMERS, CTAS = CLUSTER;
    static constexpr int DIM_SPLIT =
        D_V > 256 ? CONSUMERS : 1; /* consumers that share a row: dims are divided */
    static constexpr int ROWS = 64 * CONSUMERS / DIM_SPLIT, THREADS = 128 * (1 + CONSUMERS);
    /* CTAs resident on a multiprocessor, each with items of its own. */
    static constexpr int RESIDENT = CONSUMERS > 1 ? 1 : D_QK > 64 ? 2 : D_QK > 32 ? 3 : 4;
    /* Bytes of shared memory that a CTA can have. */
    static constexpr int ROOM = SM90_SHARED_ALL / RESIDENT / 128 * 128 - 1024;
    static constexpr int BITS = LONG || (D_V <= 128 && CONSUMERS == 2) ? 7 : 6,
                         KEYS = 1 << BITS; /* keys of a step */
    /* Granules of 64 keys in a step, and mask groups. */
    static constexpr int GRANULES = KEYS / GRANULE_MAX;
    /* Floats of a thread: scores of a step, outputs, and scores that one of two consumers adds
     * up. */
    static constexpr int SCORES = KEYS / 2, OUTPUTS = D_V / 2 / DIM_SPLIT, HALF_SCORES = SCORES / 2;
    /* WGMMAs of P V that share O: ptxas counts the registers of one as if setmaxnreg gave none. */
    static constexpr int O_PARTS = RESIDENT == 2 && OUTPUTS > 96 ? 2 : 1;
    static constexpr int QK_PANELS = (D_QK + 63) / 64, V_PANELS = (D_V + 63) / 64;
    static constexpr int O_PANELS =
        D_QK > 128 || CONSUMERS > 2 || SUMMED ? 1 : V_PANELS; /* panels of O staged at a time */
    static constexpr int Q_PANEL = ROWS * 128, PANEL = KEYS * 128; /* bytes; PANEL: of K and V */
    static constexpr int Q_TILE = QK_PANELS * Q_PANEL;
    static constexpr int O_CONSUMER = O_PANELS * 64 * 128, O_TILE = CONSUMERS * O_CONSUMER;
    static constexpr int S_TILE = CTAS == 1 ? 0 : 128 * 4 * SCORES;
    static_assert(DIM_SPLIT == 1 || O_CONSUMER >= 128 * 4 * HALF_SCORES,
                  "half of the scores, while O is computed");
    static constexpr int K_TILE = QK_PANELS * PANEL, V_TILE = V_PANELS * PANEL;
    /* Stages of K and V. With one consumer, as many as there is room for. */
    static constexpr int STAGES = DIM_SPLIT > 1 ? 1
                                  : CONSUMERS == 1
                                      ? (ROOM - 1024 - Q_TILE - O_TILE) / (K_TILE + V_TILE)
                                  : LONG || (D_QK > 64 && CONSUMERS == 2) ? 2
                                                                          : 4;
    static constexpr int BESIDE_Q = O_TILE + STAGES * (K_TILE + V_TILE) + 1024;
    static constexpr int Q_STAGES =
        DIM_SPLIT == 1 && !SUMMED && BESIDE_Q + 2 * Q_TILE <= ROOM ? 2 : 1;
    static constexpr int Q = 0, O = Q_STAGES * Q_TILE, K = O + O_TILE, V = K + STAGES * K_TILE;
    static constexpr int S = V + STAGES * V_TILE;
    /* A consumer's slab: eight rows of a step's keys for each warp. */
    static constexpr int SLAB = 4 * 8 * KEYS * (int)sizeof(float), SLABS = S + S_TILE;
    static constexpr int BARRIERS = SLABS + SUMMED * CONSUMERS * SLAB;
    static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr int V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES;
    static constexpr int Q_FULL = V_EMPTY + 8 * STAGES, Q_EMPTY = Q_FULL + 8 * Q_STAGES;
    static constexpr int O_FULL = Q_EMPTY + 8 * Q_STAGES, O_EMPTY = O_FULL + 8 * CONSUMERS;
    static constexpr int S_FULL = O_EMPTY + 8 * CONSUMERS, S_EMPTY = S_FULL + 8;
    static constexpr int ITEMS = S_EMPTY + 8;
    static constexpr int SUMS = ITEMS + SM90_JOBS * (int)sizeof(struct granule_item);
    static constexpr int SLAB_FULL = SUMS + ROWS * (int)sizeof(float2);
    static constexpr int SLAB_EMPTY = SLAB_FULL + SUMMED * 8 * CONSUMERS;
    static constexpr int BYTES = SLAB_EMPTY + SUMMED * 8 * CONSUMERS;
    static constexpr bool TWO_SCORE_TILES =
        D_V <= 64 && CONSUMERS == 2; /* registers hold two score tiles */
    /* Consumers issue WGMMAs alternately (ping-pong scheduling). */
    static constexpr bool TURNS = TWO_SCORE_TILES || SUMMED || LONG;
    static_assert(BYTES <= ROOM, "what a CTA of Hopper can have");
    /* Registers of a thread, by operand path; COLUMNS: as CP_ASYNC. */
    static constexpr int CONSUMER_REGISTERS[3] = {RESIDENT == 4             ? 96
                                                  : RESIDENT == 3           ? 128
                                                  : RESIDENT == 2           ? 216
                                                  : LONG                    ? 160
                                                  : CONSUMERS > 2           ? 152
                                                  : DIM_SPLIT > 1 || SUMMED ? 224
                                                                            : 232,
                                                  RESIDENT == 4   ? 96
                                                  : RESIDENT == 3 ? 120
                                                  : RESIDENT == 2 ? (D_V > 128 ? 216 : 184)
                                                  : CONSUMERS > 2 ? 152
                                                  : D_V > 128     ? 224
                                                                  : 216,
                                                  RESIDENT == 3   ? 120
                                                  : RESIDENT == 2 ? 208
                                                                  : 224};
    static constexpr int PRODUCER_REGISTERS[3] = {DIM_SPLIT > 1 || SUMMED ? 56
                                                  : LONG                  ? 32
                                                  : RESIDENT == 4         ? 32
                                                  : RESIDENT == 3         ? 32
                                                                          : 40,
                                                  RESIDENT == 4                ? 32
                                                  : RESIDENT == 3              ? 40
                                                  : RESIDENT == 2 && D_V > 128 ? 40
                                                  : CONSUMERS > 2 || D_V > 128 ? 56
                                                                               : 72,
                                                  RESIDENT == 3   ? 40
                                                  : RESIDENT == 2 ? 48
                                                                  : 56};
    static_assert(CTAS <= DIM_SPLIT && DIM_SPLIT <= 2, "dims are divided by two, and again by two");
};

/* The config of a consumer that takes its steps from one operand path. MODIFIES: scores or weights are
 * modified one by one (modify.cuh). SERIAL: WGMMAs of a consumer overlap nothing of its own, where
 * registers are short. */
template <class config, int PATH, bool MODIFIES> struct sm90_path : config {
    static constexpr int SOURCE = PATH;
    static constexpr bool MODIFIED = MODIFIES;
    static constexpr bool SERIAL = config::DIM_SPLIT > 1 ||
                                   (sm90_gathers(PATH) &&
                                    (config::O_PARTS > 1 || config::RESIDENT == 4)) ||
                                   (MODIFIES && (sm90_gathers(PATH) || config::D_V > 128 ||
                                                 config::CONSUMERS == 3 || config::RESIDENT >= 3));
};

/* Tensor maps. K and V: tiles of one granule, and of two neighbouring granules. O: tiles of a
 * consumer's rows. */
struct sm90_maps {
    CUtensorMap q, k[2], v[2], o;
    bool tma_q, tma_o; /* whether TMA can load Q, and store O */
};

/* Rank of this CTA in its cluster. */
template <class shape> DEVICE int sm90_rank(void) {
    return (int)(blockIdx.x % shape::CTAS);
}

/* First row of a consumer in its tile. */
template <class shape> DEVICE int sm90_consumer_row(int consumer) {
    return shape::DIM_SPLIT == 1 ? 64 * consumer : 0;
}

/* Row within its head of row `at` of a tile. Packed query heads (GQA packing) have tile_rows rows
 * each, a power of two. */
DEVICE int sm90_row_of_head(const struct attention_params &p, int at) {
    return p.tile_heads > 1 ? at & (p.tile_rows - 1) : at;
}

/* Queries of an item from row `at` of its tile on, within one head: head, first row, and how many;
 * <= 0: none. */
struct sm90_queries {
    int32_t head, row, rows;
};
DEVICE struct sm90_queries sm90_queries_of(const struct attention_params &p, int32_t head,
                                           int32_t row, int32_t rows, int at) {
    const int of_head = sm90_row_of_head(p, at);
    const int number = p.tile_heads > 1 ? at >> (__ffs(p.tile_rows) - 1) : 0;
    return {head + number, row + of_head, number < p.tile_heads ? rows - of_head : 0};
}

/* Queries of a warp's 16 rows from row `at` of the tile on, 8 rows each: of two heads where packed
 * heads have 8 rows. */
template <class shape>
DEVICE void sm90_queries_of_warp(struct sm90_queries (&queries)[2],
                                 const struct attention_params &p, const struct granule_item &item,
                                 int at) {
    queries[0] = sm90_queries_of(p, item.head, item.row, item.rows, at);
    queries[1] = {queries[0].head, queries[0].row + 8, queries[0].rows - 8};
    if (shape::CONSUMERS == 1)
        queries[1] = sm90_queries_of(p, item.head, item.row, item.rows, at + 8);
}

/* Place of the job-th item of this CTA. */
template <class shape> DEVICE struct granule_item &sm90_item(char *memory, uint32_t job) {
    return reinterpret_cast<struct granule_item *>(memory + shape::ITEMS)[job % SM90_JOBS];
}

/* Maximum and sum, base 2, of row `row` of a tile, for the warp that stores lse. */
template <class shape> DEVICE float2 &sm90_sums(char *memory, int row) {
    return reinterpret_cast<float2 *>(memory + shape::SUMS)[row];
}

template <class shape, int SOURCE> DEVICE void sm90_barriers_make(uint32_t shared) {
    const uint32_t producers = sm90_gathers(SOURCE) ? 64 : 1; /* threads */
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_init(shared + shape::K_FULL + 8 * i, producers);
        barrier_init(shared + shape::V_FULL + 8 * i, producers);
        barrier_init(shared + shape::K_EMPTY + 8 * i, shape::CONSUMERS);
        barrier_init(shared + shape::V_EMPTY + 8 * i, shape::CONSUMERS);
    }
    for (int i = 0; i < shape::Q_STAGES; i++) {
        barrier_init(shared + shape::Q_FULL + 8 * i, producers);
        barrier_init(shared + shape::Q_EMPTY + 8 * i, shape::CONSUMERS);
    }
    for (int i = 0; i < shape::CONSUMERS; i++) {
        barrier_init(shared + shape::O_FULL + 8 * i, 128);
        barrier_init(shared + shape::O_EMPTY + 8 * i, 32);
    }
    for (int i = 0; i < shape::CONSUMERS && shape::SUMMED; i++) {
        barrier_init(shared + shape::SLAB_FULL + 8 * i, 4); /* warps */
        barrier_init(shared + shape::SLAB_EMPTY + 8 * i, 2);
    }
    if (shape::CTAS > 1) {
        barrier_init(shared + shape::S_FULL, 1);
        barrier_init(shared + shape::S_EMPTY, 4 * shape::CONSUMERS); /* warps of the other CTA */
    }
    barrier_init_fence();
}

#endif
