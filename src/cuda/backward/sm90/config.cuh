/*
 * The fused backward for 16-bit types on Hopper: two persistent, warp-specialised kernels, over keys and over rows. Rows
 * X stay, the other side Y is streamed (host/backward.h):
 *
 *   S [M, 64] = X0 Y0^T    dP = X1 Y1^T    P = exp2(S - base)    dS = P (dP - delta)
 *   dX0 [M, D] += dS Y0      over keys also dX1 += P Y1
 *
 * Over keys S is thus S^T, so that P and dS are register operands of the sums as they stand. Each sum is one
 * accumulator, in the order of the lists: no atomics, no order to wait for. A CTA has three warpgroups:
 *
 *   warp 0        Y0, Y1 of steps       Y_FULL
 *   warp 1        known: what a step's masks and queries are; zeroes rows that nobody lists     KNOWN
 *   warp 2        items, X0, X1         X_FULL
 *   consumers     64 rows each
 *
 * docs/design/backward_sm90.md has layouts, barriers and the order of products.
 */
#ifndef TESSERA_CUDA_GRADIENT_SM90_CONFIG_CUH
#define TESSERA_CUDA_GRADIENT_SM90_CONFIG_CUH

#include "backward/store.cuh"
#include "device/sm90/tensor_map.cuh"
#include "device/sm90/tma.cuh"
#include "device/sm90/wgmma.cuh"

/* Flags of a step: it ends its item; some pairs are not listed. */
enum { GRADIENT_END = 1, GRADIENT_CUT = 2 };

/* Named barriers, and on: which consumer's turn it is to issue products. */
enum { GRADIENT_TURN = 1, GRADIENT_TURNS = 256 };

#define GRADIENT_PLACES 64                    /* places of a step: a granule, and a mask group */
#define GRADIENT_SCORES (GRADIENT_PLACES / 2) /* floats of a thread */
#define GRADIENT_STAGES_MOST 8
#define GRADIENT_SPILLED_BARRIERS (3 * 8 * GRADIENT_STAGES_MOST) /* bytes: those of spilled.cuh */

/* Facts of a step. Words are a mask group in accumulator-fragment layout (lists/mask_groups.h), of each slice of 16 rows
 * and lane. base, delta, left: of the step's queries, over keys. first: row of place 0; head: of the queries. */
template <bool SOME> struct gradient_step_left {};
template <> struct gradient_step_left<true> { float left[GRADIENT_PLACES]; };
template <int ROWS, bool OVER_KEYS, bool MODIFIED>
struct gradient_step_known : gradient_step_left<OVER_KEYS && MODIFIED> {
    uint32_t words[ROWS / GRANULE_SLICE][32];
    float base[OVER_KEYS ? GRADIENT_PLACES : 4], delta[OVER_KEYS ? GRADIENT_PLACES : 4];
    uint32_t is;
    int32_t first, head;
    int32_t unit; /* unit of the first consumer's dS (spilled.cuh) */
};

/* D dims, 64 or 128; ROWS of a tile, 64 or 128. MODIFIED: with softcap, ALiBi, sinks or dropout, for which registers and
 * shared memory hold more. Tiles in shared memory are panels of 64 columns, swizzled by 128 bytes. */
template <class T_, int D_, int ROWS_, bool OVER_KEYS_, bool MODIFIED_ = false,
          bool SPILLS_ = false>
struct gradient_sm90_shape {
    using T = T_;
    static constexpr int D = D_, ROWS = ROWS_;
    static constexpr bool WIDE = D > 128; /* consumers share rows (wide.cuh) */
    static constexpr int CONSUMERS = WIDE ? 2 : ROWS / 64;
    static constexpr bool OVER_KEYS = OVER_KEYS_, MODIFIED = MODIFIED_, SPILLS = SPILLS_;
    static constexpr int PANELS = D / 64;
    static constexpr int X_PANEL = ROWS * 128, X_TILE = PANELS * X_PANEL; /* bytes */
    static constexpr int Y_PANEL = GRADIENT_PLACES * 128, Y_TILE = PANELS * Y_PANEL;
    using known = gradient_step_known<ROWS, OVER_KEYS, MODIFIED>;
    static constexpr int STAGE = 2 * Y_TILE + (int)sizeof(known);
    static constexpr int SENT_BYTES = WIDE ? 64 * GRADIENT_PLACES * 4 : 0;
    /* CTAs of a multiprocessor, the bytes that each can have, and stages that fit. */
    static constexpr int RESIDENT = GRADIENT_SM90_RESIDENT(D, ROWS);
    static constexpr int ROOM = 228 * 1024 / RESIDENT - 1024,
                         FIT = (ROOM - 2 * X_TILE - SENT_BYTES - 512) / STAGE;
    static constexpr int STAGES = FIT < GRADIENT_STAGES_MOST ? FIT : GRADIENT_STAGES_MOST;
    static constexpr int X = 0, Y = 2 * X_TILE, SENT = Y + STAGES * 2 * Y_TILE;
    static constexpr int KNOWN_AT = SENT + SENT_BYTES;
    static constexpr int ITEMS = KNOWN_AT + STAGES * (int)sizeof(known);
    static constexpr int BARRIERS = ITEMS + 2 * (int)sizeof(struct granule_item);
    static constexpr int Y_FULL = BARRIERS, Y_EMPTY = Y_FULL + 8 * STAGES;
    static constexpr int KNOWN = Y_EMPTY + 8 * STAGES;
    static constexpr int X_FULL = KNOWN + 8 * STAGES, X_EMPTY = X_FULL + 8;
    static constexpr int BYTES = X_EMPTY + 8 + (SPILLS ? GRADIENT_SPILLED_BARRIERS : 0);
    static_assert(STAGES >= 2 && BYTES <= ROOM, "what a CTA of Hopper can have");
    static constexpr int THREADS = 128 * (1 + CONSUMERS),
                         WARPS = 4 * CONSUMERS; /* WARPS: of consumers */
    /* Q and dO of a consumer over rows are operands from registers where these suffice. */
    static constexpr bool HELD = !OVER_KEYS && (D <= 64 || (CONSUMERS > 1 && !MODIFIED));
    static constexpr int CONSUMER_REGISTERS = CONSUMERS > 1 ? 240 : 232, PRODUCER_REGISTERS = 24;
};

/* Tensor maps, and which sides TMA can address: others are copied by the same warps (producer.cuh). */
struct gradient_maps {
    CUtensorMap x[2], y[2];
    bool tma_x, tma_y;
};

template <class shape> DEVICE void gradient_barriers_make(uint32_t shared) {
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_init(shared + shape::Y_FULL + 8 * i, 1);
        barrier_init(shared + shape::Y_EMPTY + 8 * i, shape::WARPS);
        barrier_init(shared + shape::KNOWN + 8 * i, 1);
    }
    barrier_init(shared + shape::X_FULL, 1);
    barrier_init(shared + shape::X_EMPTY, shape::WARPS);
    barrier_init_fence();
}

/* Item number `job` of this CTA, in shared memory; rows 0: the end. */
template <class shape> DEVICE struct granule_item &gradient_item(char *memory, uint32_t job) {
    return reinterpret_cast<struct granule_item *>(memory + shape::ITEMS)[job % 2];
}
template <class shape>
DEVICE typename shape::known &gradient_known_of(char *memory, uint32_t step) {
    return reinterpret_cast<typename shape::known *>(
        memory + shape::KNOWN_AT)[ring_stage<shape::STAGES>(step)];
}

/* Heads of an item's sides. */
template <class shape> DEVICE int32_t gradient_x_head(const struct granule_item &item) {
    return shape::OVER_KEYS ? item.head_kv : item.head;
}
template <class shape> DEVICE int32_t gradient_y_head(const struct granule_item &item) {
    return shape::OVER_KEYS ? item.head : item.head_kv;
}

#endif
