/* The MLP's second product on the CPU: values times rows of W2, then bias_out, or a base. */
#if defined(__AMX_BF16__)
#include "mlp/amx.h"
#else
#include "mlp/f32.h"
#endif

/* One thread's scratch. */
struct down_scratch {
    struct down_products products;
    int32_t *columns;           /* [n_kv] */
    float *bias, *base, *row_o; /* MLP_SPAN_OUT dims */
};

static void scratch_take(struct carve *c, const struct kernel_args *args, struct down_scratch *s) {
    down_products_take(c, args, &s->products);
    s->columns = carve_take(c, (size_t)args->problem->n_kv, sizeof *s->columns);
    s->bias = carve_take(c, MLP_SPAN_OUT, sizeof(float));
    s->base = carve_take(c, MLP_SPAN_OUT, sizeof(float));
    s->row_o = carve_take(c, MLP_SPAN_OUT, sizeof(float));
}

static void job_take(struct carve *c, const struct kernel_args *args, struct mlp_job *job) {
    struct carve one = {0};
    struct down_scratch s;
    scratch_take(&one, args, &s);
    c->overflow |= one.overflow;
    *job = (struct mlp_job){.args = args,
                            .scratch_size = one.used,
                            .scratch = carve_take(c, (size_t)args->problem->threads, one.used)};
}

size_t CPU_NAME(mlp_down_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct mlp_job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

static const struct view *base_of(const struct kernel_args *args) {
    return &attention_of(args)->base_o;
}

/* Dims first ... first + d - 1 of o where nothing is added to the base. */
static void base_keep(const struct kernel_args *args, const struct mlp_tile *tile, int64_t first,
                      int64_t d) {
    const tess_type type = args->problem->o_type;
    const struct cpu_head o =
        mlp_dims_from(cpu_head(&attention_of(args)->o, type, tile->b, 0), first);
    const struct cpu_head base = mlp_dims_from(cpu_head(base_of(args), type, tile->b, 0), first);
    for (int64_t r = 0; r < tile->rows; r++)
        memmove(cpu_row(&o, tile->first, r), cpu_row(&base, tile->first, r),
                (size_t)d * tess_type_size(type));
}

/* Row r of o, dims first ... first + d - 1, from its sums. */
static void row_store(const struct kernel_args *args, const struct mlp_tile *tile, int64_t r,
                      int64_t first, int64_t d, const float *sums, const struct down_scratch *s) {
    const struct mlp_operands *given = mlp_of(args);
    const tess_type type = args->problem->o_type;
    const struct cpu_head o = mlp_dims_from(cpu_head(&given->forward.o, type, tile->b, 0), first);
    const float beta = (float)given->forward.beta;
    for (int64_t i = 0; i < d; i++)
        s->row_o[i] = sums[i] + s->bias[i];
    if (base_of(args)->data) {
        const struct cpu_head base =
            mlp_dims_from(cpu_head(base_of(args), type, tile->b, 0), first);
        cpu_load_any(s->base, cpu_row(&base, tile->first, r), type, d);
        for (int64_t i = 0; i < d; i++)
            s->row_o[i] = s->base[i] + beta * s->row_o[i];
    }
    cpu_row_from_f32(cpu_row(&o, tile->first, r), s->row_o, type, d);
}

static void dims_run(const struct kernel_args *args, const struct mlp_tile *tile, int64_t n,
                     int64_t first, struct down_scratch *s) {
    const struct mlp_operands *given = mlp_of(args);
    const struct problem *p = args->problem;
    const int64_t d = min_i64(MLP_SPAN_OUT, p->d_v - first);
    const struct cpu_head w2 = cpu_head(&given->forward.v, p->type, tile->b, 0);
    const struct cpu_head values = {.data = tile->values,
                                    .stride =
                                        given->value_stride * (int64_t)tess_type_size(p->type),
                                    .type = p->type,
                                    .heads = 1};
    const struct view none = {0};
    if (!n && mlp_is_delta(given)) {
        base_keep(args, tile, first, d);
        return;
    }
    mlp_bias(s->bias, mlp_is_delta(given) ? &none : &given->bias_out, first, d);
    down_products(&s->products, &values, &w2, s->columns, n, args->work.lists->tile_rows,
                  tile->rows, first, d);
    for (int64_t r = 0; r < tile->rows; r += CPU_LANES) {
        int64_t stride;
        const float *rows = down_rows(&s->products, r, tile->rows, d, &stride);
        for (int64_t i = 0; i < CPU_LANES && r + i < tile->rows; i++)
            row_store(args, tile, r + i, first, d, rows + i * stride, s);
    }
}

static void piece_run(const void *context, int64_t number, int32_t thread) {
    const struct mlp_job *job = context;
    const struct kernel_args *args = job->args;
    const struct mlp_tile tile = mlp_tile(args, number / job->pieces);
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct down_scratch s;
    scratch_take(&c, args, &s);
    const int64_t n = mlp_columns(args->work.lists, tile.T, s.columns),
                  piece = number % job->pieces;
    const int64_t spans = (args->problem->d_v + MLP_SPAN_OUT - 1) / MLP_SPAN_OUT;
    const int64_t end = spans * (piece + 1) / job->pieces;
    for (int64_t span = spans * piece / job->pieces; span < end; span++)
        dims_run(args, &tile, n, span * MLP_SPAN_OUT, &s);
}

tess_status CPU_NAME(mlp_down)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct mlp_job job;
    job_take(&c, args, &job);
    job.pieces = mlp_pieces(args, (args->problem->d_v + MLP_SPAN_OUT - 1) / MLP_SPAN_OUT);
    cpu_for_each(args, args->work.schedule->n_items * job.pieces, piece_run, &job);
    return TESS_OK;
}
