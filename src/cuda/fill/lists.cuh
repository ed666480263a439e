/* Kernels that fill the lists of block rows: a team takes one after another. */
#ifndef TESSERA_CUDA_FILL_LISTS_CUH
#define TESSERA_CUDA_FILL_LISTS_CUH

#include "fill/bits.cuh"
#include "fill/indices.cuh"

DEVICE void rows_fill(const struct fill_params *p, int cut, int of_bits, int tokens) {
    const struct team team = team_of(p);
    const uint32_t teams = blockDim.x >> p->thread_bits;
    const uint32_t n = (uint32_t)(p->shape.batches * p->shape.heads * p->shape.rows);
    const uint32_t first = blockIdx.x * teams + (threadIdx.x >> p->thread_bits);
    const uint32_t step = gridDim.x * teams;
    int odd = 0;
    fill_fetch(p);
    tally_begin();
    struct row_under_way r = row_at(p, first, cut, of_bits, tokens);
    if (!of_bits)
        window_begin(p, &team);
    fill_wait(); /* for lists: what is before needs none */
    FILL_ROLLED
    for (uint32_t i = first; i < n; i += step, odd ^= 1) {
        if (i > first)
            r = row_at(p, i, cut, of_bits, tokens);
        if (of_bits)
            bits_fill(p, &team, &r);
        else
            indices_fill(p, &team, &r, i + step < n, odd);
    }
    rows_end(p);
}

/* Kernels of what is known when they are compiled; `blocks` of them have registers on a multiprocessor. tokens: blocks
 * of one key, and a tile for each block row. */
#define FILL_ROWS_KERNEL(name, cut, of_bits, tokens, blocks)                                       \
    static __global__ void __launch_bounds__(FILL_ROW_THREADS, blocks)                             \
        name(const __grid_constant__ struct fill_params p) {                                       \
        rows_fill(&p, cut, of_bits, tokens);                                                       \
    }
FILL_ROWS_KERNEL(fill_rows_tokens, 0, 0, 1, 2 - ARCHITECTURE_AFTER)
FILL_ROWS_KERNEL(fill_rows_indices, 0, 0, 0, 2 - ARCHITECTURE_AFTER)
FILL_ROWS_KERNEL(fill_rows_indices_cut, 1, 0, 0, 1)
FILL_ROWS_KERNEL(fill_rows_bits, 0, 1, 0, 2 - ARCHITECTURE_AFTER)
FILL_ROWS_KERNEL(fill_rows_bits_cut, 1, 1, 0, 1)

#endif
