/*
 * Hopper's asynchronous primitives, without policy: mbarriers, rings, TMA copies, setmaxnreg.
 * Addresses are those of the shared window (device/shared.cuh).
 */
#ifndef TESSERA_CUDA_SM90_TMA_CUH
#define TESSERA_CUDA_SM90_TMA_CUH

#include "device/barrier.cuh"
#include "device/warp.cuh"

#include <cuda.h>

/* x, declared warp-uniform, so that the compiler may keep it and what follows from it in uniform
 * registers. Values loaded from memory otherwise count as one for each lane. */
DEVICE int sm90_uniform(int x) {
    return __shfl_sync(WARP_ALL, x, 0);
}

/* The thread's number in its warpgroup, read again at each call: where registers are scarce, none
 * holds it. */
DEVICE int sm90_thread_here(void) {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return (int)(thread % 128);
}

/* Number of this warp among those of consumers, likewise. */
DEVICE int sm90_consumer_warp_here(void) {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return (int)(thread / 32) - 4;
}

/* ---- mbarriers: a phase ends when all arrivals and all expected bytes are there ---- */

DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
/* Called by the thread that initialised the barriers, after the last. A block barrier then makes
 * them visible to the other threads. */
DEVICE void barrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and adds `bytes` to the transaction bytes that the phase waits for. */
DEVICE void barrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Arrives once all cp.async of this thread so far are complete. */
DEVICE void barrier_arrive_cp_async(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/* Waits until the phase of this parity has ended. On a new barrier, parity 1 counts as ended. */
DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "try:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
                 "@!ended bra try;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Whether the phase of this parity has ended, without waiting. */
DEVICE bool barrier_test_wait(uint32_t barrier, uint32_t parity) {
    int ended;
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, ended;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return ended != 0;
}

/* ---- rings of stages, each with an mbarrier ---- */

/* Stage and phase parity of the index-th use of a ring. */
template <int STAGES> DEVICE uint32_t ring_stage(uint32_t index) {
    return index % STAGES;
}
template <int STAGES> DEVICE uint32_t ring_parity(uint32_t index) {
    return index / STAGES & 1;
}
/* The mbarrier of that stage, among those that begin at `first`. */
template <int STAGES> DEVICE uint32_t ring_barrier(uint32_t first, uint32_t index) {
    return first + 8 * ring_stage<STAGES>(index);
}

/* ---- mbarriers and shared memory of another CTA of the cluster ---- */

/* The address, in CTA `rank`, of what stands at `at` in this CTA. */
DEVICE uint32_t cluster_address(uint32_t at, int rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}
/* Arrives at a barrier of another CTA after reads. Nothing that was written has to become visible
 * there. */
DEVICE void barrier_arrive_remote(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Stores four floats to another CTA, and counts the bytes for `barrier` in that CTA. */
DEVICE void store_remote(uint32_t to, const float4 &x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
                 : "memory");
}
/* barrier_wait with cluster scope: for data that other CTAs wrote. */
DEVICE void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "try:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n"
                 "@!ended bra try;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- proxies ---- */

/* Generic-to-async proxy fence: what this thread wrote by ordinary stores, or saw written, becomes
 * visible to WGMMA and TMA. */
DEVICE void proxy_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- setmaxnreg: by a whole warpgroup, first thing in its role ---- */

template <int REGISTERS> DEVICE void registers_release(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> DEVICE void registers_claim(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* ---- TMA tile copies, by one thread ---- */

/* L2 cache hints: the encodings that createpolicy gives for whole accesses. */
#define TMA_EVICT_FIRST 0x12f0000000000000ull
#define TMA_EVICT_LAST 0x14f0000000000000ull

DEVICE void tma_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Loads the tile at column `d` and row `n` of head (b, h). Elements past the tensor's ends are
 * zeros. */
DEVICE void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int d, int n, int h,
                     int b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(d), "r"(n), "r"(h), "r"(b), "l"(policy)
                 : "memory");
}
/* Stores a tile from shared memory, as part of a bulk group. Elements past the tensor's ends are
 * left out. */
DEVICE void tma_store(const CUtensorMap *map, uint32_t from, int d, int n, int h, int b) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], "
                 "[%1];" ::"l"(map),
                 "r"(from), "r"(d), "r"(n), "r"(h), "r"(b)
                 : "memory");
}

/* ---- bulk groups: TMA stores in flight ---- */

/* Commits this thread's stores as a group, which may be empty. */
DEVICE void bulk_store_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until shared memory has been read by all but the PENDING last committed groups of this
 * thread. */
template <int PENDING> DEVICE void bulk_store_wait(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

#endif
