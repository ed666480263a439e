/*
 * Fused attention on Hopper: column sums of a dense run, whose tiles are whole groups (docs/semantics.md, "Column
 * sums"). P of a step is exp2(score - base) before it is rounded, and base - reference is a number of a row: so a
 * term is one product. A consumer thread adds up the terms of its two rows between exponentials, which leave it idle,
 * and leaves them in the consumer's slab. Two warps of the producer warpgroup add up the slabs' rows, always in one
 * order, and store the sums.
 *
 * By references, in bf16: base is the row's reference less SM90_SUMS_RAISE, all the item long. A term is P itself, no
 * maximum is looked for and O is never rescaled. Where a row is out of range at an item's end, since queries have
 * drifted far or there is no reference, the item's first sum becomes NaN. The launch behind finds it and computes all
 * items of that CTA by maxima.
 *
 *   slab [4 warps][KEYS / 16][32 lanes][4], f32: lane (g, t) has columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of each 16,
 *   over rows g and g + 8
 *
 *   barrier          completed by         phase ends when             waited for by
 *   slab_full        a consumer's warps   their terms are there       warps 2 and 3
 *   slab_empty       warps 2 and 3        they have been read         that consumer
 *   o_full           a consumer           it has judged an item       warp 2, by references
 */
#ifndef TESSERA_CUDA_SM90_COLUMN_SUMS_CUH
#define TESSERA_CUDA_SM90_COLUMN_SUMS_CUH

#include "forward/sm90/consumer.cuh"

#include <type_traits>

#define SM90_SUMS_AHEAD 8     /* pieces of slabs that a lane loads at once */
#define SM90_SUMS_MOST 110.0f /* log2 of a row's factor at most: sums of 256 rows stay in range */
/* By references: between what sums of a row's P are in range. Rows of 2^17 keys keep terms of 2^-120 of their largest;
 * values up to 2^100 do not overflow O. */
#define SM90_SUMS_LEAST 0x1p11f
#define SM90_SUMS_LARGEST 0x1p27f

/* Whether a run is by references first: f16 has no range for weights beyond a maximum's, and a base that is o itself
 * would be joined twice. */
template <class T>
static __host__ __device__ __forceinline__ bool sm90_refers(const struct attention_params &p) {
    return std::is_same<T, __nv_bfloat16>::value && !p.base.o.data;
}

/* References of this thread's rows of an item, base 2; +Inf: the row adds nothing. */
template <class shape>
DEVICE void sm90_sums_begin(float (&reference)[2], const sm90_cursor &cursor,
                            const struct attention_params &p) {
    const struct granule_item &item = sm90_item<shape>(cursor.memory, cursor.job);
    const float *const from = static_cast<const float *>(p.reference.data) +
                              item.batch * p.reference.stride[0] +
                              item.head * p.reference.stride[1];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int at = sm90_consumer_row<shape>(cursor.consumer) + sm90_thread_here() / 32 * 16 +
                       warp_lane_here() / 4 + 8 * h;
        const float x = at < item.rows ? from[(item.row + at) * p.reference.stride[2]] : -INFINITY;
        reference[h] = x == -INFINITY ? INFINITY : x * p.modify.unit;
    }
}

/* Begins an item by references. Rows past its last have no weights; those without a reference get NaN. */
template <class shape>
DEVICE void sm90_sums_refer(struct sm90_state &state, const sm90_cursor &cursor,
                            const struct attention_params &p) {
    float reference[2];
    sm90_sums_begin<shape>(reference, cursor, p);
    const int row = sm90_consumer_row<shape>(cursor.consumer) + sm90_thread_here() / 32 * 16 +
                    warp_lane_here() / 4;
    const int rows = sm90_item<shape>(cursor.memory, cursor.job).rows;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool known = fabsf(reference[h]) < ATTENTION_FAR;
        state.base[h] = row + 8 * h >= rows ? ATTENTION_FAR
                        : known             ? reference[h] - SM90_SUMS_RAISE
                                            : NAN;
        state.m[h] = state.base[h] + SM90_SUMS_RAISE;
    }
}

DEVICE void sm90_sums_store(const struct attention_params &p, int64_t at, float sum) {
    if (p.sum_type == TESS_F32)
        static_cast<float *>(p.column_sums.data)[at] = sum;
    else
        from_f32(static_cast<__nv_bfloat16 *>(p.column_sums.data) + at, sum);
}

/* Whether a row of a warp, counted over all consumers, was out of range in the job-th item. */
template <class shape> DEVICE int32_t &sm90_sums_out(char *memory, uint32_t job, int warp) {
    return reinterpret_cast<int32_t *>(memory + shape::SUMS)[job % 2 * 4 * shape::CONSUMERS + warp];
}

/* Tells, behind an item's last step, whether its rows are in range. */
template <class shape>
DEVICE void sm90_sums_judge(const struct sm90_state &state, const sm90_cursor &cursor) {
    static_assert(!sm90_hands_o<shape, SM90_TMA>(), "o_full and the place of sums are free");
    const int warp = 4 * cursor.consumer + sm90_thread_here() / 32;
    bool out = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float l = quad_sum(state.l[h]);
        out |= state.base[h] != ATTENTION_FAR && !(l > SM90_SUMS_LEAST && l < SM90_SUMS_LARGEST);
    }
    out = __any_sync(WARP_ALL, out);
    if (warp_lane_here() == 0)
        sm90_sums_out<shape>(cursor.memory, cursor.job, warp) = out;
    barrier_arrive(cursor.shared + shape::O_FULL + 8 * cursor.consumer);
}

/* Makes an item's first sum, at `at`, NaN where a row was out of range. By the warp that has stored it. */
template <class shape>
DEVICE void sm90_sums_mark(char *memory, const struct attention_params &p, uint32_t shared,
                           uint32_t job, int64_t at) {
    const int lane = warp_lane();
#pragma unroll
    for (int consumer = 0; consumer < shape::CONSUMERS; consumer++)
        barrier_wait(shared + shape::O_FULL + 8 * consumer, job & 1);
    const bool out = lane < 4 * shape::CONSUMERS && sm90_sums_out<shape>(memory, job, lane) != 0;
    if (__any_sync(WARP_ALL, out) && lane == 0)
        sm90_sums_store(p, at, NAN);
}

/* Waits until the slab is free. It is asked before softmax: a branch among exponentials would end their overlap. */
template <class shape> DEVICE void sm90_sums_wait(const sm90_cursor &cursor) {
    barrier_wait(cursor.shared + shape::SLAB_EMPTY + 8 * cursor.consumer, (cursor.step & 1) ^ 1);
}

/* This lane's place in the slab. */
template <class shape> DEVICE uint32_t sm90_sums_slab(const sm90_cursor &cursor) {
    return cursor.shared + shape::SLABS + (uint32_t)(cursor.consumer * shape::SLAB) +
           (uint32_t)(sm90_thread_here() / 32 * (shape::SLAB / 4) + warp_lane_here() * 16);
}

/* Hands the slab over. */
template <class shape> DEVICE void sm90_sums_leave(const sm90_cursor &cursor) {
    __syncwarp();
    if (warp_lane_here() == 0)
        barrier_arrive(cursor.shared + shape::SLAB_FULL + 8 * cursor.consumer);
}

/* sm90_softmax of the step at `cursor`, whose terms it leaves in the slab. P V of the step before ends first, so that
 * P is rounded between exponentials as well. FIRST: of its item. */
template <class T, bool FIRST, class shape>
DEVICE bool sm90_sums_softmax(struct sm90_fragments<shape> &w, float (&factor)[2],
                              const sm90_cursor &cursor, const struct attention_params &p,
                              float scale) {
    float base[2], f[2], l[2][2] = {};
    bool moved = false;
    if constexpr (shape::BY_REFERENCES) {
        if (FIRST)
            sm90_sums_refer<shape>(w.state, cursor, p);
        base[0] = w.state.base[0], base[1] = w.state.base[1];
    } else {
        if (FIRST)
            sm90_sums_begin<shape>(w.reference, cursor, p);
        moved = sm90_follow_max<T>(w.s, w.state, factor, scale, base);
#pragma unroll
        for (int h = 0; h < 2; h++)
            f[h] = attention_exp2(fminf(w.state.base[h] - w.reference[h], SM90_SUMS_MOST));
    }
    const uint32_t slab = sm90_sums_slab<shape>(cursor);
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 8) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float *const s = w.s + i + j / 2 * 4 + j % 2;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s[2 * h] = attention_exp2(fmaf(s[2 * h], scale, -base[h]));
                l[h][j % 2] += s[2 * h];
            }
            x[j] =
                __float_as_uint(shape::BY_REFERENCES ? s[0] + s[2] : fmaf(s[0], f[0], s[2] * f[1]));
        }
        shared_store_16(slab + (uint32_t)(i / 8 * 512), {x[0], x[1], x[2], x[3]});
    }
    sm90_sums_leave<shape>(cursor);
#pragma unroll
    for (int h = 0; h < 2; h++)
        w.state.l[h] += l[h][0] + l[h][1];
    return moved;
}

/* Leaves zeros: of a warp whose rows are past the tile's. */
template <class shape> DEVICE void sm90_sums_nothing(const sm90_cursor &cursor) {
    const uint32_t slab = sm90_sums_slab<shape>(cursor);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 8)
        shared_store_16(slab + (uint32_t)(i / 8 * 512), {0, 0, 0, 0});
    sm90_sums_leave<shape>(cursor);
}

/* Half of x, N numbers, of this lane and of the lane at `far`, added up: the upper half where `upper`. */
template <int N> DEVICE void sm90_sums_halve(float (&x)[4], int far, bool upper) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float kept = upper ? x[i + N / 2] : x[i], sent = upper ? x[i] : x[i + N / 2];
        x[i] = kept + __shfl_xor_sync(WARP_ALL, sent, far);
    }
}

/* Lanes that share columns: each has every so-many-th row of a slab. */
template <class shape> DEVICE constexpr int sm90_sums_apart(void) {
    return 256 / shape::KEYS;
}

/* First of this lane's 4 / sm90_sums_apart columns of a step, within half `half`. */
template <class shape> DEVICE int sm90_sums_column(int half) {
    constexpr int APART = sm90_sums_apart<shape>();
    const int lane = warp_lane(), g = lane / 4 % APART;
    return half * (shape::KEYS / 2) + lane / 4 / APART * 16 + g % 2 * 8 + lane % 4 * 2 + g / 2;
}

/* Adds up the slabs of step `step` over the columns from that one on, into the first numbers of x. */
template <class shape>
DEVICE void sm90_sums_add(float (&x)[4], char *memory, uint32_t shared, int half, uint32_t step) {
    constexpr int APART = sm90_sums_apart<shape>(), ROWS = 8 / APART; /* ROWS: of a warp's slab */
    const int lane = warp_lane(), g = lane / 4 % APART;
    const char *const slab = memory + shape::SLABS +
                             (half * (shape::KEYS / 32) + lane / 4 / APART) * 512 +
                             (4 * g + lane % 4) * 16;
    x[0] = x[1] = x[2] = x[3] = 0;
#pragma unroll
    for (int consumer = 0; consumer < shape::CONSUMERS; consumer++) {
        barrier_wait(shared + shape::SLAB_FULL + 8 * consumer, step & 1);
#pragma unroll
        for (int i = 0; i < 4 * ROWS; i += SM90_SUMS_AHEAD) {
            float4 y[SM90_SUMS_AHEAD];
#pragma unroll
            for (int j = 0; j < SM90_SUMS_AHEAD; j++)
                y[j] = *reinterpret_cast<const float4 *>(slab + consumer * shape::SLAB +
                                                         (i + j) / ROWS * (shape::SLAB / 4) +
                                                         (i + j) % ROWS * (64 * APART));
#pragma unroll
            for (int j = 0; j < SM90_SUMS_AHEAD; j++)
                x[0] += y[j].x, x[1] += y[j].y, x[2] += y[j].z, x[3] += y[j].w;
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(shared + shape::SLAB_EMPTY + 8 * consumer);
    }
    sm90_sums_halve<4>(x, 4, g % 2);
    if (APART == 4)
        sm90_sums_halve<2>(x, 8, g / 2);
}

/* Adds up and stores the sums of all items of this CTA: half `half` of the columns of each step. load: as in
 * sm90_store_empty. */
template <class shape, class loads>
DEVICE void sm90_sums_items(char *memory, const struct attention_params &p, const loads &load,
                            uint32_t shared, int half, int64_t begin, int64_t end) {
    constexpr float SCALE = shape::BY_REFERENCES ? 0x1p-20f : 1; /* 2^-SM90_SUMS_RAISE */
    const int bits = p.granule_bits, column = sm90_sums_column<shape>(half);
    uint32_t step = 0, job = 0;
#pragma unroll 1
    for (int64_t first = begin; first < end; first += 32) {
        const struct granule_item items = load(first);
#pragma unroll 1
        for (uint32_t left = __ballot_sync(WARP_ALL, items.count > 0); left;
             left &= left - 1, job++) {
            const int lane = __ffs((int)left) - 1;
            const int32_t *const keys = p.image.keys + sm90_of_lane(items.first, lane);
            const int32_t places = sm90_of_lane(items.count, lane) << bits;
            const int64_t row =
                sm90_of_lane(items.batch, lane) * p.column_sums.stride[0] +
                sm90_of_lane(items.head, lane) * p.column_sums.stride[1] +
                sm90_of_lane(items.row, lane) / p.tile_rows * p.column_sums.stride[2];
#pragma unroll 1
            for (int32_t place = column; place < places + column; place += shape::KEYS, step++) {
                float x[4];
                const int32_t key =
                    place < places ? __ldg(keys + (place >> bits)) + (place & ((1 << bits) - 1))
                                   : p.n_kv;
                sm90_sums_add<shape>(x, memory, shared, half, step);
#pragma unroll
                for (int i = 0; i < 4 / sm90_sums_apart<shape>(); i++)
                    if (key + i < p.n_kv)
                        sm90_sums_store(p, row + key + i, x[i] * SCALE);
            }
            if (shape::BY_REFERENCES && half == 0)
                sm90_sums_mark<shape>(memory, p, shared, job, row + __ldg(keys));
        }
    }
}

/* Whether an item of [begin, end) was out of range of its references. All threads of the CTA call it, behind the run by
 * references. */
template <class shape>
DEVICE bool sm90_sums_again(const struct attention_params &p, int64_t begin, int64_t end) {
    bool again = false;
    early_wait();
    for (int64_t i = begin + threadIdx.x; i < end; i += shape::THREADS) {
        const struct granule_item item = p.image.items[i];
        const int64_t at =
            item.batch * p.column_sums.stride[0] + item.head * p.column_sums.stride[1] +
            item.row / p.tile_rows * p.column_sums.stride[2] + __ldg(p.image.keys + item.first);
        again |= isnan(p.sum_type == TESS_F32
                           ? static_cast<const float *>(p.column_sums.data)[at]
                           : to_f32(static_cast<const __nv_bfloat16 *>(p.column_sums.data)[at]));
    }
    return __syncthreads_or(again);
}

#endif
