/* Panels of 16-bit elements in shared memory, for tensor cores: gathered rows of a tensor. */
#ifndef TESSERA_CUDA_PANEL16_CUH
#define TESSERA_CUDA_PANEL16_CUH

#include "device/copy.cuh"
#include "strip.cuh"

/* 8 elements as they are stored. */
template <class T> struct alignas(16) eight {
    T x[8];
};

/* Elements at ... at + 7 (at is a multiple of 8); 0 past the row's end. */
template <class T>
static __device__ __forceinline__ eight<T> row_load8(const row_view<T> &row, int32_t at) {
    eight<T> out;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (at + i < row.d)
            out.x[i] = row.data[at + i];
        else
            from_f32(&out.x[i], 0.0f);
    }
    return out;
}

/* Whether 8 elements at a time are aligned, and rows made of them. */
template <class T>
static __device__ __forceinline__ bool panel16_aligned(const struct cuda_params &p,
                                                       const head_view<T> &head) {
    return p.alignment >= 16 && head.d % 8 == 0;
}

/*
 * to[i][0 ... WIDTH - 1] = elements d, d + 1, ... of row key[i] of a head, for ROWS rows of to that
 * are WIDTH + 8 elements long; 0 past the row's end and where key[i] is -1. By THREADS threads,
 * done after copy_wait.
 */
template <class T, int ROWS, int WIDTH, int THREADS>
static __device__ __forceinline__ void panel16_gather(T (*to)[WIDTH + 8], const head_view<T> &head,
                                                      const int32_t *key, int32_t d,
                                                      bool aligned) {
    constexpr int PER_ROW = WIDTH / 8, STEP = THREADS / PER_ROW;
    const int at = (int)threadIdx.x % PER_ROW * 8;
    if (aligned) {
        const bool inside = d + at < head.d;
        const T *data = head.data + (inside ? d + at : 0);
#pragma unroll 4
        for (int i = (int)threadIdx.x / PER_ROW; i < ROWS; i += STEP) {
            const int32_t row = key[i];
            copy_16(&to[i][at], data + (row < 0 ? 0 : row * head.stride), inside && row >= 0);
        }
        return;
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x / PER_ROW; i < ROWS; i += STEP) {
        eight<T> x = {};
        if (key[i] >= 0)
            x = row_load8(row_of(head, key[i]), d + at);
        *reinterpret_cast<eight<T> *>(&to[i][at]) = x;
    }
}

#endif
