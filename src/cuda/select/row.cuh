/*
 * A row of scores as the warps of a cluster share it. A chunk is 256 columns, 8 of each lane; warp w of all warps of
 * the cluster, in the order of its CTAs' ranks, has chunks w span ... (w + 1) span - 1, so that the order of warps,
 * chunks, lanes and columns is that of the row:
 *
 *     row    | warp 0: chunk 0, 1 ... | warp 1: ...       |      | last warp |
 *     chunk  | lane 0: 8 columns | lane 1 | ... | lane 31 |
 */
#ifndef TESSERA_CUDA_SELECT_ROW_CUH
#define TESSERA_CUDA_SELECT_ROW_CUH

#include "host/select.h"
#include "device/cluster.cuh"
#include "device/warp.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define SELECT_LANE 8                   /* columns of a lane */
#define SELECT_CHUNK (32 * SELECT_LANE) /* columns */

/* 8 columns of a lane as they are stored, of 32 or 16 bits each. */
template <class S> struct select_piece {
    uint4 word[sizeof(S) / 2];
    __device__ __forceinline__ uint32_t get(int i) const {
        const uint32_t *x = &word[0].x;
        return sizeof(S) == 4 ? x[i] : x[i / 2] >> i % 2 * 16 & 0xffff;
    }
    __device__ __forceinline__ void put(int i, uint32_t stored) {
        uint32_t *x = &word[0].x;
        if (sizeof(S) == 4)
            x[i] = stored;
        else
            x[i / 2] =
                i % 2 ? (x[i / 2] & 0xffff) | stored << 16 : (x[i / 2] & 0xffff0000) | stored;
    }
};

/* A row under way. `number` counts the rows of all lists. */
struct select_at {
    struct select_row row;
    const void *scores;
    const uint8_t *keep; /* a bit for each column that is kept, or nullptr */
    int64_t number;
};

DEVICE select_at select_at_of(const struct select_params &p, int64_t number, int32_t bytes) {
    if (p.same)
        return {p.row, static_cast<const char *>(p.scores) + number * p.step * bytes, nullptr,
                number};
    const uint32_t rows = (uint32_t)p.shape.rows, heads = (uint32_t)p.shape.heads;
    const uint32_t list = (uint32_t)number / rows, n = (uint32_t)number % rows;
    const uint32_t b = list / heads, h = list % heads;
    const int64_t length = p.lengths ? p.lengths[b] : p.shape.n_kv;
    const int64_t first = b * p.stride[0] + h * p.stride[1] + n * p.stride[2];
    select_at at;
    at.row = select_row_of(&p.shape, n, length, p.row_k ? p.row_k[number] : p.shape.k);
    at.scores = static_cast<const char *>(p.scores) + first * bytes;
    at.keep = nullptr;
    if (p.keep)
        at.keep = reinterpret_cast<const uint8_t *>(
            p.keep + (uint32_t)number % (uint32_t)p.shape.keep_rows * p.shape.words);
    at.number = number;
    return at;
}

/* Scores of columns first ... first + 7, all below the row's end. */
template <class S>
DEVICE void select_load_whole(select_piece<S> *out, const select_at &at, int32_t first) {
    const uint4 *from = reinterpret_cast<const uint4 *>(static_cast<const S *>(at.scores) + first);
#pragma unroll
    for (int i = 0; i < (int)sizeof(S) / 2; i++)
        out->word[i] = from[i];
}

/* Scores of columns first ... first + 7; those from `end` on are NaN. */
template <class S>
DEVICE void select_load(select_piece<S> *out, const select_at &at, bool whole, int32_t first) {
    const S *from = static_cast<const S *>(at.scores) + first;
    *out = {};
    if (whole && first + SELECT_LANE <= at.row.end) {
        select_load_whole(out, at, first);
    } else {
#pragma unroll
        for (int i = 0; i < SELECT_LANE; i++)
            out->put(i, first + i < at.row.end ? (uint32_t)from[i]
                                               : UINT32_MAX >> (32 - 8 * sizeof(S)));
    }
}

/* A word as two numbers of a type. */
template <class T> DEVICE T select_pair(uint32_t word) {
    T x;
    memcpy(&x, &word, sizeof x);
    return x;
}
template <class T> DEVICE uint32_t select_word(T x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

/* The keys of a word's one or two scores, as select_key has them, but for NaN: its key is that of -Inf, `low` - 1. Both
 * are below all that can be chosen. half: f16. */
template <class S> DEVICE uint32_t select_word_keys(uint32_t word, bool half) {
    if (sizeof(S) == 4) {
        const float x = fmaxf(__uint_as_float(word), -INFINITY) + 0.0f; /* -0 becomes +0 */
        word = __float_as_uint(x);
        return word ^ ((uint32_t)((int32_t)word >> 31) | 0x80000000u);
    }
    if (half)
        word = select_word(
            __hadd2(__hmax2(select_pair<__half2>(word), select_pair<__half2>(0xfc00fc00u)),
                    select_pair<__half2>(0)));
    else
        word = select_word(__hadd2(
            __hmax2(select_pair<__nv_bfloat162>(word), select_pair<__nv_bfloat162>(0xff80ff80u)),
            select_pair<__nv_bfloat162>(0)));
    return word ^ ((word >> 15 & 0x00010001u) * 0xffffu | 0x80008000u);
}

/* Scores become keys. */
template <class S> DEVICE void select_keys_make(select_piece<S> *x, bool half) {
    uint32_t *word = &x->word[0].x;
#pragma unroll
    for (int i = 0; i < 2 * (int)sizeof(S); i++)
        word[i] = select_word_keys<S>(word[i], half);
}

/* Bits of the columns first ... first + 7 that are from `begin` on and below `end`. */
DEVICE uint32_t select_bits(int32_t first, int32_t begin, int32_t end) {
    const int32_t low = min(max(begin - first, 0), SELECT_LANE),
                  high = min(max(end - first, 0), SELECT_LANE);
    return ((1u << high) - 1) & ~((1u << low) - 1);
}

/* Bits of columns that are kept whatever their scores. */
DEVICE uint32_t select_kept_bits(const struct select_row &row, int32_t first) {
    return select_bits(first, 0, row.kept) | select_bits(first, row.tail, row.end);
}

/* Bits of those, and of columns that have a bit of their own. */
DEVICE uint32_t select_kept(const select_at &at, int32_t first) {
    uint32_t kept = select_kept_bits(at.row, first);
    if (at.keep && first < at.row.end)
        kept |= at.keep[first / SELECT_LANE] & select_bits(first, 0, at.row.end);
    return kept;
}

/* The cut: columns are chosen whose keys are above `key`, and the first `ties` equal to it. */
struct select_cut {
    uint32_t key;
    int32_t ties;
};

/* ---- writing ---- */

/* A warp's progress: columns chosen and ties seen before, of the whole row. */
struct select_progress {
    int32_t chosen, ties;
};

DEVICE int32_t warp_before(int32_t x, int32_t *sum) {
    int32_t up = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int32_t other = __shfl_up_sync(WARP_ALL, up, step);
        up += warp_lane() >= step ? other : 0;
    }
    *sum = __shfl_sync(WARP_ALL, up, 31);
    return up - x;
}

/* The first n of the bits that are set. */
DEVICE uint32_t select_first_bits(uint32_t bits, int32_t n) {
    uint32_t out = 0;
    if (n >= __popc(bits))
        return bits;
    for (; n > 0 && bits; n--) {
        out |= bits & (0 - bits);
        bits &= bits - 1;
    }
    return out;
}

/* Room of a warp for the columns that it writes: 16 bits each, of those 8 lanes hold in a byte or in a word B. */
template <class B> static constexpr int SELECT_STAGE = 8 * 32 * (int)sizeof(B);

/* A lane's columns, a bit of B each, from `first` on: `above` are above the cut and `equal` equal to it, of which the
 * row's first `ties` are chosen. Writes those chosen; all lanes take part. Indices are gathered in `stage`, for
 * neighbours to leave in one store. */
template <class B>
DEVICE void select_write(const struct select_params &p, const select_at &at, select_progress *done,
                         int32_t ties, int32_t first, uint32_t above, uint32_t equal,
                         uint16_t *stage, int lanes = 32) {
    const int lane = warp_lane(), columns = 8 * (int)sizeof(B);
    const int32_t same = __reduce_add_sync(WARP_ALL, __popc(equal)), left = ties - done->ties;
    int32_t sum;
    if (left >= same)
        above |= equal;
    else if (left > 0)
        above |= select_first_bits(equal, left - warp_before(__popc(equal), &sum));
    done->ties += same;
    const int32_t place = warp_before(__popc(above), &sum);
    const int32_t room = (int32_t)p.shape.capacity - done->chosen;
    if (p.bits && lane < lanes && first < 64 * p.shape.words)
        reinterpret_cast<B *>(p.bits + at.number * p.shape.words)[first / columns] =
            (B)(place + columns <= room ? above : select_first_bits(above, room - place));
    int32_t *out = p.indices + at.number * p.shape.capacity + done->chosen;
    if (p.indices) {
        int32_t to = place + __popc(above);
        for (uint32_t bits = above; bits;) { /* from the last */
            const int c = 31 - __clz((int)bits);
            bits ^= 1u << c;
            stage[--to] = (uint16_t)(lane * columns + c);
        }
        __syncwarp();
        for (int32_t i = lane; i < min(sum, room); i += 32)
            out[i] = first - lane * columns + stage[i];
        __syncwarp();
    }
    done->chosen += sum;
}

/* Padding, count and overflow of a row that chooses so many; `thread` of `threads` that share it. */
DEVICE void select_close(const struct select_params &p, const select_at &at, int32_t chosen,
                         int32_t thread, int32_t threads) {
    const int32_t count = min(chosen, (int32_t)p.shape.capacity);
    for (int32_t i = count + thread; p.indices && i < (int32_t)p.shape.capacity; i += threads)
        p.indices[at.number * p.shape.capacity + i] = -1;
    if (thread)
        return;
    if (p.counts)
        p.counts[at.number] = count;
    if (p.overflows)
        p.overflows[at.number] = at.row.end < 0 ? -1 : chosen - count;
}

#endif
