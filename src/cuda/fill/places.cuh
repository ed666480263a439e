/* Places of block rows, for forms whose rows take up as much as they list: claims, and their sums. */
#ifndef TESSERA_CUDA_FILL_PLACES_CUH
#define TESSERA_CUDA_FILL_PLACES_CUH

#include "fill/team.cuh"

/* 64-bit words of a row's bits, and word w without those past column `cols`. */
DEVICE int64_t bits_words(const struct fill_shape *s) {
    return (s->cols + 63) / 64;
}
DEVICE uint64_t bits_masked(uint64_t word, int64_t w, int64_t cols) {
    const int64_t left = cols - 64 * w;
    return left >= 64 ? word : left <= 0 ? 0 : word & ((UINT64_C(1) << left) - 1);
}

/* Bounds of a row of BLOCK_ROWS, row counting over all lists. */
DEVICE const int64_t *row_ends(const struct fill_params *p, int64_t row) {
    return p->row_ptr + row + row / p->shape.rows;
}

/* BLOCK_BITS: what each row claims, into `keys`, which are written later. A warp takes a row. */
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_claims(const __grid_constant__ struct fill_params p) {
    const struct fill_shape *s = &p.shape;
    const int64_t rows = s->batch * s->heads * s->rows, words = bits_words(s);
    const int64_t step = (int64_t)gridDim.x * (blockDim.x / 32);
    const int32_t lane = (int32_t)threadIdx.x % 32;
    fill_wait();
    for (int64_t row = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < rows;
         row += step) {
        uint64_t claim = 0;
        for (int64_t w = lane; w < words; w += 32)
            claim += (uint64_t)__popcll(bits_masked(p.bits[row * words + w], w, s->cols));
        claim = warp_sum(claim);
        if (lane == 0)
            p.arrays.keys[row] = (int64_t)claim;
    }
}

DEVICE int64_t row_claim(const struct fill_params *p, int64_t row) {
    if (p->shape.form == TESS_BLOCK_BITS)
        return p->arrays.keys[row];
    const int64_t *ends = row_ends(p, row);
    return fill_claim(ends[0], ends[1], p->shape.capacity);
}

/* Sum over the team's threads before this one, and it; *all: over all. */
DEVICE uint64_t thread_sums(const struct team *team, uint64_t x, uint64_t *all) {
    const uint64_t through = warp_sums(x), own = __shfl_sync(TEAM_LANES, through, 31);
    if (team->threads > 32)
        __syncthreads(); /* the sums before have been read */
    const struct team_sums sums = team_sums_of(team, own, team->runs);
    *all = sums.all;
    return sums.before + through;
}

/* place[0 ... rows], by chunks of rows: each thread block sums what lies before its own by itself. */
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_places(const __grid_constant__ struct fill_params p) {
    const int64_t rows = p.shape.batch * p.shape.heads * p.shape.rows;
    const int64_t begin = (int64_t)blockIdx.x * p.place_chunk;
    const int64_t end = fill_least(begin + p.place_chunk, rows);
    const struct team team = team_first((int32_t)blockDim.x);
    uint64_t before = 0, all;
    fill_wait();
    for (int64_t row = threadIdx.x; row < begin; row += blockDim.x)
        before += (uint64_t)row_claim(&p, row);
    thread_sums(&team, before, &before);
    if (begin == 0 && threadIdx.x == 0)
        p.arrays.place[0] = 0;
    for (int64_t first = begin; first < end; first += blockDim.x) {
        const int64_t row = first + threadIdx.x;
        const uint64_t claim = row < end ? (uint64_t)row_claim(&p, row) : 0;
        const uint64_t through = before + thread_sums(&team, claim, &all);
        if (row < end)
            p.arrays.place[row + 1] = (int64_t)through;
        before += all;
    }
}

#endif
