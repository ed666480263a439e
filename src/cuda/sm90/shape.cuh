/*
 * Fused attention for 16-bit types on Hopper. One block of three warpgroups on each multiprocessor
 * goes through the items that the plan has dealt to it; a query tile has 128 rows, a step 128 places
 * of its granules. One warpgroup fetches, ahead and without regard to items; the other two compute,
 * 64 rows each.
 *
 * Shared memory, in bytes for D = 128 (64):
 *
 *   Q [2][128][D]        2 x 32 K (16 K)   the item being computed, and the next
 *   O [128][D]               32 K (16 K)   rounded, on its way out; 16 rows of it to each warp
 *   K [STAGES][128][D]   2 x 32 K (4 x 16 K)
 *   V [STAGES][128][D]   2 x 32 K (4 x 16 K)
 *   barriers, and JOBS items
 *
 * Barriers, one of each for every stage or slot; a phase is one use of it:
 *
 *               filled by                  phase ends when         waited for by
 *   q_full      boxes | copies             Q and the item stand    both computing warpgroups
 *   q_empty                                both have used Q        whoever fills it
 *   k_full      boxes | copies             K stands                both, each before its Q K^T
 *   k_empty                                both have their scores  whoever fills it
 *   v_full, v_empty                        the same of V and P V
 *
 * One item through a computing warpgroup; what stands in a line overlaps:
 *
 *   S(0)            with  P V of the last step of the item before
 *   softmax of S(0) with  the same; then that item's O goes out
 *   S(1)            with  P(0) V(0)
 *   softmax of S(1) with  the same; then O is rescaled where a maximum has moved
 *   ...
 *
 * The other warpgroup does the same at its own pace, so that the one's softmax meets the other's
 * products. Steps whose granules all have no mask come first in an item.
 */
#ifndef TESSERA_CUDA_SM90_SHAPE_CUH
#define TESSERA_CUDA_SM90_SHAPE_CUH

#include "attention_gather.cuh"
#include "attention_store.cuh"
#include "sm90/async.cuh"

#define SM90_ROWS 128    /* of a query tile */
#define SM90_KEYS 128    /* places of a step */
#define SM90_BITS 7      /* log2 of it */
#define SM90_THREADS 384 /* warpgroup 0 fetches, 1 and 2 compute */
#define SM90_SLOTS 2     /* of Q */
/* Items in shared memory: one is read until its O is out, when its slot of Q may hold the item after
 * the next. */
#define SM90_JOBS 4

/* Who fetches: boxes of 64 consecutive keys, for granules of that size; or copies of 16 bytes, for
 * granules of any size. */
enum { SM90_BOXES, SM90_COPIES };

template <int D> struct sm90_shape {
    static constexpr int STAGES = D > 64 ? 2 : 4;
    static constexpr int PANELS = D / 64;
    static constexpr int PANEL = SM90_ROWS * 128; /* bytes: 64 columns of a tile */
    static constexpr int TILE = PANELS * PANEL;
    static constexpr int Q = 0, O = SM90_SLOTS * TILE, K = O + TILE, V = K + STAGES * TILE;
    static constexpr int BARRIERS = V + STAGES * TILE;
    static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr int V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES;
    static constexpr int Q_FULL = V_EMPTY + 8 * STAGES, Q_EMPTY = Q_FULL + 8 * SM90_SLOTS;
    static constexpr int ITEMS = Q_EMPTY + 8 * SM90_SLOTS;
    static constexpr int BYTES = ITEMS + SM90_JOBS * (int)sizeof(struct granule_item);
    static_assert(SM90_KEYS == SM90_ROWS, "tiles of Q, K, V and O are alike");
    static_assert(BYTES <= 227 * 1024, "what a block of Hopper can have");
};

/* The tensors as boxes see them: K and V by one granule, and by two that are neighbours. */
struct sm90_maps {
    CUtensorMap q, k[2], v[2];
};

/* Where the index-th use of a ring's stage is, and the parity of its phase. */
template <int STAGES> static __device__ __forceinline__ uint32_t ring_stage(uint32_t index) {
    return index % STAGES;
}
template <int STAGES> static __device__ __forceinline__ uint32_t ring_parity(uint32_t index) {
    return index / STAGES & 1;
}

/* Where the job-th item of a block stands. */
template <int D>
static __device__ __forceinline__ struct granule_item &sm90_item(char *memory, uint32_t job) {
    return reinterpret_cast<struct granule_item *>(memory + sm90_shape<D>::ITEMS)[job % SM90_JOBS];
}

template <int D, int SOURCE>
static __device__ __forceinline__ void sm90_barriers_make(uint32_t shared) {
    using shape = sm90_shape<D>;
    /* Copies: each of a tile's 64 threads arrives; with Q also the one that writes the item. */
    const uint32_t fillers = SOURCE == SM90_COPIES ? 64 : 1;
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_make(shared + shape::K_FULL + 8 * i, fillers);
        barrier_make(shared + shape::V_FULL + 8 * i, fillers);
        barrier_make(shared + shape::K_EMPTY + 8 * i, 2);
        barrier_make(shared + shape::V_EMPTY + 8 * i, 2);
    }
    for (int i = 0; i < SM90_SLOTS; i++) {
        barrier_make(shared + shape::Q_FULL + 8 * i, SOURCE == SM90_COPIES ? fillers + 1 : 1);
        barrier_make(shared + shape::Q_EMPTY + 8 * i, 2);
    }
    barrier_made();
}

#endif
