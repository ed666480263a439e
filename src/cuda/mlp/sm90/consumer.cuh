/* The MLP on Hopper: a consumer warpgroup, which has 64 rows of each tile. */
#ifndef TESSERA_CUDA_MLP_SM90_CONSUMER_CUH
#define TESSERA_CUDA_MLP_SM90_CONSUMER_CUH

#include "mlp/sm90/config.cuh"

/* ---- mainloop ---- */

template <class shape, int WIDTH, class T>
DEVICE void mlp_sm90_multiply(float (&c)[128], uint32_t shared, int consumer, int32_t steps,
                              uint32_t &step) {
    const auto release = [&](uint32_t which) {
        if (sm90_thread_here() == 0)
            barrier_arrive(ring_barrier<shape::STAGES>(shared + shape::EMPTY, which));
    };
#pragma unroll 1
    for (int32_t i = 0; i < steps; i++, step++) {
        const uint32_t stage = shared + ring_stage<shape::STAGES>(step) * shape::STAGE;
        barrier_wait(ring_barrier<shape::STAGES>(shared + shape::FULL, step),
                     ring_parity<shape::STAGES>(step));
        proxy_fence(); /* other threads' copies of B */
        const uint32_t to_a = stage + consumer * MLP_PANEL, to_b = stage + shape::A;
        const uint64_t a = shape::DOWN ? wgmma_mn_major(to_a, MLP_PANEL) : wgmma_k_major(to_a);
        const uint64_t b = shape::DOWN ? wgmma_mn_major(to_b, MLP_PANEL) : wgmma_k_major(to_b);
        constexpr int deeper = (shape::DOWN ? 16 * 128 : 32) / 16; /* 16 of the depth */
        wgmma_fence_operand(c);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < MLP_STEP / 16; k++)
            wgmma_wide<WIDTH, shape::DOWN>(c, a + k * deeper, b + k * deeper, i > 0 || k > 0, T());
        wgmma_commit();
        wgmma_fence_operand(c);
        if (i > 0) {
            wgmma_wait<1>();
            release(step - 1);
        }
    }
    wgmma_wait<0>();
    wgmma_fence_operand(c);
    if (steps > 0)
        release(step - 1);
}

/* Sums of a tile: c[n / 2] ... are those of columns n ... n + 7. */
template <class shape, class T>
DEVICE void mlp_sm90_mainloop(float (&c)[128], uint32_t shared, int consumer, int32_t width,
                              int32_t steps, uint32_t &step) {
    if (steps == 0)
#pragma unroll
        for (int i = 0; i < 128; i++)
            c[i] = 0;
#define MLP_CASE(n)                                                                                \
    case n:                                                                                        \
        if (n <= shape::WIDTH)                                                                     \
            mlp_sm90_multiply<shape, n, T>(c, shared, consumer, steps, step);                      \
        break;
    switch (width) {
        MLP_CASE(64)
        MLP_CASE(96)
        MLP_CASE(128)
        MLP_CASE(144)
        MLP_CASE(160)
        MLP_CASE(176)
        MLP_CASE(192)
        MLP_CASE(208)
        MLP_CASE(224)
        MLP_CASE(240)
        MLP_CASE(256)
    }
#undef MLP_CASE
}

/* ---- epilogues, 64 columns at a time, by way of a panel of shared memory in the 128-byte swizzle ---- */

/* Piece `piece` of row `row` of the panel. */
DEVICE uint32_t mlp_sm90_at(uint32_t panel, int row, int piece) {
    return panel + (uint32_t)(row * 128) + swizzle_piece(row, piece);
}

/* stmatrix.x4 with .trans: rows of memory are columns of the matrices. */
DEVICE void mlp_stmatrix_transposed(uint32_t row, const uint32_t (&x)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
}

/* Drops the sums of the first 64 columns: epilogues are loops, whose code is a quarter. */
template <int WIDTH> DEVICE void mlp_sm90_next(float (&c)[128]) {
#pragma unroll
    for (int i = 0; i < WIDTH / 2 - 32; i++)
        c[i] = c[i + 32];
}

/* Facts of a tile's columns: which they are, -1: none; and their biases. */
template <class shape> struct mlp_sm90_facts {
    int32_t column[shape::WIDTH];
    float bias[shape::WIDTH];
};

template <class shape, class T>
DEVICE void mlp_sm90_find(struct mlp_sm90_facts<shape> &facts, const struct mlp_params &p,
                          const struct mlp_tile &tile, int64_t row) {
#pragma unroll 1
    for (int i = sm90_thread_here(); i < tile.width; i += 128) {
        const int32_t f = mlp_column(p, tile.first, tile.begin + i, tile.begin + tile.count);
        facts.column[i] = f;
        facts.bias[i] = f >= 0 && p.bias.data ? mlp_bias_at(p.bias, f, T()) : 0;
        if (f >= 0 && p.delta && row < tile.row + tile.rows)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(mlp_cached<T>(p, tile.batch, f, row)));
    }
}

/* UP: h, less its cache where a delta is computed, to the values; and h to the cache. A thread has eight rows of
 * columns 16 apart. */
template <class shape, class T>
DEVICE void mlp_sm90_up(float (&c)[128], char *memory, uint32_t shared, const struct mlp_params &p,
                        const struct mlp_tile &tile, int consumer, int barrier) {
    const struct mlp_sm90_facts<shape> &facts =
        reinterpret_cast<const struct mlp_sm90_facts<shape> *>(memory + shape::FACTS)[consumer];
    const uint32_t panel = shared + shape::STAGING + consumer * MLP_PANEL;
    const struct mlp_activation activation = mlp_activation_of(p.activation);
    const int thread = sm90_thread_here(), lane = thread % 32, warp = thread / 32;
    const int piece = thread % 8, row = 64 * consumer + 8 * piece, left = tile.rows - row;
    const bool caches = p.activations.data && left > 0;
    const auto cached = [&](int at) {
        return mlp_cached<T>(p, tile.batch, facts.column[at], tile.row + row);
    };
    const auto values = [&](int at) { return mlp_value<T>(p, tile.T, tile.begin + at) + row; };
    const auto load = [&](uint4(&to)[4], int q) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = q + thread / 8 + 16 * i;
            to[i] = caches && p.delta && at < tile.count ? mlp_load_8(cached(at), left)
                                                         : uint4{0, 0, 0, 0};
        }
    };
    uint4 old[4];
    load(old, 0);
#pragma unroll 1
    for (int q = 0; q < tile.count; q += 64, mlp_sm90_next<shape::WIDTH>(c)) {
        uint4 next[4];
        load(next, q + 64);
#pragma unroll
        for (int j = 0; j < 64; j += 16) {
            uint32_t x[4];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int n = j + 8 * e;
                const float2 bias =
                    *reinterpret_cast<const float2 *>(facts.bias + q + n + lane % 4 * 2);
                float h[4] = {c[n / 2] + bias.x, c[n / 2 + 1] + bias.y, c[n / 2 + 2] + bias.x,
                              c[n / 2 + 3] + bias.y};
                mlp_activate(h, activation);
                x[2 * e] = mma_pack(h[0], h[1], T());
                x[2 * e + 1] = mma_pack(h[2], h[3], T());
            }
            const int column = j + lane / 16 * 8 + lane % 8;
            mlp_stmatrix_transposed(mlp_sm90_at(panel, column, 2 * warp + lane / 8 % 2), x);
        }
        warpgroup_sync(barrier);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = thread / 8 + 16 * i, at = q + column;
            const uint4 h = shared_load_16(mlp_sm90_at(panel, column, piece));
            if (at >= tile.count)
                continue;
            if (caches)
                mlp_store_8(cached(at), h, left);
            *reinterpret_cast<uint4 *>(values(at)) = p.delta ? mlp_less(h, old[i], T()) : h;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            old[i] = next[i];
        warpgroup_sync(barrier);
    }
    if (tile.begin + tile.count == tile.places) /* DOWN's last step is whole */
#pragma unroll 1
        for (int i = tile.count + thread / 8; (tile.begin + i) / 64 == (tile.places - 1) / 64;
             i += 16)
            *reinterpret_cast<uint4 *>(values(i)) = uint4{0, 0, 0, 0};
}

/* A base's pieces of 64 columns from q on: eight columns of rows 16 apart. */
template <class T>
DEVICE void mlp_sm90_load_base(uint4 (&base)[4], const struct mlp_params &p,
                               const struct mlp_tile &tile, int consumer, int q) {
    const struct attention_params &run = p.lists.run;
    const int thread = sm90_thread_here(), at = q + thread % 8 * 8, n = tile.begin + at;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 64 * consumer + thread / 8 + 16 * i;
        base[i] = {0, 0, 0, 0};
        if (run.base.o.data && row < tile.rows && at < tile.width && n < run.d_v)
            base[i] = *reinterpret_cast<const uint4 *>(
                view_row<T>(run.base.o, tile.batch, 0, tile.row + row) + n);
    }
}

/* DOWN: sums and bias_out, times beta and added to a base, to o. A thread writes the pieces of the panel that it
 * reads again. */
template <class shape, class T>
DEVICE void mlp_sm90_down(float (&c)[128], uint32_t shared, const struct mlp_params &p,
                          const struct mlp_tile &tile, int consumer, int barrier) {
    const struct attention_params &run = p.lists.run;
    const uint32_t panel = shared + shape::STAGING + consumer * MLP_PANEL;
    const int thread = sm90_thread_here(), lane = thread % 32, warp = thread / 32;
    const int piece = thread % 8;
    const bool biased = p.bias_out.data && !p.delta;
    const float own = run.base.o.data ? run.base.beta : 1;
    uint4 base[4];
    mlp_sm90_load_base<T>(base, p, tile, consumer, 0);
#pragma unroll 1
    for (int q = 0; q < tile.width && tile.begin + q < run.d_v;
         q += 64, mlp_sm90_next<shape::WIDTH>(c)) {
        const int n = tile.begin + q + 8 * piece;
        const bool inside = q + 8 * piece < tile.width && n < run.d_v;
#pragma unroll
        for (int i = 0; i < 4; i++)
            shared_store_16(mlp_sm90_at(panel, thread / 8 + 16 * i, piece), base[i]);
        mlp_sm90_load_base<T>(base, p, tile, consumer, q + 64);
        warpgroup_sync(barrier);
#pragma unroll
        for (int j = 0; j < 64; j += 16) {
            const uint32_t at = mlp_sm90_at(panel, 16 * warp + lane % 16, j / 8 + lane / 16);
            uint32_t x[4];
            ldmatrix(x, at);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int column = j + e / 2 * 8, from = column / 2 + e % 2 * 2;
                const int m = tile.begin + q + column + lane % 4 * 2;
                float2 bias = {0, 0};
                if (biased && m < run.d_v)
                    bias = {mlp_bias_at(p.bias_out, m, T()), mlp_bias_at(p.bias_out, m + 1, T())};
                const float2 based = mma_unpack(x[e], T());
                x[e] = mma_pack(fmaf(own, c[from] + bias.x, based.x),
                                fmaf(own, c[from + 1] + bias.y, based.y), T());
            }
            stmatrix(at, x);
        }
        warpgroup_sync(barrier);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = thread / 8 + 16 * i, at = 64 * consumer + row;
            const uint4 o = shared_load_16(mlp_sm90_at(panel, row, piece));
            if (inside && at < tile.rows)
                *reinterpret_cast<uint4 *>(view_row<T>(run.o, tile.batch, 0, tile.row + at) + n) =
                    o;
        }
    }
}

/* Prefetches a consumer's rows of a base to L2, of 128 bytes each. */
template <class T>
DEVICE void mlp_sm90_prefetch_base(const struct mlp_params &p, const struct mlp_tile &tile,
                                   int consumer) {
    const int thread = sm90_thread_here(), row = 64 * consumer + thread / 2;
    if (!p.lists.run.base.o.data || row >= tile.rows)
        return;
    const T *const from =
        view_row<T>(p.lists.run.base.o, tile.batch, 0, tile.row + row) + tile.begin;
#pragma unroll 1
    for (int n = thread % 2 * 64; n < tile.width && tile.begin + n < p.lists.run.d_v; n += 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + n));
}

template <class shape, class T>
DEVICE void mlp_sm90_consume(char *memory, uint32_t shared, const struct mlp_params &p,
                             int consumer) {
    const int barrier = 1 + consumer;
    struct mlp_sm90_facts<shape> &facts =
        reinterpret_cast<struct mlp_sm90_facts<shape> *>(memory + shape::FACTS)[consumer];
    uint32_t step = 0;
#pragma unroll 1
    for (uint32_t job = 0;; job++) {
        const struct mlp_tile tile = mlp_sm90_take<shape>(memory, shared, job);
        if (tile.T < 0)
            break;
        const int32_t depth = shape::DOWN ? tile.places : p.lists.run.d_qk;
        float c[128];
        if (shape::DOWN)
            mlp_sm90_prefetch_base<T>(p, tile, consumer);
        if (!shape::DOWN) {
            mlp_sm90_find<shape, T>(facts, p, tile, tile.row + 64 * consumer);
            warpgroup_sync(barrier);
        }
        mlp_sm90_mainloop<shape, T>(c, shared, consumer, tile.width,
                                    (depth + MLP_STEP - 1) / MLP_STEP, step);
        if (shape::DOWN)
            mlp_sm90_down<shape, T>(c, shared, p, tile, consumer, barrier);
        else
            mlp_sm90_up<shape, T>(c, memory, shared, p, tile, consumer, barrier);
    }
}

#endif
