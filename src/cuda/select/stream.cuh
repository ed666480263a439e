/*
 * Choosing columns of long rows, each read once: the CTAs of a cluster take a row, many rows a CTA each.
 *
 *     sample   keys at a fixed stride bracket the cut: lo ... hi, three deviations around its rank in the sample
 *     read     a bit for each column above hi, one for each within the bracket, whose scores are kept in order
 *     digits   the cut among those within, if it is there
 *     write    columns from both bits
 *
 * Counts show whether the cut lies within the bracket. Where it does not, or the scores within do not find room, the
 * cut's key is found by digits in memory, and the row is read again with that key as bracket: the same columns, later.
 *
 * A warp reads steps that lie together, by cp.async into a ring of its own; the first ones come while the CTA is still
 * busy with the row before, and with the sample.
 */
#ifndef TESSERA_CUDA_SELECT_STREAM_CUH
#define TESSERA_CUDA_SELECT_STREAM_CUH

#include "select/sample.cuh"
#include "device/copy.cuh"

/* Scores of a bracket, as each 32 bits of a row hold them. */
struct stream_limits {
    uint32_t lo, hi;
    bool half; /* f16 */
};

/* Masks of the two scores of a word that are above hi, and of those at least lo. */
template <class T>
DEVICE void stream_compare(uint32_t word, const stream_limits &limits, uint32_t *above,
                           uint32_t *least) {
    *above = __hgt2_mask(select_pair<T>(word), select_pair<T>(limits.hi));
    *least = __hge2_mask(select_pair<T>(word), select_pair<T>(limits.lo));
}
template <>
__device__ __forceinline__ void stream_compare<float>(uint32_t word, const stream_limits &limits,
                                                      uint32_t *above, uint32_t *least) {
    const float score = __uint_as_float(word);
    *above = score > __uint_as_float(limits.hi) ? UINT32_MAX : 0;
    *least = score >= __uint_as_float(limits.lo) ? UINT32_MAX : 0;
}

/* Bits of a lane's scores above hi, and of those at least lo; T: their type, or two of them. */
template <class T, class S>
DEVICE void stream_masks(const select_piece<S> &x, const stream_limits &limits, uint32_t *more,
                         uint32_t *least) {
    const uint32_t *word = &x.word[0].x;
#pragma unroll
    for (int i = 0; i < 2 * (int)sizeof(S); i++) {
        const uint32_t bits = sizeof(S) == 4 ? 1u << i : 0x00020001u << 2 * i;
        uint32_t is_above, is_least;
        stream_compare<T>(word[i], limits, &is_above, &is_least);
        *more |= is_above & bits, *least |= is_least & bits;
    }
}

/* Bits of a lane's scores above hi, and of those from lo to hi. */
template <class S>
DEVICE void stream_bits(const select_piece<S> &x, const stream_limits &limits, uint32_t *above,
                        uint32_t *within) {
    uint32_t more = 0, same = 0;
    if (sizeof(S) == 4)
        stream_masks<float>(x, limits, &more, &same);
    else if (limits.half)
        stream_masks<__half2>(x, limits, &more, &same);
    else
        stream_masks<__nv_bfloat162>(x, limits, &more, &same);
    if (sizeof(S) == 2)
        more |= more >> 16, same |= same >> 16;
    *above = more & 0xff, *within = same & ~more & 0xff;
}

/* A step's place in the ring. */
template <class S> DEVICE S *stream_place(const stream_room<S> &r, int step) {
    return r.ring + (step - r.first) % STREAM_AHEAD * STREAM_STEP;
}

/* Sets out for a step of this warp, if there is one. */
template <class S>
DEVICE void stream_fetch(const struct select_params &p, const void *scores, const stream_room<S> &r,
                         int step) {
    constexpr int EACH = 16 / (int)sizeof(S);
    const uint32_t to = shared_address(stream_place(r, step)) + 16 * warp_lane();
    const int32_t column = step * STREAM_STEP + warp_lane() * EACH;
    const S *const from = static_cast<const S *>(scores) + column;
    const int32_t left = ((int32_t)p.shape.n - column) * (int32_t)sizeof(S); /* bytes */
    if (step < r.last)
#pragma unroll
        for (int i = 0; i < STREAM_STEP / EACH / 32; i++)
            if (512 * i < left)
                cp_async_part(to + 512 * i, from + 32 * i * EACH, min(left - 512 * i, 16));
    cp_async_commit();
}

/* Sets out for the first steps of a row. */
template <class S>
DEVICE void stream_begin(const struct select_params &p, const void *scores,
                         const stream_room<S> &r) {
#pragma unroll
    for (int i = 0; i < STREAM_AHEAD; i++)
        stream_fetch(p, scores, r, r.first + i);
}

/* The scores of a step that lie within the bracket, in their order, find room. */
template <class S>
DEVICE void stream_keep(const S *from, const stream_room<S> &r, int step, uint32_t within) {
    int32_t sum;
    int32_t to = warp_before(__popc(within), &sum);
    if (!sum)
        return;
    uint32_t place = 0;
    if (warp_lane() == 0)
        r.start[step - r.base] = place = atomicAdd(&r.shared->used, (uint32_t)sum);
    to += (int32_t)__shfl_sync(WARP_ALL, place, 0);
    for (from += warp_lane() * 32; within && to < r.most; within &= within - 1)
        r.scores[to++] = from[__ffs((int)within) - 1];
}

/* A word of a lane for each step of a warp: bit c is column 32 lane + c of the step. begun: its first steps are on
 * their way. */
template <class S>
DEVICE void stream_read(const struct select_params &p, const select_at &at, const stream_room<S> &r,
                        stream_bracket bracket, bool keep, int2 *sum) {
    const int lane = warp_lane();
    const uint32_t each = sizeof(S) == 4 ? 1 : 0x00010001; /* one score in a word, or two */
    const stream_limits limits = {select_stored(min(bracket.lo, p.keys.high), p.keys.bits) * each,
                                  select_stored(bracket.hi, p.keys.bits) * each,
                                  p.type == TESS_F16};
    int32_t more = 0, same = 0;
    for (int step = r.first; step < r.last; step++) {
        const int32_t begin = step * STREAM_STEP, first = begin + lane * SELECT_LANE;
        const bool plain = begin >= at.row.kept && begin + STREAM_STEP <= at.row.tail;
        uint32_t *const above_to = r.above + (step - r.base) * 32;
        uint32_t *const within_to = r.within + (step - r.base) * 32;
        const S *const from = stream_place(r, step);
        cp_async_wait<STREAM_AHEAD - 1>();
        __syncwarp();
#pragma unroll
        for (int g = 0; g < STREAM_GROUP; g++) {
            select_piece<S> x;
            uint32_t above, within;
#pragma unroll
            for (int w = 0; w < (int)sizeof(S) / 2; w++)
                x.word[w] = reinterpret_cast<const uint4 *>(from + g * SELECT_CHUNK +
                                                            lane * SELECT_LANE)[w];
            stream_bits(x, limits, &above, &within);
            if (!plain) {
                const int32_t column = first + g * SELECT_CHUNK;
                const uint32_t kept = select_kept_bits(at.row, column);
                above = (above & select_bits(column, 0, at.row.end)) | kept;
                within &= select_bits(column, 0, at.row.end) & ~kept;
            }
            reinterpret_cast<uint8_t *>(above_to)[32 * g + lane] = (uint8_t)above;
            reinterpret_cast<uint8_t *>(within_to)[32 * g + lane] = (uint8_t)within;
        }
        __syncwarp();
        const uint32_t within = within_to[lane];
        more += __popc(above_to[lane]), same += __popc(within);
        if (keep)
            stream_keep(from, r, step, within);
        __syncwarp(); /* all have read the step */
        stream_fetch(p, at.scores, r, step + STREAM_AHEAD);
    }
    *sum = make_int2(__reduce_add_sync(WARP_ALL, more), __reduce_add_sync(WARP_ALL, same));
}

/* Sums before each warp of the cluster and of all, of two counts. Ends with a barrier. */
template <class S> DEVICE int2 stream_before(const stream_room<S> &r, int2 own) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = warp_lane();
    stream_shared *const s = r.shared;
    if (lane == 0)
        s->before[warp] = own;
    __syncthreads();
    const int2 x = lane < warps ? s->before[lane] : make_int2(0, 0);
    const int2 up = {warp_inclusive(x.x), warp_inclusive(x.y)};
    int2 before = {__shfl_sync(WARP_ALL, up.x - x.x, warp),
                   __shfl_sync(WARP_ALL, up.y - x.y, warp)};
    if (threadIdx.x == 31)
        s->own = {up.x, up.y, s->used > (uint32_t)r.most, 0};
    __syncthreads();
    select_cluster_wait();
    int4 sum = {0, 0, 0, 0};
    for (int rank = 0; rank < cluster_size(); rank++) {
        const int4 of_rank = cluster_size() == 1 ? s->own : *cluster_at(&s->own, rank);
        before.x += rank < cluster_rank() ? of_rank.x : 0;
        before.y += rank < cluster_rank() ? of_rank.y : 0;
        sum.x += of_rank.x, sum.y += of_rank.y, sum.z |= of_rank.z;
    }
    if (threadIdx.x == 0)
        s->sum = sum;
    __syncthreads();
    select_cluster_wait(); /* others have read this CTA's counts */
    return before;
}

/* The cut, of which `target` of the scores within the bracket are chosen. */
template <class S>
DEVICE select_cut stream_cut(const struct select_params &p, const stream_room<S> &r,
                             stream_bracket bracket, uint32_t target) {
    stream_shared *s = r.shared;
    uint32_t key = 0;
    for (int known = 32 - __clz(bracket.hi - bracket.lo), shift; known > 0; known = shift) {
        shift = select_shift(known);
        stream_zero(s->mass, SELECT_DIGITS);
        for (int i = threadIdx.x; i < (int)s->used; i += blockDim.x) {
            const uint32_t x =
                select_key(r.scores[i], 8 * (int)sizeof(S), p.keys.low, p.keys.high) - bracket.lo;
            if ((uint64_t)(x ^ key) >> known == 0)
                atomicAdd(&s->mass[x >> shift & ((1u << (known - shift)) - 1)], 1u);
        }
        const digit_found<uint32_t> found = stream_digit(s, known, shift, target, cluster_size());
        key |= (uint32_t)found.digit << shift, target = found.left;
        if (found.all) /* all keys from this one on */
            return {bracket.lo + key - 1, 0};
    }
    return {bracket.lo + key, (int32_t)target};
}

/* Columns of a step within the bracket: those above the cut join `above`, those equal to it stay. */
template <class S>
DEVICE void stream_settle(const struct select_params &p, const stream_room<S> &r, int step,
                          uint32_t cut, int32_t *more, int32_t *same) {
    const int place = (step - r.base) * 32 + warp_lane();
    uint32_t within = r.within[place], above = 0, equal = 0;
    int32_t sum;
    int32_t from = warp_before(__popc(within), &sum);
    if (!sum)
        return;
    for (from += (int32_t)r.start[step - r.base]; within; within &= within - 1) {
        const uint32_t key =
            select_key(r.scores[from++], 8 * (int)sizeof(S), p.keys.low, p.keys.high);
        const uint32_t bit = within & (0 - within);
        above |= key > cut ? bit : 0, equal |= key == cut ? bit : 0;
    }
    r.above[place] |= above, r.within[place] = equal;
    *more += __popc(above), *same += __popc(equal);
}

/* The key of the cut among the row's columns that are not kept, of which `target` are chosen; 0: there are fewer. */
template <class S>
DEVICE uint32_t stream_key(const struct select_params &p, const select_at &at,
                           const stream_room<S> &r, uint32_t target) {
    stream_shared *s = r.shared;
    uint32_t key = 0;
    for (int known = p.keys.bits, shift; known > 0; known = shift) {
        shift = select_shift(known);
        stream_zero(s->mass, SELECT_DIGITS);
        const int32_t threads = (int32_t)blockDim.x * cluster_size();
        const int32_t thread = (int32_t)(cluster_rank() * blockDim.x + threadIdx.x);
        for (int32_t first = thread * SELECT_LANE; first < at.row.end;
             first += threads * SELECT_LANE) {
            const uint32_t kept = select_kept_bits(at.row, first);
            select_piece<S> x;
            select_load(&x, at, true, first);
            select_keys_make(&x, p.type == TESS_F16);
            for (int c = 0; c < SELECT_LANE; c++)
                if (x.get(c) >= p.keys.low && !(kept >> c & 1) &&
                    (uint64_t)(x.get(c) ^ key) >> known == 0)
                    atomicAdd(&s->mass[x.get(c) >> shift & ((1u << (known - shift)) - 1)], 1u);
        }
        const digit_found<uint32_t> found = stream_digit(s, known, shift, target, cluster_size());
        if (found.digit < 0)
            return 0;
        key |= (uint32_t)found.digit << shift, target = found.left;
    }
    return key;
}

/* Columns of a row above the bracket and within it. `one`: all within have one key, and are not kept apart. */
struct stream_found {
    stream_bracket bracket;
    bool cuts, one;
    int2 own, before; /* the warp's, those before */
    int4 sum;         /* the row's */
};

/* Reads the row by the bracket, and once more where the cut does not lie in it. */
template <class S>
DEVICE stream_found stream_find(const struct select_params &p, const select_at &at,
                                const stream_room<S> &r) {
    const uint32_t sign = 1u << (p.keys.bits - 1);
    const bool exact = p.shape.mode == TESS_SELECT_EXACT;
    const stream_bracket all = {UINT32_MAX, (exact ? p.keys.low : p.shape.bound) - 1};
    stream_shared *s = r.shared;
    stream_found f;
    f.cuts = exact && at.row.end > at.row.k, f.bracket = all;
    if (f.cuts)
        f.bracket = stream_sample(p, at, r);
    for (;;) {
        f.bracket.hi -= f.bracket.hi == sign - 1; /* -0, which no key is */
        f.one = !f.cuts || f.bracket.lo >= f.bracket.hi;
        __syncthreads();
        if (threadIdx.x == 0)
            s->used = 0;
        __syncthreads();
        stream_read(p, at, r, f.bracket, !f.one, &f.own);
        f.before = stream_before(r, f.own), f.sum = s->sum;
        if (!f.cuts ||
            (at.row.k >= f.sum.x && at.row.k <= f.sum.x + f.sum.y && (f.one || !f.sum.z)))
            return f;
        const int32_t target = at.row.k - at.row.kept - (at.row.end - at.row.tail);
        const uint32_t key = target ? stream_key(p, at, r, (uint32_t)target) : p.keys.high;
        f.bracket = {key, key};
        if (!key)
            f.bracket = all, f.cuts = false;
        stream_begin(p, at.scores, r);
        __syncthreads();
    }
}

/* Chooses a row's columns, whose first steps are on their way; `next`: scores of the row after, or nullptr. */
template <class S>
DEVICE void stream_row(const struct select_params &p, const select_at &at, const stream_room<S> &r,
                       const void *next) {
    const int warp = threadIdx.x / 32, lane = warp_lane();
    stream_found f = stream_find(p, at, r);
    select_cut cut = {f.bracket.lo, f.cuts ? at.row.k - f.sum.x : 0};
    if (next)
        stream_begin(p, next, r);
    if (!f.one) {
        int32_t more = 0, same = 0;
        if (cut.ties)
            cut = stream_cut(p, r, f.bracket, (uint32_t)cut.ties);
        else
            cut.key = UINT32_MAX;
        for (int step = r.first; step < r.last; step++)
            stream_settle(p, r, step, cut.key, &more, &same);
        f.own.x += __reduce_add_sync(WARP_ALL, more), f.own.y = __reduce_add_sync(WARP_ALL, same);
        f.before = stream_before(r, f.own), f.sum = r.shared->sum;
    }
    select_progress done = {f.before.x + min(f.before.y, cut.ties), f.before.y};
    for (int step = r.first; step < r.last; step++) {
        const int place = (step - r.base) * 32 + lane;
        select_write<uint32_t>(
            p, at, &done, cut.ties, step * STREAM_STEP + lane * 32, r.above[place], r.within[place],
            reinterpret_cast<uint16_t *>(r.shared->mass) + warp * SELECT_STAGE<uint32_t>);
    }
    select_close(p, at, f.sum.x + min(f.sum.y, cut.ties),
                 cluster_rank() * (int32_t)blockDim.x + (int32_t)threadIdx.x,
                 cluster_size() * (int32_t)blockDim.x);
}

template <class S>
static __global__ void __launch_bounds__(32 * STREAM_WARPS, STREAM_CTAS)
    select_stream(const __grid_constant__ struct select_params p) {
    extern __shared__ uint4 select_memory[];
    const stream_room<S> room = stream_room_of<S>(p, select_memory);
    const int64_t clusters = gridDim.x / cluster_size();
    int64_t number = blockIdx.x / cluster_size();
    select_at at = select_at_of(p, number, sizeof(S));
    stream_begin(p, at.scores, room);
    while (number < p.all) {
        number += clusters;
        const select_at next = number < p.all ? select_at_of(p, number, sizeof(S)) : at;
        stream_row(p, at, room, number < p.all ? next.scores : nullptr);
        at = next;
        __syncthreads();
    }
    select_cluster_wait(); /* others have read this CTA's shared memory */
}

#endif
