/* Parts of an image that are derived on the device from its other parts. */
#ifndef TESSERA_CUDA_IMAGE_CUH
#define TESSERA_CUDA_IMAGE_CUH

#include "device/inline.cuh"
#include "staged/grid.cuh"

#define IMAGE_THREADS 256

/* partial[n_tiles], zero on entry. */
static __global__ void __launch_bounds__(IMAGE_THREADS)
    image_partial(const __grid_constant__ struct staged_params p) {
    const int64_t step = (int64_t)gridDim.x * IMAGE_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * IMAGE_THREADS + threadIdx.x;
         i < p.n_bands + p.n_bitmasks; i += step) {
        const int64_t mask = i - p.n_bands;
        if (mask < 0)
            p.image.partial[p.image.band_entry[i]] = i + 1;
        else
            p.image.partial[p.image.bitmask_entry[mask]] = -1 - mask;
    }
}

static __global__ void __launch_bounds__(IMAGE_THREADS)
    image_block_rows(const __grid_constant__ struct staged_params p) {
    const int64_t step = (int64_t)gridDim.x * IMAGE_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * IMAGE_THREADS + threadIdx.x; i < p.n_items; i += step) {
        const int32_t head = p.image.items[i].batch_head, row = p.image.items[i].tile;
        const int64_t *row_ptr = p.image.row_ptr + p.image.list_of[head] * (p.rows + 1);
        const int64_t entry = row_ptr[row], before = (entry - row_ptr[0]) * p.block_q * p.block_kv;
        const struct block_row_place block_row = {entry, p.image.scores_offset[head] + before,
                                                  row_ptr[row + 1] - entry, head, row};
        p.image.block_rows[i] = block_row;
        p.image.rows[head * p.rows + row] = {block_row.scores, (int32_t)block_row.tiles, head};
    }
}

DEVICE int64_t image_chunks_of(const struct staged_params &p, int64_t item) {
    return (p.image.block_rows[item].tiles * p.block_kv + CUDA_CHUNK - 1) / CUDA_CHUNK;
}

/* chunks[n_items + 1], a prefix sum over the block rows, by one thread block. Each thread sums
 * consecutive items; the sums are added up; then each thread writes its own. */
static __global__ void __launch_bounds__(IMAGE_THREADS)
    image_chunks(const __grid_constant__ struct staged_params p) {
    __shared__ int64_t sums[IMAGE_THREADS];
    const int64_t each = (p.n_items + IMAGE_THREADS - 1) / IMAGE_THREADS;
    const int64_t begin = min(threadIdx.x * each, p.n_items), end = min(begin + each, p.n_items);
    int64_t sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += image_chunks_of(p, i);
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int t = 0; t < (int)threadIdx.x; t++)
        sum += sums[t];
    for (int64_t i = begin; i < end; i++) {
        p.image.chunks[i] = sum;
        sum += image_chunks_of(p, i);
    }
    if (threadIdx.x == IMAGE_THREADS - 1)
        p.image.chunks[p.n_items] = sum;
}

static inline cudaError_t image_derive(const struct staged_params *p, cudaStream_t stream) {
    cudaError_t code = grid_launch(image_partial, p->n_bands + p->n_bitmasks, IMAGE_THREADS,
                                   IMAGE_THREADS, p, stream);
    if (!code)
        code = grid_launch(image_block_rows, p->n_items, IMAGE_THREADS, IMAGE_THREADS, p, stream);
    return code ? code : grid_launch(image_chunks, 1, 1, IMAGE_THREADS, p, stream);
}

#endif
