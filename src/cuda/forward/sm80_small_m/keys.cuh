/*
 * Fused attention in small-M tiles: keys of a step, and their copies. A step is 16 places of a
 * tile's granules. A batch is 128 bytes of each of the 16 rows: 32 dims of f32, 64 of 16 bits. A
 * warp's batches are one stream through a ring of small_m_stages stages:
 *
 *   | K batches of step i | V batches of step i | K batches of step i + 1 | ...
 *
 * When a batch has been loaded into registers, the batch small_m_stages later is copied to its
 * stage.
 */
#ifndef TESSERA_CUDA_SMALL_M_KEYS_CUH
#define TESSERA_CUDA_SMALL_M_KEYS_CUH

#include "work/gather.cuh"

#define SMALL_M_KEYS 16 /* keys of a step */
#define SMALL_M_BATCH_ROW                                                                          \
    144 /* bytes between rows of a batch: 128, and 16 against bank conflicts */
#define SMALL_M_BATCH (SMALL_M_KEYS * SMALL_M_BATCH_ROW)

/* Batches of a warp's dims of K, or of V. */
template <class T, int D, int WARPS>
static __host__ __device__ __forceinline__ constexpr int small_m_batches(void) {
    return D / WARPS * (int)sizeof(T) / 128;
}

/* Stages of the ring: more where a multiprocessor has few warps of many dims. */
template <class T, int D, int WARPS>
static __host__ __device__ __forceinline__ constexpr int small_m_stages(void) {
    constexpr int BATCHES = small_m_batches<T, D, WARPS>();
    return D <= 128 || BATCHES == 2 ? 2 : BATCHES % 4 ? 3 : 4;
}

/* The first of this warp's dims. */
template <int D, int WARPS> DEVICE int small_m_dim(void) {
    return WARPS == 1 ? 0 : (int)threadIdx.x / 32 * (D / WARPS);
}

/* A step: 16 places of the job-th item, from granule `at` on. key: of place lane % 16; places
 * without a key repeat another key. listed: bits of the rows that list it, 0 for places without a
 * key. */
struct small_m_step {
    uint32_t at;
    int32_t job;
    int32_t key;
    uint32_t listed;
};

/* Addresses of this lane's 16-byte pieces in a step's rows. Lane l copies piece l % 8 of each 128
 * bytes of rows l / 8, l / 8 + 4, ... */
struct small_m_rows {
    const char *k[4], *v[4];
};

/* ---- batches ---- */

DEVICE uint4 small_m_load_16(const void *from) {
    uint4 x;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}
DEVICE uint32_t small_m_load_4(const void *from) {
    uint32_t x;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

/* Copies a batch: 128 bytes of 16 rows, of which `bytes` exist; zeros for the others. */
template <class T>
DEVICE void small_m_copy_rows(uint32_t to, const char *const (&row)[4], int32_t bytes,
                              bool copied) {
    const int lane = warp_lane_here();
    to += (uint32_t)(lane / 8 * SMALL_M_BATCH_ROW + lane % 8 * 16);
    bytes -= lane % 8 * 16;
    if (copied) {
#pragma unroll
        for (int n = 0; n < 4; n++)
            cp_async_16_l2_128(to + 4 * SMALL_M_BATCH_ROW * n, row[n], bytes > 0);
    } else {
#pragma unroll 1
        for (int n = 0; n < 4; n++) {
            const char *first = n % 2 ? row[1] : row[0], *last = n % 2 ? row[3] : row[2];
            shared_store_16(to + (uint32_t)(4 * SMALL_M_BATCH_ROW * n),
                            attention_load_16<T>(n < 2 ? first : last, bytes, 1));
        }
    }
}

/* Copies batch i of a step's stream to its stage; complete after cp_async_wait. */
template <class T, int D, int WARPS>
DEVICE void small_m_copy_batch(uint32_t ring, const struct attention_params &p,
                               const struct small_m_rows &rows, int i) {
    constexpr int BATCHES = small_m_batches<T, D, WARPS>(), SIZE = (int)sizeof(T);
    const int of_k = i % (2 * BATCHES), of_v = of_k - BATCHES;
    const int first = SIZE * small_m_dim<D, WARPS>();
    const char *row[4];
    ring += (uint32_t)(i % small_m_stages<T, D, WARPS>() * SMALL_M_BATCH);
#pragma unroll
    for (int n = 0; n < 4; n++)
        row[n] = of_v < 0 ? rows.k[n] + 128 * of_k : rows.v[n] + 128 * of_v;
    small_m_copy_rows<T>(
        ring, row, (of_v < 0 ? SIZE * p.d_qk - 128 * of_k : SIZE * p.d_v - 128 * of_v) - first,
        p.copied);
    cp_async_commit();
}

/* Copies the first batches of a stream. */
template <class T, int D, int WARPS>
DEVICE void small_m_prologue(uint32_t ring, const struct attention_params &p,
                             const struct small_m_rows &rows) {
#pragma unroll
    for (int i = 0; i < small_m_stages<T, D, WARPS>(); i++)
        small_m_copy_batch<T, D, WARPS>(ring, p, rows, i);
}

/* Loads this lane's operands of batch i, and copies a later batch to its stage. K: pieces 2t, 2t +
 * 1 of keys g, g + 8. V: piece g of keys 2t, 2t + 1, 2t + 8, 2t + 9. */
template <class T, int D, int WARPS>
DEVICE void small_m_load_batch(uint4 (&x)[4], uint32_t ring, const struct attention_params &p,
                               const struct small_m_rows &rows, int i) {
    constexpr int AHEAD = small_m_stages<T, D, WARPS>();
    const int lane = warp_lane_here(), g = lane / 4, t = lane % 4;
    const bool of_k = i < small_m_batches<T, D, WARPS>();
    const uint32_t from =
        ring + (uint32_t)(i % AHEAD * SMALL_M_BATCH) +
        (uint32_t)(of_k ? g * SMALL_M_BATCH_ROW + 32 * t : 2 * t * SMALL_M_BATCH_ROW + 16 * g);
    cp_async_wait<AHEAD - 1>();
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; n++)
        x[n] = shared_load_16(from + (uint32_t)(of_k ? n % 2 * 8 * SMALL_M_BATCH_ROW + n / 2 * 16
                                                     : (n % 2 + n / 2 * 8) * SMALL_M_BATCH_ROW));
    __syncwarp();
    small_m_copy_batch<T, D, WARPS>(ring, p, rows, i + AHEAD);
}

/* Addresses of this lane's rows, from dim `dim` on; key: of place lane % 16. */
template <class T>
DEVICE void small_m_row_pointers(const char *(&row)[4], const struct rows_view &view,
                                 const struct granule_item &item, int32_t key, int dim) {
    constexpr int SIZE = (int)sizeof(T);
    const int lane = warp_lane_here();
    const char *head =
        attention_head<T>(view, item.batch, item.head_kv) + SIZE * dim + 16 * (lane % 8);
#pragma unroll
    for (int n = 0; n < 4; n++)
        row[n] = head + SIZE * view.stride[2] * __shfl_sync(WARP_ALL, key, 4 * n + lane / 8);
}

/* ---- looking up keys ---- */

/* A look-up in flight: what has been loaded for the next step. */
struct small_m_lookup {
    uint32_t first; /* first key of the granule of place lane % 16 */
    uint4 mask;     /* mask of the granule, in masked steps */
};

/* The granule of place lane % 16. */
DEVICE uint32_t small_m_granule(const struct attention_params &p, const struct small_m_step &step) {
    return step.at + ((uint32_t)warp_lane_here() % SMALL_M_KEYS >> p.granule_bits);
}
DEVICE bool small_m_masked(const struct attention_params &p, const struct granule_item &item,
                           uint32_t at) {
    return at + (SMALL_M_KEYS >> p.granule_bits) > (uint32_t)item.whole;
}

DEVICE struct small_m_lookup small_m_lookup_begin(const struct attention_params &p,
                                                  const struct granule_item &item,
                                                  const struct small_m_step &step) {
    const uint32_t granule = small_m_granule(p, step);
    struct small_m_lookup asked = {0, {0, 0, 0, 0}};
    if (granule < (uint32_t)item.count)
        asked.first = small_m_load_4(p.image.keys + item.first + granule);
    if (granule < (uint32_t)item.count && granule >= (uint32_t)item.whole)
        asked.mask = small_m_load_16(p.image.masks + item.mask + (granule - (uint32_t)item.whole));
    return asked;
}

/* Completes a look-up: keys and row masks of a step. The first place of a step has a key. */
DEVICE void small_m_lookup_end(struct small_m_step &step, const struct attention_params &p,
                               const struct granule_item &item,
                               const struct small_m_lookup &asked) {
    const uint32_t granule = small_m_granule(p, step);
    const int offset = warp_lane_here() % SMALL_M_KEYS & ((1 << p.granule_bits) - 1);
    bool some = granule < (uint32_t)item.count;
    step.listed = some ? ~0u : 0;
    if (some && granule >= (uint32_t)item.whole) {
        union {
            uint4 words;
            struct granule_mask mask;
        } known = {asked.mask};
        some = offset < known.mask.count;
        if (known.mask.kind == LIST_BAND)
            step.listed = (uint32_t)attention_band(known.mask, offset, 0);
        else if (known.mask.kind != GRANULE_ALL)
            step.listed = small_m_load_4(p.image.words + known.mask.u.word +
                                         (known.mask.kind == LIST_BITS ? offset : 0));
        step.listed = some ? step.listed : 0;
    }
    const int32_t key = (int32_t)asked.first + offset;
    const int32_t other = __shfl_sync(WARP_ALL, key, 0);
    step.key = some ? key : other;
}

/* The step after `step`, of an item of `count` granules. The key of `step` stays until the look-up
 * completes: past the last item there is none. */
DEVICE struct small_m_step small_m_next_step(const struct attention_params &p,
                                             const struct small_m_step &step, int32_t count) {
    const uint32_t at = step.at + (SMALL_M_KEYS >> p.granule_bits);
    if (at < (uint32_t)count)
        return {at, step.job, step.key, 0};
    return {0, step.job + 1, step.key, 0};
}

#endif
