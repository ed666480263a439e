/*
 * Choosing columns by digits: the CTAs of a cluster take a row, and keep its keys in shared memory as far as there is
 * room; the rest is read again in each pass.
 *
 *     load    keys; EXACT: the first digit is counted. TOP_P: the largest key, then weights by the first digit
 *     digits  counts of all CTAs are summed, and the digit is found in which the target falls; the next is counted
 *     count   columns above the cut and equal to it, of each warp
 *     write   each warp knows how many are chosen before its first column
 *
 * Atomics add integers alone, and no order depends on them.
 */
#ifndef TESSERA_CUDA_SELECT_ROWS_CUH
#define TESSERA_CUDA_SELECT_ROWS_CUH

#include "select/digits.cuh"

#define SELECT_WARPS 32 /* at most in a CTA */

/* Shared memory; resident keys follow. M: masses, counts of 32 or weights of 64 bits. */
template <class M> struct alignas(16) select_shared {
    M group[DIGIT_GROUPS];
    uint32_t most[2];          /* this CTA's, the row's */
    int2 counts[SELECT_WARPS]; /* each warp's: above the cut, equal to it */
    int2 before[SELECT_WARPS];
    int2 sum;
    M mass[2][SELECT_DIGITS]; /* one is counted while others read the one before */
};

DEVICE void select_cluster_wait(void) {
    if (cluster_size() > 1)
        cluster_wait();
}

template <class S, class M> struct select_warp {
    const struct select_params &p;
    const select_at &at;
    select_shared<M> *shared;
    uint4 *keys;            /* resident ones of this lane */
    int32_t first, end;     /* columns of this warp; those of the row */
    int32_t span, resident; /* chunks of a warp, and those that stay in shared memory */

    static constexpr int BITS = 8 * (int)sizeof(S);
    static constexpr int WORDS = (int)sizeof(S) / 2; /* words of 16 bytes of a lane and chunk */
    static constexpr bool WEIGHS = sizeof(M) == 8;
    static constexpr int AHEAD = 8 / (int)sizeof(S); /* chunks that are read at once */

    __device__ __forceinline__ int32_t column(int i) const {
        return first + i * SELECT_CHUNK + warp_lane() * SELECT_LANE;
    }
    __device__ __forceinline__ int chunks() const {
        return min(span, (end - first + SELECT_CHUNK - 1) / SELECT_CHUNK);
    }
    __device__ __forceinline__ uint4 *held(int i) const {
        return keys + i * 32 * WORDS;
    }
    /* Columns of chunk i that are kept get their key. */
    __device__ __forceinline__ void keep(select_piece<S> *x, int i) const {
        const int32_t begin = first + i * SELECT_CHUNK;
        if (!at.keep && begin >= at.row.kept && begin + SELECT_CHUNK <= at.row.tail)
            return;
        const uint32_t kept = select_kept(at, column(i));
#pragma unroll
        for (int c = 0; c < SELECT_LANE; c++)
            if (kept >> c & 1)
                x->put(c, SELECT_KEPT(BITS));
    }
    /* Scores become keys, which stay where there is room; where masses are weights, keys by the scores alone. */
    __device__ __forceinline__ void make(select_piece<S> *x, int i) const {
        select_keys_make(x, p.type == TESS_F16);
        if (!WEIGHS)
            keep(x, i);
        if (i < resident)
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                held(i)[32 * w] = x->word[w];
    }
    /* Keys of the lane's columns of chunk i; AGAIN: they have been read before. */
    template <bool AGAIN> __device__ __forceinline__ void read(select_piece<S> *x, int i) const {
        if (AGAIN && i < resident) {
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                x->word[w] = held(i)[32 * w];
            return;
        }
        select_load(x, at, p.whole, column(i));
        make(x, i);
    }
    /* Reads the row, several chunks at once, and counts the first digit: the lowest ones are what cannot be chosen. */
    __device__ __forceinline__ void count_first(int which, int shift) const {
        uint32_t *mass = reinterpret_cast<uint32_t *>(shared->mass[which]);
        const int n = chunks();
        for (int i = 0; i < n; i += AHEAD) {
            select_piece<S> x[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                if (i + a < n)
                    select_load(&x[a], at, p.whole, column(i + a));
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                if (i + a < n) {
                    make(&x[a], i + a);
#pragma unroll
                    for (int c = 0; c < SELECT_LANE; c++)
                        atomicAdd(&mass[x[a].get(c) >> shift], 1u);
                }
        }
    }
    /* Counts the digit between shift and known, of keys whose upper bits are those of `key`. */
    __device__ __forceinline__ void count(int which, uint32_t key, int known, int shift) const {
        uint32_t *mass = reinterpret_cast<uint32_t *>(shared->mass[which]);
        const uint32_t digits = (1u << (known - shift)) - 1;
        const int n = chunks();
        for (int i = 0; i < n; i++) {
            select_piece<S> x;
            read<true>(&x, i);
#pragma unroll
            for (int c = 0; c < SELECT_LANE; c++)
                if ((x.get(c) ^ key) < 1u << known)
                    atomicAdd(&mass[x.get(c) >> shift & digits], 1u);
        }
    }
    /* Adds weights likewise. */
    __device__ __forceinline__ void weigh(int which, uint32_t key, int known, int shift) const {
        const float most = select_score(select_stored(shared->most[1], BITS), p.type);
        const int n = chunks();
        for (int i = 0; i < n; i++) {
            select_piece<S> scored, x;
            read<true>(&scored, i);
            x = scored;
            keep(&x, i);
#pragma unroll
            for (int c = 0; c < SELECT_LANE; c++) {
                const uint32_t is = x.get(c), by = scored.get(c);
                if (by < p.keys.low || (uint64_t)(is ^ key) >> known)
                    continue;
                const uint64_t weight =
                    select_weight(select_score(select_stored(by, BITS), p.type), most);
                atomicAdd((unsigned long long *)&shared
                              ->mass[which][is >> shift & ((1u << (known - shift)) - 1)],
                          (unsigned long long)weight);
            }
        }
    }
    /* Bits of the columns of chunk i that are above the cut and equal to it. FIRST: they stay where its keys were. */
    template <bool FIRST>
    __device__ __forceinline__ void compare(uint32_t *above, uint32_t *equal, int i, select_cut cut,
                                            bool again) const {
        uint32_t *bits = &held(i)->x, more = 0, same = 0;
        if (!FIRST && i < resident) {
            *above = *bits & 0xff, *equal = *bits >> 8;
            return;
        }
        select_piece<S> x;
        if (again)
            read<true>(&x, i);
        else
            read<false>(&x, i);
        if (WEIGHS)
            keep(&x, i);
#pragma unroll
        for (int c = 0; c < SELECT_LANE; c++)
            more |= x.get(c) > cut.key ? 1u << c : 0;
        if (cut.ties)
#pragma unroll
            for (int c = 0; c < SELECT_LANE; c++)
                same |= x.get(c) == cut.key ? 1u << c : 0;
        *above = more, *equal = same;
        if (FIRST && i < resident)
            *bits = more | same << 8;
    }
};

/* TOP_P: the largest key of the row, for the weights. */
template <class S, class M> DEVICE void select_most(const select_warp<S, M> &w) {
    uint32_t most = 0;
    for (int i = 0; i < w.chunks(); i++) {
        select_piece<S> x;
        w.template read<false>(&x, i);
#pragma unroll
        for (int c = 0; c < SELECT_LANE; c++)
            most = max(most, x.get(c));
    }
    most = __reduce_max_sync(WARP_ALL, most);
    if (warp_lane() == 0)
        atomicMax(&w.shared->most[0], most);
    __syncthreads();
    select_cluster_wait();
    if (threadIdx.x == 0) {
        for (int rank = 0; rank < cluster_size(); rank++)
            most = max(most, *cluster_at(&w.shared->most[0], rank));
        w.shared->most[1] = most;
    }
    __syncthreads();
}

template <class S, class M> DEVICE select_cut select_cut_find(const select_warp<S, M> &w) {
    const int bits = w.BITS;
    const uint32_t low = w.p.keys.low;
    select_shared<M> *s = w.shared;
    uint32_t key = 0;
    M target = (M)w.at.row.k;
    if (w.p.shape.mode == TESS_SELECT_THRESHOLD)
        return {w.p.shape.bound - 1, 0};
    if (w.WEIGHS)
        select_most(w);
    for (int known = bits, shift, which = 0; known; known = shift, which ^= 1) {
        shift = select_shift(known);
        if (w.WEIGHS)
            w.weigh(which, key, known, shift);
        else if (known < bits)
            w.count(which, key, known, shift);
        else
            w.count_first(which, shift);
        __syncthreads();
        select_cluster_wait();
        for (int i = threadIdx.x; i < SELECT_DIGITS; i += blockDim.x)
            s->mass[which ^ 1][i] = 0;
        const int digits = max(1 << (known - shift), 32);
        digit_groups(s->mass[which], s->group, digits, cluster_size());
        __syncthreads();
        if (w.WEIGHS && known == bits)
            target = (M)select_mass(digit_total(s->group, digits), w.p.shape.share);
        if (!target) /* nothing but what is kept, of TOP_P */
            return {SELECT_KEPT(bits), w.WEIGHS ? INT32_MAX : 0};
        const digit_found<M> found =
            digit_find(s->mass[which], s->group, digits, target, cluster_size());
        if (found.digit < 0 || (known == bits && (uint32_t)found.digit < low >> shift))
            return {low - 1, 0}; /* no more can be chosen */
        key |= (uint32_t)found.digit << shift;
        target = found.left;
        if (found.left == found.mass && !w.WEIGHS) /* all keys from this one on */
            return {key - 1, 0};
    }
    if (!w.WEIGHS)
        return {key, (int32_t)target};
    if (key == SELECT_KEPT(bits))
        return {key, INT32_MAX};
    const uint64_t weight = select_weight(select_score(select_stored(key, bits), w.p.type),
                                          select_score(select_stored(s->most[1], bits), w.p.type));
    return {key, (int32_t)((target + weight - 1) / weight)};
}

/* Sums of two counts of each warp: before this warp, and of the whole row. `own` are the warp's, of any lane. */
template <class M>
DEVICE void select_before(select_shared<M> *s, int2 own, int2 *before, int2 *sum) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (warp_lane() == 0)
        s->counts[warp] = own;
    __syncthreads();
    select_cluster_wait();
    if (warp == 0) {
        const int ranks = cluster_size(), lane = warp_lane();
        const int2 none = {0, 0}, x = lane < warps ? s->counts[lane] : none;
        int2 of_rank[CLUSTER_MAX], all = none;
        int2 less = {warp_inclusive(x.x) - x.x, warp_inclusive(x.y) - x.y};
#pragma unroll
        for (int rank = 0; rank < CLUSTER_MAX; rank++) /* all on their way together */
            of_rank[rank] = rank >= ranks || lane >= warps ? none
                            : ranks == 1                   ? x
                                                           : *cluster_at(&s->counts[lane], rank);
#pragma unroll
        for (int rank = 0; rank < CLUSTER_MAX; rank++) {
            if (rank >= ranks)
                break;
            const int2 sum_of = {__reduce_add_sync(WARP_ALL, of_rank[rank].x),
                                 __reduce_add_sync(WARP_ALL, of_rank[rank].y)};
            const bool before_own = rank < cluster_rank();
            less.x += before_own ? sum_of.x : 0, less.y += before_own ? sum_of.y : 0;
            all.x += sum_of.x, all.y += sum_of.y;
        }
        s->before[lane] = less;
        if (lane == 0)
            s->sum = all;
    }
    __syncthreads();
    *before = s->before[warp], *sum = s->sum;
}

/* Columns above the cut and equal to it before this warp, and of the whole row. */
template <class S, class M>
DEVICE void select_count(const select_warp<S, M> &w, select_cut cut, int2 *before, int2 *sum) {
    const int n = w.chunks();
    int more = 0, same = 0;
    const bool again = w.p.shape.mode != TESS_SELECT_THRESHOLD;
    for (int i = 0; i < n; i++) {
        uint32_t above, equal;
        w.template compare<true>(&above, &equal, i, cut, again);
        more += __popc(above), same += __popc(equal);
    }
    more = __reduce_add_sync(WARP_ALL, more), same = __reduce_add_sync(WARP_ALL, same);
    select_before(w.shared, make_int2(more, same), before, sum);
}

template <class S, class M>
DEVICE void select_row_choose(const struct select_params &p, const select_at &at,
                              select_shared<M> *s, int32_t span, int32_t kept) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int64_t chunk = (int64_t)(cluster_rank() * warps + warp) * span;
    uint4 *resident = reinterpret_cast<uint4 *>(s + 1);
    const select_warp<S, M> w = {p,
                                 at,
                                 s,
                                 resident + (size_t)warp * kept * 32 * (sizeof(S) / 2) +
                                     warp_lane(),
                                 (int32_t)(chunk * SELECT_CHUNK),
                                 max(at.row.end, 0),
                                 span,
                                 kept};
    for (int i = threadIdx.x; i < SELECT_DIGITS; i += blockDim.x)
        s->mass[0][i] = 0;
    if (threadIdx.x == 0)
        s->most[0] = 0;
    __syncthreads();
    const select_cut cut = select_cut_find(w);
    int2 before, sum;
    select_count(w, cut, &before, &sum);
    select_progress done = {before.x + min(before.y, cut.ties), before.y};
    const int n = p.bits ? span : w.chunks();
    for (int i = 0; i < n; i++) {
        uint32_t above = 0, equal = 0;
        if (i < w.chunks())
            w.template compare<false>(&above, &equal, i, cut, true);
        select_write<uint8_t>(p, at, &done, cut.ties, w.column(i), above, equal,
                              reinterpret_cast<uint16_t *>(s->mass) + warp * SELECT_STAGE<uint8_t>);
    }
    select_close(p, at, sum.x + min(sum.y, cut.ties), cluster_rank() * blockDim.x + threadIdx.x,
                 cluster_size() * blockDim.x);
    __syncthreads();
    select_cluster_wait(); /* others have read this CTA's shared memory */
}

template <class S, class M>
static __global__ void __launch_bounds__(32 * SELECT_WARPS, 1)
    select_rows(const __grid_constant__ struct select_params p) {
    extern __shared__ uint4 select_memory[];
    const int clusters = gridDim.x / cluster_size();
    for (int64_t number = blockIdx.x / cluster_size(); number < p.all; number += clusters)
        select_row_choose<S, M>(p, select_at_of(p, number, sizeof(S)),
                                reinterpret_cast<select_shared<M> *>(select_memory), p.span,
                                p.resident);
}

#endif
