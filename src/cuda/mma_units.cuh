/* How the *_mma and *_row kernels cut the work: units of one chunk of columns, or of one piece of a
 * row of tiles. */
#ifndef TESSERA_CUDA_MMA_UNITS_CUH
#define TESSERA_CUDA_MMA_UNITS_CUH

#include "strip.cuh"

/* ---- SDDMM ---- */

/* The unit's strip, first row and first column. */
struct sddmm_unit {
    struct strip strip;
    int64_t row, column;
};

/* Units of one chunk stand together, so that its keys stay in the cache. */
static __device__ __forceinline__ struct sddmm_unit
sddmm_unit_of(const struct cuda_params &p, int64_t number, int64_t row_units, int rows) {
    const int64_t chunk = number / row_units;
    const int64_t item = warp_find(p.image.chunks, p.n_items, chunk);
    return {strip_of(p, item), (number - chunk * row_units) * rows,
            (chunk - p.image.chunks[item]) * CUDA_CHUNK};
}

/* No fewer chunks than there are: every item may end in one that is not whole. */
static inline int64_t sddmm_chunks(const struct cuda_params *p) {
    return p->n_items + p->columns / CUDA_CHUNK;
}

/* ---- SpMM ---- */

/* The unit's strip, first row and first dim. Units of one row of tiles stand together. */
struct spmm_unit {
    struct strip strip;
    int64_t row;
    int32_t dim;
};

static __device__ __forceinline__ struct spmm_unit
spmm_unit_of(const struct cuda_params &p, int64_t number, int64_t row_units, int rows,
             int64_t dim_units, int dims) {
    const int64_t of_rows = number / dim_units, item = of_rows / row_units;
    return {strip_of(p, item), (of_rows - item * row_units) * rows,
            (int32_t)(number - of_rows * dim_units) * dims};
}

#endif
