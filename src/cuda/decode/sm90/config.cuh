/*
 * Decode on Hopper: tiles of 64 rows, by WGMMA. A CTA of four warpgroups takes an item; in a step it
 * weighs KEYS keys:
 *
 *   warpgroup   0: rows of K and V           1: S, P             2, 3: half of O's dims each
 *
 *   step n      gathers up to step           S = Q K^T (n + 1)   O += P V (n - 1)
 *               n + STAGES - 1               softmax, P (n)
 *
 *   S [64, KEYS]     = Q [64, D] K [KEYS, D]^T         both from shared memory
 *   P [64, KEYS]     = exp2(scale S - row max)         online softmax, in registers
 *   O [64, DV / 2]  += P [64, KEYS] V [KEYS, DV / 2]   P from registers
 *
 * One warpgroup has all scores, so neither sums nor maxima are exchanged, and none is computed twice. P
 * goes through shared memory with what O is rescaled by. V_IN_K: v is the first dims of k, and one panel
 * serves both products. Tiles are panels of 64 columns:
 *
 *   | stage 0: K [D / 64][KEYS][64] V [DV / 64][KEYS][64] | ... | Q [D / 64][64][64] | P [64][KEYS] |
 *   | factors | sums | kept | places | ... | mbarriers |
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
#include "forward/sm90/softmax.cuh"

/* D dims of q and k, DV of v. SHARED: v is the first dims of k. */
template <class TYPE, int DIMS, int DIMS_V, bool SHARED> struct decode_sm90_shape {
    using T = TYPE;
    static constexpr bool SPLIT = false; /* q of f32, decode/config.cuh */
    static constexpr int ROWS_LANE = 2, ROWS_GROUP = 16;
    static constexpr int D = DIMS, DV = DIMS_V, M = 64, KEYS = 32, THREADS = 512;
    static constexpr bool V_IN_K = SHARED;
    static constexpr int STAGES = SHARED ? 4 : 2;
    static constexpr int TILES = KEYS / 8;     /* of a warp's scores */
    static constexpr int DIMS_O = DV / 2;      /* of a warpgroup */
    static constexpr int ROWS_WARP = KEYS / 4; /* that a warp of the producer gathers */
    static constexpr int FILLERS = 128 + 4;    /* of a stage: threads by their copies, and warps */
    static constexpr int PANEL = KEYS * 128, Q_PANEL = M * 128; /* bytes */
    static constexpr int K_PANELS = D / 64, V_PANELS = DV / 64;
    static constexpr int V = SHARED ? 0 : K_PANELS * PANEL; /* in a stage */
    static constexpr int STAGE = (K_PANELS + (SHARED ? 0 : V_PANELS)) * PANEL;
    static constexpr int Q = STAGES * STAGE, P = Q + K_PANELS * Q_PANEL;
    static constexpr int FACTORS = P + Q_PANEL, MOVED = FACTORS + M * (int)sizeof(float);
    static constexpr int SUMS = MOVED + 4 * (int)sizeof(int32_t);
    static constexpr int KEPT_WARP = KEYS / 2; /* words: 8 keys by 16 rows take four */
    static constexpr int KEPT = SUMS + M * (int)sizeof(float2);
    static constexpr int PLACES = KEPT + 4 * KEPT_WARP * (int)sizeof(uint32_t);
    static constexpr int PARTIAL = PLACES + STAGES * KEYS * (int)sizeof(struct decode_place);
    static constexpr int BARRIERS = PARTIAL + STAGES * 4 * (int)sizeof(uint32_t);
    static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr int V_FULL = SHARED ? K_FULL : K_EMPTY + 8 * STAGES;
    static constexpr int V_EMPTY = SHARED ? K_EMPTY : V_FULL + 8 * STAGES;
    static constexpr int P_FULL = K_EMPTY + 8 * STAGES * (SHARED ? 1 : 3), P_EMPTY = P_FULL + 8;
    static constexpr int BYTES = P_EMPTY + 8;
    /* Registers of a thread. */
    static constexpr int PRODUCER = 56, SCORES = 120, OUTPUTS = 168;
    static_assert(PRODUCER + SCORES + 2 * OUTPUTS <= 512, "what a multiprocessor has");
    static_assert(BYTES <= 227 * 1024, "what a CTA of Hopper can have");
    static_assert(BARRIERS % 8 == 0 && PLACES % 16 == 0 && P % 1024 == 0, "aligned");

    /* Of a warp: its group of 16 rows, and in warpgroups 2 and 3 which half of O's dims. */
    static __device__ __forceinline__ int group(int warp) {
        return warp % 4;
    }
    static __device__ __forceinline__ int column(int warp) {
        return warp / 4 - 2;
    }
};

/* Steps of an item; one without keys has a step of empty places. */
template <class shape>
static __device__ __forceinline__ int32_t decode_sm90_steps(const struct decode_item &item) {
    const int32_t keys = (int32_t)(item.end - item.begin);
    return sm90_uniform(keys > 0 ? (keys + shape::KEYS - 1) / shape::KEYS : 1);
}

/* The barrier of a step's stage among those that begin at `first`, and the parity of its phase. */
template <class shape>
static __device__ __forceinline__ uint32_t decode_sm90_at(uint32_t first, uint32_t step) {
    return first + 8 * (step % shape::STAGES);
}
template <class shape> static __device__ __forceinline__ uint32_t decode_sm90_phase(uint32_t step) {
    return step / shape::STAGES & 1;
}

/* Arrives for a warp, after what its lanes did. */
static __device__ __forceinline__ void decode_sm90_arrive(uint32_t barrier) {
    __syncwarp();
    if (warp_lane() == 0)
        barrier_arrive(barrier);
}

template <class shape>
static __device__ __forceinline__ void decode_sm90_barriers(uint32_t shared) {
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
