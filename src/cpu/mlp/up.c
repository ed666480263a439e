/* The MLP's first product on the CPU: activations of the columns that a tile lists, less those of the cache where a
 * delta is computed. The cache, if there is one, gets them as they are rounded. */
#include "mlp/activation.h"
#if defined(__AMX_BF16__)
#include "mlp/amx.h"
#else
#include "mlp/f32.h"
#endif
#include "mlp/halves.h"

/* One thread's scratch. */
struct up_scratch {
    struct up_products products;
    int32_t *columns; /* [n_kv] */
};

static void scratch_take(struct carve *c, const struct kernel_args *args, struct up_scratch *s) {
    up_products_take(c, args, &s->products);
    s->columns = carve_take(c, (size_t)args->problem->n_kv, sizeof *s->columns);
}

static void job_take(struct carve *c, const struct kernel_args *args, struct mlp_job *job) {
    struct carve one = {0};
    struct up_scratch s;
    scratch_take(&one, args, &s);
    c->overflow |= one.overflow;
    *job = (struct mlp_job){.args = args,
                            .scratch_size = one.used,
                            .scratch = carve_take(c, (size_t)args->problem->threads, one.used)};
}

size_t CPU_NAME(mlp_up_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct mlp_job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* A column's place in the cache, from query `first` on; NULL: there is no cache. */
static char *cache_at(const struct kernel_args *args, const struct mlp_tile *tile, int32_t column,
                      int64_t lane) {
    const struct view *cache = &mlp_of(args)->activations;
    const int64_t at = tile->b * cache->stride[0] + column * cache->stride[2] + tile->first + lane;
    return cache->data ? (char *)cache->data + at * (int64_t)tess_type_size(cache->type) : NULL;
}

/* Fetches what a delta subtracts of n columns, which are as many places of memory. */
static void cache_fetch(const struct kernel_args *args, const struct mlp_tile *tile,
                        const int32_t *column, int32_t n) {
    const int64_t size = (int64_t)tess_type_size(args->problem->type);
    for (int32_t j = 0; j < n && mlp_is_delta(mlp_of(args)); j++)
        for (int64_t r = 0; r < tile->rows; r += MLP_LINE / size)
            __builtin_prefetch(cache_at(args, tile, column[j], r), 1, 2);
}

/* sums of a column = its values in lanes lane ... lane + width - 1; the cache is updated. */
static void column_end(const struct kernel_args *args, const struct mlp_tile *tile, int32_t column,
                       float bias, int64_t lane, int64_t width, float *sums) {
    const tess_type type = args->problem->type;
    const int64_t rows = max_i64(0, min_i64(width, tile->rows - lane));
    char *const cache = cache_at(args, tile, column, lane);
    _Alignas(64) float cached[MLP_GROUP], rounded[MLP_GROUP];
    activation_apply(args->problem->activation, sums, width, bias);
    cpu_row_from_f32(rounded, sums, type, width);
    cpu_row_to_f32(sums, rounded, type, width);
    if (cache && mlp_is_delta(mlp_of(args))) {
        cpu_load_any(cached, cache, type, rows);
        for (int64_t r = 0; r < rows; r++)
            sums[r] -= cached[r];
    }
    if (cache)
        memcpy(cache, rounded, (size_t)rows * tess_type_size(type));
}

#if CPU_LANES == 16
/* Columns of whole vectors of rows, likewise. */
V_INLINE void columns_whole(const struct kernel_args *args, const struct mlp_tile *tile,
                            const int32_t *column, const float *bias, int32_t n, int64_t lane,
                            int64_t width, float *sums, const tess_activation activation,
                            const tess_type type) {
    const int is_delta = mlp_is_delta(mlp_of(args));
    const int64_t size = type == TESS_F32 ? 4 : 2;
    char none[CPU_LANES * sizeof(float)];
    for (int32_t j = 0; j < n; j++, sums += width) {
        char *const cache = cache_at(args, tile, column[j], lane);
        for (int64_t r = 0; r < width; r += CPU_LANES) {
            char *const at = cache ? cache + r * size : none;
            const vf cached = is_delta ? halves_load(at, type) : (vf){0};
            const vf h = activation_of(activation, v_load(sums + r) + v_set(bias[j]));
            v_store(sums + r, halves_store(at, h, type) - cached);
        }
    }
}
#endif

/* The values of n columns. */
static void columns_end(const struct kernel_args *args, const struct mlp_tile *tile,
                        const int32_t *column, const float *bias, int32_t n, int64_t lane,
                        int64_t width, float *sums) {
#if CPU_LANES == 16
#define COLUMNS(activation, type)                                                                  \
    columns_whole(args, tile, column, bias, n, lane, width, sums, activation, type);
#define TYPES(activation)                                                                          \
    case activation:                                                                               \
        if (args->problem->type == TESS_BF16)                                                      \
            COLUMNS(activation, TESS_BF16)                                                         \
        else if (args->problem->type == TESS_F16)                                                  \
            COLUMNS(activation, TESS_F16)                                                          \
        else                                                                                       \
            COLUMNS(activation, TESS_F32)                                                          \
        return;
    if (lane + width <= tile->rows)
        switch (args->problem->activation) {
            TYPES(TESS_GELU)
            TYPES(TESS_GELU_TANH)
            TYPES(TESS_SILU)
            TYPES(TESS_RELU)
            TYPES(TESS_IDENTITY)
        }
#undef TYPES
#undef COLUMNS
#endif
    for (int32_t j = 0; j < n; j++)
        column_end(args, tile, column[j], bias[j], lane, width, sums + j * width);
}

/* CPU_LANES lanes by as many columns of values, to rows that are `stride` elements apart; n of them. */
V_INLINE void values_turn(char *to, int64_t stride, const float *sums, int64_t width, int64_t n,
                          const tess_type type) {
    const int64_t size = (int64_t)tess_type_size(type);
    vf a[CPU_LANES];
    V_FOR(r, CPU_LANES) {
        a[r] = v_load(sums + r * width);
    }
    v_transpose(a);
    for (int64_t r = 0; r < n; r++) {
#if CPU_LANES == 16
        halves_store(to + r * stride * size, a[r], type);
#else
        float row[CPU_LANES];
        v_store_any(row, a[r]);
        cpu_row_from_f32(to + r * stride * size, row, type, CPU_LANES);
#endif
    }
}

/* Values of MLP_COLUMNS columns from `place` on, of the group of lanes whose sums these are. */
static void values_store(const struct kernel_args *args, const struct mlp_tile *tile, int64_t place,
                         int64_t lane, int64_t width, const float *sums) {
    const tess_type type = args->problem->type;
    const int64_t size = (int64_t)tess_type_size(type), stride = mlp_of(args)->value_stride;
    for (int64_t l = 0; l < width && lane + l < tile->rows; l += CPU_LANES)
        for (int64_t j = 0; j < MLP_COLUMNS; j += CPU_LANES)
            values_turn(tile->values + ((lane + l) * stride + place + j) * size, stride,
                        sums + j * width + l, width, min_i64(CPU_LANES, tile->rows - lane - l),
                        type);
}

/* A block of columns of the list, from `place` on, where `left` are. */
static void columns_run(const struct kernel_args *args, const struct mlp_tile *tile,
                        const struct cpu_head *w1, int64_t place, int64_t left,
                        struct up_scratch *s) {
    const int32_t n = (int32_t)min_i64(MLP_COLUMNS, left);
    const int32_t next = (int32_t)min_i64(MLP_COLUMNS, left - n);
    const int32_t *column = s->columns + place;
    const int64_t lanes = mlp_lanes(tile->rows);
    float bias[MLP_COLUMNS];
    cache_fetch(args, tile, column, n);
    up_products(&s->products, w1, column, n, next, tile->rows, args->problem->d_qk);
    for (int32_t j = 0; j < n; j++)
        mlp_bias(bias + j, &mlp_of(args)->bias, column[j], 1);
    for (int64_t lane = 0; lane < lanes; lane += MLP_GROUP) {
        const int64_t width = min_i64(MLP_GROUP, lanes - lane);
        float *sums = s->products.sums + lane * MLP_SUMS_COLUMNS;
        columns_end(args, tile, column, bias, n, lane, width, sums);
        memset(sums + n * width, 0, (size_t)((MLP_COLUMNS - n) * width) * sizeof *sums);
        values_store(args, tile, place, lane, width, sums);
    }
}

static void piece_run(const void *context, int64_t number, int32_t thread) {
    const struct mlp_job *job = context;
    const struct kernel_args *args = job->args;
    const struct mlp_tile tile = mlp_tile(args, number / job->pieces);
    const struct cpu_head x = cpu_head(&attention_of(args)->q, args->problem->type, tile.b, 0);
    const struct cpu_head w1 = cpu_head(&attention_of(args)->k, args->problem->type, tile.b, 0);
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct up_scratch s;
    scratch_take(&c, args, &s);
    const int64_t n = mlp_columns(args->work.lists, tile.T, s.columns),
                  piece = number % job->pieces;
    const int64_t blocks = (n + MLP_COLUMNS - 1) / MLP_COLUMNS;
    const int64_t begin = blocks * piece / job->pieces, end = blocks * (piece + 1) / job->pieces;
    if (begin < end)
        up_products_begin(&s.products, &x, tile.first, tile.rows, args->problem->d_qk);
    for (int64_t place = begin * MLP_COLUMNS; place < end * MLP_COLUMNS; place += MLP_COLUMNS)
        columns_run(args, &tile, &w1, place, n - place, &s);
    if (begin < end)
        up_products_end();
}

tess_status CPU_NAME(mlp_up)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct mlp_job job;
    job_take(&c, args, &job);
    job.pieces = mlp_pieces(args, mlp_of(args)->value_stride / MLP_COLUMNS);
    cpu_for_each(args, args->work.schedule->n_items * job.pieces, piece_run, &job);
    return TESS_OK;
}
