/*
 * The fused backward on Hopper in five products: keys of a chunk of heads, whose consumers leave dS in units, beside
 * queries of the chunk before, whose dQ is dS K of units that the launch before left (lists/spill.h):
 *
 *   launch      0             1                 2                       chunks
 *   even CTAs   keys of 0     keys of 1, rows of 0     keys of 2, rows of 1 ...    rows of the last
 *   odd CTAs    keys of 0     rows of 0, keys of 1     rows of 1, keys of 2 ...
 *
 * Some CTAs thus multiply while others read. A unit is [8 keys][8 queries] of 8 by 8 elements, 128 bytes each, so that
 * a warp's fragments of dS^T are such blocks in lane order, and dS is an MN-major operand as it stands. Over rows:
 *
 *   warp 0      64 keys of K, units of consumers     Y_FULL
 *   warp 1      which units a step has; zeroes keys that none of its queries lists     KNOWN
 *   consumers   64 queries each: dQ += dS K, four m64n(D)k16 a step
 */
#ifndef TESSERA_CUDA_GRADIENT_SM90_SPILLED_CUH
#define TESSERA_CUDA_GRADIENT_SM90_SPILLED_CUH

#include "backward/sm90/keys.cuh"
#include "backward/sm90/producer.cuh"
#include "device/sm90/wgmma_both.cuh"
#include "work/early.cuh"

enum { SPILLED_PHASE = 3 }; /* named barrier of all threads, between keys and rows */

/* Shared memory over rows, where that of `keys` is but for its items and barriers. */
template <class keys> struct gradient_spilled_shape {
    using T = typename keys::T;
    static constexpr int D = keys::D, ROWS = keys::ROWS, CONSUMERS = keys::CONSUMERS;
    static constexpr bool OVER_KEYS = false;
    static constexpr int PANELS = keys::PANELS, Y_PANEL = keys::Y_PANEL, Y_TILE = keys::Y_TILE;
    static constexpr int STAGE = Y_TILE + CONSUMERS * SPILL_UNIT;
    static constexpr int FIT = (keys::ITEMS - Y_TILE) / (STAGE + 16);
    static constexpr int STAGES = FIT < GRADIENT_STAGES_MOST ? FIT : GRADIENT_STAGES_MOST;
    static constexpr int ZEROS =
        STAGES * STAGE; /* a tile, in place of units that a step does not have */
    static constexpr int IS =
        ZEROS + Y_TILE; /* bit c of a stage's 16 bytes: consumer c has a unit */
    static constexpr int Y_FULL = keys::BYTES - GRADIENT_SPILLED_BARRIERS;
    static constexpr int Y_EMPTY = Y_FULL + 8 * STAGES, KNOWN = Y_EMPTY + 8 * STAGES;
    static_assert(KNOWN + 8 * STAGES <= keys::BYTES, "barriers have room");
    static constexpr int WARPS = keys::WARPS;
};

struct gradient_spilled_maps {
    struct gradient_maps keys;
    CUtensorMap k; /* 64 rows */
    bool tma_k;
};

template <class shape> DEVICE void gradient_spilled_barriers_make(uint32_t shared) {
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_init(shared + shape::Y_FULL + 8 * i, 1);
        barrier_init(shared + shape::Y_EMPTY + 8 * i, shape::WARPS);
        barrier_init(shared + shape::KNOWN + 8 * i, 1);
    }
    barrier_init_fence();
}

/* Loads bytes that are read once. */
DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(TMA_EVICT_FIRST)
                 : "memory");
}

/* Pieces of this CTA in a chunk; of no chunk: none. */
DEVICE struct gradient_pieces gradient_pieces_of(const struct granule_item *items,
                                                 const int64_t *worker_ptr, int32_t chunk,
                                                 int32_t chunks) {
    if (chunk < 0 || chunk >= chunks)
        return {items, 0};
    const int64_t *const ptr = worker_ptr + (int64_t)chunk * gridDim.x + blockIdx.x;
    const int64_t begin = __ldg(ptr);
    return {items + begin, (int32_t)(__ldg(ptr + 1) - begin)};
}

/* each(item, its step, number) for all steps of the CTA's query tiles. */
template <class work>
DEVICE void gradient_each_spilled(const struct gradient_params &p,
                                  const struct gradient_pieces &all, const work &each) {
    uint32_t step = 0;
#pragma unroll 1
    for (int32_t i = 0; i < all.n; i++) {
        const struct granule_item &item = all.first[i];
        const struct spill_step *const steps = p.spill.steps + item.first;
#pragma unroll 1
        for (int32_t g = 0; g < item.count; g++, step++)
            each(item, steps[g], step);
    }
}

template <class shape>
DEVICE void gradient_produce_units(uint32_t shared, const struct gradient_params &p,
                                   const struct gradient_spilled_maps &maps,
                                   const struct gradient_pieces &all) {
    using T = typename shape::T;
    asm volatile("fence.proxy.async.global;" ::
                     : "memory"); /* units were written by ordinary stores */
    gradient_each_spilled(
        p, all, [&](const struct granule_item &item, const struct spill_step &s, uint32_t step) {
            const uint32_t full = ring_barrier<shape::STAGES>(shared + shape::Y_FULL, step);
            const uint32_t to = shared + ring_stage<shape::STAGES>(step) * shape::STAGE;
            const int32_t base =
                __ldg(p.spill.unit_of + (int64_t)item.batch * p.heads_q + item.head);
            barrier_wait(ring_barrier<shape::STAGES>(shared + shape::Y_EMPTY, step),
                         ring_parity<shape::STAGES>(step) ^ 1);
            if (!maps.tma_k)
                gradient_copy_rows<T, shape::PANELS>(to, shape::Y_PANEL, p.x[0], item.batch,
                                                     item.head_kv, s.key, SPILL_SIDE, p.n_kv,
                                                     p.d[0]);
            if (warp_lane() == 0) {
                const uint32_t units = (s.unit[0] >= 0) + (s.unit[1] >= 0);
                barrier_arrive_expect_tx(full,
                                         units * SPILL_UNIT + (maps.tma_k ? shape::Y_TILE : 0));
                if (maps.tma_k)
                    for (int part = 0; part < shape::PANELS; part++)
                        tma_load(to + part * shape::Y_PANEL, &maps.k, full, 64 * part, s.key,
                                 item.head_kv, item.batch, TMA_EVICT_LAST);
                for (int c = 0; c < shape::CONSUMERS; c++)
                    if (s.unit[c] >= 0)
                        bulk_load(to + shape::Y_TILE + c * SPILL_UNIT,
                                  p.spill.units + (int64_t)(base + s.unit[c]) * SPILL_UNIT,
                                  SPILL_UNIT, full);
            }
            __syncwarp();
        });
}

template <class shape>
DEVICE void gradient_produce_units_known(char *memory, uint32_t shared,
                                         const struct gradient_params &p,
                                         const struct gradient_pieces &all) {
    for (int at = 16 * warp_lane(); at < shape::Y_TILE; at += 16 * 32)
        shared_store_16(shared + shape::ZEROS + at, {0, 0, 0, 0});
    proxy_fence();
    gradient_each_spilled(
        p, all, [&](const struct granule_item &, const struct spill_step &s, uint32_t step) {
            const uint32_t stage = ring_stage<shape::STAGES>(step);
            barrier_wait(shared + shape::Y_EMPTY + 8 * stage, ring_parity<shape::STAGES>(step) ^ 1);
            if (s.absent >= 0) {
                barrier_wait(shared + shape::Y_FULL + 8 * stage, ring_parity<shape::STAGES>(step));
                gradient_zero_rows<shape>(shared + stage * shape::STAGE,
                                          __ldg(p.spill.absent + s.absent), 1);
                proxy_fence();
            }
            if (warp_lane() == 0)
                *reinterpret_cast<int *>(memory + shape::IS + 16 * stage) =
                    (s.unit[0] >= 0) | (s.unit[1] >= 0) << 1;
            __syncwarp();
            if (warp_lane() == 0)
                barrier_arrive(shared + shape::KNOWN + 8 * stage);
        });
}

/* dQ of a step: a unit by 64 keys. */
template <class shape>
DEVICE void gradient_add_units(float (&dq)[shape::D / 2], uint32_t unit, uint32_t y, int add) {
    const uint64_t ds = wgmma_blocks(unit, 1024);
    const uint64_t k_rows = wgmma_mn_major(y, shape::Y_PANEL);
    wgmma_fence_operand(dq);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < SPILL_SIDE / 16; k++)
        wgmma_both(dq, ds + k * (2048 / 16), k_rows + k * (16 * 128 / 16), k > 0 ? 1 : add,
                   typename shape::T());
    wgmma_commit();
}

/* Stores dQ of a tile. Rows of empty queries are 0, whatever their keys hold. */
template <class shape>
DEVICE void gradient_store_queries(const struct gradient_params &p,
                                   const struct gradient_consumer &at,
                                   const struct granule_item &item, float (&dq)[shape::D / 2]) {
    const int64_t head = ((int64_t)item.batch * p.heads_q + item.head) * p.n_q + item.row;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 64 * at.number + 16 * at.warp + warp_lane_here() / 4 + 8 * h;
        if (row < item.rows && __ldg(p.stats.base + head + row) == INFINITY)
#pragma unroll
            for (int j = 0; j < shape::D / 8; j++)
                dq[4 * j + 2 * h] = dq[4 * j + 2 * h + 1] = 0;
    }
    gradient_store_tile<shape>(p, at, item, 0, dq);
}

template <class shape>
DEVICE void gradient_consume_units(struct gradient_consumer at, const struct gradient_params &p,
                                   const struct gradient_pieces &all) {
    float dq[shape::D / 2];
    const uint32_t zeros = at.shared + shape::ZEROS;
    gradient_undefined(dq);
#pragma unroll 1
    for (int32_t i = 0; i < all.n; i++) {
        const struct granule_item &item = all.first[i];
        const int32_t count = sm90_uniform(item.count);
        if (count == 0) {
            gradient_store_zeros<shape>(p, at, item);
            continue;
        }
#pragma unroll 1
        for (int32_t g = 0; g < count; g++, at.step++) {
            const uint32_t stage = ring_stage<shape::STAGES>(at.step);
            const uint32_t y = at.shared + stage * shape::STAGE;
            barrier_wait(at.shared + shape::KNOWN + 8 * stage, ring_parity<shape::STAGES>(at.step));
            const int is =
                sm90_uniform(*reinterpret_cast<const int *>(at.memory + shape::IS + 16 * stage));
            const bool some = is >> at.number & 1;
            barrier_wait(at.shared + shape::Y_FULL + 8 * stage,
                         ring_parity<shape::STAGES>(at.step));
            gradient_add_units<shape>(dq, some ? y + shape::Y_TILE + at.number * SPILL_UNIT : zeros,
                                      some ? y : zeros, g > 0);
            wgmma_wait<0>();
            wgmma_fence_operand(dq);
            gradient_release<shape>(at.shared, at.step);
        }
        gradient_store_queries<shape>(p, at, item, dq);
    }
}

/* Between keys and rows: what was written in shared memory, before what TMA loads in its place. */
template <class shape> DEVICE void gradient_spilled_turn(void) {
    proxy_fence();
    named_barrier_sync(SPILLED_PHASE, shape::THREADS);
}

/* Rows of a chunk, in the parts of consumers and producers. */
template <class shape>
DEVICE void gradient_spilled_rows(char *memory, uint32_t shared, int role, int warp,
                                  const struct gradient_params &q,
                                  const struct gradient_spilled_maps &maps, int32_t chunk) {
    const struct gradient_pieces all =
        gradient_pieces_of(q.spill.items, q.spill.worker_ptr, chunk, q.spill.chunks);
    if (role > 0)
        gradient_consume_units<shape>({memory, shared, role - 1, warp, 0}, q, all);
    else if (warp == 0)
        gradient_produce_units<shape>(shared, q, maps, all);
    else if (warp == 1)
        gradient_produce_units_known<shape>(memory, shared, q, all);
}

/* Launch `chunk`: keys of that chunk, p, and rows of the one before, q. */
template <class shape>
static __global__ void __launch_bounds__(shape::THREADS, shape::RESIDENT)
    gradient_spilled(const __grid_constant__ struct gradient_params p,
                     const __grid_constant__ struct gradient_params q,
                     const __grid_constant__ struct gradient_spilled_maps maps, int32_t chunk) {
    using rows = gradient_spilled_shape<shape>;
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    if (threadIdx.x == 0) {
        gradient_spilled_barriers_make<rows>(shared);
        gradient_barriers_make<shape>(shared);
    }
    early_wait();
    early_next();
    __syncthreads();
    const int role = sm90_uniform((int)threadIdx.x / 128);
    const int warp = sm90_uniform((int)threadIdx.x / 32 % 4);
    if (role > 0) {
        registers_claim<shape::CONSUMER_REGISTERS>();
        if (blockIdx.x & 1) {
            gradient_spilled_rows<rows>(memory, shared, role, warp, q, maps, chunk - 1);
            gradient_spilled_turn<shape>();
        }
        struct gradient_consumer at = {memory, shared, role - 1, warp, 0};
        gradient_consume_keys<shape>(at, p);
        if (!(blockIdx.x & 1)) {
            gradient_spilled_turn<shape>();
            gradient_spilled_rows<rows>(memory, shared, role, warp, q, maps, chunk - 1);
        }
    } else {
        registers_release<shape::PRODUCER_REGISTERS>();
        if (blockIdx.x & 1) {
            gradient_spilled_rows<rows>(memory, shared, role, warp, q, maps, chunk - 1);
            gradient_spilled_turn<shape>();
        }
        const struct gradient_pieces all =
            gradient_pieces_of(p.image.items, p.image.worker_ptr, chunk, p.spill.chunks);
        if (warp == 0)
            gradient_produce_y<shape>(shared, p, maps.keys, all);
        else if (warp == 1)
            gradient_produce_known<shape>(memory, shared, p, all);
        else if (warp == 2)
            gradient_produce_x<shape>(memory, shared, p, maps.keys, all);
        if (!(blockIdx.x & 1)) {
            gradient_spilled_turn<shape>();
            gradient_spilled_rows<rows>(memory, shared, role, warp, q, maps, chunk - 1);
        }
    }
}

#endif
