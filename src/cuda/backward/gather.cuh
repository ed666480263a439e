/* The fused backward: cp.async gather of what tiles list, and of the tiles' own rows. */
#ifndef TESSERA_CUDA_GRADIENT_GATHER_CUH
#define TESSERA_CUDA_GRADIENT_GATHER_CUH

#include "backward/config.cuh"

/* Copy mode of the rows of a side's tensor i into a panel. */
template <class T>
DEVICE struct attention_copy_mode gradient_copy_mode_of(const struct gradient_params &p,
                                                        const struct rows_view &view, int i,
                                                        float scale) {
    return {view.stride[2] * (int64_t)sizeof(T), (uint32_t)view.stride[2] * (uint32_t)sizeof(T),
            p.d[i] * (int32_t)sizeof(T), p.copied && scale == 1, scale};
}

/* The number in struct query_stats of the first query of an item's head. */
DEVICE int64_t gradient_first_known(const struct gradient_params &p,
                                    const struct granule_item &item) {
    return ((int64_t)item.batch * p.heads_q + item.head) * p.n_q;
}

/* Copies what is known of query i of the head that begins at `first`, by one lane; not wanted: zeros. */
DEVICE void gradient_copy_known(struct gradient_known &to, const struct gradient_params &p,
                                int64_t first, int32_t i, bool wanted) {
    const int64_t at = first + (wanted ? i : 0);
    cp_async_4(shared_address(&to.base), p.stats.base + at, wanted);
    cp_async_4(shared_address(&to.delta), p.stats.delta + at, wanted);
    cp_async_4(shared_address(&to.left), p.stats.left + at, wanted);
}

/* ---- coming steps ---- */

/* Copies the first key and the mask of a step's at-th granule to shared memory. */
template <class step_lists>
DEVICE void gradient_fetch_granule(step_lists &lists, const struct gradient_params &p, int slot,
                                   const struct granule_item &item, uint32_t first, uint32_t at) {
    if (first + at < (uint32_t)item.count)
        cp_async_4(shared_address(&lists.keys[slot][at]), p.image.keys + item.first + first + at,
                   true);
    else
        lists.keys[slot][at] = -1;
    attention_fetch_mask(lists, p, slot, item, first + at, at);
}

/* The key at place `row` of a step that begins with granule `begin`; -1: none. */
template <class step_lists>
DEVICE int32_t gradient_key(step_lists &lists, const struct gradient_params &p, int slot,
                            const struct granule_item &item, uint32_t begin, int row, bool masked,
                            bool keep) {
    const int32_t first = lists.keys[slot][row >> p.granule_bits];
    const int32_t key = first < 0 ? -1 : first + (row & ((1 << p.granule_bits) - 1));
    return masked ? attention_masked_key(lists, p, slot, item, begin, row, key, keep, p.words)
                  : key;
}

/* Looks up the granules of a step, one round before they are gathered. At a piece's first step also
 * copies the next piece. */
template <class C>
DEVICE void gradient_fetch_step(typename C::lists &lists, const struct gradient_params &p, int slot,
                                const struct gradient_cursor &step, int32_t jobs) {
    const struct granule_item &item = lists.jobs[step.job & (ATTENTION_JOBS - 1)];
    for (uint32_t at = threadIdx.x; at < C::STEP >> p.granule_bits; at += blockDim.x)
        gradient_fetch_granule(lists, p, slot, item, step.at, at);
    if (step.at == 0 && step.job + 1 < jobs)
        attention_fetch_job(lists.jobs[(step.job + 1) & (ATTENTION_JOBS - 1)], p,
                            p.image.worker_ptr[blockIdx.x] + step.job + 1);
}

/* Whether a piece is the end of its item: GRANULE_FIRST or GRANULE_LAST. */
template <class C> DEVICE bool gradient_end(const struct granule_item &item, int which) {
    return !C::OVER_KEYS || (item.parts & which);
}

/* Completes the step that is looked up, and begins the next, by one thread. */
template <class C>
DEVICE void gradient_plan_step(struct gradient_cursor &step, struct gradient_cursor &next,
                               typename C::lists &lists, const struct gradient_params &p) {
    using T = typename C::T;
    const int job = step.job & (ATTENTION_JOBS - 1);
    const struct granule_item &item = lists.jobs[job];
    const uint32_t after = step.at + (C::STEP >> p.granule_bits);
    if (step.job >= lists.n_jobs) {
        step.is = STEP_END;
        next.at = 0, next.job = step.job;
        return;
    }
    const bool more = after < (uint32_t)item.count;
    step.is = STEP_SOME | (after > (uint32_t)item.whole ? STEP_MASKED : 0) |
              (step.at == 0 && gradient_end<C>(item, GRANULE_FIRST) ? STEP_FIRST : 0) |
              (!more && gradient_end<C>(item, GRANULE_LAST) ? STEP_LAST : 0);
    next.at = more ? after : 0, next.job = step.job + !more;
    if (step.at == 0) {
        const int32_t head = C::OVER_KEYS ? item.head : item.head_kv;
        lists.heads[job] = {{attention_head<T>(p.y[0], item.batch, head),
                             attention_head<T>(p.y[1], item.batch, head)},
                            gradient_first_known(p, item)};
    }
}

/* ---- the streamed side ---- */

/* Copies what is known of a step's queries: thread n takes place n of a stage, and so on. */
template <class C>
DEVICE void gradient_fill_known(int stage, const struct gradient_params &p,
                                typename C::lists &lists, const struct gradient_cursor &step) {
    const int job = step.job & (ATTENTION_JOBS - 1);
#pragma unroll 1
    for (int place = (int)threadIdx.x; place < C::STEP; place += (int)blockDim.x) {
        const int32_t i = gradient_key(lists, p, stage, lists.jobs[job], step.at, place,
                                       step.is & STEP_MASKED, false);
        gradient_copy_known(lists.known[stage * C::STEP + place], p, lists.heads[job].known, i,
                            i >= 0);
    }
}

/* Gathers a step into a stage: warps take eight rows of Y0 and Y1 in turns, or of one of them where rows
 * are long. Rows of whole granules are consecutive. */
template <class C>
DEVICE void gradient_fill(uint32_t shared, int stage, const struct gradient_params &p,
                          typename C::lists &lists, const struct gradient_cursor &step) {
    using T = typename C::T;
    constexpr int EIGHTS = C::STEP / 8, LANES = attention_lanes<T, C::D>();
    constexpr bool APART = C::ROW > 256;
    const struct granule_item &item = lists.jobs[step.job & (ATTENTION_JOBS - 1)];
    const struct gradient_heads &heads = lists.heads[step.job & (ATTENTION_JOBS - 1)];
    const struct attention_copy_mode modes[2] = {gradient_copy_mode_of<T>(p, p.y[0], 0, p.y_scale),
                                                 gradient_copy_mode_of<T>(p, p.y[1], 1, 1.0f)};
    const bool masked = step.is & STEP_MASKED;
    const bool runs = !masked && p.granule_bits >= 3 && modes[0].copied;
    const int lane = warp_lane_here();
#pragma unroll 1
    for (int unit = (int)threadIdx.x / 32; unit < EIGHTS * (1 + APART);
         unit += (int)blockDim.x / 32) {
        const bool only[2] = {APART && unit < EIGHTS, APART && unit >= EIGHTS};
        const int first = 8 * (unit % EIGHTS);
        const uint32_t to = shared + (uint32_t)(stage * C::PANEL + first * C::ROW);
        if (runs) {
            const int32_t run =
                lists.keys[stage][first >> p.granule_bits] + (first & ((1 << p.granule_bits) - 1));
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (!only[!i])
                    attention_copy_run<T, C::D, 8, C::ROW>(
                        to + (uint32_t)(2 * i * C::PANEL) + attention_lane_to<LANES, C::ROW>(),
                        heads.y[i] + attention_lane_from<LANES>(run, modes[i].step), modes[i], 8);
            continue;
        }
        int32_t key[1] = {-1};
        if (lane < 8)
            key[0] = gradient_key(lists, p, stage, item, step.at, first + lane, masked, !only[1]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (!only[!i])
                attention_gather<T, C::D, 8, C::ROW>(to + (uint32_t)(2 * i * C::PANEL), heads.y[i],
                                                     modes[i], key);
    }
    if (C::OVER_KEYS)
        gradient_fill_known<C>(stage, p, lists, step);
}

/* Whether a query of this thread's places of a stage is empty: known when its own copies are done. */
template <class C> DEVICE bool gradient_some_empty(const typename C::lists &lists, int stage) {
    bool some = false;
#pragma unroll 1
    for (int place = (int)threadIdx.x; place < C::STEP; place += (int)blockDim.x)
        some |= lists.known[stage * C::STEP + place].base == INFINITY;
    return some;
}

/* Zeroes empty queries of a stage, and clears their row masks: no gradient takes anything of such a query,
 * whatever it or the keys hold. masked: the stage has row masks already. */
template <class C>
DEVICE void gradient_clear_empty(uint32_t shared, typename C::lists &lists, int stage,
                                 bool masked) {
#pragma unroll 1
    for (int eight = (int)threadIdx.x / 32; eight < C::STEP / 8; eight += (int)blockDim.x / 32) {
        const int at = 8 * eight + warp_lane_here() % 8;
        const bool empty =
            warp_lane_here() < 8 && lists.known[stage * C::STEP + at].base == INFINITY;
        if (warp_lane_here() < 8 && (empty || !masked))
#pragma unroll
            for (int w = 0; w < GRADIENT_WORDS; w++)
                lists.words[stage][at][w] = empty ? 0 : ~(uint64_t)0;
        unsigned rows = __ballot_sync(WARP_ALL, empty);
        for (; rows; rows &= rows - 1) {
            const int row = 8 * eight + __ffs((int)rows) - 1;
            for (int at = 16 * warp_lane_here(); at < 2 * C::ROW; at += 16 * 32)
                shared_store_16(shared + (uint32_t)((2 * (at / C::ROW) + stage) * C::PANEL +
                                                    row * C::ROW + at % C::ROW),
                                {0, 0, 0, 0});
        }
    }
}

/* ---- the tile's rows ---- */

/* Copies this warp's rows of tensor i of the tile. */
template <class C>
DEVICE void gradient_load_x(uint32_t to, const struct gradient_params &p,
                            const struct granule_item &item, int i, int first) {
    using T = typename C::T;
    constexpr int LANES = attention_lanes<T, C::D>();
    const int32_t head = C::OVER_KEYS ? item.head_kv : item.head;
    const char *x = attention_head<T>(p.x[i], item.batch, head);
    const struct attention_copy_mode mode =
        gradient_copy_mode_of<T>(p, p.x[i], i, i ? 1.0f : p.x_scale);
    const int row = first + warp_lane_here();
    if (mode.copied)
        attention_copy_run<T, C::D, C::R, C::ROW>(
            to + attention_lane_to<LANES, C::ROW>(),
            x + attention_lane_from<LANES>(item.row + first, mode.step), mode, item.rows - first);
    else
        attention_copy_elements<T, C::R, C::ROW>(to, x, mode,
                                                 {row < item.rows ? item.row + row : -1});
}

/* Copies rows of both tensors, and what is known of them where rows are queries. */
template <class C>
DEVICE void gradient_load_rows(uint32_t shared, typename C::lists &lists,
                               const struct gradient_params &p, const struct granule_item &item) {
    const int first = gradient_first_row<C>(), row = first + warp_lane_here();
    const int side = gradient_side<C>();
    const uint32_t x = shared + (uint32_t)(C::X + first * C::ROW);
    gradient_pair_wait<C>(); /* the rows before have been read */
    if (side == 0)
        gradient_load_x<C>(x, p, item, 0, first);
    if ((C::WANTED & GRADIENT_FIRST) && side == C::SHARE - 1)
        gradient_load_x<C>(x + gradient_x_bytes<C>(), p, item, 1, first);
    if (!C::OVER_KEYS && side == 0 && warp_lane_here() < C::R)
        gradient_copy_known(lists.known[row], p, gradient_first_known(p, item), item.row + row,
                            row < item.rows);
}

#endif
