/*
 * Fused attention for 16-bit types on tensor cores: SDDMM, online softmax and SpMM of one query
 * tile by one block of threads, over the granules that the tile lists. A warp owns R rows of the
 * tile, from Q to O; all warps share the keys, gathered step by step into two stages of shared
 * memory, one being computed while the other fills:
 *
 *   | Q [M][D] | K [2][KEYS][D] | V [2][KEYS][D] | what is known of coming steps |
 *
 * In steps where a granule has a mask, a warp passes over those groups of 8 keys that none of its
 * rows lists: it computes with the groups that are left, wherever they stand.
 */
#ifndef TESSERA_CUDA_ATTENTION_MMA_CUH
#define TESSERA_CUDA_ATTENTION_MMA_CUH

#include "attention_gather.cuh"
#include "attention_store.cuh"
#include "device/mma.cuh"

/* Groups of 8 keys that a warp computes at a time in steps with masks: few, as not many may be
 * listed. */
#define ATTENTION_MASKED_GROUPS 4

/* D dims, R rows of each of WARPS warps, KEYS keys of a step (a multiple of 32). */
template <int D, int R, int WARPS, int KEYS> struct attention_shape {
    static constexpr int M = R * WARPS, THREADS = 32 * WARPS;
    static constexpr int ROW = (2 * D + 127) / 128 * 128; /* bytes */
    static constexpr int PANEL = KEYS * ROW;
    static constexpr int WORDS = (M + 63) / 64; /* of a row mask */
    /* Groups of 8 keys whose scores a warp holds at a time: beside tall and wide sums there is room
     * for fewer. */
    static constexpr int GROUPS = R * D > 2048 ? 4 : 8;
    static constexpr int K = M * ROW, V = K + 2 * PANEL, LISTS = V + 2 * PANEL;
    static constexpr int BYTES = LISTS + (int)sizeof(attention_lists<KEYS, WORDS>);
};

/* Fragments of a warp's rows: row lane / 4 + 8 i, i in 0 ... R / 8 - 1. */
template <int D, int R> struct attention_state {
    float o[R / 16][D / 8][4];
    float m[R / 8], l[R / 8]; /* base 2; l: of this thread's columns */
};

/* Weights are exp2(s - m) times 2^this, which O and l share: f16 has no room for small ones. */
static __device__ __forceinline__ constexpr float attention_raise(__half) {
    return 8.0f;
}
static __device__ __forceinline__ constexpr float attention_raise(__nv_bfloat16) {
    return 0.0f;
}

/* m follows a row's maximum only when it is left behind by more than this (Dao's lazy rescaling):
 * O is then seldom multiplied, and weights stay below 2^16. */
#define ATTENTION_LAG 7.0f

static __device__ __forceinline__ float attention_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t attention_pack(float low, float high, __half) {
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}
static __device__ __forceinline__ uint32_t attention_pack(float low, float high, __nv_bfloat16) {
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

/* Groups of 8 keys that are computed together. Where ALL of a panel are, they stand in order and the
 * struct is not looked at; else the j-th is at the j-th nibble, and the first n count. */
struct attention_groups {
    uint32_t at;
    int n;
};

template <bool ALL>
static __device__ __forceinline__ int attention_group(const struct attention_groups &groups,
                                                      int j) {
    return ALL ? j : (int)(groups.at >> 4 * j & 15);
}

/* s[R][8 GROUPS] = q[R][D] k[groups][D]^T */
template <class T, int D, int R, int GROUPS, int ROW, bool ALL>
static __device__ __forceinline__ void
attention_scores(float (&s)[R / 16][GROUPS][4], uint32_t q, uint32_t k,
                 const struct attention_groups &groups) {
    const int lane = warp_lane();
    q += (uint32_t)(lane % 16 * ROW) + panel_piece(lane, lane / 16);
    k += (uint32_t)(lane % 8 * ROW) + panel_piece(lane, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][j][e] = 0;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t a[R / 16][4];
#pragma unroll
        for (int i = 0; i < R / 16; i++)
            ldmatrix(a[i], panel_piece_after(q, d) + (uint32_t)(16 * i * ROW));
#pragma unroll
        for (int j = 0; j < GROUPS; j += 2) {
            /* Lanes 0 ... 15 name rows of group j, the others of group j + 1. */
            const int first = attention_group<ALL>(groups, j);
            const int second = attention_group<ALL>(groups, j + 1);
            uint32_t b[4];
            ldmatrix(b, panel_piece_after(k, d) +
                            (uint32_t)(8 * ROW * (lane < 16 ? first : second)));
#pragma unroll
            for (int i = 0; i < R / 16; i++) {
                mma_add(s[i][j], a[i], b, T());
                mma_add(s[i][j + 1], a[i], b + 2, T());
            }
        }
    }
}

/* Scores of rows that do not list the key become -Inf, whatever they are. masks: this warp's 32-bit
 * words, STRIDE bytes apart; shift: its first row's bit. */
template <int R, int GROUPS, int STRIDE>
static __device__ __forceinline__ void
attention_mask_scores(float (&s)[R / 16][GROUPS][4], uint32_t masks, int shift,
                      const struct attention_groups &groups) {
    const int row = shift + warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        const uint32_t at =
            masks + (uint32_t)((8 * attention_group<false>(groups, j) + column) * STRIDE);
        uint32_t word[2] = {0, 0};
        if (j < groups.n) {
            word[0] = shared_load_4(at) >> row;
            word[1] = shared_load_4(at + STRIDE) >> row;
        }
#pragma unroll
        for (int i = 0; i < R / 16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(word[e % 2] & 1u << (16 * i + 8 * (e / 2))))
                    s[i][j][e] = -INFINITY;
    }
}

/* Moves a row's maximum if the scores ask for it; answers the factor of what was summed before. */
static __device__ __forceinline__ float attention_move(float &m, float top) {
    const float before = m;
    m = top > m + ATTENTION_LAG ? top : m;
    return attention_exp2(before - attention_base(m));
}

/* Scores to weights, as 16-bit fragments; the state's maxima move, and O and l with them. */
template <class T, int D, int R, int GROUPS>
static __device__ __forceinline__ void
attention_softmax(uint32_t (&weights)[R / 16][GROUPS][2], float (&s)[R / 16][GROUPS][4],
                  struct attention_state<D, R> &state, float scale) {
    float top[R / 8], base[R / 8];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int i = r / 2, e = r % 2 * 2;
        top[r] = fmaxf(s[i][0][e], s[i][0][e + 1]);
#pragma unroll
        for (int j = 1; j < GROUPS; j++)
            top[r] = fmaxf(top[r], fmaxf(s[i][j][e], s[i][j][e + 1]));
        top[r] = fmaxf(top[r], __shfl_xor_sync(WARP_ALL, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(WARP_ALL, top[r], 2));
        top[r] *= scale;
        moves |= top[r] > state.m[r] + ATTENTION_LAG;
    }
    if (__any_sync(WARP_ALL, moves)) {
#pragma unroll
        for (int r = 0; r < R / 8; r++) {
            const int i = r / 2, e = r % 2 * 2;
            const float factor = attention_move(state.m[r], top[r]);
            state.l[r] *= factor;
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                state.o[i][d][e] *= factor;
                state.o[i][d][e + 1] *= factor;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        base[r] = attention_base(state.m[r]) - attention_raise(T());
#pragma unroll
    for (int j = 0; j < GROUPS; j += 2) {
#pragma unroll
        for (int r = 0; r < R / 8; r++) {
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] = attention_exp2(
                    fmaf(s[r / 2][j + e / 2][r % 2 * 2 + e % 2], scale, -base[r]));
            weights[r / 2][j][r % 2] = attention_pack(x[0], x[1], T());
            weights[r / 2][j + 1][r % 2] = attention_pack(x[2], x[3], T());
            state.l[r] += (x[0] + x[1]) + (x[2] + x[3]);
        }
    }
}

/* o[R][D] += weights[R][8 GROUPS] v[groups][D] */
template <class T, int D, int R, int GROUPS, int ROW, bool ALL>
static __device__ __forceinline__ void
attention_values(struct attention_state<D, R> &state,
                 const uint32_t (&weights)[R / 16][GROUPS][2], uint32_t v,
                 const struct attention_groups &groups) {
    const int lane = warp_lane();
    v += (uint32_t)(lane % 8 * ROW) + panel_piece(lane, lane / 16);
#pragma unroll
    for (int j = 0; j < GROUPS; j += 2) {
        const int first = attention_group<ALL>(groups, j);
        const int second = attention_group<ALL>(groups, j + 1);
        const uint32_t from = v + (uint32_t)(8 * ROW * (lane / 8 % 2 ? second : first));
        uint32_t a[R / 16][4];
#pragma unroll
        for (int i = 0; i < R / 16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[i][e] = weights[i][j + e / 2][e % 2];
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            ldmatrix_transposed(b, panel_piece_after(from, d));
#pragma unroll
            for (int i = 0; i < R / 16; i++) {
                mma_add(state.o[i][2 * d], a[i], b, T());
                mma_add(state.o[i][2 * d + 1], a[i], b + 2, T());
            }
        }
    }
}

/* The next groups of a step whose bits, BITS of each, are set; takes them out. */
template <int GROUPS, int BITS>
static __device__ __forceinline__ struct attention_groups attention_groups_next(uint32_t &left) {
    struct attention_groups groups = {0, 0};
    uint32_t group = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        if (left) {
            group = (uint32_t)(__ffs((int)left) - 1) / BITS;
            groups.n = j + 1;
        }
        left &= left - 1;
        groups.at |= group << 4 * j;
    }
    return groups;
}

/* The groups of 8 keys that a row of this warp lists: bit BITS * group of the answer. */
template <int R, int KEYS, int STRIDE>
static __device__ __forceinline__ uint32_t attention_listed(uint32_t masks, int shift) {
    constexpr int EACH = KEYS / 32;
    constexpr uint32_t GROUP = EACH == 1 ? 0x01010101u : EACH == 2 ? 0x11111111u : 0x55555555u;
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        any |= shared_load_4(masks + (uint32_t)((EACH * warp_lane() + i) * STRIDE));
    uint32_t lanes = __ballot_sync(WARP_ALL, (any >> shift & (R == 32 ? ~0u : 0xffffu)) != 0);
#pragma unroll
    for (int i = 1; i < 8 / EACH; i *= 2)
        lanes |= lanes >> i;
    return lanes & GROUP;
}

/* One stage of keys, by one warp. q: its rows; k, v: the stage's panels; masks: its words, or 0
 * where all rows list all keys. */
template <class T, int D, int R, int WARPS, int KEYS>
static __device__ __forceinline__ void
attention_step(struct attention_state<D, R> &state, uint32_t q, uint32_t k, uint32_t v,
               uint32_t masks, float scale) {
    using shape = attention_shape<D, R, WARPS, KEYS>;
    constexpr int ROW = shape::ROW, STRIDE = 8 * shape::WORDS;
    if (!masks) {
        constexpr int GROUPS = shape::GROUPS;
#pragma unroll 1
        for (int key = 0; key < KEYS; key += 8 * GROUPS) {
            const uint32_t at = (uint32_t)(key * ROW);
            float s[R / 16][GROUPS][4];
            uint32_t weights[R / 16][GROUPS][2];
            attention_scores<T, D, R, GROUPS, ROW, true>(s, q, k + at, {});
            attention_softmax<T, D, R, GROUPS>(weights, s, state, scale);
            attention_values<T, D, R, GROUPS, ROW, true>(state, weights, v + at, {});
        }
        return;
    }
    constexpr int GROUPS = ATTENTION_MASKED_GROUPS;
    const int first = (int)threadIdx.x / 32 * R, shift = first % 32;
    const uint32_t words = masks + (uint32_t)(first / 32 * 4);
    uint32_t left = attention_listed<R, KEYS, STRIDE>(words, shift);
#pragma unroll 1
    while (left) {
        float s[R / 16][GROUPS][4];
        uint32_t weights[R / 16][GROUPS][2];
        const struct attention_groups groups = attention_groups_next<GROUPS, 256 / KEYS>(left);
        attention_scores<T, D, R, GROUPS, ROW, false>(s, q, k, groups);
        attention_mask_scores<R, GROUPS, STRIDE>(s, words, shift, groups);
        attention_softmax<T, D, R, GROUPS>(weights, s, state, scale);
        attention_values<T, D, R, GROUPS, ROW, false>(state, weights, v, groups);
    }
}

/* ---- a tile's rows: from global memory, and back ---- */

/* This warp's rows of Q. */
template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void attention_load_q(uint32_t to,
                                                        const struct attention_params &p,
                                                        const struct granule_item &item,
                                                        int first) {
    const int row = first + warp_lane();
    const int32_t key[1] = {row < item.rows ? item.row + row : -1};
    attention_gather<T, D, R, ROW>(to, attention_head<T>(p.q, item.batch, item.head),
                                   attention_manner_of<T>(p, p.q, p.d_qk, p.q_scale), key);
}

/* This warp's rows of O, rounded, through its own rows of Q's place. */
template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void
attention_store_o(uint32_t through, const struct attention_params &p,
                  const struct granule_item &item, int first,
                  const struct attention_state<D, R> &state) {
    const int lane = warp_lane();
    char *o = attention_head<T>(p.o, item.batch, item.head);
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const float factor = state.l[r] == 0 ? 0.0f : 1 / state.l[r];
        const uint32_t row = through + (uint32_t)((lane / 4 + 8 * r) * ROW);
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const float *x = state.o[r / 2][d] + r % 2 * 2;
            const bool empty = state.l[r] == 0;
            shared_store_4(row + panel_piece(lane / 4, d) + (uint32_t)(lane % 4 * 4),
                           empty ? 0 : attention_pack(x[0] * factor, x[1] * factor, T()));
        }
    }
    __syncwarp();
    constexpr int PIECES = D / 8;
#pragma unroll 1
    for (int i = lane; i < R * PIECES; i += 32) {
        const int row = i / PIECES, piece = i % PIECES, left = p.d_v * 2 - 16 * piece;
        if (first + row >= item.rows || left <= 0)
            continue;
        const uint4 x = shared_load_16(through + (uint32_t)(row * ROW) + panel_piece(row, piece));
        char *to = o + (item.row + first + row) * p.o.stride[2] * 2 + 16 * piece;
        if (left >= 16 && p.alignment >= 16) {
            *reinterpret_cast<uint4 *>(to) = x;
        } else {
            const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (2 * e < left)
                    reinterpret_cast<uint16_t *>(to)[e] = (uint16_t)(word[e / 2] >> 16 * (e % 2));
        }
    }
    __syncwarp();
}

/* This warp's rows of a partial result. */
template <int D, int R>
static __device__ __forceinline__ void
attention_store_part(const struct attention_params &p, const struct granule_item &item, int first,
                     const struct attention_state<D, R> &state, float raise) {
    const struct attention_slot slot = attention_slot_of(p, item.slot);
    const int lane = warp_lane();
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int row = first + lane / 4 + 8 * r;
        if (row >= item.rows)
            continue;
        if (lane % 4 == 0) {
            slot.m[row] = state.m[r] - raise;
            slot.l[row] = state.l[r];
        }
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const int dim = 8 * d + lane % 4 * 2;
            if (dim < p.slot_dims)
                *reinterpret_cast<float2 *>(&slot.o[(int64_t)row * p.slot_dims + dim]) = {
                    state.o[r / 2][d][r % 2 * 2], state.o[r / 2][d][r % 2 * 2 + 1]};
        }
    }
}

template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void
attention_finish(uint32_t through, const struct attention_params &p,
                 const struct granule_item &item, int first, struct attention_state<D, R> &state) {
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 1);
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 2);
    }
    if (item.parts > 1) {
        attention_store_part<D, R>(p, item, first, state, attention_raise(T()));
        return;
    }
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int row = first + warp_lane() / 4 + 8 * r;
        if (warp_lane() % 4 == 0 && row < item.rows)
            attention_store_lse(p, item.batch, item.head, item.row + row,
                                state.m[r] - attention_raise(T()), state.l[r]);
    }
    attention_store_o<T, D, R, ROW>(through, p, item, first, state);
}

/* ---- the whole ---- */

/* A step of a block's work: of its job-th item, from place `at` on. */
struct attention_cursor {
    uint32_t at;
    int32_t job;
};

/* A block's items: rounds forth and back through all, as neighbours cost about the same and the
 * longest come first. */
static __device__ __forceinline__ int64_t attention_item(int32_t job) {
    return job * (int64_t)gridDim.x +
           (job % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}
static __device__ __forceinline__ int32_t attention_jobs(int64_t n_items) {
    const int32_t rounds = (int32_t)(n_items / gridDim.x);
    return rounds + (attention_item(rounds) < n_items);
}

/* Looks up the granules of a step, for the gather of the next round, and where the heads of its item
 * begin; fetches the item after it. */
template <class T, int KEYS, int WORDS, int THREADS>
static __device__ __forceinline__ void
attention_look_up(struct attention_lists<KEYS, WORDS> &lists, const struct attention_params &p,
                  int slot, const struct attention_cursor &step, int32_t jobs) {
    const int job = step.job & (ATTENTION_JOBS - 1), next = (step.job + 1) & (ATTENTION_JOBS - 1);
    const struct granule_item &item = lists.jobs[job];
    attention_look<KEYS, WORDS, THREADS>(lists, p, slot, item, step.at);
    if (step.at != 0)
        return;
    if (step.job + 1 < jobs)
        attention_fetch_job(lists, p, next, attention_item(step.job + 1));
    if (threadIdx.x == 0) {
        lists.k[job] = attention_head<T>(p.k, item.batch, item.head_kv);
        lists.v[job] = attention_head<T>(p.v, item.batch, item.head_kv);
    }
}

/* Gathers this warp's rows of a step into a stage. */
template <class T, int D, int R, int WARPS, int KEYS>
static __device__ __forceinline__ void
attention_fill(uint32_t shared, int stage, const struct attention_params &p,
               attention_lists<KEYS, attention_shape<D, R, WARPS, KEYS>::WORDS> &lists,
               const struct attention_cursor &step) {
    using shape = attention_shape<D, R, WARPS, KEYS>;
    constexpr int ROWS = KEYS / WARPS;
    static_assert(ROWS % 8 == 0, "a warp's rows begin where pieces are not exchanged");
    const int job = step.job & (ATTENTION_JOBS - 1);
    const struct granule_item &item = lists.jobs[job];
    const int first = (int)threadIdx.x / 32 * ROWS;
    const uint32_t rows = shared + (uint32_t)(stage * shape::PANEL + first * shape::ROW);
    const bool masked = step.at + KEYS > (uint32_t)item.whole << p.granule_bits;
    int32_t key[(ROWS + 31) / 32];
#pragma unroll
    for (int i = 0; i < (ROWS + 31) / 32; i++)
        if (ROWS >= 32 || warp_lane() < ROWS)
            key[i] = attention_key(lists, p, stage, item, step.at, first + 32 * i + warp_lane(),
                                   masked);
    attention_gather<T, D, ROWS, shape::ROW>(rows + shape::K, lists.k[job],
                                             attention_manner_of<T>(p, p.k, p.d_qk, 1), key);
    attention_gather<T, D, ROWS, shape::ROW>(rows + shape::V, lists.v[job],
                                             attention_manner_of<T>(p, p.v, p.d_v, 1), key);
}

template <int D, int R>
static __device__ __forceinline__ void attention_clear(struct attention_state<D, R> &state) {
    state = {};
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        state.m[r] = -INFINITY;
}

/*
 * Three steps are under way at a time: one is computed, the keys of the next are gathered, and the
 * granules of the one after that are looked up. They run on from item to item; an item without keys
 * is a step in which nothing is listed.
 */
template <class T, int D, int R, int WARPS, int KEYS, int BLOCKS>
static __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attention_mma(const __grid_constant__ struct attention_params p) {
    using shape = attention_shape<D, R, WARPS, KEYS>;
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory);
    auto &lists = *reinterpret_cast<attention_lists<KEYS, shape::WORDS> *>(memory + shape::LISTS);
    const int first = (int)threadIdx.x / 32 * R; /* row of the tile */
    const uint32_t rows = shared + (uint32_t)(first * shape::ROW);
    const int32_t jobs = attention_jobs(p.n_items);
    struct attention_cursor compute = {0, -1}, fill = {0, -1}, look = {0, 0};
    struct attention_state<D, R> state;
    attention_fetch_job(lists, p, 0, attention_item(0));
    attention_clear(state);
#pragma unroll 1
    for (int stage = 0; compute.job < jobs; stage ^= 1) {
        ring_wait();
        __syncthreads();
        if ((uint32_t)fill.job < (uint32_t)jobs)
            attention_fill<T, D, R, WARPS, KEYS>(shared, stage ^ 1, p, lists, fill);
        if (look.job < jobs)
            attention_look_up<T, KEYS, shape::WORDS, shape::THREADS>(lists, p, stage, look, jobs);
        if (compute.job >= 0) {
            const struct granule_item &item = lists.jobs[compute.job & (ATTENTION_JOBS - 1)];
            const uint32_t panel = shared + (uint32_t)(stage * shape::PANEL);
            const bool masked = compute.at + KEYS > (uint32_t)item.whole << p.granule_bits;
            attention_step<T, D, R, WARPS, KEYS>(
                state, rows, panel + shape::K, panel + shape::V,
                masked ? shared_address(lists.words[stage]) : 0, p.score_scale);
            if (fill.job != compute.job) {
                attention_finish<T, D, R, shape::ROW>(rows, p, item, first, state);
                attention_clear(state);
            }
        }
        if (fill.job != compute.job && fill.job < jobs)
            attention_load_q<T, D, R, shape::ROW>(
                rows, p, lists.jobs[fill.job & (ATTENTION_JOBS - 1)], first);
        compute = fill;
        fill = look;
        if (look.job < jobs) {
            look.at += KEYS;
            if (look.at >= (uint32_t)lists.jobs[look.job & (ATTENTION_JOBS - 1)].count
                               << p.granule_bits)
                look = {0, look.job + 1};
        }
    }
}

template <class T, int D, int R, int WARPS, int KEYS, int BLOCKS>
static cudaError_t attention_mma_launch_tile(const struct attention_params *p,
                                             cudaStream_t stream) {
    using shape = attention_shape<D, R, WARPS, KEYS>;
    void (*kernel)(const struct attention_params) = attention_mma<T, D, R, WARPS, KEYS, BLOCKS>;
    const int64_t blocks = (int64_t)BLOCKS * p->multiprocessors;
    cudaError_t code =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::BYTES);
    return code ? code
                : attention_launch(kernel, p->n_items < blocks ? p->n_items : blocks,
                                   shape::THREADS, shape::BYTES, p, stream);
}

/* The tile's height decides: tall tiles take 32 rows to a warp, which halves what passes from shared
 * memory for each product; for D > 128 their sums would not fit the registers. */
template <class T, int D>
static cudaError_t attention_mma_launch(const struct attention_params *p, cudaStream_t stream) {
    constexpr int R = D > 128 ? 16 : 32, TALL_KEYS = D > 64 ? 64 : 128;
    constexpr int BLOCKS = D > 128 ? 1 : D > 64 ? 2 : 3; /* of 64 rows; limited by shared memory */
    cudaError_t code;
    if (p->tile_rows <= 16)
        code = attention_mma_launch_tile<T, D, 16, 1, 64, 2 * BLOCKS - 1>(p, stream);
    else if (p->tile_rows == 32)
        code = attention_mma_launch_tile<T, D, 16, 2, 64, 2 * BLOCKS - 1>(p, stream);
    else if (p->tile_rows == 64)
        code = attention_mma_launch_tile<T, D, 16, 4, 64, BLOCKS>(p, stream);
    else
        code = attention_mma_launch_tile<T, D, R, 128 / R, TALL_KEYS, R / 16>(p, stream);
    return code ? code : attention_merge_launch<T>(p, stream);
}

#endif
