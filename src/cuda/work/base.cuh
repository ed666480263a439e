/*
 * A base that a run starts from (tess_base), joined to rows of O in f32 as they leave registers, by epilogues of whole
 * tiles and by the combine of split ones. Whether there is a base is alike for all threads: runs without it keep
 * their bits. An element of the base is read before that of o is stored, so that both may be the same memory.
 */
#ifndef TESSERA_CUDA_BASE_CUH
#define TESSERA_CUDA_BASE_CUH

#include "device/mma.cuh"
#include "work/slots.cuh"
#include "work/views.cuh"

/* o = own O + base base_o, with O not yet divided by its sum. own 0: the row is empty, and O, which may be NaN, counts
 * for nothing; base 0: base_o does. */
struct base_shares {
    float own, base;
};

/* Shares of a row, whose maximum and sum in base 2, m and l, become those of both parts where parts are merged. The
 * sink joins after. */
DEVICE struct base_shares base_join(const struct attention_params &p, int32_t b, int32_t h,
                                    int32_t row, float &m, float &l) {
    const bool some = l != 0, adds = !p.base.lse.data;
    float own = adds ? p.base.beta : 1, weight = 0;
    const float lse = adds ? -INFINITY : *view_row<float>(p.base.lse, b, h, row);
    if (lse != -INFINITY) {
        const float top = fmaxf(m, __fmul_rn(lse, p.modify.unit));
        own = exp2f(m - top);
        weight = modify_weight(p.modify, lse, top);
        l = l * own + weight;
        m = top;
    }
    const float below = modify_denominator(p.modify, h, m, l);
    const float inverse = below == 0 ? 0 : 1 / below;
    /* Alone, the base has all of the row, to the last bit. */
    const bool alone = weight > 0 && weight == below;
    return {some ? own * inverse * p.modify.kept : 0, adds || alone ? 1 : weight * inverse};
}

template <class T>
DEVICE const T *base_row(const struct attention_params &p, int32_t b, int32_t h, int32_t row) {
    return view_row<T>(p.base.o, b, h, row);
}

/* Joins an element of the base's row. */
template <class T> DEVICE float base_add(const struct base_shares &shares, float o, const T *base) {
    const float own = shares.own == 0 ? 0 : shares.own * o;
    return shares.base == 0 ? own : fmaf(shares.base, to_f32(*base), own);
}

/* Joins two elements of 16 bits, which are aligned to as many; `is`: they exist. */
template <class T>
DEVICE float2 base_add_pair(const struct base_shares &shares, float o0, float o1, const T *base,
                            bool is) {
    const bool read = is && shares.base != 0;
    const float2 two =
        mma_unpack(read ? *reinterpret_cast<const uint32_t *>(base) : 0, T()); /* not by ld.nc */
    return {fmaf(read ? shares.base : 0, two.x, shares.own == 0 ? 0 : shares.own * o0),
            fmaf(read ? shares.base : 0, two.y, shares.own == 0 ? 0 : shares.own * o1)};
}

/* Stores o and lse of rows without keys, as warp `warp` of `warps`, a row at a time. */
template <class T>
DEVICE void base_store_empty(const struct attention_params &p, int32_t b, int32_t h, int32_t row,
                             int32_t end, int warp, int warps) {
#pragma unroll 1
    for (row += warp; row < end; row += warps) {
        float m = -INFINITY, l = 0;
        const struct base_shares shares = base_join(p, b, h, row, m, l);
        if (warp_lane_here() == 0)
            attention_store_lse(p, b, h, row, m, l);
        const T *const from = base_row<T>(p, b, h, row);
        T *const to = view_row<T>(p.o, b, h, row);
#pragma unroll 1
        for (int d = 2 * warp_lane_here(); d < p.d_v; d += 64) {
            const float2 two = base_add_pair(shares, 0, 0, from + d, true);
            *reinterpret_cast<uint32_t *>(to + d) = mma_pack(two.x, two.y, T());
        }
    }
}

#endif
