/*
 * A CTA's room for choosing from a long row, and a bracket for the cut, from a sample of the row:
 *
 *     512 pieces of 16 bytes at a fixed stride
 *     the keys three deviations before and behind the cut's rank, by two digits
 *
 * All CTAs of a cluster draw the same sample, each by itself.
 */
#ifndef TESSERA_CUDA_SELECT_SAMPLE_CUH
#define TESSERA_CUDA_SELECT_SAMPLE_CUH

#include "select/rows.cuh"

#define STREAM_WARPS 12                           /* at most in a CTA */
#define STREAM_CTAS 2                             /* at least on a multiprocessor */
#define STREAM_GROUP 4                            /* chunks that a warp reads at once */
#define STREAM_STEP (STREAM_GROUP * SELECT_CHUNK) /* columns: a word of 32 for each lane */
#define STREAM_DIGIT_BITS 8                       /* second digit of the sample */
#define STREAM_DIGITS (1 << STREAM_DIGIT_BITS)
#define STREAM_PIECES 4
#define STREAM_SAMPLE 512 /* pieces of 16 bytes */
#define STREAM_STAGE 1024 /* bytes of a warp where it gathers what it writes */

#define STREAM_AHEAD 2 /* steps of a warp that are on their way */

/* Bytes of a warp's steps. */
template <class S> static constexpr int STREAM_RING = STREAM_AHEAD *STREAM_STEP *(int)sizeof(S);

/* Shared memory; then come the warps' rings; `above` and `within`, a word for each lane and step of the CTA; the place
 * of each step's scores; and the scores, of which the sample takes the room before. */
struct alignas(16) stream_shared {
    uint32_t group[2][DIGIT_GROUPS];
    int2 before[SELECT_WARPS]; /* counts of each warp, then sums before it */
    uint32_t used;             /* scores that found or wanted room */
    int4 own;                  /* counts of this CTA; 1: scores did not find room */
    int4 sum;                  /* the row's */
    uint32_t
        mass[SELECT_DIGITS]; /* last: what warps write takes this room and, of many warps, more */
};

/* Bytes of a CTA before the warps' rings. */
static __host__ __device__ __forceinline__ int32_t stream_fixed(int warps) {
    const int32_t more = warps * STREAM_STAGE - SELECT_DIGITS * (int32_t)sizeof(uint32_t);
    return (int32_t)sizeof(stream_shared) + (more > 0 ? more : 0);
}

/* Places of a CTA's arrays. */
template <class S> struct stream_room {
    stream_shared *shared;
    S *ring; /* this warp's */
    uint32_t *above, *within, *start;
    S *scores;
    int32_t most;        /* scores */
    int32_t first, last; /* steps of this warp in the row: first ... last - 1 */
    int32_t base;        /* the CTA's first step */
};

/* Words of a CTA's arrays of so many words each; the sample's second digit is counted there before. */
static __host__ __device__ __forceinline__ int64_t stream_words(int64_t words) {
    const int64_t all = (2 * words + words / 32 + 3) / 4 * 4;
    return all < 2 * STREAM_DIGITS ? 2 * STREAM_DIGITS : all;
}

template <class S>
DEVICE stream_room<S> stream_room_of(const struct select_params &p, void *memory) {
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const int32_t steps = (int32_t)((p.shape.n + STREAM_STEP - 1) / STREAM_STEP);
    stream_room<S> r;
    r.shared = static_cast<stream_shared *>(memory);
    char *const rings = static_cast<char *>(memory) + stream_fixed(warps);
    r.ring = reinterpret_cast<S *>(rings + warp * STREAM_RING<S>);
    r.above = reinterpret_cast<uint32_t *>(rings + warps * STREAM_RING<S>);
    r.within = r.above + p.words;
    r.start = r.within + p.words;
    r.scores = reinterpret_cast<S *>(r.above + stream_words(p.words));
    r.most = p.resident;
    r.base = cluster_rank() * warps * p.span;
    r.first = min(r.base + warp * p.span, steps);
    r.last = min(r.first + p.span, steps);
    return r;
}

/* Zeros, a multiple of 4, between barriers. */
DEVICE void stream_zero(uint32_t *mass, int n) {
    __syncthreads();
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x)
        reinterpret_cast<uint4 *>(mass)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

/* The digit that is counted by `ranks` CTAs, for a target: after the barrier that ends the count. */
DEVICE digit_found<uint32_t> stream_digit(stream_shared *s, int known, int shift, uint32_t target,
                                          int ranks) {
    const int digits = max(1 << (known - shift), 32);
    __syncthreads();
    if (ranks > 1)
        cluster_wait();
    digit_groups(s->mass, s->group[0], digits, ranks);
    __syncthreads();
    const digit_found<uint32_t> found = digit_find(s->mass, s->group[0], digits, target, ranks);
    if (ranks > 1)
        cluster_wait(); /* others have read this CTA's counts */
    return found;
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
    first[0] = stream_digit(s, bits, shift, target[0], 1);
    first[1] = digit_find(s->mass, s->group[0], SELECT_DIGITS, target[1], 1);
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
        digit_groups(second + which * digits, s->group[which], digits, 1);
    __syncthreads();
    uint32_t bound[2] = {p.keys.low, p.keys.high};
    for (int which = 0; which < 2; which++) {
        if (first[which].digit < (int)(p.keys.low >> shift)) /* nothing is known */
            continue;
        const int digit =
            digit_find(second + which * digits, s->group[which], digits, first[which].left, 1)
                .digit;
        bound[which] = (uint32_t)first[which].digit << shift | (uint32_t)digit << below;
        bound[which] |= which ? (1u << below) - 1 : 0;
    }
    return {max(bound[0], p.keys.low), min(max(bound[1], p.keys.low), p.keys.high)};
}

#endif
