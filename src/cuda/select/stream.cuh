/*
 * Choosing columns of many long rows, each read once: a CTA takes a row.
 *
 *     sample   keys at a fixed stride bracket the cut: lo ... hi, three deviations around its rank in the sample
 *     read     a bit for each column above hi, one for each within the bracket, whose scores are kept in order
 *     digits   the cut among those within, if it is there
 *     write    columns from both bits
 *
 * Counts show whether the cut lies within the bracket. Where it does not, or the scores within do not find room, the
 * cut's key is found by digits in memory, and the row is read again with that key as bracket: the same columns, later.
 */
#ifndef TESSERA_CUDA_SELECT_STREAM_CUH
#define TESSERA_CUDA_SELECT_STREAM_CUH

#include "select/rows.cuh"

#define STREAM_WARPS 8                            /* at most in a CTA */
#define STREAM_CTAS 3                             /* at least on a multiprocessor */
#define STREAM_GROUP 4                            /* chunks that a warp reads at once */
#define STREAM_STEP (STREAM_GROUP * SELECT_CHUNK) /* columns: a word of 32 for each lane */
#define STREAM_DIGIT_BITS 8                       /* second digit of the sample */
#define STREAM_DIGITS (1 << STREAM_DIGIT_BITS)
#define STREAM_PIECES 4
#define STREAM_SAMPLE 512 /* pieces of 16 bytes */

/* Shared memory; then come `above` and `within`, a word for each lane and step; the place of each step's scores; and
 * the scores, of which the sample takes the room before. */
struct alignas(16) stream_shared {
    uint32_t mass[SELECT_DIGITS];
    uint32_t group[2][DIGIT_GROUPS];
    int2 before[SELECT_WARPS]; /* counts of each warp, then sums before it */
    uint32_t used;             /* scores that found or wanted room */
    int2 sum;
};

/* Places of a row's arrays. */
template <class S> struct stream_room {
    stream_shared *shared;
    uint32_t *above, *within, *start;
    S *scores;
    int32_t most; /* scores */
};

/* Words of a row's arrays of so many words each; the sample's second digit is counted there before. */
static __host__ __device__ __forceinline__ int64_t stream_words(int64_t words) {
    const int64_t all = (2 * words + words / 32 + 3) / 4 * 4;
    return all < 2 * STREAM_DIGITS ? 2 * STREAM_DIGITS : all;
}

template <class S>
DEVICE stream_room<S> stream_room_of(const struct select_params &p, void *memory) {
    stream_room<S> r;
    r.shared = static_cast<stream_shared *>(memory);
    r.above = reinterpret_cast<uint32_t *>(r.shared + 1);
    r.within = r.above + p.words;
    r.start = r.within + p.words;
    r.scores = reinterpret_cast<S *>(r.above + stream_words(p.words));
    r.most = p.resident;
    return r;
}

/* Zeros, a multiple of 4, between barriers. */
DEVICE void stream_zero(uint32_t *mass, int n) {
    __syncthreads();
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x)
        reinterpret_cast<uint4 *>(mass)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

/* The digit that is counted, for a target: after the barrier that ends the count. */
DEVICE digit_found<uint32_t> stream_digit(stream_shared *s, int known, int shift, uint32_t target) {
    const int digits = max(1 << (known - shift), 32);
    __syncthreads();
    digit_groups(s->mass, s->group[0], digits);
    __syncthreads();
    return digit_find(s->mass, s->group[0], digits, target);
}

/* Keys between which the cut lies, most likely. lo is the lowest key where no more is known, hi the highest. */
struct stream_bracket {
    uint32_t lo, hi;
};

/* Two digits of the keys of a sample, which stay in registers, about the rank of the cut. */
template <class S>
DEVICE stream_bracket stream_sample(const struct select_params &p, const select_at &at,
                                    const stream_room<S> &r) {
    const int bits = 8 * (int)sizeof(S), each = 16 / (int)sizeof(S);
    const int shift = select_shift(bits), below = max(shift - STREAM_DIGIT_BITS, 0);
    const int digits = max(1 << (shift - below), 32);
    stream_shared *s = r.shared;
    uint32_t *second = r.above; /* two counts; not in use yet */
    const int32_t pieces = at.row.end / each, taken = min(pieces, STREAM_SAMPLE);
    const uint4 *from = static_cast<const uint4 *>(at.scores);
    union {
        uint4 whole;
        uint32_t word[4];
        S key[16 / sizeof(S)];
    } x[STREAM_PIECES];
#pragma unroll
    for (int i = 0; i < STREAM_PIECES; i++) {
        const int32_t piece = threadIdx.x + i * blockDim.x;
        x[i].whole = piece < taken ? from[(int64_t)piece * pieces / taken] : make_uint4(0, 0, 0, 0);
    }
    stream_zero(s->mass, SELECT_DIGITS);
    stream_zero(second, 2 * digits);
#pragma unroll
    for (int i = 0; i < STREAM_PIECES; i++) {
        if (threadIdx.x + i * blockDim.x >= taken)
            continue;
#pragma unroll
        for (int c = 0; c < 4; c++)
            x[i].word[c] = select_word_keys<S>(x[i].word[c], p.type == TESS_F16);
#pragma unroll
        for (int c = 0; c < each; c++)
            atomicAdd(&s->mass[x[i].key[c] >> shift], 1u);
    }
    const int32_t k = at.row.k - at.row.kept - (at.row.end - at.row.tail);
    const float all = (float)(taken * each), share = (float)max(k, 0) / (float)at.row.end;
    const float wide = 3 * sqrtf(all * share * (1 - share)) + 1;
    const uint32_t target[2] = {(uint32_t)(all * share + wide) + 1,
                                (uint32_t)fmaxf(all * share - wide, 0)};
    digit_found<uint32_t> first[2];
    first[0] = stream_digit(s, bits, shift, target[0]);
    first[1] = digit_find(s->mass, s->group[0], SELECT_DIGITS, target[1]);
#pragma unroll
    for (int i = 0; i < STREAM_PIECES; i++)
#pragma unroll
        for (int c = 0; c < each; c++)
#pragma unroll
            for (int which = 0; which < 2; which++)
                if (threadIdx.x + i * blockDim.x < taken &&
                    x[i].key[c] >> shift == first[which].digit)
                    atomicAdd(&second[which * digits +
                                      (x[i].key[c] >> below & ((1u << (shift - below)) - 1))],
                              1u);
    __syncthreads();
    for (int which = 0; which < 2; which++)
        digit_groups(second + which * digits, s->group[which], digits);
    __syncthreads();
    uint32_t bound[2] = {p.keys.low, p.keys.high};
    for (int which = 0; which < 2; which++) {
        if (first[which].digit < (int)(p.keys.low >> shift)) /* nothing is known */
            continue;
        const int digit =
            digit_find(second + which * digits, s->group[which], digits, first[which].left).digit;
        bound[which] = (uint32_t)first[which].digit << shift | (uint32_t)digit << below;
        bound[which] |= which ? (1u << below) - 1 : 0;
    }
    return {max(bound[0], p.keys.low), min(max(bound[1], p.keys.low), p.keys.high)};
}

/* Scores of a bracket, as each 32 bits of a row hold them. */
struct stream_limits {
    uint32_t lo, hi;
    bool half; /* f16 */
};

/* Masks of the one or two scores of a word that are above hi, and of those at least lo. */
template <class S>
DEVICE void stream_compare(uint32_t word, const stream_limits &limits, uint32_t *above,
                           uint32_t *least) {
    if (sizeof(S) == 4) {
        const float score = __uint_as_float(word);
        *above = score > __uint_as_float(limits.hi) ? UINT32_MAX : 0;
        *least = score >= __uint_as_float(limits.lo) ? UINT32_MAX : 0;
    } else if (limits.half) {
        *above = __hgt2_mask(select_pair<__half2>(word), select_pair<__half2>(limits.hi));
        *least = __hge2_mask(select_pair<__half2>(word), select_pair<__half2>(limits.lo));
    } else {
        *above =
            __hgt2_mask(select_pair<__nv_bfloat162>(word), select_pair<__nv_bfloat162>(limits.hi));
        *least =
            __hge2_mask(select_pair<__nv_bfloat162>(word), select_pair<__nv_bfloat162>(limits.lo));
    }
}

/* Bits of a lane's scores above hi, and of those from lo to hi. */
template <class S>
DEVICE void stream_bits(const select_piece<S> &x, const stream_limits &limits, uint32_t *above,
                        uint32_t *within) {
    const uint32_t *word = &x.word[0].x;
    uint32_t more = 0, same = 0;
#pragma unroll
    for (int i = 0; i < 2 * (int)sizeof(S); i++) {
        const uint32_t bits = sizeof(S) == 4 ? 1u << i : 0x00020001u << 2 * i;
        uint32_t is_above, is_least;
        stream_compare<S>(word[i], limits, &is_above, &is_least);
        more |= is_above & bits, same |= is_least & bits;
    }
    if (sizeof(S) == 2)
        more |= more >> 16, same |= same >> 16;
    *above = more & 0xff, *within = same & ~more & 0xff;
}

/* The scores of a step that lie within the bracket, in their order, find room. */
template <class S>
DEVICE void stream_keep(const select_at &at, const stream_room<S> &r, int step, uint32_t within) {
    int32_t sum;
    int32_t to = warp_before(__popc(within), &sum);
    if (!sum)
        return;
    uint32_t place = 0;
    if (warp_lane() == 0)
        r.start[step] = place = atomicAdd(&r.shared->used, (uint32_t)sum);
    to += (int32_t)__shfl_sync(WARP_ALL, place, 0);
    const S *from = static_cast<const S *>(at.scores) + step * STREAM_STEP + warp_lane() * 32;
    for (; within && to < r.most; within &= within - 1)
        r.scores[to++] = from[__ffs((int)within) - 1];
}

/* A word of a lane for each step of a warp: bit c is column 32 lane + c of the step. */
template <class S>
DEVICE void stream_read(const struct select_params &p, const select_at &at, const stream_room<S> &r,
                        stream_bracket bracket, bool keep, int2 *sum) {
    const int warp = threadIdx.x / 32, lane = warp_lane();
    const uint32_t each = sizeof(S) == 4 ? 1 : 0x00010001; /* one score in a word, or two */
    const stream_limits limits = {select_stored(min(bracket.lo, p.keys.high), p.keys.bits) * each,
                                  select_stored(bracket.hi, p.keys.bits) * each,
                                  p.type == TESS_F16};
    const int end = min((warp + 1) * p.span, p.words / 32);
    int32_t more = 0, same = 0;
    for (int step = warp * p.span; step < end; step++) {
        const int32_t begin = step * STREAM_STEP, first = begin + lane * SELECT_LANE;
        const bool plain = begin >= at.row.kept && begin + STREAM_STEP <= at.row.tail;
        uint8_t *above_to = reinterpret_cast<uint8_t *>(r.above + step * 32) + lane;
        uint8_t *within_to = reinterpret_cast<uint8_t *>(r.within + step * 32) + lane;
        select_piece<S> x[STREAM_GROUP];
#pragma unroll
        for (int g = 0; g < STREAM_GROUP; g++)
            if (begin + STREAM_STEP <= at.row.end)
                select_load_whole(&x[g], at, first + g * SELECT_CHUNK);
            else
                select_load(&x[g], at, true, first + g * SELECT_CHUNK);
#pragma unroll
        for (int g = 0; g < STREAM_GROUP; g++) {
            uint32_t above, within;
            stream_bits(x[g], limits, &above, &within);
            if (!plain) {
                above |= select_kept_bits(at.row, first + g * SELECT_CHUNK);
                within &= ~above;
            }
            above_to[32 * g] = (uint8_t)above, within_to[32 * g] = (uint8_t)within;
        }
        __syncwarp();
        const uint32_t within = r.within[step * 32 + lane];
        more += __popc(r.above[step * 32 + lane]), same += __popc(within);
        if (keep)
            stream_keep(at, r, step, within);
    }
    *sum = make_int2(__reduce_add_sync(WARP_ALL, more), __reduce_add_sync(WARP_ALL, same));
}

/* Sums before each warp and of all, of two counts. Ends with a barrier. */
DEVICE int2 stream_before(stream_shared *s, int2 own) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = warp_lane();
    if (lane == 0)
        s->before[warp] = own;
    __syncthreads();
    const int2 x = lane < warps ? s->before[lane] : make_int2(0, 0);
    const int2 up = {warp_inclusive(x.x), warp_inclusive(x.y)};
    const int2 sum = {__shfl_sync(WARP_ALL, up.x, 31), __shfl_sync(WARP_ALL, up.y, 31)};
    __syncthreads();
    if (threadIdx.x == 0)
        s->sum = sum;
    __syncthreads();
    return make_int2(__shfl_sync(WARP_ALL, up.x - x.x, warp),
                     __shfl_sync(WARP_ALL, up.y - x.y, warp));
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
        const digit_found<uint32_t> found = stream_digit(s, known, shift, target);
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
    const int place = step * 32 + warp_lane();
    uint32_t within = r.within[place], above = 0, equal = 0;
    int32_t sum;
    int32_t from = warp_before(__popc(within), &sum);
    if (!sum)
        return;
    for (from += (int32_t)r.start[step]; within; within &= within - 1) {
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
        for (int32_t first = threadIdx.x * SELECT_LANE; first < at.row.end;
             first += blockDim.x * SELECT_LANE) {
            const uint32_t kept = select_kept_bits(at.row, first);
            select_piece<S> x;
            select_load(&x, at, true, first);
            select_keys_make(&x, p.type == TESS_F16);
            for (int c = 0; c < SELECT_LANE; c++)
                if (x.get(c) >= p.keys.low && !(kept >> c & 1) &&
                    (uint64_t)(x.get(c) ^ key) >> known == 0)
                    atomicAdd(&s->mass[x.get(c) >> shift & ((1u << (known - shift)) - 1)], 1u);
        }
        const digit_found<uint32_t> found = stream_digit(s, known, shift, target);
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
    int2 own, before, sum; /* the warp's, those before, the row's */
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
        f.before = stream_before(s, f.own), f.sum = s->sum;
        if (!f.cuts || (at.row.k >= f.sum.x && at.row.k <= f.sum.x + f.sum.y &&
                        (f.one || s->used <= (uint32_t)r.most)))
            return f;
        const int32_t target = at.row.k - at.row.kept - (at.row.end - at.row.tail);
        const uint32_t key = target ? stream_key(p, at, r, (uint32_t)target) : p.keys.high;
        f.bracket = {key, key};
        if (!key)
            f.bracket = all, f.cuts = false;
        __syncthreads();
    }
}
template <class S>
DEVICE void stream_row(const struct select_params &p, const select_at &at,
                       const stream_room<S> &r) {
    const int warp = threadIdx.x / 32, lane = warp_lane();
    const int first = warp * p.span, end = min((warp + 1) * p.span, p.words / 32);
    stream_found f = stream_find(p, at, r);
    select_cut cut = {f.bracket.lo, f.cuts ? at.row.k - f.sum.x : 0};
    if (!f.one) {
        int32_t more = 0, same = 0;
        if (cut.ties)
            cut = stream_cut(p, r, f.bracket, (uint32_t)cut.ties);
        else
            cut.key = UINT32_MAX;
        for (int step = first; step < end; step++)
            stream_settle(p, r, step, cut.key, &more, &same);
        f.own.x += __reduce_add_sync(WARP_ALL, more), f.own.y = __reduce_add_sync(WARP_ALL, same);
        f.before = stream_before(r.shared, f.own), f.sum = r.shared->sum;
    }
    select_progress done = {f.before.x + min(f.before.y, cut.ties), f.before.y};
    for (int step = first; step < end; step++)
        select_write<uint32_t>(p, at, &done, cut.ties, step * STREAM_STEP + lane * 32,
                               r.above[step * 32 + lane], r.within[step * 32 + lane],
                               reinterpret_cast<uint16_t *>(r.shared->mass) +
                                   warp * SELECT_STAGE<uint32_t>);
    select_close(p, at, f.sum.x + min(f.sum.y, cut.ties), threadIdx.x, blockDim.x);
}

template <class S>
static __global__ void __launch_bounds__(32 * STREAM_WARPS, STREAM_CTAS)
    select_stream(const __grid_constant__ struct select_params p) {
    extern __shared__ uint4 select_memory[];
    const stream_room<S> room = stream_room_of<S>(p, select_memory);
    for (int64_t number = blockIdx.x; number < p.all; number += gridDim.x) {
        stream_row(p, select_at_of(p, number, sizeof(S)), room);
        __syncthreads();
    }
}

#endif
