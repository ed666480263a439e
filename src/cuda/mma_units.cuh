/* How the *_mma and *_row kernels cut the work: units of one chunk of columns, or of one piece of a
 * row of tiles, and what they know of their columns. */
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

/* The chunk's columns, see struct column; those past the strip's end have no key. */
struct sddmm_columns {
    int32_t key[CUDA_CHUNK], first[CUDA_CHUNK], last[CUDA_CHUNK];
    int64_t bit[CUDA_CHUNK];
};

static __device__ __forceinline__ void sddmm_columns_load(struct sddmm_columns &to,
                                                          const struct cuda_params &p,
                                                          const struct sddmm_unit &unit) {
    for (int i = (int)threadIdx.x; i < CUDA_CHUNK; i += (int)blockDim.x) {
        struct column c = {-1, 0, -1, -1};
        if (unit.column + i < unit.strip.width)
            c = column_of(p, unit.strip, unit.column + i);
        to.key[i] = c.key;
        to.first[i] = c.first;
        to.last[i] = c.last;
        to.bit[i] = c.bit;
    }
}

static __device__ __forceinline__ bool sddmm_listed(const struct cuda_params &p,
                                                    const struct sddmm_columns &columns, int c,
                                                    int64_t row) {
    return column_lists(p, columns.first[c], columns.last[c], columns.bit[c], row);
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

/* The keys of the chunk that begins in column x: those that any of the unit's rows (`rows`, or as
 * many as there are) lists. */
static __device__ __forceinline__ void spmm_keys(int32_t (&to)[CUDA_CHUNK],
                                                 const struct cuda_params &p,
                                                 const struct spmm_unit &unit, int64_t x,
                                                 int64_t rows) {
    rows = min(rows, unit.strip.rows - unit.row);
    for (int i = (int)threadIdx.x; i < CUDA_CHUNK; i += (int)blockDim.x) {
        int32_t key = -1;
        if (x + i < unit.strip.width) {
            const struct column c = column_of(p, unit.strip, x + i);
            if (column_lists_any(p, c, unit.row, rows))
                key = c.key;
        }
        to[i] = key;
    }
}

#endif
