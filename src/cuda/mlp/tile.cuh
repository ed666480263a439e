/* The MLP's tiles: rows of one group, the list of columns that they compute, and a part of what they give. */
#ifndef TESSERA_CUDA_MLP_TILE_CUH
#define TESSERA_CUDA_MLP_TILE_CUH

#include "host/mlp.h"
#include "work/image.cuh"
#include "work/views.cuh"

/* Tile T over all lists. Place p of its list is column mlp_column(..., p). */
struct mlp_tile {
    int32_t T, batch, row, rows;
    int32_t places; /* columns that it lists */
    int32_t begin;  /* first place of a part of h, or first column of a part of o */
    int32_t width;  /* columns of the part at most */
    int32_t count;  /* places of a part of h */
    int64_t first;  /* first entry of its list */
};

/* Tiles of all lists; 0 where no fill of an equal plan made the image. */
DEVICE int32_t mlp_tiles(const struct mlp_params &p) {
    return (int32_t)(!p.filled                 ? p.lists.run.n_items
                     : filled_foreign(p.lists) ? 0
                                               : p.lists.image.units);
}

DEVICE int32_t mlp_places(const struct mlp_params &p, int32_t T) {
    return p.filled ? (int32_t)p.lists.keys[T] : p.lists.run.image.items[T].count;
}

DEVICE struct mlp_tile mlp_tile_of(const struct mlp_params &p, int32_t T) {
    struct mlp_tile to = {};
    to.T = T;
    if (p.filled) {
        const int32_t tiles = (int32_t)p.lists.tiles;
        const struct filled_tile tile = filled_tile_at(p.lists, T / tiles, T % tiles);
        to.batch = tile.batch, to.row = tile.row, to.rows = tile.rows;
        to.places = (int32_t)p.lists.keys[tile.T], to.first = p.lists.full_ptr[tile.T];
        return to;
    }
    const struct granule_item &item = p.lists.run.image.items[T];
    to.batch = item.batch, to.row = item.row, to.rows = item.rows;
    to.places = item.count, to.first = item.first; /* granules are of one column */
    return to;
}

/* Column of place `at`; -1 from `end` on. Runs of filled lists are FILL_RANGES ranges at most, or whole blocks but for
 * the last. */
DEVICE int32_t mlp_column(const struct mlp_params &p, int64_t first, int32_t at, int32_t end) {
    if (at >= end)
        return -1;
    if (!p.filled)
        return p.lists.run.image.keys[first + at];
    if (p.ranges) {
        const struct list_run *range = p.lists.full + first;
        for (; at >= range->count; range++)
            at -= range->count;
        return range->key + at;
    }
    const uint32_t block = (uint32_t)p.lists.block_kv, run = fill_quotient((uint32_t)at, block);
    return p.lists.full[first + run].key + at - (int32_t)(run * block);
}

DEVICE float mlp_bias_at(const struct mlp_bias &bias, int32_t at, __half) {
    return bias.f32 ? static_cast<const float *>(bias.data)[at]
                    : to_f32(static_cast<const __half *>(bias.data)[at]);
}
DEVICE float mlp_bias_at(const struct mlp_bias &bias, int32_t at, __nv_bfloat16) {
    return bias.f32 ? static_cast<const float *>(bias.data)[at]
                    : to_f32(static_cast<const __nv_bfloat16 *>(bias.data)[at]);
}

/* First element of column f of the cache of activations, at row `row`. */
template <class T>
DEVICE T *mlp_cached(const struct mlp_params &p, int32_t batch, int32_t f, int64_t row) {
    return static_cast<T *>(p.activations.data) + batch * p.activations.stride[0] +
           f * p.activations.stride[2] + row;
}

/* First element of place `at` of tile t's values. */
template <class T> DEVICE T *mlp_value(const struct mlp_params &p, int32_t t, int64_t at) {
    return static_cast<T *>(p.values) + (t * p.value_stride + at) * p.lists.run.tile_rows;
}

/* ---- eight neighbouring elements of 16 bits, of which `n` exist ---- */

DEVICE bool mlp_whole(const void *at, int n) {
    return n >= 8 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
}
DEVICE uint4 mlp_load_8(const void *at, int n) {
    union {
        uint16_t x[8];
        uint4 all;
    } piece;
    if (mlp_whole(at, n))
        return *static_cast<const uint4 *>(at);
    piece.all = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n)
            piece.x[i] = static_cast<const uint16_t *>(at)[i];
    return piece.all;
}
DEVICE void mlp_store_8(void *at, const uint4 &x, int n) {
    union {
        uint16_t x[8];
        uint4 all;
    } piece;
    piece.all = x;
    if (mlp_whole(at, n)) {
        *static_cast<uint4 *>(at) = x;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n)
            static_cast<uint16_t *>(at)[i] = piece.x[i];
}

/* h less its cached values, each difference rounded once. */
template <class T> DEVICE uint4 mlp_less(const uint4 &h, const uint4 &cached, T) {
    const uint32_t x[4] = {h.x, h.y, h.z, h.w}, y[4] = {cached.x, cached.y, cached.z, cached.w};
    uint32_t to[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 a = mma_unpack(x[i], T()), b = mma_unpack(y[i], T());
        to[i] = mma_pack(a.x - b.x, a.y - b.y, T());
    }
    return {to[0], to[1], to[2], to[3]};
}

/* ---- activations ---- */

/* x / (1 + 2^(x (first + third x^2))): SiLU, and GELU by tanh, whose tanh(u) is 2 / (1 + exp(-2 u)) - 1. */
DEVICE float mlp_sigmoid(float x, float first, float third) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;"
        : "=f"(power)
        : "f"(fminf(x * fmaf(third, x * x, first), 120.f))); /* 2^128 would be infinite */
    return __fdividef(x, 1 + power);
}

/* x Phi(x), GELU: Phi(-|x|) by Abramowitz and Stegun, 7.1.26, whose error is 1.5e-7. */
DEVICE float mlp_gelu(float x) {
    const float z = fabsf(x) * .70710678f, t = __fdividef(1, fmaf(.3275911f, z, 1));
    const float series =
        fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -.284496736f), t,
             .254829592f);
    const float tail = .5f * t * series * __expf(-z * z); /* 0 where x is far, or infinite */
    const float below = tail * fminf(fmaxf(x, -64.f), 64.f);
    return x > 0 ? x - below : below;
}

/* Coefficients of mlp_sigmoid; `least`: ReLU and the identity have no value below. */
struct mlp_activation {
    enum { SIGMOID, LEAST, ERF } kind;
    float first, third, least;
};
DEVICE struct mlp_activation mlp_activation_of(tess_activation which) {
    const float tanh_first = -2.302208198f,
                tanh_third = -.1029432397f; /* -2 log2(e) sqrt(2/pi) ... */
    struct mlp_activation a = {};
    a.kind = which == TESS_GELU                              ? mlp_activation::ERF
             : which == TESS_GELU_TANH || which == TESS_SILU ? mlp_activation::SIGMOID
                                                             : mlp_activation::LEAST;
    a.first = which == TESS_SILU ? (float)-LOG2_E : tanh_first;
    a.third = which == TESS_SILU ? 0 : tanh_third;
    a.least = which == TESS_RELU ? 0 : -INFINITY;
    return a;
}

/* Activations of N sums. NaN stays. */
template <int N> DEVICE void mlp_activate(float (&x)[N], const struct mlp_activation &a) {
    if (a.kind == mlp_activation::SIGMOID) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = mlp_sigmoid(x[i], a.first, a.third);
    } else if (a.kind == mlp_activation::LEAST) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = x[i] < a.least ? a.least : x[i];
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = mlp_gelu(x[i]);
    }
}

#endif
