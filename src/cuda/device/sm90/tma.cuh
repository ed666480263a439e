/*
 * Hopper's asynchronous machinery, without policy: barriers in shared memory that count arrivals and
 * bytes, barriers among some of a block's threads, copies of boxes of a tensor, and registers moved
 * between warpgroups. Addresses are those of the shared window (device/copy.cuh).
 */
#ifndef TESSERA_CUDA_SM90_ASYNC_CUH
#define TESSERA_CUDA_SM90_ASYNC_CUH

#include "device/warp.cuh"

#include <cuda.h>

/* A number that is the same in the whole warp, told so that it may live in a uniform register: what
 * comes from memory is otherwise taken for one per lane, and all that follows from it too. */
static __device__ __forceinline__ int sm90_uniform(int x) {
    return __shfl_sync(WARP_ALL, x, 0);
}

/* The thread in its warpgroup, found where it stands: where registers are scarce it is not kept. */
static __device__ __forceinline__ int sm90_thread_here(void) {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return (int)(thread % 128);
}

/* ---- barriers in shared memory: a phase ends when all arrivals and bytes are there ---- */

static __device__ __forceinline__ void barrier_make(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
/* After all are made, by who made them; then a block barrier shows them to the others. */
static __device__ __forceinline__ void barrier_made(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and says how many bytes of copies the phase has to wait for. */
static __device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Arrives once the cp.async copies that this thread has begun are done. */
static __device__ __forceinline__ void barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/* Until the phase with this parity has ended; that before the first counts as of parity 1. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "try:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
                 "@!ended bra try;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Whether it has, without waiting. */
static __device__ __forceinline__ bool barrier_ended(uint32_t barrier, uint32_t parity) {
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

/* ---- the same of another block of the cluster ---- */

/* What block `rank` has where this one has `at`. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t at, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
/* To say that something has been read here: nothing that was written has to be seen there. */
static __device__ __forceinline__ void barrier_arrive_there(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Four floats, as bytes that a barrier there waits for. */
static __device__ __forceinline__ void store_there(uint32_t to, const float4 &x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
                 : "memory");
}
/* barrier_wait for what other blocks have written. */
static __device__ __forceinline__ void barrier_wait_others(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "try:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n"
                 "@!ended bra try;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- barriers of one warpgroup; 0 is that of __syncthreads ---- */

static __device__ __forceinline__ void warpgroup_sync(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

/* Among `threads`, of which some only arrive. */
static __device__ __forceinline__ void warpgroups_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void warpgroups_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* What this thread has written or found written by ordinary means becomes visible to tensor cores
 * and box copies. */
static __device__ __forceinline__ void proxy_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- registers: the whole warpgroup, first thing in its role ---- */

template <int REGISTERS> static __device__ __forceinline__ void registers_release(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> static __device__ __forceinline__ void registers_claim(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* ---- boxes of a tensor, by one thread ---- */

/* How long the L2 cache keeps what is copied: the encodings that createpolicy gives for all of an
 * access. */
#define BOX_ONCE 0x12f0000000000000ull  /* evict_first */
#define BOX_AGAIN 0x14f0000000000000ull /* evict_last */

/* The 128 bytes around come into the L2 cache. */
static __device__ __forceinline__ void prefetch_near(const void *at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
static __device__ __forceinline__ void box_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* The box at columns `d` and rows `n` of head (b, h); what lies past the tensor's ends is zeros. */
static __device__ __forceinline__ void box_load(uint32_t to, const CUtensorMap *map,
                                                uint32_t barrier, int d, int n, int h, int b,
                                                uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(d), "r"(n), "r"(h), "r"(b), "l"(policy)
                 : "memory");
}
/* The same of a map whose columns are two dimensions, panels of 64 and their columns, from panel
 * `panel` on. */
static __device__ __forceinline__ void box_load_panels(uint32_t to, const CUtensorMap *map,
                                                       uint32_t barrier, int panel, int n, int h,
                                                       int b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(0), "r"(n), "r"(panel), "r"(h), "r"(b), "l"(policy)
                 : "memory");
}
/* The box from shared memory to there, as one of a batch: what lies past the ends is left out. */
static __device__ __forceinline__ void box_store(const CUtensorMap *map, uint32_t from, int d,
                                                 int n, int h, int b) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], "
                 "[%1];" ::"l"(map),
                 "r"(from), "r"(d), "r"(n), "r"(h), "r"(b)
                 : "memory");
}

/* ---- pieces of 16 bytes of memory, aligned to that, by one thread ---- */

static __device__ __forceinline__ void bulk_load(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* As one of a batch. */
static __device__ __forceinline__ void bulk_store(void *to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

/* ---- batches of stores, of boxes and of pieces, which go on in the background ---- */

/* Ends one of this thread's, which may be empty. */
static __device__ __forceinline__ void bulk_store_batch(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until shared memory has been read by all but this thread's last PENDING batches. */
template <int PENDING> static __device__ __forceinline__ void bulk_store_wait(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* ---- the kernel before this one in its stream, where that may still run ---- */

/* Until it has ended, and all it has written is seen. */
static __device__ __forceinline__ void kernel_before_wait(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* The next kernel, if it waits like this one, may come as soon as there is room for it. */
static __device__ __forceinline__ void kernel_after_come(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
