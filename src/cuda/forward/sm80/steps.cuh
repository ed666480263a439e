/* Fused attention with mma.sync: steps of a thread block, and how a warp's rows of K and V come to shared
 * memory. Values that steps without masks need stand in registers. */
#ifndef TESSERA_CUDA_ATTENTION_STEPS_CUH
#define TESSERA_CUDA_ATTENTION_STEPS_CUH

#include "forward/sm80/warp_step.cuh"

/* Flags of a step: some granule has a mask or is missing; an item begins; rows are copied by elements. */
enum : uint32_t { STEP_MASKED = 1, STEP_FIRST = 2, STEP_ELEMENTS = 4 };

/* A step of a thread block's work: of its job-th item, from granule `at` on. Job -1, and one past the
 * last, are masked steps in which nothing is listed. */
struct attention_cursor {
    int32_t at, job;
    uint32_t is;
};

/* An item that is looked up: first key of this lane's granule in its first step, granules from there on,
 * granules of the item. */
struct attention_granules {
    const int32_t *keys;
    int32_t left, count, whole;
};

/* A lane's part in copies: its piece of rows sub, sub + 32 / LANES, ... of this warp, from byte `byte` of
 * a row on; to: address of that piece in a panel. heads: of K and V. */
struct attention_copier {
    uint32_t to;
    int sub, byte;
    uint32_t step[2];
    int32_t bytes[2];
    const char *heads[2];
};

template <class T, int D, int R, int WARPS, int KEYS> struct attention_steps {
    using shape = attention_shape<T, D, R, WARPS, KEYS>;
    using lists = attention_lists<KEYS, shape::WORDS>;
    /* Values that follow from lane and item stay in registers from step to step. High tiles and long rows
     * find them anew: they have no registers left, and more to do in a step. */
    static constexpr bool KEPT = shape::M <= 64 && shape::ROW <= 256;
    static constexpr int ROWS = shape::ROWS_KV, PLACES = (ROWS + 31) / 32;
    static constexpr int LANES = attention_lanes<T, D>();
    static_assert(ROWS % 8 == 0, "a warp's rows begin where pieces are not exchanged");
    static_assert(KEYS % attention_granule<T>() == 0, "steps are whole granules");

    /* The first of this warp's places of a step; whether it gathers K, and V. */
    DEVICE int first(void) {
        return (int)threadIdx.x / 32 * ROWS % KEYS;
    }
    DEVICE bool of_k(void) {
        return !shape::APART || (int)threadIdx.x / 32 < WARPS / 2;
    }
    DEVICE bool of_v(void) {
        return !shape::APART || (int)threadIdx.x / 32 >= WARPS / 2;
    }

    /* ---- looking up ---- */

    /* Flags of a step, by its item. */
    DEVICE uint32_t is(const lists &l, const struct attention_params &p,
                       const struct attention_cursor &step, int32_t jobs) {
        const bool none = step.job < 0 || step.job >= jobs;
        const int32_t whole = none ? 0 : l.jobs[step.job & (ATTENTION_JOBS - 1)].whole;
        return (p.copied ? 0 : STEP_ELEMENTS) | (step.at ? 0 : STEP_FIRST) |
               (step.at + (KEYS >> p.granule_bits) > whole ? STEP_MASKED : 0);
    }

    /* The granules of an item; none past the last. */
    DEVICE struct attention_granules granules(lists &l, const struct attention_params &p,
                                              int32_t job, int32_t jobs) {
        const struct granule_item &item = l.jobs[job & (ATTENTION_JOBS - 1)];
        const int at = (first() + warp_lane()) >> p.granule_bits;
        if (job >= jobs)
            return {p.image.keys, 0, 0, 0};
        return {p.image.keys + item.first + at, item.count - at, item.count, item.whole};
    }

    /* Prefetches an item's Q, finds its heads of K and V, and copies the next item. */
    DEVICE void begin(lists &l, const struct attention_params &p, int32_t job, int32_t jobs) {
        const int slot = job & (ATTENTION_JOBS - 1);
        const struct granule_item &item = l.jobs[slot];
        if (job >= jobs)
            return;
        if (job + 1 < jobs)
            attention_fetch_job(l.jobs[(job + 1) & (ATTENTION_JOBS - 1)], p,
                                p.image.worker_ptr[blockIdx.x] + job + 1);
        attention_prefetch_q<T, D, shape::THREADS>(p, item);
        if (threadIdx.x == 0) {
            l.heads[slot][0] = attention_head<T>(p.k, item.batch, item.head_kv);
            l.heads[slot][1] = attention_head<T>(p.v, item.batch, item.head_kv);
        }
    }

    /* Copies a step's masks. */
    DEVICE void fetch_masks(lists &l, const struct attention_params &p, int slot,
                            const struct attention_cursor &step) {
#pragma unroll 1
        for (int at = (int)threadIdx.x; at < KEYS >> p.granule_bits; at += shape::THREADS)
            attention_fetch_mask(l, p, slot, l.jobs[step.job & (ATTENTION_JOBS - 1)],
                                 (uint32_t)(step.at + at), (uint32_t)at);
    }

    /* First keys of the granules of places `lane`, 32 + lane, ... of this warp. */
    DEVICE void look(int32_t (&key)[PLACES], const struct attention_params &p, int32_t at,
                     const struct attention_granules &granules) {
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            const int32_t granule = at + (32 * i >> p.granule_bits);
            key[i] = INT32_MIN; /* with an offset: no key */
            if (granule < granules.left)
                key[i] = __ldg(granules.keys + granule);
        }
    }

    /* The step after `step`. */
    DEVICE struct attention_cursor next(const struct attention_params &p,
                                        const struct attention_cursor &step,
                                        const struct attention_granules &granules, int32_t jobs) {
        const int32_t span = KEYS >> p.granule_bits, at = step.at + span;
        const uint32_t is = step.is & STEP_ELEMENTS;
        if (at >= granules.count)
            return {0, min(step.job + 1, jobs), is | STEP_FIRST};
        return {at, step.job, at + span > granules.whole ? is | STEP_MASKED : is};
    }

    /* ---- gathering ---- */

    DEVICE struct attention_copier copier(const struct attention_params &p, int lane) {
        const struct attention_copy_mode k = attention_copy_mode_of<T>(p, p.k, p.d_qk, 1);
        const struct attention_copy_mode v = attention_copy_mode_of<T>(p, p.v, p.d_v, 1);
        const int byte = lane % LANES * 16, sub = lane / LANES;
        return {swizzle_row<shape::ROW>(sub) + swizzle_piece(sub, byte / 16) +
                    (uint32_t)(first() * shape::ROW),
                sub,
                byte,
                {of_k() ? k.step : v.step, v.step},
                {(of_k() ? k.bytes : v.bytes) - byte, v.bytes - byte},
                {}};
    }

    DEVICE void take_heads(struct attention_copier &copier, const lists &l, int32_t job) {
        copier.heads[0] = l.heads[job & (ATTENTION_JOBS - 1)][0];
        copier.heads[1] = l.heads[job & (ATTENTION_JOBS - 1)][1];
    }

    /* Copies part of this warp's rows of a step without masks, where `wanted`. A multiprocessor accepts
     * copies one by one, so a warp that issues many at once waits. */
    DEVICE void copy(const struct attention_copier &copier, uint32_t panel,
                     const int32_t (&key)[PLACES], bool wanted, int part) {
        constexpr int PIECES = D * (int)sizeof(T) / 16, SEGMENTS = (shape::ROW + 127) / 128;
        constexpr int EACH = ROWS / shape::PARTS;
        const char *from[2] = {(of_k() ? copier.heads[0] : copier.heads[1]) + copier.byte,
                               copier.heads[1] + copier.byte};
        asm("" : "+l"(from[0]), "+l"(from[1])); /* one sum: else each row would add both terms */
        panel += of_k() ? shape::K : shape::V;
#pragma unroll
        for (int i = 0; i < EACH; i += 32 / LANES) {
            const int row = part * EACH + i;
            const uint32_t k = __shfl_sync(WARP_ALL, key[row / 32], (row + copier.sub) % 32);
            const uint32_t to =
                panel + (copier.to ^ (uint32_t)(row % 8 * 16)) + (uint32_t)(row * shape::ROW);
#pragma unroll
            for (int n = 0; n < 2 - shape::APART; n++) {
                const char *at = attention_row(from[n], k, copier.step[n]);
#pragma unroll
                for (int s = 0; s < SEGMENTS; s++)
                    if (8 * s + LANES <= PIECES || 128 * s + copier.byte < 16 * PIECES)
                        cp_async_16_l2_128_if(wanted,
                                              to + (uint32_t)(n * (shape::V - shape::K) + 128 * s),
                                              at + 128 * s, 128 * s < copier.bytes[n]);
            }
        }
    }

    /* Gathers this warp's rows of a step with masks, or of rows that are not copied 16 bytes at a time. */
    DEVICE void fill(lists &l, uint32_t shared, const struct attention_params &p, int stage,
                     const struct attention_cursor &step, int32_t (&key)[PLACES]) {
        const uint32_t to = shared + (uint32_t)(stage * shape::PANEL + first() * shape::ROW);
        const int job = step.job & (ATTENTION_JOBS - 1);
        if (step.is & STEP_MASKED) {
#pragma unroll
            for (int i = 0; i < PLACES; i++) {
                const int row = 32 * i + warp_lane_here();
                if (row < ROWS)
                    key[i] = attention_masked_key(l, p, stage, l.jobs[job], (uint32_t)step.at,
                                                  first() + row, key[i], of_k(), shape::WORDS);
            }
            __syncwarp();
        }
        if (of_k())
            attention_gather<T, D, ROWS, shape::ROW>(
                to + shape::K, l.heads[job][0], attention_copy_mode_of<T>(p, p.k, p.d_qk, 1), key);
        if (of_v())
            attention_gather<T, D, ROWS, shape::ROW>(
                to + shape::V, l.heads[job][1], attention_copy_mode_of<T>(p, p.v, p.d_v, 1), key);
    }
};

#endif
