/*
 * A query tile: what the stems that read tensors share. The tile's rows stand in the lanes, cut
 * into groups of CPU_GROUP lanes (the last may have fewer vectors), each with its own panels, which
 * micro.h draws. A factor for each lane says what its scores have still to be multiplied by.
 *
 * Keys come in superblocks of at most CPU_KEYS.
 */
#ifndef TESSERA_CPU_TILE_H
#define TESSERA_CPU_TILE_H

#include "tile/convert.h"
#include "cpu.h"
#include "tile/micro.h"

#include <math.h>

#define LOG2_E 1.4426950408889634074
#define LN_2 0.69314718055994530942

#define CPU_KEYS_SLACK 4 /* keys past the last may be written */

/* The keys of a superblock. Without masks every row lists every key. */
struct cpu_keys {
    int32_t n;
    int masked;
    int32_t key[CPU_KEYS + CPU_KEYS_SLACK];
    uint64_t mask[CPU_KEYS]; /* rows of the tile, bit 0 first */
};

/* Rows of one (batch, head) of a tensor, or of some heads: row 0 of each, row 1 of each, ... */
struct cpu_head {
    char *data;
    int64_t stride; /* bytes */
    tess_type type;
    int64_t heads, next; /* how many, and bytes from one to the next */
    /* Keys and values as caches hold them (cache.h): */
    const int32_t *table; /* pages of the batch's rows; NULL: not paged */
    int32_t pages, shift;
    int64_t page;       /* bytes from one to the next */
    const float *scale; /* scales of row 0, NULL: none */
    int64_t scale_row, scale_page, group;
    /* Rows of the last dims of queries and keys; NULL: with the others. */
    const struct cpu_head *rope;
    int64_t rope_dims; /* 0 where rope is NULL */
};

static inline int64_t cpu_round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Lanes of a tile of `rows` rows: whole vectors. */
static inline int64_t cpu_lanes(int64_t rows) {
    return cpu_round_up(rows, CPU_LANES);
}

/* Lanes of the group that begins at `lane`. */
static inline int64_t cpu_width(int64_t lanes, int64_t lane) {
    return lanes - lane < CPU_GROUP ? lanes - lane : CPU_GROUP;
}

/* Place of the vector of lanes that begins at `lane` in a panel of d elements a lane, and how
 * far its elements are apart. */
static inline float *cpu_column(float *panel, int64_t lanes, int64_t lane, int64_t d,
                                int64_t *width) {
    int64_t first = lane / CPU_GROUP * CPU_GROUP;
    *width = cpu_width(lanes, first);
    return panel + first * d + (lane - first);
}

static inline struct cpu_head cpu_head(const struct view *view, tess_type type, int64_t b,
                                       int64_t h) {
    int64_t size = (int64_t)tess_type_size(type);
    return (struct cpu_head){.data = (char *)view->data +
                                     (b * view->stride[0] + h * view->stride[1]) * size,
                             .stride = view->stride[2] * size,
                             .type = type,
                             .heads = 1};
}

/* Rows of heads h ... h + heads - 1. */
static inline struct cpu_head cpu_heads(const struct view *view, tess_type type, int64_t b,
                                        int64_t h, int64_t heads) {
    struct cpu_head head = cpu_head(view, type, b, h);
    head.heads = heads;
    head.next = view->stride[1] * (int64_t)tess_type_size(type);
    return head;
}

/* Row r of those that begin at query `first`. */
static inline char *cpu_row(const struct cpu_head *head, int64_t first, int64_t r) {
    return head->data + (first + r / head->heads) * head->stride + r % head->heads * head->next;
}

/* row[r] = where rows r = 0 ... rows - 1 lie, whatever their type, of those that begin at query
 * `first`; answers how many. */
static inline int64_t cpu_rows_of(const float **row, const struct cpu_head *head, int64_t first,
                                  int64_t rows) {
    for (int64_t r = 0; r < rows; first++)
        for (int64_t h = 0; h < head->heads; h++)
            row[r++] =
                (const float *)(const void *)(head->data + first * head->stride + h * head->next);
    return rows;
}

/* The lse of rows row, row + 1, ... of one head; NULL data when it is not wanted. */
struct cpu_lse {
    float *data;
    int64_t stride;
};

static inline struct cpu_lse cpu_lse(const struct view *view, int64_t b, int64_t h, int64_t row) {
    float *data = view->data;
    if (data)
        data += b * view->stride[0] + h * view->stride[1] + row * view->stride[2];
    return (struct cpu_lse){data, view->stride[2]};
}

/* Exponent of the power of two by which a scaled query row is divided; its scores are multiplied by
 * the same. Neither the row nor its products with any key then leave the range of f32. 0 unless the row
 * is very large or very small. */
#define CPU_ROW_LEAST 0x1p-30
#define CPU_ROW_END 0x1p101
static inline int cpu_row_shift(const float *row, int64_t d, double scale) {
    uint32_t bits = 0; /* integers, so that the loop is one of vectors */
    for (int64_t i = 0; i < d; i++) {
        uint32_t u = cpu_f32_bits(row[i]) & 0x7fffffff;
        bits = u > bits ? u : bits;
    }
    double most = (double)cpu_f32_of_bits(bits) * fabs(scale);
    if ((most >= CPU_ROW_LEAST && most < CPU_ROW_END) || most == 0 || !isfinite(most))
        return 0;
    int exponent = ilogb(most);
    return exponent > 0 ? exponent - 100 : exponent + 30;
}

/* A vector of lanes from rows of d floats to a column. */
static inline void cpu_rows_to_column(float *column, int64_t width, const float *const *row,
                                      int64_t d) {
    int64_t i = 0;
    for (; i + CPU_LANES <= d; i += CPU_LANES) {
        vf a[CPU_LANES];
        for (int r = 0; r < CPU_LANES; r++)
            a[r] = v_load_any(row[r] + i);
        v_transpose(a);
        for (int r = 0; r < CPU_LANES; r++)
            v_store(column + (i + r) * width, a[r]);
    }
    for (; i < d; i++)
        for (int r = 0; r < CPU_LANES; r++)
            column[i * width + r] = row[r][i];
}

/* And back. */
static inline void cpu_rows_from_column(float *const *row, const float *column, int64_t width,
                                        int64_t d) {
    int64_t i = 0;
    for (; i + CPU_LANES <= d; i += CPU_LANES) {
        vf a[CPU_LANES];
        for (int r = 0; r < CPU_LANES; r++)
            a[r] = v_load(column + (i + r) * width);
        v_transpose(a);
        for (int r = 0; r < CPU_LANES; r++)
            v_store_any(row[r] + i, a[r]);
    }
    for (; i < d; i++)
        for (int r = 0; r < CPU_LANES; r++)
            row[r][i] = column[i * width + r];
}

/* Turns rows that are `stride` floats apart. */
static inline void cpu_to_column(float *column, int64_t width, const float *rows, int64_t stride,
                                 int64_t d) {
    const float *row[CPU_LANES];
    for (int64_t r = 0; r < CPU_LANES; r++)
        row[r] = rows + r * stride;
    cpu_rows_to_column(column, width, row, d);
}

static inline void cpu_from_column(float *rows, int64_t stride, const float *column, int64_t width,
                                   int64_t d) {
    float *row[CPU_LANES];
    for (int64_t r = 0; r < CPU_LANES; r++)
        row[r] = rows + r * stride;
    cpu_rows_from_column(row, column, width, d);
}

/* d elements of 16 bits to f32. */
static inline void cpu_load_halves(float *restrict out, const void *data, tess_type type,
                                   int64_t d) {
    int64_t i = 0;
#if V_HALVES
    const uint16_t *in = data;
    if (type == TESS_F16)
        for (; i + CPU_LANES <= d; i += CPU_LANES)
            v_store_any(out + i, v_load_f16(in + i));
    else
        for (; i + CPU_LANES <= d; i += CPU_LANES)
            v_store_any(out + i, v_load_bf16(in + i));
#endif
    if (i < d)
        cpu_row_to_f32(out + i, (const char *)data + i * 2, type, d - i);
}

/* d elements of any type to f32. */
static inline void cpu_load_any(float *restrict out, const char *row, tess_type type, int64_t d) {
    if (type == TESS_F16 || type == TESS_BF16)
        cpu_load_halves(out, row, type, d);
    else
        cpu_row_to_f32(out, row, type, d);
}

/* Row r of those that begin at query `first` as f32, of both its views. */
static inline void cpu_join_row(float *out, const struct cpu_head *head, int64_t first, int64_t r,
                                int64_t d) {
    d -= head->rope_dims;
    cpu_load_any(out, cpu_row(head, first, r), head->type, d);
    if (head->rope)
        cpu_load_any(out + d, cpu_row(head->rope, first, r), head->rope->type, head->rope_dims);
}

/* out *= scale. Answers what the row's scores then lack, a factor. */
static inline double cpu_scale_query(float *out, int64_t d, double scale) {
    int shift = cpu_row_shift(out, d, scale);
    double row_scale = shift ? ldexp(scale, -shift) : scale;
    for (int64_t i = 0; i < d; i++)
        out[i] = (float)(row_scale * (double)out[i]);
    return shift == 0 ? 1 : shift > 127 ? 0x1p127 : ldexp(1, shift);
}

/* out = a query row times scale, likewise. */
static inline double cpu_load_query(float *out, const char *row, tess_type type, int64_t d,
                                    double scale) {
    cpu_row_to_f32(out, row, type, d);
    return cpu_scale_query(out, d, scale);
}

/* Query rows first ... of q times scale, d floats each: rows as listed.h has them, up to the end of the last
 * vector of rows, whose rest is 0. */
static inline void cpu_load_query_rows(float *out, float *factor, const struct cpu_head *q,
                                       int64_t first, int64_t rows, int64_t d, double scale) {
    for (int64_t r = 0; r < cpu_lanes(rows); r++) {
        factor[r] = 1;
        if (r >= rows) {
            memset(out + r * d, 0, (size_t)d * sizeof *out);
            continue;
        }
        cpu_join_row(out + r * d, q, first, r, d);
        factor[r] = (float)cpu_scale_query(out + r * d, d, scale);
    }
}

/* column *= scale. Answers 0, and does not, where some lane may need a shift. */
static inline int cpu_scale_column(float *column, int64_t width, int64_t d, double scale) {
    vf some[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 <= d; i += 4) {
        V_FOR(u, 4) {
            some[u] = v_max(v_abs(v_load(column + (i + u) * width)), some[u]);
        }
    }
    for (; i < d; i++)
        some[0] = v_max(v_abs(v_load(column + i * width)), some[0]);
    const vf most = v_max(v_max(some[0], some[1]), v_max(some[2], some[3]));
    const double size = fabs(scale);
    const vf least = v_set((float)(CPU_ROW_LEAST / size)), end = v_set((float)(CPU_ROW_END / size));
    if (!(size > 0x1p-20 && size < 0x1p20) ||
        !v_all(((vi)(most >= least) & (vi)(most < end)) | (vi)(most == (vf){0})))
        return 0;
    for (i = 0; i < d; i++)
        v_store(column + i * width, v_multiply(v_load(column + i * width), scale));
    return 1;
}

/* at[r] = row lane + r of those that begin at query `first`, as f32, for r below `some`; zeros for the
 * other lanes of a vector. row is scratch for CPU_LANES * d floats. */
static inline void cpu_lane_rows(const float **at, const struct cpu_head *head, int64_t first,
                                 int64_t lane, int64_t some, int64_t d, float *row) {
    memset(row + some * d, 0, (size_t)((CPU_LANES - some) * d) * sizeof *row);
    for (int64_t r = 0; r < CPU_LANES; r++) {
        at[r] = row + r * d;
        if (r < some && head->rope)
            cpu_join_row(row + r * d, head, first, lane + r, d);
        else if (r < some && head->type == TESS_F32)
            at[r] = (const float *)(const void *)cpu_row(head, first, lane + r);
        else if (r < some)
            cpu_load_halves(row + r * d, cpu_row(head, first, lane + r), head->type, d);
    }
}

/* Panels of rows first ... first + rows - 1 as they are; lanes without a row hold 0. row is scratch
 * for CPU_LANES * d floats. */
static inline void cpu_load_columns(float *panel, const struct cpu_head *head, int64_t first,
                                    int64_t rows, int64_t d, float *row) {
    const int64_t lanes = cpu_lanes(rows);
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        const float *at[CPU_LANES];
        int64_t width;
        float *column = cpu_column(panel, lanes, lane, d, &width);
        cpu_lane_rows(at, head, first, lane, min_i64(rows - lane, CPU_LANES), d, row);
        cpu_rows_to_column(column, width, at, d);
    }
}

/* qt and factor of rows first ... first + rows - 1, times scale; lanes without a row hold 0. row is
 * scratch for CPU_LANES * d floats. Answers whether any factor is not 1. */
static inline int cpu_load_queries(float *qt, float *factor, const struct cpu_head *q,
                                   int64_t first, int64_t rows, int64_t d, double scale,
                                   float *row) {
    int shifted = 0;
    const int64_t lanes = cpu_lanes(rows);
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        const int64_t some = rows - lane < CPU_LANES ? rows - lane : CPU_LANES;
        const float *at[CPU_LANES];
        int64_t width;
        float *column = cpu_column(qt, lanes, lane, d, &width);
        cpu_lane_rows(at, q, first, lane, some, d, row);
        for (int64_t r = 0; r < CPU_LANES; r++)
            factor[lane + r] = 1;
        cpu_rows_to_column(column, width, at, d);
        if (cpu_scale_column(column, width, d, scale))
            continue;
        for (int64_t r = 0; r < some; r++) {
            cpu_join_row(row + r * d, q, first, lane + r, d);
            factor[lane + r] = (float)cpu_scale_query(row + r * d, d, scale);
            shifted |= factor[lane + r] != 1;
        }
        cpu_to_column(column, width, row, d, d);
    }
    return shifted;
}

/* Rows first ... of o = ot. row is scratch for CPU_LANES * d floats. */
static inline void cpu_store_outputs(const struct cpu_head *o, int64_t first, int64_t rows,
                                     int64_t d, float *ot, float *row) {
    const int64_t lanes = cpu_lanes(rows);
    for (int64_t lane = 0; lane < rows; lane += CPU_LANES) {
        const int64_t some = rows - lane < CPU_LANES ? rows - lane : CPU_LANES;
        float *at[CPU_LANES];
        int64_t width;
        const float *column = cpu_column(ot, lanes, lane, d, &width);
        for (int64_t r = 0; r < CPU_LANES; r++)
            at[r] = r < some && o->type == TESS_F32 ? (float *)(void *)cpu_row(o, first, lane + r)
                                                    : row + r * d;
        cpu_rows_from_column(at, column, width, d);
        for (int64_t r = 0; r < some && o->type != TESS_F32; r++)
            cpu_row_from_f32(cpu_row(o, first, lane + r), at[r], o->type, d);
    }
}

/* rest = what rounding took from the d elements x of a row that stands at o; 0 where o is not finite. x
 * is overwritten. */
static inline void cpu_row_rest(void *rest, const void *o, tess_type type, float *x, int64_t d) {
    const int64_t size = (int64_t)tess_type_size(type);
    float back[64];
    for (int64_t i = 0; i < d; i += 64) {
        const int64_t n = d - i < 64 ? d - i : 64;
        cpu_row_to_f32(back, (const char *)o + i * size, type, n);
        for (int64_t e = 0; e < n; e++)
            x[i + e] = isfinite(back[e]) ? x[i + e] - back[e] : 0;
    }
    cpu_row_from_f32(rest, x, type, d);
}

/* Stores the rest of rows first ... of o, which cpu_store_outputs has written from ot. */
static inline void cpu_store_rest(const struct cpu_head *rest, const struct cpu_head *o,
                                  int64_t first, int64_t rows, int64_t d, float *ot, float *row) {
    const int64_t lanes = cpu_lanes(rows);
    for (int64_t lane = 0; lane < rows; lane += CPU_LANES) {
        const int64_t some = rows - lane < CPU_LANES ? rows - lane : CPU_LANES;
        int64_t width;
        const float *column = cpu_column(ot, lanes, lane, d, &width);
        cpu_from_column(row, d, column, width, d);
        for (int64_t r = 0; r < some; r++)
            cpu_row_rest(cpu_row(rest, first, lane + r), cpu_row(o, first, lane + r), o->type,
                         row + r * d, d);
    }
}

/* Place of the row of a key, which has a page. */
static inline const char *cpu_key(const struct cpu_head *head, int32_t key) {
    if (!head->table)
        return head->data + key * head->stride;
    return head->data + head->table[key >> head->shift] * head->page +
           (key & ((1 << head->shift) - 1)) * head->stride;
}

/* row[j] = where key[j] lies, whatever its type; row has room for CPU_ROWS. */
static inline void cpu_rows(const float **restrict row, const struct cpu_head *head,
                            const int32_t *restrict key, int32_t n) {
    const char *const data = head->data;
    const int64_t stride = head->stride;
    for (int32_t j = 0; j < n && !head->table; j++)
        row[j] = (const float *)(const void *)(data + key[j] * stride);
    for (int32_t j = 0; j < n && head->table; j++)
        row[j] = (const float *)(const void *)cpu_key(head, key[j]);
    cpu_rows_end(row, n);
}

#define CPU_CONVERT_AHEAD 8 /* rows that are fetched before they are converted */

/* row[j] = the d elements of 16 bits at from[j] as f32, in buffer. from goes on by
 * CPU_CONVERT_AHEAD rows, and may be row. */
static inline void cpu_convert(const float **row, const float *const *from, tess_type type,
                               int32_t n, int64_t d, float *buffer) {
    for (int32_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < d; i += 32) /* lines */
            v_fetch(from[j + CPU_CONVERT_AHEAD] + i / 2);
        cpu_load_halves(buffer + j * d, from[j], type, d);
        row[j] = buffer + j * d;
    }
    cpu_rows_end(row, n);
}

/* row[j] = the d elements of key[j], as f32: in place, or converted into buffer. */
static inline void cpu_gather(const float **restrict row, const struct cpu_head *head,
                              const int32_t *restrict key, int32_t n, int64_t d, float *buffer) {
    cpu_rows(row, head, key, n);
    if (head->type != TESS_F32)
        cpu_convert(row, row, head->type, n, d, buffer);
}

/* Floats of a buffer for so many keys that are converted. */
static inline size_t cpu_gather_size(tess_type type, int64_t keys, int64_t d) {
    return type == TESS_F32 ? 0 : (size_t)keys * (size_t)d;
}

#endif
