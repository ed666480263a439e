/*
 * The cut of a row in registers, whose warps are a team: one, or all of a CTA.
 *
 *     sample   each warp sorts 32 scores; joined over the warps they bracket the cut, three deviations about its rank
 *     split    scores above the bracket are counted; those within go to shared memory, each lane's to a column of its own
 *     bins     those within are counted by 256 equal parts of the bracket
 *     sort     the scores of the part where the target falls
 *
 * Counts show whether the cut lies within the bracket, and in a part of at most 32 scores. Otherwise turns seek it: two
 * numbers are counted by the whole team, and lines through the counts, or thirds of the keys, give the next two. All of a
 * team's warps do the same and find the same.
 */
#ifndef TESSERA_CUDA_SELECT_TEAM_CUH
#define TESSERA_CUDA_SELECT_TEAM_CUH

#include "select/registers.cuh"
#include "select/sample.cuh"

#define TEAM_WARPS 32
#define TEAM_BINS 256 /* 8 of a lane */
#define TEAM_LINES 2  /* turns before every other one divides by keys */

struct alignas(16) team_shared {
    uint32_t bins[TEAM_BINS];
    float below[TEAM_WARPS], above[TEAM_WARPS], most[TEAM_WARPS]; /* scores of the sample */
    uint32_t counts[2][TEAM_WARPS];
    float left[32]; /* scores of a bin */
    uint32_t found;
};

struct team {
    int warp, warps;
    team_shared *shared;
    float *slots; /* this warp's: a lane's scores lie 32 apart */
};

DEVICE void team_wait(const team &t) {
    if (t.warps == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* Sum of a number of each warp, after a barrier. */
DEVICE uint32_t team_sum(const team &t, const uint32_t *of_warps) {
    return __reduce_add_sync(WARP_ALL, warp_lane() < t.warps ? of_warps[warp_lane()] : 0);
}

/* Two keys, the first below the second. */
struct team_keys {
    uint32_t low, high;
};

/* ---- turns ---- */

/* The cut lies between two keys: `from` is reached by `reach` scores, more than the target, `to` by `above`, fewer. */
struct team_bracket {
    uint32_t from, to;
    int32_t reach, above;
};

/* Keys where a line through both counts comes a deviation before and behind the target; or thirds of the keys. */
DEVICE team_keys team_next(const team_bracket &b, int32_t target, int turn) {
    const float low = registers_number(b.from), wide = registers_number(b.to) - low;
    const float all = (float)(b.reach - b.above);
    const float share = __fdividef((float)(b.reach - target), all);
    const float apart = __fdividef(0.8f * registers_root(all) + 1, all) + 1.0f / 64;
    if (turn < TEAM_LINES || turn % 2 || isinf(wide) || isnan(wide)) {
        const uint32_t third = (b.to - b.from) / 3;
        return {b.from + third, b.to - third};
    }
    return {registers_key(low + wide * fmaxf(share - apart, 0)),
            registers_key(low + wide * fminf(share + apart, 1))};
}

/* Takes a count in: true where it is the target. */
DEVICE bool team_take(team_bracket *b, uint32_t key, int32_t count, int32_t target,
                      registers_cut *cut) {
    if (count == target)
        *cut = {registers_number(key), registers_number(key), 0};
    if (count > target && key > b->from)
        b->from = key, b->reach = count;
    if (count < target && key < b->to)
        b->to = key, b->above = count;
    return count == target;
}

template <int KEYS>
DEVICE registers_cut team_turns(const team &t, const float (&x)[KEYS], uint32_t apart, int32_t all,
                                int32_t target) {
    team_bracket b = {REGISTERS_LOW, (registers_key(INFINITY) | (apart - 1)) + 1, all, 0};
    registers_cut cut;
    for (int turn = 0; b.to - b.from > apart; turn++) {
        team_keys keys = team_next(b, target, turn);
        keys.low = min(max(keys.low & ~(apart - 1), b.from + apart), b.to - apart);
        keys.high = min(max(keys.high & ~(apart - 1), keys.low + apart), b.to - apart);
        uint32_t counts = 0;
        registers_count(&counts, x, registers_number(keys.low), 1);
        registers_count(&counts, x, registers_number(keys.high), 1 << 16);
        counts = __reduce_add_sync(WARP_ALL, counts);
        if (warp_lane() == 0)
            t.shared->counts[turn % 2][t.warp] = counts;
        team_wait(t);
        counts = team_sum(t, t.shared->counts[turn % 2]);
        if (team_take(&b, keys.low, (int32_t)(counts & 0xffff), target, &cut) ||
            team_take(&b, keys.high, (int32_t)(counts >> 16), target, &cut))
            return cut;
    }
    return {registers_number(b.from), registers_number(b.to), target - b.above};
}

/* ---- bins ---- */

/* Scores at least `low` and below `high` have bins, which ascend with them. */
struct team_range {
    float low, high, scale;
};
DEVICE int team_bin(const team_range &range, float x) {
    return (int)fminf((x - range.low) * range.scale, TEAM_BINS - 1.0f);
}

/* A warp's score at a place of its sorted sample. */
DEVICE float team_at(float sorted, const sample_place &place) {
    const float x = fminf(fmaxf(sorted, -SAMPLE_MOST), SAMPLE_MOST);
    return sample_between(__shfl_sync(WARP_ALL, x, place.first),
                          __shfl_sync(WARP_ALL, x, place.first + 1), place.part);
}

/* A sample's range, which most likely has the cut. */
template <class S>
DEVICE team_range team_sample(const struct select_params &p, const select_at &at, const team &t,
                              int32_t first, int32_t columns, int32_t target) {
    const int lane = warp_lane();
    const int32_t all = at.row.tail - at.row.kept;
    const int32_t begin = max(first, at.row.kept), end = min(first + columns, at.row.tail);
    const float sorted = registers_sort(registers_sample<S>(
        p, at, end > begin ? begin : at.row.kept, end > begin ? end - begin : all));
    const sample_places around = sample_around(__fdividef((float)target, (float)all), t.warps);
    const float below = team_at(sorted, around.low), above = team_at(sorted, around.high);
    if (lane == 0)
        t.shared->below[t.warp] = below, t.shared->above[t.warp] = above,
        t.shared->most[t.warp] = sorted;
    team_wait(t);
    float low = sample_mean(t.shared->below[lane], t.warps, 1);
    float high = sample_mean(t.shared->above[lane], t.warps, 1);
    if (around.high.none)
        high = warp_max(lane < t.warps ? t.shared->most[lane] : -INFINITY);
    if (around.low.none)
        low = -FLT_MAX;
    high =
        fmaxf(high, registers_number(registers_key(low) + registers_apart<S>(p.type == TESS_F16)));
    return {low, high, __fdividef((float)TEAM_BINS, high - low)};
}

/* The bin of the target among those within, counted from the highest: -1 where it is in none. */
struct team_found {
    int32_t bin, count, left; /* scores of the bin; how many of them to choose */
};
DEVICE team_found team_find(const uint32_t *bins, int32_t target) {
    const uint4 *const from = reinterpret_cast<const uint4 *>(bins) + TEAM_BINS / 4 - 2;
    const int lane = warp_lane();
    const uint4 low = from[-2 * lane], high = from[1 - 2 * lane];
    const uint32_t bin[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
    int32_t own = 0, sum;
#pragma unroll
    for (int i = 0; i < 8; i++)
        own += (int32_t)bin[i];
    const int32_t before = warp_before(own, &sum);
    const uint32_t hit = __ballot_sync(WARP_ALL, before < target && before + own >= target);
    if (target < 1 || !hit)
        return {-1, 0, 0};
    team_found f = {TEAM_BINS - 1 - 8 * lane, (int32_t)bin[0], target - before};
#pragma unroll
    for (int i = 1; i < 8; i++)
        if (f.bin == TEAM_BINS - 8 * (lane + 1) + 8 - i && f.left > f.count)
            f.left -= f.count, f.bin--, f.count = (int32_t)bin[i];
    const int source = __ffs((int)hit) - 1;
    return {__shfl_sync(WARP_ALL, f.bin, source), __shfl_sync(WARP_ALL, f.count, source),
            __shfl_sync(WARP_ALL, f.left, source)};
}

/* The cut of the row, of whose scores `target` are chosen; this warp has columns first ... first + 32 KEYS - 1. */
template <class S, int KEYS>
DEVICE registers_cut team_cut(const struct select_params &p, const select_at &at, const team &t,
                              const float (&x)[KEYS], int32_t first, int32_t target) {
    const int lane = warp_lane();
    team_shared *const s = t.shared;
    for (int i = t.warp * 32 + lane; i < TEAM_BINS / 4; i += 32 * t.warps)
        reinterpret_cast<uint4 *>(s->bins)[i] = make_uint4(0, 0, 0, 0);
    if (t.warp == 0 && lane == 0)
        s->found = 0;
    const team_range range = team_sample<S>(p, at, t, first, 32 * KEYS, target);
    float *const begin = t.slots + lane, *end = begin;
    uint32_t above = 0;
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        const bool more = x[j] >= range.high;
        above += more;
        if (!more && x[j] >= range.low) {
            *end = x[j];
            end += 32;
        }
    }
    for (const float *at_slot = begin; at_slot < end; at_slot += 32)
        atomicAdd(&s->bins[team_bin(range, *at_slot)], 1u);
    above = __reduce_add_sync(WARP_ALL, above);
    if (lane == 0)
        s->counts[0][t.warp] = above;
    team_wait(t);
    const int32_t more = (int32_t)team_sum(t, s->counts[0]);
    const team_found found = team_find(s->bins, target - more);
    if (found.bin < 0 || found.count > 32) {
        team_wait(t); /* all have read the counts */
        return team_turns(t, x, registers_apart<S>(p.type == TESS_F16), at.row.tail - at.row.kept,
                          target);
    }
    for (const float *at_slot = begin; at_slot < end; at_slot += 32)
        if (team_bin(range, *at_slot) == found.bin)
            s->left[atomicAdd(&s->found, 1u)] = *at_slot;
    team_wait(t);
    const float own = lane < found.count ? s->left[lane] + 0.0f : -INFINITY; /* -0 becomes +0 */
    const float cut = __shfl_sync(WARP_ALL, registers_sort(own), found.left - 1);
    const int32_t ties = found.left - __popc(__ballot_sync(WARP_ALL, own > cut));
    if (ties == __popc(__ballot_sync(WARP_ALL, own == cut)))
        return {cut, cut, 0};
    return {cut, registers_number(registers_key(cut) + 1), ties};
}

#endif
