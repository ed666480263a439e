/*
 * Columns of rows as bytes, bits and indices. A thread has 32 columns of a row as a word, from whatever is given; from
 * words all else follows. Lists take a row by a CTA, whose words are counted and summed chunk by chunk; bytes and bits
 * have a CTA for each chunk.
 */
#ifndef TESSERA_CUDA_COLUMNS_CUH
#define TESSERA_CUDA_COLUMNS_CUH

#include "host/pool.h"
#include "device/warp.cuh"

#include <cuda_runtime.h>

#define COLUMNS_BLOCKS (1 << 30) /* CTAs of a grid at most */

/* One bit for each of four bytes that is not 0, the first lowest; and bytes of four bits. */
DEVICE uint32_t columns_bits(uint32_t x) {
    const uint32_t tops = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) >> 7 & 0x01010101u;
    return tops * 0x01020408u >> 24;
}
DEVICE uint32_t columns_bytes(uint32_t bits) {
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

/* Bits of columns c ... c + 31 that there are. */
DEVICE uint32_t columns_inside(const struct columns_params &p, int64_t c) {
    const int64_t left = p.from.columns - c;
    return left >= 32 ? 0xffffffffu : left <= 0 ? 0 : (1u << left) - 1;
}

DEVICE uint32_t columns_of_bytes(const struct columns_params &p, int64_t row, int64_t c) {
    const uint8_t *const from = p.from.bytes + row * p.from.columns + c;
    uint32_t word = 0;
    if (p.whole && c + 32 <= p.from.columns) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 x = __ldg(reinterpret_cast<const uint4 *>(from) + i);
            word |= (columns_bits(x.x) | columns_bits(x.y) << 4 | columns_bits(x.z) << 8 |
                     columns_bits(x.w) << 12)
                    << 16 * i;
        }
        return word;
    }
    for (int i = 0; i < 32 && c + i < p.from.columns; i++)
        word |= (uint32_t)(from[i] != 0) << i;
    return word;
}

/* Words of a chunk from indices, by way of shared memory: in any order, as bits are. */
DEVICE uint32_t columns_of_indices(const struct columns_params &p, uint32_t *shared, int64_t row,
                                   int64_t first) {
    const int32_t *const from = p.from.indices + row * p.from.capacity;
    const int64_t given = p.from.counts ? p.from.counts[row] : p.from.capacity;
    const int64_t n = fill_most(0, fill_least(given, p.from.capacity));
    __syncthreads(); /* all have read the chunk before */
    shared[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += COLUMNS_THREADS) {
        const int64_t c = from[i] - first;
        if (from[i] >= 0 && c >= 0 && c < COLUMNS_CHUNK)
            atomicOr(&shared[c / 32], 1u << c % 32);
    }
    __syncthreads();
    return shared[threadIdx.x];
}

/* Writes 32 columns as bits and bytes. */
DEVICE void columns_write(const struct columns_params &p, int64_t row, int64_t c, uint32_t word) {
    if (p.to.bits && c < 64 * p.words)
        reinterpret_cast<uint32_t *>(p.to.bits)[row * 2 * p.words + c / 32] = word;
    if (!p.to.bytes || c >= p.from.columns)
        return;
    uint8_t *const to = p.to.bytes + row * p.from.columns + c;
    if (p.whole && c + 32 <= p.from.columns) {
#pragma unroll
        for (int i = 0; i < 2; i++, word >>= 16)
            reinterpret_cast<uint4 *>(to)[i] = {columns_bytes(word), columns_bytes(word >> 4),
                                                columns_bytes(word >> 8),
                                                columns_bytes(word >> 12)};
        return;
    }
    for (int i = 0; i < 32 && c + i < p.from.columns; i++)
        to[i] = word >> i & 1;
}

/* Writes the columns of a word as indices from place `at` on. */
DEVICE void columns_list(const struct columns_params &p, int64_t row, int64_t c, uint32_t word,
                         int64_t at) {
    int32_t *const to = p.to.indices + row * p.to.capacity;
    for (; word && at < p.to.capacity; word &= word - 1)
        to[at++] = (int32_t)c + __ffs((int)word) - 1;
}

/* Sum of n over the threads before this one; *all: over all. */
DEVICE uint32_t columns_before(uint32_t n, uint32_t *all) {
    __shared__ uint32_t warps[COLUMNS_THREADS / 32];
    uint32_t sum = n, before = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t lower = __shfl_up_sync(WARP_ALL, sum, step);
        sum += warp_lane() >= step ? lower : 0;
    }
    __syncthreads(); /* all have read the sums before */
    if (warp_lane() == 31)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    *all = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS_THREADS / 32; i++) {
        before += i < (int)threadIdx.x / 32 ? warps[i] : 0;
        *all += warps[i];
    }
    return before + sum - n;
}

static __global__ void __launch_bounds__(COLUMNS_THREADS)
    columns_convert(const __grid_constant__ struct columns_params p) {
    __shared__ uint32_t shared[COLUMNS_THREADS];
    const bool lists = p.to.indices || p.to.counts;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < p.from.rows * p.chunks; i += gridDim.x) {
        const int64_t row = i / p.chunks, chunk = i % p.chunks;
        const int64_t end = p.chunks > 1 ? (chunk + 1) * COLUMNS_CHUNK : 64 * p.words;
        int64_t taken = 0;
#pragma unroll 1
        for (int64_t first = chunk * COLUMNS_CHUNK; first < end; first += COLUMNS_CHUNK) {
            const int64_t c = first + 32 * (int64_t)threadIdx.x;
            uint32_t word = 0, all;
            if (p.from.indices)
                word = columns_of_indices(p, shared, row, first);
            else if (p.from.bits && c < 64 * p.words)
                word = reinterpret_cast<const uint32_t *>(p.from.bits)[row * 2 * p.words + c / 32];
            else if (p.from.bytes && c < p.from.columns)
                word = columns_of_bytes(p, row, c);
            word &= columns_inside(p, c);
            columns_write(p, row, c, word);
            if (!lists)
                continue;
            const uint32_t before = columns_before((uint32_t)__popc(word), &all);
            if (p.to.indices)
                columns_list(p, row, c, word, taken + before);
            taken += all;
        }
        for (int64_t at = taken + threadIdx.x; p.to.indices && at < p.to.capacity;
             at += COLUMNS_THREADS)
            p.to.indices[row * p.to.capacity + at] = -1;
        if (p.to.counts && threadIdx.x == 0)
            p.to.counts[row] = (int32_t)taken;
    }
}

static inline cudaError_t columns_launch(const struct columns_params *p, cudaStream_t stream) {
    const int64_t blocks = fill_least(p->from.rows * p->chunks, COLUMNS_BLOCKS);
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)columns_convert, dim3((unsigned)blocks),
                            dim3(COLUMNS_THREADS), arguments, 0, stream);
}

#endif
