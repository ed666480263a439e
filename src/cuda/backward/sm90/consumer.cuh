/* The fused backward on Hopper: what consumers of both kernels have in common. */
#ifndef TESSERA_CUDA_GRADIENT_SM90_CONSUMER_CUH
#define TESSERA_CUDA_GRADIENT_SM90_CONSUMER_CUH

#include "backward/sm90/config.cuh"

/* Place of a consumer. */
struct gradient_consumer {
    char *memory;
    uint32_t shared;
    int number;    /* 0 or 1: rows 64 number ... of the tile */
    int warp;      /* number in the warpgroup: 16 rows */
    uint32_t step; /* counted over all items */
};

/* Gives a stage of Y back. */
template <class shape> DEVICE void gradient_release(uint32_t shared, uint32_t step) {
    if (warp_lane_here() == 0)
        barrier_arrive(ring_barrier<shape::STAGES>(shared + shape::Y_EMPTY, step));
}

template <class shape> DEVICE void gradient_release_x(uint32_t shared) {
    __syncwarp();
    if (warp_lane_here() == 0)
        barrier_arrive(shared + shape::X_EMPTY);
}

/* Waits for a step; answers its flags. */
template <class shape> DEVICE int gradient_wait_step(const struct gradient_consumer &at) {
    barrier_wait(ring_barrier<shape::STAGES>(at.shared + shape::KNOWN, at.step),
                 ring_parity<shape::STAGES>(at.step));
    const int is = sm90_uniform((int)gradient_known_of<shape>(at.memory, at.step).is);
    barrier_wait(ring_barrier<shape::STAGES>(at.shared + shape::Y_FULL, at.step),
                 ring_parity<shape::STAGES>(at.step));
    return is;
}

template <class shape> DEVICE uint32_t gradient_y(uint32_t shared, uint32_t step) {
    return shared + shape::Y + ring_stage<shape::STAGES>(step) * (2 * shape::Y_TILE);
}

/* A score's P, x being the score less its query's base. Cut off at 0, as a large base is rounded by more than 1; NaN
 * stays. */
DEVICE float gradient_exp2(float x) {
    asm("min.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));
    return attention_exp2(x);
}

/* Elements of pairs that are not listed become 0, whatever they are. */
DEVICE void gradient_select(float (&x)[GRADIENT_SCORES], uint32_t listed) {
#pragma unroll
    for (int i = 0; i < GRADIENT_SCORES; i++)
        if (!(listed >> i & 1))
            x[i] = 0;
}
/* Bits of this lane's scores of a step that has GRADIENT_CUT. */
template <class shape> DEVICE uint32_t gradient_listed(const struct gradient_consumer &at) {
    return gradient_known_of<shape>(at.memory, at.step)
        .words[4 * at.number + at.warp][warp_lane_here()];
}

/* Begins the life of registers that a product writes first: else they are taken from the kernel's begin on. */
template <int N> DEVICE void gradient_undefined(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "=f"(x[i]));
}
template <int N> DEVICE void gradient_undefined(uint32_t (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "=r"(x[i]));
}

DEVICE void gradient_store_pair(float *to, float x, float y) {
    *reinterpret_cast<float2 *>(to) = {x, y};
}
template <class T> DEVICE void gradient_store_pair(T *to, float x, float y) {
    *reinterpret_cast<uint32_t *>(to) = mma_pack(x, y, T());
}

/* Stores row h of this lane's two, dims `first` ... of d: whole eights of them. */
template <class Out, int N>
DEVICE void gradient_store_sums(void *row, int32_t d, float factor, const float (&sums)[N], int h,
                                int32_t first) {
    Out *const to = static_cast<Out *>(row) + first + warp_lane_here() % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 4; j++)
        if (first + 8 * j < d)
            gradient_store_pair(to + 8 * j, sums[4 * j + 2 * h] * factor,
                                sums[4 * j + 2 * h + 1] * factor);
}

/* Stores this warp's rows of gradient i, or of a part in its slot. */
template <class shape, int N>
DEVICE void gradient_store_tile(const struct gradient_params &p, const struct gradient_consumer &at,
                                const struct granule_item &item, int i, const float (&sums)[N],
                                int32_t first = 0) {
    using T = typename shape::T;
    if (!p.out[i].data)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 64 * at.number + 16 * at.warp + warp_lane_here() / 4 + 8 * h;
        if (row >= item.rows)
            continue;
        if (item.slot >= 0) {
            gradient_store_sums<float>(gradient_slot(p, item.slot, i) +
                                           (int64_t)row * p.slot_dims[i],
                                       p.slot_dims[i], 1, sums, h, first);
            continue;
        }
        const struct gradient_row to =
            gradient_row_of(p, i, item, gradient_x_head<shape>(item), row, (int)sizeof(T));
        if (to.wide)
            gradient_store_sums<float>(to.data, to.d, to.factor, sums, h, first);
        else
            gradient_store_sums<T>(to.data, to.d, to.factor, sums, h, first);
    }
}

/* Zeros, eight dims at a time: of rows that nothing is listed for. */
template <class shape>
DEVICE void gradient_store_zeros(const struct gradient_params &p,
                                 const struct gradient_consumer &at,
                                 const struct granule_item &item) {
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const float zeros[4] = {0, 0, 0, 0};
        const int32_t d = item.slot >= 0 ? p.slot_dims[i] : p.d[i];
#pragma unroll 1
        for (int32_t dim = 0; dim < d; dim += 8)
            gradient_store_tile<shape>(p, at, item, i, zeros, dim);
    }
}

#endif
