/*
 * Choosing columns of long rows, each read once: the CTAs of a cluster take a row, many rows a CTA each.
 *
 *     sample   a bracket for the cut's key
 *     read     scores that reach the bracket are listed with their columns, in the row's order
 *     digits   the cut, among those listed
 *     write    columns from the list
 *
 * Counts show whether the cut lies within the bracket. Where it does not, or the list finds no room, the row is taken by
 * digits in memory, as select_rows does: the same columns, later.
 *
 * A warp reads steps that lie together, by cp.async into a ring of its own; the first ones of a row come while the CTA is
 * busy with the row before. In the ring the pieces of 16 bytes are turned so that a lane reads 64 bytes of the row without
 * conflicts of banks.
 */
#ifndef TESSERA_CUDA_SELECT_STREAM_CUH
#define TESSERA_CUDA_SELECT_STREAM_CUH

#include "select/sample.cuh"
#include "device/copy.cuh"

#define STREAM_WARPS 24      /* at most in a CTA */
#define STREAM_PIECES 4      /* pieces of 16 bytes of a lane in a step */
#define STREAM_BYTES 2048    /* bytes of a step */
#define STREAM_AHEAD 2       /* steps of a warp that are on their way */
#define STREAM_COUNT_BITS 11 /* low bits of a step's place in the list: how many are there */

template <class S> static constexpr int STREAM_STEP = STREAM_BYTES / (int)sizeof(S); /* columns */
template <class S> static constexpr int STREAM_LANE = STREAM_STEP<S> / 32;

/* Shared memory; then come the warps' rings, the list, and `start`. */
struct alignas(128) stream_shared {
    select_shared<uint32_t> rows;
    sample_shared sample;
    uint32_t word[SELECT_WARPS][32]; /* bits of a step, of each warp */
    uint32_t used;                   /* scores that found or wanted room */
    int32_t full;                    /* whether some did not find any */
    uint32_t few[32], few_used;      /* keys of one digit */
};

/* A score that is listed, and its column in the step. Scores become keys once all are there; of columns that are kept they
 * are all bits. */
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

/* Places of a CTA's arrays. */
template <class S> struct stream_room {
    stream_shared *shared;
    char *memory;
    uint32_t ring;   /* this warp's: bytes from `memory`, a multiple of 128 */
    uint32_t *start; /* places in the list of each of the CTA's steps, and how many are there */
    stream_entry<S> *list;
    int32_t most;  /* entries */
    int32_t base;  /* the CTA's first step */
    int32_t first; /* this warp's */
};

template <class S>
DEVICE stream_room<S> stream_room_of(const struct select_params &p, void *memory) {
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const uint32_t rings = (uint32_t)sizeof(stream_shared);
    static_assert(sizeof(stream_shared) % 128 == 0, "places of rings are turned by bits");
    stream_room<S> r;
    r.shared = static_cast<stream_shared *>(memory);
    r.memory = static_cast<char *>(memory);
    r.ring = rings + warp * STREAM_AHEAD * STREAM_BYTES;
    r.list =
        reinterpret_cast<stream_entry<S> *>(r.memory + rings + warps * STREAM_AHEAD * STREAM_BYTES);
    r.start = reinterpret_cast<uint32_t *>(r.list + p.resident);
    r.most = p.resident;
    r.base = cluster_rank() * warps * p.span;
    r.first = r.base + warp * p.span;
    return r;
}

/* This warp's last step of a row, and one. */
template <class S>
DEVICE int32_t stream_last(const struct select_params &p, const select_at &at,
                           const stream_room<S> &r) {
    return min(r.first + p.span, (at.row.end + STREAM_STEP<S> - 1) / STREAM_STEP<S>);
}

/* Sets out for a step of this warp, if there is one. Lane l copies pieces l, l + 32 and so on; the place of each within
 * its eight is turned by the number of the eight. */
template <class S>
DEVICE void stream_fetch(const select_at &at, const stream_room<S> &r, int32_t step, int32_t last) {
    const int lane = warp_lane();
    const uint32_t to =
        shared_address(r.memory) + r.ring + (step - r.first) % STREAM_AHEAD * STREAM_BYTES;
    const uint32_t turned = (lane / 8 * 8 + (lane ^ lane / 8) % 8) * 16;
    const char *const from =
        static_cast<const char *>(at.scores) + (int64_t)step * STREAM_BYTES + 16 * lane;
    const int32_t left = (at.row.end - step * STREAM_STEP<S>)*(int32_t)sizeof(S) - 16 * lane;
    if (step < last - 1) {
#pragma unroll
        for (int i = 0; i < STREAM_PIECES; i++)
            cp_async_16(to + (turned ^ i % 2 * 64) + 512 * i, from + 512 * i, true);
    } else if (step < last) {
#pragma unroll 1
        for (int i = 0; i < STREAM_PIECES; i++)
            if (512 * i < left)
                cp_async_part(to + (turned ^ i % 2 * 64) + 512 * i, from + 512 * i,
                              min(left - 512 * i, 16));
    }
    cp_async_commit();
}

/* Sets out for the first steps of a row. */
template <class S>
DEVICE void stream_begin(const struct select_params &p, const select_at &at,
                         const stream_room<S> &r) {
    const int32_t last = stream_last(p, at, r);
#pragma unroll
    for (int i = 0; i < STREAM_AHEAD; i++)
        stream_fetch(at, r, r.first + i, last);
}

/* Column c of a lane's in the ring. line: bytes from `memory`, in which the turn of the lane's places is. */
template <class S> DEVICE S *stream_column(char *memory, uint32_t line, int c) {
    return reinterpret_cast<S *>(memory + (line ^ (uint32_t)c * (uint32_t)sizeof(S)));
}
DEVICE uint32_t stream_line(uint32_t step) {
    const uint32_t lane = warp_lane();
    return step + (lane / 2 * 128 | (lane % 2 * 64 ^ lane / 2 % 8 * 16));
}

/* Bits of a lane's scores that are at least `least`, as each 32 bits of a row hold it. T: a score, or two. */
template <class T> DEVICE uint32_t stream_least(char *memory, uint32_t line, uint32_t least) {
    uint32_t bits[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < STREAM_PIECES; i++) {
        const uint4 x = *stream_column<uint4>(memory, line, i);
        const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int c = 0; c < 4; c++)
            bits[i / 2] |= __hge2_mask(select_pair<T>(word[c]), select_pair<T>(least)) &
                           0x00020001u << 2 * (4 * (i % 2) + c);
    }
    return ((bits[0] | bits[0] >> 16) & 0xffff) | (bits[1] & 0xffff0000) | bits[1] << 16;
}
template <>
__device__ __forceinline__ uint32_t stream_least<float>(char *memory, uint32_t line,
                                                        uint32_t least) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < STREAM_PIECES; i++) {
        const uint4 x = *stream_column<uint4>(memory, line, i);
        const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int c = 0; c < 4; c++)
            bits |= __uint_as_float(word[c]) >= __uint_as_float(least) ? 1u << (4 * i + c) : 0;
    }
    return bits;
}

/* Bits below the row's end of a lane's columns; those that are kept are marked in the ring. */
template <class S>
DEVICE uint32_t stream_keep(const select_at &at, char *memory, uint32_t line, int32_t first,
                            uint32_t bits) {
    uint32_t inside = 0, kept = 0;
    for (int c = 0; c < STREAM_LANE<S>; c += SELECT_LANE) {
        inside |= select_bits(first + c, 0, at.row.end) << c;
        kept |= select_kept(at, first + c) << c;
    }
    for (uint32_t left = kept; left; left &= left - 1)
        *stream_column<S>(memory, line, __ffs((int)left) - 1) = (S)UINT32_MAX;
    return (bits & inside) | kept;
}

/* Adds to what is used, and answers what was before: of one lane, which a compiler need not gather from all. */
DEVICE uint32_t stream_claim(uint32_t *used, uint32_t n) {
    uint32_t was;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;"
                 : "=r"(was)
                 : "r"(shared_address(used)), "r"(n)
                 : "memory");
    return was;
}

/* Lists the columns of this warp whose scores reach the key `lo`. The row's first steps are on their way. */
template <class S>
DEVICE void stream_read(const struct select_params &p, const select_at &at, const stream_room<S> &r,
                        uint32_t lo) {
    const int lane = warp_lane();
    const int32_t last = stream_last(p, at, r);
    const uint32_t least = select_stored(lo, p.keys.bits) * (sizeof(S) == 4 ? 1 : 0x00010001);
    for (int32_t step = r.first; step < last; step++) {
        const int32_t begin = step * STREAM_STEP<S>, end = begin + STREAM_STEP<S>;
        const uint32_t line = stream_line(r.ring + (step - r.first) % STREAM_AHEAD * STREAM_BYTES);
        cp_async_wait<STREAM_AHEAD - 1>();
        __syncwarp();
        uint32_t bits;
        if (sizeof(S) == 4)
            bits = stream_least<float>(r.memory, line, least);
        else if (p.type == TESS_F16)
            bits = stream_least<__half2>(r.memory, line, least);
        else
            bits = stream_least<__nv_bfloat162>(r.memory, line, least);
        if (at.keep || begin < at.row.kept || end > at.row.tail)
            bits = stream_keep<S>(at, r.memory, line, begin + lane * STREAM_LANE<S>, bits);
        const int32_t own = __popc(bits), through = warp_inclusive(own);
        uint32_t place = 0;
        if (lane == 31) {
            place = through ? stream_claim(&r.shared->used, (uint32_t)through) : 0;
            r.start[step - r.base] = place << STREAM_COUNT_BITS | (uint32_t)through;
        }
        place = __shfl_sync(WARP_ALL, place + through, 31); /* behind the step's */
        const bool fits = place <= (uint32_t)r.most;
        stream_entry<S> *to = r.list + (place - __shfl_sync(WARP_ALL, through, 31) + through);
        bits = fits ? bits : 0;
        while (bits) { /* from the last */
            const int c = 31 - __clz((int)bits);
            bits ^= 1u << c;
            *--to = stream_entry<S>::make(*stream_column<S>(r.memory, line, c),
                                          lane * STREAM_LANE<S> + c);
        }
        __syncwarp(); /* all have read the step */
        stream_fetch(at, r, step + STREAM_AHEAD, last);
    }
}

/* The cut among the keys of one digit, 32 at most: key ... key + 2^shift - 1 above lo. */
template <class S>
DEVICE select_cut stream_few(const stream_room<S> &r, uint32_t n, uint32_t lo, uint32_t key,
                             int shift, int32_t target) {
    stream_shared *const s = r.shared;
    const int ranks = cluster_size(), lane = warp_lane();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint32_t x = r.list[i].key();
        if ((x - lo) >> shift == key >> shift)
            s->few[stream_claim(&s->few_used, 1)] = x;
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
        const uint32_t moved = __shfl_sync(WARP_ALL, of_rank[rank], (lane - taken) & 31);
        const int more = __popc(__ballot_sync(WARP_ALL, of_rank[rank] != 0));
        x = lane >= taken && lane < taken + more ? moved : x;
        taken += more;
    }
    x = sample_sort<uint32_t>(x);
    const uint32_t cut = __shfl_sync(WARP_ALL, x, target - 1);
    const int32_t ties = target - __popc(__ballot_sync(WARP_ALL, x > cut));
    return ties == __popc(__ballot_sync(WARP_ALL, x == cut)) ? select_cut{cut - 1, 0}
                                                             : select_cut{cut, ties};
}

/* The cut, or that none was found: the row is to be taken by digits in memory. */
struct stream_found {
    select_cut cut;
    bool found;
};

/* The cut among the scores listed. Their keys take their place; those past the bracket are `past`. */
template <class S>
DEVICE stream_found stream_cut(const struct select_params &p, const select_at &at,
                               const stream_room<S> &r, sample_bracket b) {
    select_shared<uint32_t> *const s = &r.shared->rows;
    const int ranks = cluster_size(), most_known = 32 - __clz((int)(b.hi + 1 - b.lo));
    const bool exact = p.shape.mode == TESS_SELECT_EXACT;
    const uint32_t past = b.hi + 1, n = r.shared->used;
    const bool fits = n <= (uint32_t)r.most;
    uint32_t key = 0, target = (uint32_t)at.row.k;
    if (threadIdx.x == 0)
        r.shared->full = !fits;
    for (int known = most_known, shift, which = 0; known > 0; known = shift, which ^= 1) {
        shift = select_shift(known);
        for (uint32_t i = threadIdx.x; i < n && fits; i += blockDim.x) {
            uint32_t x = r.list[i].key();
            if (known == most_known) {
                x = select_key(x, 8 * (int)sizeof(S), p.keys.low, p.keys.high);
                x = x ? min(x, past) : past; /* kept */
                r.list[i] = stream_entry<S>::make(x, r.list[i].column());
            }
            x = (x - b.lo) ^ key;
            if (exact && (uint64_t)x >> known == 0)
                atomicAdd(&s->mass[which][x >> shift], 1u);
        }
        __syncthreads();
        select_cluster_wait();
        if (known == most_known) {
            const int rank = warp_lane() < ranks ? warp_lane() : 0;
            if (__any_sync(WARP_ALL, ranks == 1 ? !fits : *cluster_at(&r.shared->full, rank)))
                return {{0, 0}, false};
            if (!exact)
                return {{p.shape.bound - 1, 0}, true};
        }
        for (int i = threadIdx.x; i < SELECT_DIGITS; i += blockDim.x)
            s->mass[which ^ 1][i] = 0;
        const int digits = max(1 << (known - shift), 32);
        digit_groups(s->mass[which], s->group, digits, ranks);
        __syncthreads();
        const digit_found<uint32_t> found =
            digit_find(s->mass[which], s->group, digits, target, ranks);
        if (found.digit < 0) /* all that can be chosen, or the bracket is too high */
            return {{p.keys.low - 1, 0}, b.lo == p.keys.low};
        key |= (uint32_t)found.digit << shift, target = found.left;
        if (found.left == found.mass) /* all keys from this one on */
            return {{b.lo + key - 1, 0}, true};
        if (shift && found.mass <= 32) {
            const select_cut cut = stream_few(r, n, b.lo, key, shift, (int32_t)target);
            return {cut, cut.key < past || b.hi == p.keys.high};
        }
    }
    return {{b.lo + key, (int32_t)target}, b.lo + key < past || b.hi == p.keys.high};
}

/* How many of a warp's columns are above the cut, and equal to it. */
template <class S> DEVICE int2 stream_count(const stream_room<S> &r, int32_t last, select_cut cut) {
    int more = 0, same = 0;
    for (int32_t step = r.first; step < last; step++) {
        const uint32_t start = r.start[step - r.base];
        const stream_entry<S> *const list = r.list + (start >> STREAM_COUNT_BITS);
#pragma unroll 1
        for (uint32_t i = warp_lane(); i < start % (1 << STREAM_COUNT_BITS); i += 32)
            more += list[i].key() > cut.key, same += list[i].key() == cut.key;
    }
    return make_int2(__reduce_add_sync(WARP_ALL, more), __reduce_add_sync(WARP_ALL, same));
}

/* Writes a warp's columns; `before`: those of the row before them. */
template <class S>
DEVICE void stream_write(const struct select_params &p, const select_at &at,
                         const stream_room<S> &r, int32_t last, select_cut cut, int2 before) {
    const int lane = warp_lane(), words = STREAM_STEP<S> / 32;
    const uint32_t lower = (1u << lane) - 1;
    uint32_t *const word = r.shared->word[threadIdx.x / 32];
    int32_t *const indices = p.indices + at.number * p.shape.capacity;
    int32_t ties = before.y, chosen = before.x + min(ties, cut.ties);
    const int32_t end = p.bits ? r.first + p.span : last;
    const int32_t capacity = (int32_t)p.shape.capacity;
    for (int32_t step = r.first; step < end; step++) {
        const uint32_t start = step < last ? r.start[step - r.base] : 0;
        const uint32_t from = start >> STREAM_COUNT_BITS, n = start % (1 << STREAM_COUNT_BITS);
        if (p.bits) {
            word[lane] = 0;
            __syncwarp();
        }
#pragma unroll 1
        for (uint32_t first = 0; first < n; first += 32) {
            const stream_entry<S> x =
                first + lane < n ? r.list[from + first + lane] : stream_entry<S>::make(0, 0);
            bool more = x.key() > cut.key;
            if (cut.ties) {
                const uint32_t equal = __ballot_sync(WARP_ALL, x.key() == cut.key);
                more |= x.key() == cut.key && ties + __popc(equal & lower) < cut.ties;
                ties += __popc(equal);
            }
            const uint32_t mask = __ballot_sync(WARP_ALL, more);
            const int32_t place = chosen + __popc(mask & lower);
            if (more && place < capacity) {
                if (p.indices)
                    indices[place] = step * STREAM_STEP<S> + (int32_t)x.column();
                if (p.bits)
                    atomicOr(&word[x.column() / 32], 1u << x.column() % 32);
            }
            chosen += __popc(mask);
        }
        if (!p.bits)
            continue;
        __syncwarp();
        if (lane < words && step * words + lane < 2 * p.shape.words)
            reinterpret_cast<uint32_t *>(p.bits + at.number * p.shape.words)[step * words + lane] =
                word[lane];
    }
}

/* Chooses a row's columns, whose first steps are on their way; `next`: the row after, or nullptr. */
template <class S>
DEVICE void stream_row(const struct select_params &p, const select_at &at, const stream_room<S> &r,
                       const select_at *next) {
    stream_shared *const s = r.shared;
    const int32_t last = stream_last(p, at, r);
    sample_bracket b = {p.shape.bound, p.shape.bound};
    for (int i = threadIdx.x; i < SELECT_DIGITS; i += blockDim.x)
        s->rows.mass[0][i] = 0;
    if (threadIdx.x < 32)
        s->few[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        s->used = s->few_used = 0;
    if (p.shape.mode == TESS_SELECT_EXACT)
        b = sample_draw<S>(p, at, &s->sample,
                           (float)(at.row.k - at.row.kept - (at.row.end - at.row.tail)));
    else
        __syncthreads();
    stream_read(p, at, r, b.lo);
    if (next)
        stream_begin(p, *next, r);
    __syncthreads();
    const stream_found f = stream_cut(p, at, r, b);
    if (!f.found) {
        __syncthreads();
        select_cluster_wait(); /* others have read this CTA's counts */
        const int64_t all = (int64_t)cluster_size() * blockDim.x / 32 * SELECT_CHUNK;
        select_row_choose<S>(p, at, &s->rows, (int32_t)((p.shape.n + all - 1) / all), 0);
        return;
    }
    int2 before, sum;
    select_before(&s->rows, stream_count(r, last, f.cut), &before, &sum);
    stream_write(p, at, r, last, f.cut, before);
    select_close(p, at, sum.x + min(sum.y, f.cut.ties),
                 cluster_rank() * (int32_t)blockDim.x + (int32_t)threadIdx.x,
                 cluster_size() * (int32_t)blockDim.x);
}

template <class S>
static __global__ void __launch_bounds__(32 * STREAM_WARPS, 1)
    select_stream(const __grid_constant__ struct select_params p) {
    extern __shared__ uint4 select_memory[];
    const stream_room<S> room = stream_room_of<S>(p, select_memory);
    const int64_t clusters = gridDim.x / cluster_size();
    int64_t number = blockIdx.x / cluster_size();
    select_at at = select_at_of(p, number, sizeof(S));
    stream_begin(p, at, room);
    while (number < p.all) {
        number += clusters;
        const select_at next = number < p.all ? select_at_of(p, number, sizeof(S)) : at;
        stream_row(p, at, room, number < p.all ? &next : nullptr);
        at = next;
        __syncthreads();
    }
    select_cluster_wait(); /* others have read this CTA's shared memory */
}

#endif
