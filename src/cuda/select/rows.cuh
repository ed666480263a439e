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

#include "select/row.cuh"

#define SELECT_WARPS 32 /* at most in a CTA */

/* Shared memory; resident keys follow. M: masses, counts of 32 or weights of 64 bits. */
template <class M> struct alignas(16) select_shared {
    M mass[2][SELECT_DIGITS]; /* one is counted while others read the one before */
    M warps[SELECT_WARPS];
    M left; /* the target less the digits above */
    int32_t digit;
    uint32_t most[2];          /* this CTA's, the row's */
    int2 counts[SELECT_WARPS]; /* each warp's: above the cut, equal to it */
    int2 before[SELECT_WARPS];
    int2 sum;
};

template <class X> static __device__ __forceinline__ X warp_inclusive(X x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const X other = __shfl_up_sync(WARP_ALL, x, step);
        x += warp_lane() >= step ? other : 0;
    }
    return x;
}

/* Sum of x over the CTA's threads before this one; room has a place for each warp. Has one barrier. */
template <class M> static __device__ __forceinline__ M block_before(M x, M *room) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const M up = warp_inclusive(x);
    if (warp_lane() == 31)
        room[warp] = up;
    __syncthreads();
    const M mine = warp_lane() < warps ? room[warp_lane()] : 0;
    const M sums = warp_inclusive(mine);
    const M before = __shfl_sync(WARP_ALL, sums - mine, warp);
    return before + up - x;
}

/* The digit, from the highest, with which the mass of all CTAs reaches the target; -1: none. */
template <class M>
static __device__ __forceinline__ void select_digit(select_shared<M> *s, int which, M target,
                                                    int digits) {
    const int each = SELECT_DIGITS / blockDim.x, top = digits - each * (int)threadIdx.x;
    const int ranks = cluster_size();
    M own = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const M *from = cluster_at(s->mass[which], rank);
        for (int i = 0; i < each; i++)
            own += top - i > 0 ? from[top - i - 1] : 0;
    }
    M before = block_before(own, s->warps);
    if (before < target && before + own >= target) {
        for (int digit = top - 1;; digit--) {
            M at = 0;
            for (int rank = 0; rank < ranks; rank++)
                at += cluster_at(s->mass[which], rank)[digit];
            if (before + at >= target) {
                s->digit = digit, s->left = target - before;
                break;
            }
            before += at;
        }
    } else if (threadIdx.x == blockDim.x - 1 && before + own < target)
        s->digit = -1;
}

template <class S, class M> struct select_warp {
    const struct select_params &p;
    const select_at &at;
    select_shared<M> *shared;
    uint4 *keys;        /* resident ones of this lane */
    int32_t first, end; /* columns of this warp; those of the row */

    __device__ __forceinline__ int32_t column(int i) const {
        return first + i * SELECT_CHUNK + warp_lane() * SELECT_LANE;
    }
    __device__ __forceinline__ int chunks() const {
        return min(p.span, (end - first + SELECT_CHUNK - 1) / SELECT_CHUNK);
    }
    /* Keys by scores alone, of the lane's columns of chunk i. */
    template <bool AGAIN> __device__ __forceinline__ void read(select_piece<S> *x, int i) const {
        uint4 *held = keys + (size_t)i * 32 * (sizeof(S) / 2);
        if (AGAIN && i < p.resident) {
#pragma unroll
            for (int w = 0; w < (int)sizeof(S) / 2; w++)
                x->word[w] = held[32 * w];
            return;
        }
        select_load(x, at, p.whole, column(i));
        select_keys_make(x, p.keys);
        if (i < p.resident)
#pragma unroll
            for (int w = 0; w < (int)sizeof(S) / 2; w++)
                held[32 * w] = x->word[w];
    }
    /* Counts the digit between shift and known, of keys whose upper bits are those of `key`. */
    template <bool AGAIN>
    __device__ __forceinline__ void count(int which, uint32_t key, int known, int shift) const {
        const float most =
            sizeof(M) == 8 ? select_score(select_stored(shared->most[1], p.keys.bits), p.type) : 0;
        const int n = chunks();
#pragma unroll 2
        for (int i = 0; i < n; i++) {
            select_piece<S> x;
            read<AGAIN>(&x, i);
            const uint32_t kept = select_kept_bits(at.row, column(i));
#pragma unroll
            for (int c = 0; c < SELECT_LANE; c++) {
                const uint32_t scored = x.get(c);
                const uint32_t is = kept >> c & 1 ? SELECT_KEPT(8 * (int)sizeof(S)) : scored;
                if (!is || (uint64_t)(is ^ key) >> known)
                    continue;
                M *to = &shared->mass[which][is >> shift & ((1u << (known - shift)) - 1)];
                if (sizeof(M) == 4)
                    atomicAdd((unsigned *)to, 1u);
                else if (scored)
                    atomicAdd((unsigned long long *)to,
                              select_weight(
                                  select_score(select_stored(scored, p.keys.bits), p.type), most));
            }
        }
    }
    /* Bits of the columns of chunk i that are above the cut and equal to it. */
    template <bool AGAIN>
    __device__ __forceinline__ void compare(uint32_t *above, uint32_t *equal, int i,
                                            uint32_t cut) const {
        select_piece<S> x;
        uint32_t more = 0, same = 0;
        read<AGAIN>(&x, i);
        const uint32_t kept = select_kept_bits(at.row, column(i));
#pragma unroll
        for (int c = 0; c < SELECT_LANE; c++) {
            more |= (uint32_t)(x.get(c) > cut) << c;
            same |= (uint32_t)(x.get(c) == cut) << c;
        }
        if (cut == SELECT_KEPT(8 * (int)sizeof(S)))
            *above = 0, *equal = kept;
        else
            *above = more | kept, *equal = cut ? same & ~kept : 0;
    }
};

/* TOP_P: the largest key of the row, for the weights. */
template <class S, class M>
static __device__ __forceinline__ void select_most(const select_warp<S, M> &w) {
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
    cluster_wait();
    if (threadIdx.x == 0) {
        for (int rank = 0; rank < cluster_size(); rank++)
            most = max(most, *cluster_at(&w.shared->most[0], rank));
        w.shared->most[1] = most;
    }
    __syncthreads();
}

template <class S, class M>
static __device__ __forceinline__ select_cut select_cut_find(const select_warp<S, M> &w) {
    const int bits = 8 * (int)sizeof(S);
    const bool weighs = sizeof(M) == 8;
    select_shared<M> *s = w.shared;
    uint32_t key = 0;
    M target = (M)w.at.row.k;
    if (w.p.shape.mode == TESS_SELECT_THRESHOLD)
        return {w.p.shape.bound, INT32_MAX};
    if (weighs)
        select_most(w);
    for (int known = bits, shift, which = 0; known; known = shift, which ^= 1) {
        shift = select_shift(known);
        if (known < bits || weighs)
            w.template count<true>(which, key, known, shift);
        else
            w.template count<false>(which, key, known, shift);
        __syncthreads();
        cluster_wait();
        for (int i = threadIdx.x; i < SELECT_DIGITS; i += blockDim.x)
            s->mass[which ^ 1][i] = 0;
        if (weighs && known == bits) {
            M own = 0;
            for (int rank = 0; rank < cluster_size(); rank++)
                for (int i = threadIdx.x; i < SELECT_DIGITS; i += blockDim.x)
                    own += cluster_at(s->mass[which], rank)[i];
            const M before = block_before(own, s->warps);
            if (threadIdx.x == blockDim.x - 1)
                s->left = before + own;
            __syncthreads();
            target = (M)select_mass(s->left, w.p.shape.share);
            __syncthreads();
        }
        if (!target) /* nothing but what is kept, of TOP_P */
            return {SELECT_KEPT(bits), weighs ? INT32_MAX : 0};
        select_digit(s, which, target, 1 << (known - shift));
        __syncthreads();
        if (s->digit < 0) /* no more is there: all are chosen */
            return {0, 0};
        key |= (uint32_t)s->digit << shift;
        target = s->left;
    }
    if (!weighs)
        return {key, (int32_t)target};
    if (key == SELECT_KEPT(bits))
        return {key, INT32_MAX};
    const uint64_t weight = select_weight(select_score(select_stored(key, bits), w.p.type),
                                          select_score(select_stored(s->most[1], bits), w.p.type));
    return {key, (int32_t)((target + weight - 1) / weight)};
}

/* Columns above the cut and equal to it before this warp, and of the whole row. */
template <class S, class M>
static __device__ __forceinline__ void select_count(const select_warp<S, M> &w, select_cut cut,
                                                    int2 *before, int2 *sum) {
    select_shared<M> *s = w.shared;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, n = w.chunks();
    int more = 0, same = 0;
    const bool again = w.p.shape.mode != TESS_SELECT_THRESHOLD;
    for (int i = 0; i < n; i++) {
        uint32_t above, equal;
        if (again)
            w.template compare<true>(&above, &equal, i, cut.key);
        else
            w.template compare<false>(&above, &equal, i, cut.key);
        more += __popc(above), same += __popc(equal);
    }
    more = __reduce_add_sync(WARP_ALL, more), same = __reduce_add_sync(WARP_ALL, same);
    if (warp_lane() == 0)
        s->counts[warp] = make_int2(more, same);
    __syncthreads();
    cluster_wait();
    if (warp == 0) {
        const int ranks = cluster_size(), mine = cluster_rank();
        int2 all = {0, 0};
        for (int rank = 0; rank < ranks; rank++) {
            const int2 x =
                warp_lane() < warps ? cluster_at(s->counts, rank)[warp_lane()] : make_int2(0, 0);
            const int2 up = {warp_inclusive(x.x), warp_inclusive(x.y)};
            if (rank == mine)
                s->before[warp_lane()] = make_int2(all.x + up.x - x.x, all.y + up.y - x.y);
            all.x += __shfl_sync(WARP_ALL, up.x, 31), all.y += __shfl_sync(WARP_ALL, up.y, 31);
        }
        if (warp_lane() == 0)
            s->sum = all;
    }
    __syncthreads();
    *before = s->before[warp], *sum = s->sum;
}

template <class S, class M>
static __device__ __forceinline__ void select_row_choose(const struct select_params &p,
                                                         const select_at &at, select_shared<M> *s) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int64_t chunk = (int64_t)(cluster_rank() * warps + warp) * p.span;
    uint4 *resident = reinterpret_cast<uint4 *>(s + 1);
    const select_warp<S, M> w = {p,
                                 at,
                                 s,
                                 resident + (size_t)warp * p.resident * 32 * (sizeof(S) / 2) +
                                     warp_lane(),
                                 (int32_t)(chunk * SELECT_CHUNK),
                                 max(at.row.end, 0)};
    for (int i = threadIdx.x; i < SELECT_DIGITS; i += blockDim.x)
        s->mass[0][i] = 0;
    if (threadIdx.x == 0)
        s->most[0] = 0;
    __syncthreads();
    const select_cut cut = select_cut_find(w);
    int2 before, sum;
    select_count(w, cut, &before, &sum);
    select_progress done = {before.x + min(before.y, cut.ties), before.y};
    const int n = p.bits ? p.span : w.chunks();
    for (int i = 0; i < n; i++) {
        uint32_t above = 0, equal = 0;
        if (i < w.chunks())
            w.template compare<true>(&above, &equal, i, cut.key);
        select_write<uint8_t>(p, at, &done, cut.ties, w.column(i), above, equal);
    }
    select_close(p, at, sum.x + min(sum.y, cut.ties), cluster_rank() * blockDim.x + threadIdx.x,
                 cluster_size() * blockDim.x);
    cluster_wait(); /* others have read this CTA's shared memory */
}

template <class S, class M>
static __global__ void __launch_bounds__(32 * SELECT_WARPS, 1)
    select_rows(const __grid_constant__ struct select_params p) {
    extern __shared__ uint4 select_memory[];
    const int clusters = gridDim.x / cluster_size();
    for (int64_t number = blockIdx.x / cluster_size(); number < p.all; number += clusters)
        select_row_choose<S, M>(p, select_at_of(p, number, sizeof(S)),
                                reinterpret_cast<select_shared<M> *>(select_memory));
}

#endif
