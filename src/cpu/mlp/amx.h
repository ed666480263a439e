/*
 * Products of the MLP in bf16, on the matrix unit of AMX. One kernel, of 32 x 32 sums, makes both:
 *
 *     up      rows: columns of W1, as they lie              times x in pairs of dims, queries in the lanes
 *     down    rows: queries, of the values as they lie      times W2 in pairs of columns, dims of o in the lanes
 *
 * The right side is in panels of 32 lanes, [pairs][32]. Dims and columns are multiplied a span at a time, so that a
 * panel stays in the nearest cache. The unit takes subnormal numbers for zero.
 */
#ifndef TESSERA_CPU_MLP_AMX_H
#define TESSERA_CPU_MLP_AMX_H

#include "isa/amx.h"
#include "mlp/mlp.h"

#define MLP_GROUP 32
#define MLP_SUMS_COLUMNS MLP_COLUMNS
#define MLP_SPAN 512     /* dims of x and W1, or columns of W2, at once */
#define MLP_SPAN_OUT 256 /* dims of o at once */
#define MLP_SPAN_ROW                                                                               \
    (MLP_SPAN + 32) /* elements of a copied row: a line more, or rows share few sets of the cache */

static inline int64_t mlp_lanes(int64_t rows) {
    return cpu_round_up(rows, MLP_GROUP);
}

/* The left side of a product: 32 rows, or 16. */
struct amx_left {
    const char *row;
    int64_t stride; /* bytes */
    int two;        /* 32 rows */
};

/* sums = left times a panel of 16 * steps pairs, or added to where `more`; rows of sums are `width` apart. */
static inline void amx_product(float *sums, int64_t width, const struct amx_left *left,
                               const uint32_t *panel, int64_t steps, int more) {
    const char *a = left->row, *b = left->two ? a + 16 * left->stride : a;
    const int64_t bytes = width * (int64_t)sizeof *sums;
    AMX_MEMORY;
    if (more) {
        _tile_loadd(0, sums, bytes);
        _tile_loadd(1, sums + 16, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if (more && left->two) {
        _tile_loadd(2, sums + 16 * width, bytes);
        _tile_loadd(3, sums + 16 * width + 16, bytes);
    } else {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < steps; i++, a += 64, b += 64, panel += 16 * MLP_GROUP) {
        _tile_loadd(6, panel, MLP_GROUP * sizeof *panel);
        _tile_loadd(7, panel + 16, MLP_GROUP * sizeof *panel);
        _tile_loadd(4, a, left->stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (left->two) {
            _tile_loadd(5, b, left->stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + 16, bytes);
    if (left->two) {
        _tile_stored(2, sums + 16 * width, bytes);
        _tile_stored(3, sums + 16 * width + 16, bytes);
    }
    AMX_MEMORY;
}

/* 32 elements of a row, fewer and zeros, or zeros where it is NULL. */
V_INLINE __m512i amx_row(const char *row, int64_t n) {
    const __mmask32 some = n >= 32 ? UINT32_MAX : (UINT32_C(1) << n) - 1;
    return row ? _mm512_maskz_loadu_epi16(some, row) : _mm512_setzero_si512();
}

/* n elements of a row, and zeros up to a multiple of 32. Calls of memcpy become slow string instructions. */
V_INLINE void amx_copy(uint16_t *to, const char *row, int64_t n) {
    for (int64_t i = 0; i < n; i += 32)
        _mm512_storeu_si512(to + i, amx_row(row ? row + 2 * i : NULL, n - i));
}

/* ---- up ---- */

struct up_products {
    uint32_t *x; /* [group][padded d / 2][32] */
    uint16_t *w; /* rows of W1, MLP_SPAN_ROW apart */
    float *row;  /* CPU_LANES rows of x */
    float *sums; /* [group][MLP_COLUMNS][32] */
};

static inline int64_t amx_padded(int64_t d) {
    return cpu_round_up(d, 32);
}

static inline void up_products_take(struct carve *c, const struct kernel_args *args,
                                    struct up_products *s) {
    const size_t lanes = (size_t)mlp_lanes(args->work.lists->tile_rows);
    const size_t d = (size_t)amx_padded(args->problem->d_qk);
    s->x = carve_take_panel(c, lanes, d / 2, sizeof *s->x);
    s->w = carve_take(c, MLP_COLUMNS * MLP_SPAN_ROW, sizeof *s->w);
    s->row = carve_take_panel(c, CPU_LANES, d / 2, sizeof *s->row);
    s->sums = carve_take_panel(c, lanes, MLP_SUMS_COLUMNS, sizeof *s->sums);
}

static inline void up_products_begin(struct up_products *s, const struct cpu_head *x, int64_t first,
                                     int64_t rows, int64_t d) {
    const int64_t lanes = mlp_lanes(rows), pairs = amx_padded(d) / 2;
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        memset(s->row, 0, (size_t)(CPU_LANES * pairs) * sizeof *s->row);
        for (int64_t r = lane; r < rows && r < lane + CPU_LANES; r++)
            memcpy(s->row + (r - lane) * pairs, cpu_row(x, first, r), (size_t)d * 2);
        float *panel = (float *)(void *)(s->x + lane / MLP_GROUP * MLP_GROUP * pairs);
        cpu_to_column(panel + lane % MLP_GROUP, MLP_GROUP, s->row, pairs, pairs);
    }
    unit_begin();
}

/* sums = those of n columns, MLP_COLUMNS at most; `next` more follow. */
static inline void up_products(struct up_products *s, const struct cpu_head *w1,
                               const int32_t *column, int32_t n, int32_t next, int64_t rows,
                               int64_t d) {
    const int64_t lanes = mlp_lanes(rows), pairs = amx_padded(d) / 2;
    const int32_t whole = (int32_t)cpu_round_up(n, 32);
    for (int64_t i = 0; i < d; i += MLP_SPAN) {
        const int64_t some = min_i64(MLP_SPAN, d - i), span = amx_padded(some);
        const int64_t products = lanes / MLP_GROUP * (whole / 32);
        struct mlp_ahead ahead = {
            w1, column, n, 0, 2 * (i + MLP_SPAN), 2 * min_i64(MLP_SPAN, d - i - MLP_SPAN)};
        if (i + MLP_SPAN >= d) /* the next columns' first dims */
            ahead = (struct mlp_ahead){w1, column + n, next, 0, 0, 2 * min_i64(MLP_SPAN, d)};
        for (int32_t j = 0; j < whole; j++)
            amx_copy(s->w + j * MLP_SPAN_ROW, j < n ? cpu_key(w1, column[j]) + 2 * i : NULL, some);
        for (int64_t lane = 0; lane < lanes; lane += MLP_GROUP)
            for (int32_t j = 0; j < whole; j += 32) {
                const struct amx_left left = {(const char *)(s->w + j * MLP_SPAN_ROW),
                                              MLP_SPAN_ROW * (int64_t)sizeof *s->w, j + 16 < n};
                mlp_fetch(&ahead, ahead.n / products + 1);
                amx_product(s->sums + lane * MLP_SUMS_COLUMNS + j * MLP_GROUP, MLP_GROUP, &left,
                            s->x + lane * pairs + i / 2 * MLP_GROUP, span / 32, i > 0);
            }
    }
}

static inline void up_products_end(void) {
    unit_end();
}

/* ---- down ---- */

struct down_products {
    uint32_t *w;    /* [group of dims][MLP_SPAN / 2][32] */
    uint16_t *left; /* 16 rows of values, where a tile has fewer */
    float *sums;    /* [lanes][MLP_SPAN_OUT] */
};

static inline void down_products_take(struct carve *c, const struct kernel_args *args,
                                      struct down_products *s) {
    const size_t lanes = (size_t)mlp_lanes(args->work.lists->tile_rows);
    s->w = carve_take(c, MLP_SPAN / 2 * MLP_SPAN_OUT, sizeof *s->w);
    s->left = carve_take(c, 16 * MLP_SPAN, sizeof *s->left);
    s->sums = carve_take_panel(c, lanes, MLP_SPAN_OUT, sizeof *s->sums);
}

/* Pairs of d dims of rows of W2: n columns, and zeros up to a multiple of 32. */
static inline void down_pairs(uint32_t *w, const struct cpu_head *w2, const int32_t *column,
                              int64_t n, int64_t d) {
    static const uint16_t merge[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                       37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                       11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_loadu_si512(merge);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    for (int64_t j = 0; j < cpu_round_up(n, 32); j += 2) {
        const char *a = j < n ? cpu_key(w2, column[j]) : NULL;
        const char *b = j + 1 < n ? cpu_key(w2, column[j + 1]) : NULL;
        uint32_t *to = w + j / 2 * MLP_GROUP;
        for (int64_t i = 0; i < d; i += 32, to += MLP_SPAN / 2 * MLP_GROUP) {
            const __m512i x = amx_row(a ? a + 2 * i : NULL, d - i);
            const __m512i y = amx_row(b ? b + 2 * i : NULL, d - i);
            _mm512_store_si512(to, _mm512_permutex2var_epi16(x, first, y));
            _mm512_store_si512(to + 16, _mm512_permutex2var_epi16(x, second, y));
        }
    }
}

static inline void down_products(struct down_products *s, const struct cpu_head *values,
                                 const struct cpu_head *w2, const int32_t *column, int64_t n,
                                 int64_t tile_rows, int64_t rows, int64_t first, int64_t d) {
    const struct cpu_head from = mlp_dims_from(*w2, first);
    if (!n)
        memset(s->sums, 0, (size_t)(mlp_lanes(rows) * MLP_SPAN_OUT) * sizeof *s->sums);
    unit_begin();
    for (int64_t p = 0; p < n; p += MLP_SPAN) {
        const int64_t some = min_i64(MLP_SPAN, n - p), behind = n - p - some;
        const int64_t products = (d + 31) / 32 * ((rows + 31) / 32);
        struct mlp_ahead ahead = {&from, column + p + some, min_i64(MLP_SPAN, behind), 0, 0, 2 * d};
        down_pairs(s->w, &from, column + p, some, d);
        for (int64_t i = 0; i < d; i += MLP_GROUP)
            for (int64_t r = 0; r < rows; r += 32) {
                struct amx_left left = {cpu_row(values, 0, r) + 2 * p, values->stride,
                                        r + 16 < rows};
                if (tile_rows < 16) {
                    for (int64_t k = 0; k < tile_rows; k++)
                        memcpy(s->left + k * MLP_SPAN, cpu_row(values, 0, k) + 2 * p,
                               (size_t)amx_padded(some) * sizeof *s->left);
                    left.row = (const char *)s->left, left.stride = MLP_SPAN * 2;
                }
                mlp_fetch(&ahead, ahead.n / products + 1);
                amx_product(s->sums + r * MLP_SPAN_OUT + i, MLP_SPAN_OUT, &left,
                            s->w + i * (MLP_SPAN / 2), amx_padded(some) / 32, p > 0);
            }
    }
    unit_end();
}

/* Rows r ... of the sums, `*stride` floats apart. */
static inline const float *down_rows(struct down_products *s, int64_t r, int64_t rows, int64_t d,
                                     int64_t *stride) {
    (void)rows, (void)d;
    *stride = MLP_SPAN_OUT;
    return s->sums + r * MLP_SPAN_OUT;
}

#endif
