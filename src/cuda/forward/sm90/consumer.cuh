/* Fused attention on Hopper, shared parts of the consumers: cursor, WGMMAs, output.
 * consumer_steps.cuh walks an item's steps; config.cuh has the pipeline. */
#ifndef TESSERA_CUDA_SM90_CONSUMER_CUH
#define TESSERA_CUDA_SM90_CONSUMER_CUH

#include "forward/sm90/mask.cuh"
#include "forward/sm90/epilogue.cuh"

/* A consumer's place in its work: the step whose Q K^T was issued last. */
struct sm90_cursor {
    char *memory;
    uint32_t shared;
    int consumer;  /* 0, 1 ...: rows 64 consumer ... of the tile, or a part of the dims */
    bool elected;  /* one thread of the warpgroup */
    uint32_t step; /* counted over all items */
    uint32_t job;  /* items so far, less 1 */
    int32_t at;    /* number of the step in its item */
    int32_t steps; /* steps of the item */
    int32_t whole; /* first steps of the item, which have no mask */
    bool idle;     /* one consumer: all rows of this warp are past those of the tile */
};

/* Waits for the index-th phase of a ring whose full barriers begin at `full`. */
template <int STAGES> DEVICE void sm90_wait(uint32_t full, uint32_t index) {
    barrier_wait(ring_barrier<STAGES>(full, index), ring_parity<STAGES>(index));
}
template <int STAGES>
DEVICE void sm90_release(const sm90_cursor &cursor, uint32_t empty, uint32_t index) {
    if (cursor.elected)
        barrier_arrive(ring_barrier<STAGES>(empty, index));
}

/* First row of a warp within its head. */
template <class shape>
DEVICE int sm90_warp_row(const struct attention_params &p, const sm90_cursor &cursor) {
    return sm90_row_of_head(p, sm90_consumer_row<shape>(cursor.consumer) +
                                   sm90_thread_here() / 32 * 16);
}

/* First dim of O of a consumer, among the dims of its CTA. */
template <class shape> DEVICE int sm90_consumer_dim(const sm90_cursor &cursor) {
    return shape::DIM_SPLIT == 1 ? 0 : 2 * shape::OUTPUTS * cursor.consumer;
}

/* ---- WGMMA ---- */

/* Issues S [64, KEYS] = Q [64, D_QK] K [KEYS, D_QK]^T of the step at `cursor`; `wait` waits for K.
 * Where dims are divided, a consumer takes half of each panel and gets partial scores. */
template <class T, class shape, class waits>
DEVICE void sm90_scores(float (&s)[shape::SCORES], const sm90_cursor &cursor, const waits &wait) {
    constexpr int EACH = 4 / shape::DIM_SPLIT; /* WGMMAs of a panel */
    const uint32_t half = shape::DIM_SPLIT == 1 ? 0 : cursor.consumer * (EACH * 32);
    const uint64_t q =
        wgmma_k_major(cursor.shared + shape::Q + sm90_consumer_row<shape>(cursor.consumer) * 128 +
                      ring_stage<shape::Q_STAGES>(cursor.job) * shape::Q_TILE + half);
    const uint64_t k = wgmma_k_major(cursor.shared + shape::K +
                                     ring_stage<shape::STAGES>(cursor.step) * shape::K_TILE + half);
    wait();
    wgmma_fence_operand(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < shape::D_QK / 16 / shape::DIM_SPLIT; i++) {
        const uint64_t on_q = i / EACH * (shape::Q_PANEL / 16) + i % EACH * (32 / 16);
        const uint64_t on_k = i / EACH * (shape::PANEL / 16) + i % EACH * (32 / 16);
        wgmma_ss(s, q + on_q, k + on_k, i != 0, T());
    }
    wgmma_commit();
}

/* Four of a thread's scores: stored to shared memory, loaded, or loaded and added. */
DEVICE void sm90_store_scores(uint32_t to, const float *s) {
    shared_store_16(to, {__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]),
                         __float_as_uint(s[3])});
}
DEVICE void sm90_load_scores(float *s, uint32_t from) {
    const uint4 x = shared_load_16(from);
    s[0] = __uint_as_float(x.x), s[1] = __uint_as_float(x.y);
    s[2] = __uint_as_float(x.z), s[3] = __uint_as_float(x.w);
}
DEVICE void sm90_add_scores(float *s, uint32_t from) {
    float x[4];
    sm90_load_scores(x, from);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += x[i];
}

/* Sends this consumer's half of the CTA's partial scores to the other CTA, once the buffer there is
 * free. */
template <class shape>
DEVICE void sm90_send_scores(const float (&s)[shape::SCORES], const sm90_cursor &cursor) {
    const uint32_t peer = cluster_address(cursor.shared, 1 - sm90_rank<shape>());
    const uint32_t to = peer + shape::S + 16 * (uint32_t)sm90_thread_here();
    if (cursor.elected && cursor.consumer == 0)
        barrier_arrive_expect_tx(cursor.shared + shape::S_FULL, shape::S_TILE);
    barrier_wait(cursor.shared + shape::S_EMPTY, (cursor.step & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF_SCORES == cursor.consumer)
            store_remote(to + i * 512, {s[i], s[i + 1], s[i + 2], s[i + 3]}, peer + shape::S_FULL);
}

/* Adds the scores that the other CTA sent. */
template <class shape>
DEVICE void sm90_add_sent(float (&s)[shape::SCORES], const sm90_cursor &cursor) {
    const uint32_t peer = cluster_address(cursor.shared, 1 - sm90_rank<shape>());
    const uint32_t from = cursor.shared + shape::S + 16 * (uint32_t)sm90_thread_here();
    barrier_wait_cluster(cursor.shared + shape::S_FULL, cursor.step & 1);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        sm90_add_scores(s + i, from + i * 512);
    wgmma_fence_operand(s); /* so the reads precede the arrival below */
    __syncwarp();
    if (warp_lane_here() == 0)
        barrier_arrive_remote(peer + shape::S_EMPTY);
}

/* Sums S [64, KEYS] over consumers and CTAs that divide dims. Each consumer adds up one half and passes it on, all
 * in the memory of O. A thread writes only where it has read last, so no barrier frees the buffer. */
template <class shape>
DEVICE void sm90_reduce_scores(float (&s)[shape::SCORES], const sm90_cursor &cursor) {
    if constexpr (shape::DIM_SPLIT == 1)
        return;
    const uint32_t at = cursor.shared + shape::O + 16 * (uint32_t)sm90_thread_here();
    const uint32_t mine = at + (uint32_t)(cursor.consumer * shape::O_CONSUMER);
    const uint32_t other = at + (uint32_t)((1 - cursor.consumer) * shape::O_CONSUMER);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF_SCORES != cursor.consumer)
            sm90_store_scores(mine + i % shape::HALF_SCORES * 512, s + i);
    named_barrier_sync(SM90_EXCHANGE, SM90_BOTH);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF_SCORES == cursor.consumer) {
            sm90_add_scores(s + i, other + i % shape::HALF_SCORES * 512);
            sm90_store_scores(other + i % shape::HALF_SCORES * 512, s + i);
        }
    if constexpr (shape::CTAS > 1)
        sm90_send_scores<shape>(s, cursor);
    named_barrier_sync(SM90_EXCHANGE, SM90_BOTH);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF_SCORES != cursor.consumer)
            sm90_load_scores(s + i, mine + i % shape::HALF_SCORES * 512);
    if constexpr (shape::CTAS > 1)
        sm90_add_sent<shape>(s, cursor);
}

/* V of a step. Where dims are divided, this consumer's panels. */
template <class shape> DEVICE uint32_t sm90_v_address(const sm90_cursor &cursor, uint32_t step) {
    return cursor.shared + shape::V + ring_stage<shape::STAGES>(step) * shape::V_TILE +
           (uint32_t)(sm90_consumer_dim<shape>(cursor) / 64 * shape::PANEL);
}

/* Issues O [64, D_V] (+)= P [64, KEYS] V [KEYS, D_V] of step `step`; `wait` waits for V. Where dims
 * are divided, a consumer has its own part of D_V. */
template <class T, class shape, class waits>
DEVICE void sm90_pv(float (&o)[shape::OUTPUTS], uint32_t (&probs)[shape::SCORES / 2],
                    const sm90_cursor &cursor, uint32_t step, int add, const waits &wait) {
    const uint64_t v = wgmma_mn_major(sm90_v_address<shape>(cursor, step), shape::PANEL);
    wait();
    wgmma_fence_operand(o);
    wgmma_fence_operand(probs);
    wgmma_fence();
    constexpr int PART = shape::OUTPUTS / shape::O_PARTS, APART = PART / 32 * shape::PANEL;
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++)
#pragma unroll
        for (int part = 0; part < shape::O_PARTS; part++)
            wgmma_rs(reinterpret_cast<float(&)[PART]>(o[part * PART]), probs + 4 * i,
                     v + part * (APART / 16) + i * (16 * 128 / 16), i != 0 ? 1 : add, T());
    wgmma_commit();
}

/* ---- output ---- */

/* Output of the job-th item: O and lse to the epilogue warps or to memory, or a partial result to
 * its slot. BASED: where the run may have a base. */
template <class T, class shape, int SOURCE, bool BASED>
DEVICE void sm90_store(const struct attention_params &p, const sm90_cursor &cursor, uint32_t job,
                       float (&o)[shape::OUTPUTS], const struct sm90_state &state) {
    const struct granule_item &item = sm90_item<shape>(cursor.memory, job);
    const int first = sm90_thread_here() / 32 * 16; /* row of the consumer */
    const int row = warp_lane_here() / 4, h = warp_lane_here() % 4;
    struct sm90_queries queries[2];
    sm90_queries_of_warp<shape>(queries, p, item,
                                sm90_consumer_row<shape>(cursor.consumer) + first);
    const int dim = sm90_rank<shape>() * shape::D_V + sm90_consumer_dim<shape>(cursor);
    float m[2] = {state.m[0] - sm90_raise<T, shape>(), state.m[1] - sm90_raise<T, shape>()};
    float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    float below[2];
    const bool whole = sm90_uniform(item.parts) == 1;
    if (BASED && whole && p.base.o.data)
        sm90_join_base<T, shape>(p, item.batch, queries, o, m, l, below, dim);
    else
#pragma unroll
        for (int i = 0; i < 2; i++)
            below[i] =
                modify_denominator(p.modify, min(queries[i].head, p.heads_q - 1), m[i], l[i]);
    /* Four lanes share two rows; lanes 0 and 1 of the four store one row each. */
    float2 sums = {h ? m[1] : m[0], h ? l[1] : l[0]};
    if (shape::BY_REFERENCES) /* a logarithm near 20 would have fewer digits behind the point */
        sums = {h ? state.m[1] : state.m[0], sums.y * attention_exp2(-sm90_raise<T, shape>())};
    if (sm90_hands_o<shape, SOURCE>())
        barrier_wait(cursor.shared + shape::O_EMPTY + 8 * cursor.consumer, (job & 1) ^ 1);
    if (!whole)
        sm90_store_partial<T, shape>(p, item, queries, o, state.m, l, dim);
    else if (sm90_hands_sums<shape, SOURCE>() && h < 2)
        sm90_sums<shape>(cursor.memory, 64 * cursor.consumer + first + row + 8 * h) = sums;
    else if (h < 2 && row < (h ? queries[1].rows : queries[0].rows) && dim == 0)
        attention_store_lse(p, item.batch, h ? queries[1].head : queries[0].head,
                            (h ? queries[1].row : queries[0].row) + row, sums.x, sums.y);
    if (shape::DIM_SPLIT > 1 && whole) /* all have read their scores from the memory of O */
        warpgroup_sync(SM90_CONSUMER + cursor.consumer);
    if (whole)
        sm90_store_rows<T, shape, SOURCE>(
            p, cursor.shared + shape::O + (uint32_t)(cursor.consumer * shape::O_CONSUMER),
            item.batch, queries, o, below, first, dim);
    if (shape::DIM_SPLIT > 1 && whole) /* all have stored their O */
        warpgroup_sync(SM90_CONSUMER + cursor.consumer);
    if (sm90_hands_o<shape, SOURCE>()) {
        proxy_fence();
        barrier_arrive(cursor.shared + shape::O_FULL + 8 * cursor.consumer);
    }
}

/* ---- items ---- */

/* Moves to the next item; false at the end. */
template <class shape>
DEVICE bool sm90_next_item(sm90_cursor &cursor, const struct attention_params &p) {
    cursor.job++;
    sm90_wait<shape::Q_STAGES>(cursor.shared + shape::Q_FULL, cursor.job);
    const struct granule_item &item = sm90_item<shape>(cursor.memory, cursor.job);
    const int64_t places = (int64_t)item.count << p.granule_bits;
    cursor.at = 0;
    cursor.steps = sm90_uniform((int)((places + shape::KEYS - 1) >> shape::BITS));
    const bool all =
        shape::MODIFIED && !shape::SERIAL; /* may have masks, as these have modifiers */
    if (!all)
        cursor.whole = sm90_uniform((int)(((int64_t)item.whole << p.granule_bits) >> shape::BITS));
    return cursor.steps > 0;
}

/* Registers of a consumer thread: scores of a step, O of the item, P of the last step, masks. */
template <class shape> struct sm90_fragments {
    float s[shape::SCORES], o[shape::OUTPUTS];
    uint32_t probs[shape::SCORES / 2];
    struct sm90_records records;      /* records of the item */
    uint32_t listed[shape::GRANULES]; /* mask bits of the scores of a masked step */
    uint32_t record;                  /* record of that step: MASK_SHORT where a group has that */
    uint32_t next[shape::GRANULES];   /* records of the masked step after it */
    /* states of the item, and of the one before while its O is not stored */
    struct sm90_state state, done;
    float reference[2]; /* SUMMED: references of the item's rows, base 2 */
    /* with modifiers, of the step: places of columns lane and lane + 32, and weights that are kept */
    int32_t place[shape::GRANULES][2];
    uint32_t kept[shape::GRANULES];
};

#endif
