/*
 * The digit with which masses, summed from the highest digit, reach a target. Digits are summed by groups of 32, a barrier
 * later every warp finds the same group and digit:
 *
 *     masses    |32|32|32| ... |32|    a warp sums a group, coalesced; those of all CTAs of a cluster
 *     groups    | 64 sums, two of a lane |    ◀─ from the highest; then the 32 digits of one group
 */
#ifndef TESSERA_CUDA_SELECT_DIGITS_CUH
#define TESSERA_CUDA_SELECT_DIGITS_CUH

#include "select/row.cuh"

#define DIGIT_GROUPS (SELECT_DIGITS / 32)

template <class X> DEVICE X warp_inclusive(X x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const X other = __shfl_up_sync(WARP_ALL, x, step);
        x += warp_lane() >= step ? other : 0;
    }
    return x;
}

DEVICE uint32_t warp_total(uint32_t x) {
    return __reduce_add_sync(WARP_ALL, x);
}
DEVICE unsigned long long warp_total(unsigned long long x) {
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, step);
    return x;
}

/* Mass of a digit over `ranks` CTAs, one or all of the cluster: loads of all of them are under way at once. */
template <class M> DEVICE M digit_mass(M *mass, int digit, int ranks) {
    M x[CLUSTER_MAX], sum = 0;
    if (ranks == 1)
        return mass[digit];
#pragma unroll
    for (int rank = 0; rank < CLUSTER_MAX; rank++)
        x[rank] = rank < ranks ? *cluster_at(mass + digit, rank) : 0;
#pragma unroll
    for (int rank = 0; rank < CLUSTER_MAX; rank++)
        sum += x[rank];
    return sum;
}

/* Sums of groups, which the CTA's warps share. */
template <class M> DEVICE void digit_groups(M *mass, M *group, int digits, int ranks) {
#pragma unroll 2
    for (int g = threadIdx.x / 32; g < digits / 32; g += blockDim.x / 32) {
        const M sum = warp_total(digit_mass(mass, g * 32 + warp_lane(), ranks));
        if (warp_lane() == 0)
            group[g] = sum;
    }
}

/* Sum of all groups. */
template <class M> DEVICE M digit_total(const M *group, int digits) {
    const int g = 2 * warp_lane();
    return warp_total((g < digits / 32 ? group[g] : 0) + (g + 1 < digits / 32 ? group[g + 1] : 0));
}

/* The digit, -1: none; what is left of the target in it, and its mass. */
template <class M> struct digit_found {
    int digit;
    M left, mass;
};

template <class M>
DEVICE digit_found<M> digit_find(M *mass, const M *group, int digits, M target, int ranks) {
    const int lane = warp_lane(), top = digits / 32 - 1 - 2 * lane;
    const M high = top >= 0 ? group[top] : 0, own = high + (top > 0 ? group[top - 1] : 0);
    M up = warp_inclusive(own), before = up - own;
    unsigned hit = __ballot_sync(WARP_ALL, before < target && up >= target);
    if (!hit)
        return {-1, 0, 0};
    const bool first = before + high >= target;
    const int g = __shfl_sync(WARP_ALL, top - !first, __ffs((int)hit) - 1);
    before = __shfl_sync(WARP_ALL, first ? before : before + high, __ffs((int)hit) - 1);
    const M mine = digit_mass(mass, g * 32 + 31 - lane, ranks);
    up = before + warp_inclusive(mine);
    hit = __ballot_sync(WARP_ALL, up - mine < target && up >= target);
    const int at = __ffs((int)hit) - 1;
    return {g * 32 + 31 - at, target - __shfl_sync(WARP_ALL, up - mine, at),
            __shfl_sync(WARP_ALL, mine, at)};
}

#endif
