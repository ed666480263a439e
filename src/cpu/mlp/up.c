/* The MLP's first product on the CPU: activations of the columns that a tile lists, less those of the cache where a
 * delta is computed. The cache, if there is one, gets them as they are rounded. */
#include "mlp/activation.h"
#if defined(__AMX_BF16__)
#include "mlp/amx.h"
#else
#include "mlp/f32.h"
#endif

/* One thread's scratch. */
struct up_scratch {
    struct up_products products;
    int32_t *columns; /* [n_kv] */
    float *row;       /* values of CPU_LANES queries, turned */
};

static void scratch_take(struct carve *c, const struct kernel_args *args, struct up_scratch *s) {
    up_products_take(c, args, &s->products);
    s->columns = carve_take(c, (size_t)args->problem->n_kv, sizeof *s->columns);
    s->row = carve_take(c, CPU_LANES * MLP_COLUMNS, sizeof *s->row);
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

/* sums of a column = its values in lanes lane ... lane + width - 1; the cache is updated. */
static void column_end(const struct kernel_args *args, const struct mlp_tile *tile, int32_t column,
                       float bias, int64_t lane, int64_t width, float *sums) {
    const struct mlp_operands *given = mlp_of(args);
    const struct view *cache = &given->activations;
    const tess_type type = args->problem->type;
    const int64_t size = (int64_t)tess_type_size(type);
    const int64_t rows = max_i64(0, min_i64(width, tile->rows - lane));
    _Alignas(64) float cached[MLP_GROUP], rounded[MLP_GROUP];
    activation_apply(args->problem->activation, sums, width, bias);
    cpu_row_from_f32(rounded, sums, type, width);
    cpu_row_to_f32(sums, rounded, type, width);
    if (!cache->data)
        return;
    char *at = (char *)cache->data +
               (tile->b * cache->stride[0] + column * cache->stride[2] + tile->first + lane) * size;
    if (mlp_is_delta(given)) {
        cpu_load_any(cached, at, type, rows);
        for (int64_t r = 0; r < rows; r++)
            sums[r] -= cached[r];
    }
    memcpy(at, rounded, (size_t)(rows * size));
}

/* Values of MLP_COLUMNS columns from `place` on, of the group of lanes whose sums these are. */
static void values_store(const struct kernel_args *args, const struct mlp_tile *tile, int64_t place,
                         int64_t lane, int64_t width, const float *sums, float *turned) {
    const tess_type type = args->problem->type;
    const int64_t size = (int64_t)tess_type_size(type), stride = mlp_of(args)->value_stride;
    for (int64_t l = 0; l < width && lane + l < tile->rows; l += CPU_LANES) {
        for (int64_t j = 0; j < MLP_COLUMNS; j += CPU_LANES) {
            vf a[CPU_LANES];
            V_FOR(r, CPU_LANES) {
                a[r] = v_load(sums + (j + r) * width + l);
            }
            v_transpose(a);
            V_FOR(r, CPU_LANES) {
                v_store(turned + r * MLP_COLUMNS + j, a[r]);
            }
        }
        for (int64_t r = 0; r < CPU_LANES && lane + l + r < tile->rows; r++)
            cpu_row_from_f32(tile->values + ((lane + l + r) * stride + place) * size,
                             turned + r * MLP_COLUMNS, type, MLP_COLUMNS);
    }
}

/* Columns of the list from `place` on, n of them. */
static void columns_run(const struct kernel_args *args, const struct mlp_tile *tile,
                        const struct cpu_head *w1, int64_t place, int32_t n, struct up_scratch *s) {
    const int32_t *column = s->columns + place;
    const int64_t lanes = mlp_lanes(tile->rows);
    float bias[MLP_COLUMNS];
    up_products(&s->products, w1, column, n, tile->rows, args->problem->d_qk);
    for (int32_t j = 0; j < n; j++)
        mlp_bias(bias + j, &mlp_of(args)->bias, column[j], 1);
    for (int64_t lane = 0; lane < lanes; lane += MLP_GROUP) {
        const int64_t width = min_i64(MLP_GROUP, lanes - lane);
        float *sums = s->products.sums + lane * MLP_SUMS_COLUMNS;
        for (int32_t j = 0; j < n; j++)
            column_end(args, tile, column[j], bias[j], lane, width, sums + j * width);
        memset(sums + n * width, 0, (size_t)((MLP_COLUMNS - n) * width) * sizeof *sums);
        values_store(args, tile, place, lane, width, sums, s->row);
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
        columns_run(args, &tile, &w1, place, (int32_t)min_i64(MLP_COLUMNS, n - place), &s);
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
