/*
 * The fused backward with mma.sync, sm_80 and later: shapes, and a thread block's shared memory. Both
 * passes over tiles are one kernel. Rows stay in shared memory, the other side is streamed
 * (host/backward.h):
 *
 *   S [R, STEP] = X0 Y0^T    dP = X1 Y1^T    P = exp2(S - base)    dS = P (left dP - delta)
 *   dX0 [R, D] += dS Y0      over keys also dX1 += (left P) Y1
 *
 *   | Y0 [2][STEP][D] | Y1 [2][STEP][D] | granules of coming steps, what is known of queries |
 *   | X0 [M][D] | X1 [M][D] | what warps that share rows send one another |
 *
 * A warp owns R rows, from X to their gradients, so that no two warps write one sum. Or two warps share rows
 * (pair.cuh, roles.cuh), each with sums of its own. M = R times the number of warps or pairs, which the launch
 * decides: one kernel serves all heights of tiles.
 */
#ifndef TESSERA_CUDA_GRADIENT_CONFIG_CUH
#define TESSERA_CUDA_GRADIENT_CONFIG_CUH

#include "device/barrier.cuh"
#include "device/tile_f32.cuh"
#include "device/tile_groups.cuh"
#include "host/backward.h"
#include "work/gather.cuh"
#include "work/slots.cuh"

static constexpr bool type_is_f16(__half) {
    return true;
}
template <class T> static constexpr bool type_is_f16(T) {
    return false;
}

/* Gradients that a kernel over keys computes: both, or one where registers hold no more sums. */
enum { GRADIENT_FIRST = 1, GRADIENT_SECOND = 2, GRADIENT_BOTH = 3 };

#define GRADIENT_ROWS_MAX 128 /* rows of a tile */
#define GRADIENT_WORDS 2      /* 64-bit words of a row mask in shared memory */

/* Facts of a query: one piece of 16 bytes. */
struct alignas(16) gradient_known {
    float base, delta, left, unused;
};

/* Flags of a step: it exists; some granule has a mask; it begins or ends an item; no more steps follow. */
enum { STEP_SOME = 1, STEP_MASKED = 2, STEP_FIRST = 4, STEP_LAST = 8, STEP_END = 16 };

/* A step of a thread block's work: of its job-th piece, from granule `at` on. One thread finds out for all
 * what it is when it is looked up. */
struct gradient_cursor {
    uint32_t at;
    int32_t job;
    uint32_t is;
};

/* A piece's heads of the streamed side, and which number in struct query_stats the first query of its head
 * has. */
struct gradient_heads {
    const char *y[2];
    int64_t known;
};

/* keys, masks: first keys and masks of a step's granules, there one step before the gather. words:
 * row masks of a stage's places. known: of a stage's queries, or of the tile's rows. */
template <int STEP, bool OVER_KEYS> struct gradient_lists {
    struct granule_mask masks[2][STEP];
    struct gradient_known known[OVER_KEYS ? 2 * STEP : GRADIENT_ROWS_MAX];
    uint64_t words[2][STEP][GRADIENT_WORDS];
    struct granule_item jobs[ATTENTION_JOBS];
    int32_t keys[2][STEP];
    struct gradient_heads heads[ATTENTION_JOBS];
    struct gradient_cursor steps[4]; /* step n is number n % 4 */
    int32_t n_jobs;
};

/* D dims of type T, R rows of each warp or pair of warps, and which gradients. CUT dims are computed at a
 * time, of which a warp has SUMS. MODIFIED: with softcap, ALiBi or dropout. LOW: for low tiles. */
template <class T_, int D_, int R_, bool OVER_KEYS_, int WANTED_, bool MODIFIED_, bool LOW>
struct gradient_shape {
    using T = T_;
    static constexpr int D = D_, R = R_, WANTED = WANTED_;
    static constexpr bool OVER_KEYS = OVER_KEYS_, MODIFIED = MODIFIED_;
    /* With modifiers a warp has all that its rows have. */
    static constexpr bool ROLES = !MODIFIED && GRADIENT_ROLES(D, (int)sizeof(T));
    static constexpr int SHARE = MODIFIED ? 1 : GRADIENT_SHARE(D, (int)sizeof(T), R);
    static constexpr int CUT = D / GRADIENT_CUTS(D, sizeof(T));
    /* Over keys one warp of a pair has dK, the other dV; over rows each has half of the dims. */
    static constexpr int SUMS = OVER_KEYS ? CUT : CUT / SHARE;
    static constexpr int STEP = GRADIENT_STEP(D, (int)sizeof(T), LOW);
    static constexpr int ROW = (int)sizeof(T) * D; /* bytes */
    static constexpr int PANEL = STEP * ROW;
    /* Registers of a thread for sums. */
    static constexpr int HELD = R * SUMS / 32 * (WANTED == GRADIENT_BOTH && SHARE == 1 ? 2 : 1);
    /* Warps of a multiprocessor: with modifiers high tiles have as many as take all registers. */
    static constexpr int WARPS =
        MODIFIED && !LOW ? 8 : GRADIENT_WARPS(OVER_KEYS, D, (int)sizeof(T), R, LOW);
    /* Groups of 8 columns whose scores a warp holds at a time: fewer where products take registers. */
    static constexpr bool FEW = type_is_f16(T()) && HELD >= (WARPS > 8 ? 64 : 128);
    static constexpr int GROUPS = STEP < 32 || FEW ? 2 : 4;
    /* At most, and thread blocks of that many. */
    static constexpr int THREADS = 32 * (LOW ? 32 : GRADIENT_ROWS_MAX) / R * SHARE;
    static constexpr int BLOCKS = 32 * WARPS / THREADS;
    /* Bytes that a warp sends; with roles over keys one of two does. */
    static constexpr int SENT = ROLES ? R * STEP * (OVER_KEYS ? 2 : 4) : SHARE > 1 ? R *STEP : 0;
    using lists = gradient_lists<STEP, OVER_KEYS>;
    static constexpr int LISTS = 4 * PANEL;
    static constexpr int X = LISTS + ((int)sizeof(lists) + 127) / 128 * 128;
    static_assert(ROW % 128 == 0, "rows are whole lines of the swizzle");
    static_assert(STEP % (sizeof(T) == 4 ? GRADIENT_GRANULE_F32 : GRADIENT_GRANULE) == 0,
                  "steps are whole granules");
    /* Shared memory of a thread block for tiles of `rows` rows. */
    static constexpr int bytes(int rows) {
        return X + (rows < R ? R : rows) / R * (2 * R * ROW + SHARE * SENT);
    }
};

/* The first of this warp's rows of the tile. */
template <class C> DEVICE int gradient_first_row(void) {
    return (int)threadIdx.x / (32 * C::SHARE) * C::R;
}

/* Number of this warp in its pair. */
template <class C> DEVICE int gradient_side(void) {
    return (int)threadIdx.x / 32 % C::SHARE;
}

/* The first of the dims that this warp has sums of. */
template <class C> DEVICE int32_t gradient_first_dim(const struct gradient_params &p) {
    return C::CUT < C::D ? p.first_dim : C::SUMS < C::CUT ? gradient_side<C>() * C::SUMS : 0;
}

/* Bytes of the tile's rows of X0, or of X1. */
template <class C> DEVICE uint32_t gradient_x_bytes(void) {
    return blockDim.x / (32 * C::SHARE) * (C::R * C::ROW);
}

/* Named barriers: of each pair of warps, from this one on. */
enum { GRADIENT_PAIR = 1 };

/* Waits for the other warp of this pair; of a warp that owns its rows, for its other lanes. */
template <class C> DEVICE void gradient_pair_wait(void) {
    if (C::SHARE == 1)
        __syncwarp();
    else
        named_barrier_sync(GRADIENT_PAIR + (int)threadIdx.x / 64, 64);
}

#endif
