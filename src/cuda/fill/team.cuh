/*
 * Threads that fill together: a warp, or the whole thread block. Kernels of this folder are C that nvcc
 * compiles; tests compile the same files for the host (tests/support/emulated.h). So no file includes CUDA
 * headers, and all threads of a team meet every barrier.
 */
#ifndef TESSERA_CUDA_FILL_TEAM_CUH
#define TESSERA_CUDA_FILL_TEAM_CUH

#include "device/rules.cuh"

#include "host/fill.h"
#include "work/early.cuh"
#include "work/runs.h"

/* A loop that is not unrolled: registers are short. */
#ifndef FILL_ROLLED
#define FILL_ROLLED _Pragma("unroll 1")
#endif

/* A loop whose arrays stay in registers. */
#ifndef FILL_UNROLLED
#define FILL_UNROLLED _Pragma("unroll")
#endif

#define TEAM_LANES 0xffffffffu

/* Shared memory of a thread block over block rows: sums of each warp, then what each team has (host/fill.h). */
extern __shared__ __align__(16) unsigned long long fill_shared[];

/* Words of it: the tally, and what is wrong first. */
#define FILL_TALLY 64
#define FILL_FIRST (FILL_TALLY + TALLIES)

struct team {
    int32_t threads;          /* 32, or those of the thread block */
    int32_t thread;           /* this one's number */
    unsigned long long *runs; /* [32] for each warp, full runs in the high half, bands in the low */
    unsigned long long *keys; /* [32] for each warp */
    uint32_t *ends;           /* [2]: of two rows, how many are listed */
    uint32_t *bitmap;         /* [words], 16-byte aligned */
    uint32_t *counts;         /* [words / FILL_BUCKET] bytes */
    uint32_t *buckets;        /* [words / FILL_BUCKET], 16-byte aligned */
    int32_t *stage;           /* [stage] */
};

DEVICE struct team team_of(const struct fill_params *p) {
    const int32_t number = (int32_t)(threadIdx.x >> p->thread_bits);
    struct team team;
    team.threads = p->threads;
    team.thread = (int32_t)threadIdx.x & (p->threads - 1);
    team.runs = fill_shared;
    team.keys = fill_shared + 32;
    team.ends = (uint32_t *)(fill_shared + FILL_FIRST + 1) + 2 * number;
    team.bitmap = (uint32_t *)(fill_shared + FILL_SUMS) + (int64_t)number * p->room;
    team.counts = team.bitmap + p->words;
    team.buckets = team.counts + p->words / FILL_BUCKET / 4;
    team.stage = (int32_t *)team.buckets + p->words / FILL_BUCKET;
    return team;
}

/* A thread block, or 32: each warp by itself. For sums alone. */
DEVICE struct team team_first(int32_t threads) {
    struct team team;
    team.threads = threads;
    team.thread = (int32_t)(threads == 32 ? threadIdx.x % 32 : threadIdx.x);
    team.runs = fill_shared;
    return team;
}

DEVICE int32_t team_lane(const struct team *team) {
    return team->thread % 32;
}
DEVICE int32_t team_warp(const struct team *team) {
    return team->thread / 32;
}
DEVICE int32_t team_warps(const struct team *team) {
    return team->threads / 32;
}

/* Barrier of the team: writes before it are seen by all threads after it. */
DEVICE void team_wait(const struct team *team) {
    if (team->threads == 32)
        __syncwarp(TEAM_LANES);
    else
        __syncthreads();
}

/* Barrier that answers whether any thread has x. */
DEVICE int team_any(const struct team *team, int x) {
    if (team->threads != 32)
        return __syncthreads_or(x);
    __syncwarp(TEAM_LANES); /* a vote orders no memory */
    return __any_sync(TEAM_LANES, x);
}

/* Sum over the lanes before this one, and it; of 32 bits with half the shuffles. */
DEVICE uint32_t warp_sums_32(uint32_t x) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    for (int32_t step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(TEAM_LANES, x, step);
        x += lane >= step ? before : 0;
    }
    return x;
}
DEVICE uint64_t warp_sums(uint64_t x) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    for (int32_t step = 1; step < 32; step *= 2) {
        const uint64_t before = __shfl_up_sync(TEAM_LANES, x, step);
        x += lane >= step ? before : 0;
    }
    return x;
}
DEVICE uint64_t warp_sum(uint64_t x) {
    for (int32_t step = 16; step; step /= 2)
        x += __shfl_xor_sync(TEAM_LANES, x, step);
    return x;
}

/* Sums of a number that is the same for a whole warp: over the team's threads before this one, and over all.
 * Each warp's stands in place[]. */
struct team_sums {
    uint64_t before, all;
};
DEVICE struct team_sums team_sums_of(const struct team *team, uint64_t of_warp,
                                     unsigned long long *place) {
    struct team_sums sums;
    sums.before = 0, sums.all = of_warp;
    if (team->threads == 32)
        return sums;
    if (team_lane(team) == 0)
        place[team_warp(team)] = of_warp;
    team_wait(team);
    const int32_t lane = team_lane(team), warps = team_warps(team);
    const uint64_t through = warp_sums(lane < warps ? place[lane] : 0);
    sums.all = __shfl_sync(TEAM_LANES, through, 31);
    sums.before = __shfl_sync(TEAM_LANES, through, team_warp(team)) - of_warp;
    return sums;
}

DEVICE void tally_begin(void) {
    if (threadIdx.x <= TALLIES)
        fill_shared[FILL_TALLY + threadIdx.x] = threadIdx.x < TALLIES ? 0 : FILL_NOWHERE;
    __syncthreads();
}
/* By halves: shared memory adds 32 bits at once, and 64 in a loop. */
DEVICE void tally_add(enum tally what, uint64_t x) {
    uint32_t *half = (uint32_t *)(fill_shared + FILL_TALLY + what);
    if (!x)
        return;
    const uint32_t low = (uint32_t)x, was = atomicAdd(&half[0], low);
    const uint32_t high = (uint32_t)(x >> 32) + (was + low < was);
    if (high)
        atomicAdd(&half[1], high);
}
DEVICE uint64_t tally_of(enum tally what) {
    return fill_shared[FILL_TALLY + what];
}
/* Adds what the lanes of a warp have met. */
DEVICE void tally_warp(enum tally what, uint64_t x) {
    if (!__any_sync(TEAM_LANES, x != 0))
        return;
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0)
        tally_add(what, x);
}

/* Keeps the first of what is wrong, by fill_order. */
DEVICE void first_keep(uint64_t order) {
    if (order != FILL_NOWHERE)
        atomicMin(fill_shared + FILL_FIRST, (unsigned long long)order);
}
/* The first over the lanes of a warp. */
DEVICE void first_warp(uint64_t order) {
    for (int32_t step = 16; step; step /= 2)
        order = fill_earlier(order, __shfl_xor_sync(TEAM_LANES, order, step));
    if (threadIdx.x % 32 == 0)
        first_keep(order);
}

/* Waits for the kernel before; then the next one may begin. */
DEVICE void fill_wait(void) {
    early_wait();
    early_next();
}

/* Fetches the parameters before the wait, a word of each 64 bytes: constants that are looked up one after another come
 * from L2 each time. Sums are written over what is stored here, as loads that nobody uses are not made. */
DEVICE void fill_fetch(const struct fill_params *p) {
    const uint32_t *words = (const uint32_t *)(const void *)p;
    for (uint32_t i = threadIdx.x / 32; i < sizeof *p / 64; i += blockDim.x / 32)
        if (threadIdx.x % 32 == 0)
            ((volatile unsigned long long *)fill_shared)[i] = words[16 * i];
}

/* Elements of runs in one piece. */
DEVICE void run_store(struct list_run *to, int32_t key, int32_t count) {
    *(int2 *)(void *)to = make_int2(key, count);
}
DEVICE void band_store(struct list_masked *to, int32_t key, int32_t count, int32_t lo, int32_t hi) {
    *(int4 *)(void *)to = make_int4(key, count, lo, hi);
}

DEVICE void bits_store(struct list_masked *to, int32_t key, int32_t count, int64_t word) {
    band_store(to, key, count, (int32_t)(uint32_t)word, (int32_t)(word >> 32));
}

#endif
