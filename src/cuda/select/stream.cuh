/*
 * Choosing columns of rows that a warp's registers do not hold, each read once: a CTA takes a row, or a cluster.
 *
 *     sample   a bracket for the cut's key
 *     read     a bit for each column above the bracket; the scores within it are listed by each lane
 *     digits   the cut, among those listed
 *     settle   bits of columns listed that are above the cut or equal to it
 *     write    columns from the bits
 *
 * Counts show whether the cut lies within the bracket. Where it does not, or a lane's list finds no room, the row is
 * taken by digits in memory, as select_rows does: the same columns, later.
 *
 * Steps of 1024 columns go to warps in turn, so that scores which lie together spread over the lists of all lanes.
 */
#ifndef TESSERA_CUDA_SELECT_STREAM_CUH
#define TESSERA_CUDA_SELECT_STREAM_CUH

#include "device/shared.cuh"
#include "select/sample.cuh"

#define STREAM_WARPS 32     /* at most in a CTA */
#define STREAM_COLUMNS 1024 /* in a step */
#define STREAM_DIGITS 512   /* parts of the bracket, the one above it among them */

/* Shared memory; lists of the lanes begin at rows.mass, which is last; then come the bits. */
struct alignas(16) stream_shared {
    sample_shared sample;
    uint32_t mass[2][STREAM_DIGITS];
    uint32_t few[32], few_column[32], few_used; /* keys of one digit; columns of the CTA */
    int32_t full;                               /* whether a list found no room */
    select_shared<uint32_t> rows;
};
#define STREAM_FIXED (sizeof(stream_shared) - sizeof(select_shared<uint32_t>::mass))

/* A score that is listed, later its key; its chunk of the CTA and column of the lane, 8 chunk + c. */
template <class S> struct stream_entry;
template <> struct stream_entry<uint32_t> {
    uint2 x;
    static __device__ __forceinline__ stream_entry make(uint32_t key, uint32_t column) {
        return {make_uint2(key, column)};
    }
    __device__ __forceinline__ uint32_t key() const {
        return x.x;
    }
    __device__ __forceinline__ uint32_t column() const {
        return x.y;
    }
};
template <> struct stream_entry<uint16_t> {
    uint32_t x;
    static __device__ __forceinline__ stream_entry make(uint32_t key, uint32_t column) {
        return {key << 16 | column};
    }
    __device__ __forceinline__ uint32_t key() const {
        return x >> 16;
    }
    __device__ __forceinline__ uint32_t column() const {
        return x & 0xffff;
    }
};

/* Places of a thread's arrays: addresses of shared memory, so that the read adds none to another. */
template <class S> struct stream_room {
    stream_shared *shared;
    uint32_t list, apart; /* this lane's first entry; bytes from one to the next */
    uint32_t bits; /* 16 of the lane's columns in each chunk: above the cut, 8 more equal to it */
    int32_t base;  /* the CTA's first step */

    __device__ __forceinline__ stream_entry<S> &entry(uint32_t at) const {
        return *static_cast<stream_entry<S> *>(__cvta_shared_to_generic(at));
    }
    __device__ __forceinline__ uint16_t &bits_of(uint32_t chunk) const {
        return *static_cast<uint16_t *>(__cvta_shared_to_generic(bits + chunk * 64));
    }
};

template <class S>
DEVICE stream_room<S> stream_room_of(const struct select_params &p, void *memory) {
    const uint32_t each = (uint32_t)sizeof(stream_entry<S>);
    const uint32_t lists = shared_address(memory) + (uint32_t)STREAM_FIXED;
    return {static_cast<stream_shared *>(memory), lists + each * threadIdx.x, each * blockDim.x,
            lists + (uint32_t)p.listed + 2 * warp_lane(), cluster_rank() * p.span};
}

/* Bits of a lane's scores that are at least `above`, and those below that are at least `least`. T: two scores of 16
 * bits. */
template <class T, class S>
DEVICE void stream_compare(const select_piece<S> &x, uint32_t above, uint32_t least, uint32_t *more,
                           uint32_t *within) {
    const uint32_t *const word = &x.word[0].x;
    uint32_t is_more = 0, is_least = 0;
#pragma unroll
    for (int i = 0; i < 2 * (int)sizeof(S); i++) {
        if (sizeof(S) == 4) {
            const float score = __uint_as_float(word[i]);
            is_more |= score >= __uint_as_float(above) ? 1u << i : 0;
            is_least |= score >= __uint_as_float(least) ? 1u << i : 0;
        } else {
            const T scores = select_pair<T>(word[i]);
            is_more |= __hge2_mask(scores, select_pair<T>(above)) & 0x00020001u << 2 * i;
            is_least |= __hge2_mask(scores, select_pair<T>(least)) & 0x00020001u << 2 * i;
        }
    }
    is_least &= ~is_more;
    *more = (is_more | (sizeof(S) == 2 ? is_more >> 16 : 0)) & 0xff;
    *within = (is_least | (sizeof(S) == 2 ? is_least >> 16 : 0)) & 0xff;
}

/* Columns that a lane has read. */
struct stream_lane {
    uint32_t end;  /* its list's */
    int32_t left;  /* entries that find room; below 0: too few */
    int32_t above; /* columns */
};

/* Writes a lane's bits of a chunk, and lists its scores within the bracket. */
template <class S>
DEVICE void stream_list(const stream_room<S> &r, stream_lane *lane, const select_piece<S> &x,
                        uint32_t chunk, uint32_t more, uint32_t within) {
    lane->above += __popc(more), lane->left -= __popc(within);
    within = lane->left < 0 ? 0 : within;
    r.bits_of(chunk) = (uint16_t)more;
#pragma unroll
    for (int c = 0; c < SELECT_LANE; c++)
        if (within >> c & 1) {
            r.entry(lane->end) = stream_entry<S>::make(x.get(c), SELECT_LANE * chunk + c);
            lane->end += r.apart;
        }
}

/* Reads this warp's columns, step by step: bits of those above the bracket, a list of those within. T: two scores of 16
 * bits. */
template <class T, class S>
DEVICE stream_lane stream_read(const struct select_params &p, const select_at &at,
                               const stream_room<S> &r, sample_bracket b) {
    constexpr int CHUNKS = STREAM_COLUMNS / SELECT_CHUNK;
    constexpr int AHEAD = 8 / (int)sizeof(S); /* chunks that are read at once */
    const int warps = (int)blockDim.x / 32;
    const uint32_t each = sizeof(S) == 4 ? 1 : 0x00010001;
    const uint32_t above = select_stored(b.hi + 1, p.keys.bits) * each;
    const uint32_t least = select_stored(b.lo, p.keys.bits) * each;
    stream_lane lane = {r.list, p.resident, 0};
    for (int32_t step = (int32_t)threadIdx.x / 32; step < p.span; step += warps) {
        const int32_t begin = (r.base + step) * STREAM_COLUMNS;
        const int32_t first = begin + warp_lane() * SELECT_LANE;
        if (p.whole && !at.keep && begin >= at.row.kept && begin + STREAM_COLUMNS <= at.row.tail) {
#pragma unroll
            for (int i = 0; i < CHUNKS; i += AHEAD) {
                select_piece<S> x[AHEAD];
#pragma unroll
                for (int a = 0; a < AHEAD; a++)
                    select_load_whole(&x[a], at, first + (i + a) * SELECT_CHUNK);
#pragma unroll
                for (int a = 0; a < AHEAD; a++) {
                    uint32_t more, within;
                    stream_compare<T>(x[a], above, least, &more, &within);
                    stream_list(r, &lane, x[a], step * CHUNKS + i + a, more, within);
                }
            }
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < CHUNKS; i++) {
            const int32_t column = first + i * SELECT_CHUNK;
            select_piece<S> x;
            uint32_t more, within;
            select_load(&x, at, p.whole, column);
            stream_compare<T>(x, above, least, &more, &within);
            const uint32_t kept = select_kept(at, column),
                           inside = select_bits(column, 0, at.row.end);
            stream_list(r, &lane, x, step * CHUNKS + i, (more & inside) | kept,
                        within & inside & ~kept);
        }
    }
    return lane;
}

/* The lowest bit of the digit in which keys differ by up to `wide`. */
DEVICE int stream_shift(uint32_t wide) {
    const int shift = max(32 - __clz((int)wide) - 9, 0);
    return shift + (wide >> shift == STREAM_DIGITS - 1);
}

/* Marks a column of the CTA, 256 chunk + 8 lane + c, that the cut chooses or ties with. */
DEVICE void stream_mark(uint32_t *bits, uint32_t column, uint32_t x, select_cut cut) {
    const uint32_t place = column / SELECT_LANE * 16 + column % SELECT_LANE;
    if (x > cut.key)
        atomicOr(&bits[place / 32], 1u << place % 32);
    else if (x == cut.key && cut.ties)
        atomicOr(&bits[place / 32], 1u << (place % 32 + SELECT_LANE));
}

/* The cut among the keys from lo to hi, 32 at most; marks what is listed. */
template <class S>
DEVICE select_cut stream_few(const stream_room<S> &r, uint32_t end, uint32_t lo, uint32_t hi,
                             int32_t target) {
    stream_shared *const s = r.shared;
    const int ranks = cluster_size(), lane = warp_lane();
    for (uint32_t at = r.list; at != end; at += r.apart) {
        const uint32_t x = r.entry(at).key(), column = r.entry(at).column();
        if (x > hi) {
            r.bits_of(column / SELECT_LANE) |= (uint16_t)(1u << column % SELECT_LANE);
        } else if (x >= lo) {
            const uint32_t place = atomicAdd(&s->few_used, 1u);
            s->few[place] = x;
            s->few_column[place] =
                (column / SELECT_LANE * 32 + lane) * SELECT_LANE + column % SELECT_LANE;
        }
    }
    __syncthreads();
    select_cluster_wait();
    uint32_t of_rank[CLUSTER_MAX], x = 0;
#pragma unroll
    for (int rank = 0; rank < CLUSTER_MAX; rank++)
        of_rank[rank] = rank >= ranks ? 0
                        : ranks == 1  ? s->few[lane]
                                      : *cluster_at(&s->few[lane], rank);
    int taken = 0;
#pragma unroll
    for (int rank = 0; rank < CLUSTER_MAX; rank++) {
        if (rank >= ranks)
            break;
        const uint32_t moved = __shfl_sync(WARP_ALL, of_rank[rank], (lane - taken) & 31);
        const int more = __popc(__ballot_sync(WARP_ALL, of_rank[rank] != 0));
        x = lane >= taken && lane < taken + more ? moved : x;
        taken += more;
    }
    x = sample_sort<uint32_t>(x);
    select_cut cut = {__shfl_sync(WARP_ALL, x, target - 1), 0};
    cut.ties = target - __popc(__ballot_sync(WARP_ALL, x > cut.key));
    if (cut.ties == __popc(__ballot_sync(WARP_ALL, x == cut.key)))
        cut = {cut.key - 1, 0};
    if (threadIdx.x < 32 && s->few[lane])
        stream_mark(static_cast<uint32_t *>(__cvta_shared_to_generic(r.bits - 2 * lane)),
                    s->few_column[lane], s->few[lane], cut);
    return cut;
}

/* Marks what is listed by the cut. */
template <class S>
DEVICE select_cut stream_settle(const stream_room<S> &r, uint32_t end, select_cut cut) {
    const uint32_t least = cut.key + (cut.ties == 0);
    for (uint32_t at = r.list; at != end; at += r.apart) {
        const uint32_t x = r.entry(at).key(), column = r.entry(at).column();
        if (x >= least)
            r.bits_of(column / SELECT_LANE) |=
                (uint16_t)((x > cut.key ? 1u : 1u << SELECT_LANE) << column % SELECT_LANE);
    }
    return cut;
}

/* The cut, or that none was found: the row is to be taken by digits in memory. */
struct stream_found {
    select_cut cut;
    bool found;
};

/* The cut among the scores listed, whose keys take their place; marks those that it chooses. */
template <class S>
DEVICE stream_found stream_cut(const struct select_params &p, const select_at &at,
                               const stream_room<S> &r, sample_bracket b, const stream_lane &lane) {
    stream_shared *const s = r.shared;
    const int ranks = cluster_size();
    const uint32_t above = __reduce_add_sync(WARP_ALL, (uint32_t)lane.above);
    const uint32_t bits = UINT32_MAX >> (32 - 8 * sizeof(S));
    uint32_t target = (uint32_t)at.row.k;
    int shift = stream_shift(b.hi - b.lo);
    const int past = (int)((b.hi - b.lo) >> shift) + 1;
    for (uint32_t i = r.list; i != lane.end; i += r.apart) {
        const uint32_t x = select_word_keys<S>(r.entry(i).key(), p.type == TESS_F16) & bits;
        r.entry(i) = stream_entry<S>::make(x, r.entry(i).column());
        atomicAdd(&s->mass[0][(x - b.lo) >> shift], 1u);
    }
    if (lane.left < 0)
        s->full = 1;
    if (warp_lane() == 0)
        atomicAdd(&s->mass[0][past], above);
    for (int turn = 0;; turn++) {
        uint32_t *const mass = s->mass[turn % 2];
        const int digits = turn ? STREAM_DIGITS : past / 32 * 32 + 32;
        __syncthreads();
        select_cluster_wait();
        if (turn == 0) {
            const int rank = warp_lane() < ranks ? warp_lane() : 0;
            if (__any_sync(WARP_ALL, ranks == 1 ? s->full : *cluster_at(&s->full, rank)))
                return {{0, 0}, false};
        }
        for (int i = threadIdx.x; i < STREAM_DIGITS; i += blockDim.x)
            s->mass[turn % 2 ^ 1][i] = 0;
        digit_groups(mass, s->rows.group, digits, ranks);
        __syncthreads();
        const digit_found<uint32_t> found = digit_find(mass, s->rows.group, digits, target, ranks);
        if (found.digit < 0) /* all that can be chosen, or the bracket is too high */
            return {stream_settle(r, lane.end, {p.keys.low - 1, 0}), b.lo == p.keys.low};
        if (turn == 0 && found.digit == past) /* columns above are all, or too many */
            return {{b.hi, 0}, found.left == found.mass};
        b.lo += (uint32_t)found.digit << shift, b.hi = min(b.hi, b.lo + ((1u << shift) - 1));
        target = found.left;
        if (found.left == found.mass) /* all keys from this one on */
            return {stream_settle(r, lane.end, {b.lo - 1, 0}), true};
        if (shift == 0)
            return {stream_settle(r, lane.end, {b.lo, (int32_t)target}), true};
        if (found.mass <= 32)
            return {stream_few(r, lane.end, b.lo, b.hi, (int32_t)target), true};
        shift = stream_shift(b.hi - b.lo);
        for (uint32_t i = r.list; i != lane.end; i += r.apart) {
            const uint32_t x = r.entry(i).key() - b.lo;
            if (x <= b.hi - b.lo)
                atomicAdd(&s->mass[turn % 2 ^ 1][x >> shift], 1u);
        }
    }
}

/* Bits of 32 columns of a lane of a step: above the cut, and equal to it. */
template <class S> DEVICE uint2 stream_word(const stream_room<S> &r, int32_t step) {
    const uint2 x = *static_cast<const uint2 *>(
        __cvta_shared_to_generic(r.bits + (uint32_t)step * 256 + 6 * (uint32_t)warp_lane()));
    return make_uint2(__byte_perm(x.x, x.y, 0x6420), __byte_perm(x.x, x.y, 0x7531));
}

/* Chooses a row's columns; false: its cut was not found. */
template <class S>
DEVICE bool stream_row(const struct select_params &p, const select_at &at,
                       const stream_room<S> &r) {
    stream_shared *const s = r.shared;
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const int32_t target = at.row.k - at.row.kept - (at.row.end - at.row.tail);
    const bool exact = p.shape.mode == TESS_SELECT_EXACT;
    const bool known = !exact || target <= 0 || target >= at.row.tail - at.row.kept;
    sample_bracket b = {p.shape.bound, p.shape.bound - 1};
    if (exact && known)
        b.lo = target <= 0 ? p.keys.high + 1 : p.keys.low, b.hi = b.lo - 1;
    for (int i = threadIdx.x; i < STREAM_DIGITS; i += blockDim.x)
        s->mass[0][i] = 0;
    if (threadIdx.x < 32)
        s->few[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        s->full = 0, s->few_used = 0;
    if (known)
        __syncthreads();
    else
        b = sample_draw<S>(p, at, &s->sample, (float)target);
    const stream_lane lane = sizeof(S) == 4 || p.type == TESS_F16
                                 ? stream_read<__half2>(p, at, r, b)
                                 : stream_read<__nv_bfloat162>(p, at, r, b);
    stream_found f = {{b.hi, 0}, true};
    if (!known || (at.keep && exact))
        f = stream_cut(p, at, r, b, lane);
    if (!f.found)
        return false;
    __syncthreads();
    const int32_t each = (p.span + warps - 1) / warps;
    const int32_t first = min(warp * each, p.span), last = min(first + each, p.span);
    int more = 0, same = 0;
    for (int32_t i = first; i < last; i++) {
        const uint2 word = stream_word(r, i);
        more += __popc(word.x), same += __popc(word.y);
    }
    more = __reduce_add_sync(WARP_ALL, more), same = __reduce_add_sync(WARP_ALL, same);
    int2 before, sum;
    select_before(&s->rows, make_int2(more, same), &before, &sum);
    select_progress done = {before.x + min(before.y, f.cut.ties), before.y};
    for (int32_t i = first; i < last; i++) {
        const uint2 word = stream_word(r, i);
        select_write<uint32_t>(
            p, at, &done, f.cut.ties, (r.base + i) * STREAM_COLUMNS + warp_lane() * 32, word.x,
            word.y, reinterpret_cast<uint16_t *>(s->rows.mass) + warp * SELECT_STAGE<uint32_t>);
    }
    select_close(p, at, sum.x + min(sum.y, f.cut.ties),
                 cluster_rank() * (int32_t)blockDim.x + (int32_t)threadIdx.x,
                 cluster_size() * (int32_t)blockDim.x);
    return true;
}

template <class S>
static __global__ void __launch_bounds__(32 * STREAM_WARPS, 1)
    select_stream(const __grid_constant__ struct select_params p) {
    extern __shared__ uint4 select_memory[];
    const stream_room<S> room = stream_room_of<S>(p, select_memory);
    const uint32_t number = blockIdx.x / cluster_size();
    const bool found = stream_row(p, select_at_of(p, number, sizeof(S)), room);
    __syncthreads();
    select_cluster_wait(); /* others have read this CTA's shared memory */
    if (!found)
        select_row_choose<S>(p, select_at_of(p, number, sizeof(S)), &room.shared->rows,
                             (4 * p.span + (int)blockDim.x / 32 - 1) / ((int)blockDim.x / 32), 0);
}

#endif
