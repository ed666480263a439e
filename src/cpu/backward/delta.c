/*
 * Facts of each query that the passes of the backward need (struct query_stats), from dO and o, or from a
 * delta that is given; and the gradient of the sinks. Without stats: delta itself, for tess_delta.
 * One item is DELTA_ROWS queries of a head. Its share of a sink's gradient waits in the workspace,
 * where items are added in their order.
 */
#include "tile/parallel.h"
#include "tile/tile.h"

#define DELTA_ROWS 64
#define DELTA_DIMS 256 /* dims of a row at a time */
#define DELTA_WAYS 8   /* sums of a dot product */

struct delta_job {
    const struct kernel_args *args;
    int64_t chunks; /* items of a head */
    double *d_sink; /* [batch * heads_q][chunks] */
};

static void job_take(struct carve *c, const struct kernel_args *args, struct delta_job *job) {
    const struct problem *p = args->problem;
    job->args = args;
    job->chunks = (p->n_q + DELTA_ROWS - 1) / DELTA_ROWS;
    job->d_sink = NULL;
    if (p->gradients & TESS_GRADIENT_SINK)
        job->d_sink = carve_take_panel(c, (size_t)(p->batch * p->heads_q), (size_t)job->chunks,
                                       sizeof *job->d_sink);
}

size_t CPU_NAME(delta_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct delta_job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* Elements first ... first + n - 1 of a row as f32: where they are, or in buffer. */
static const float *row_part(const char *row, tess_type type, int64_t first, int64_t n,
                             float *buffer) {
    row += first * (int64_t)tess_type_size(type);
    if (type == TESS_F32)
        return (const float *)(const void *)row;
    cpu_load_halves(buffer, row, type, n);
    return buffer;
}

static double dot(const char *x, tess_type x_type, const char *y, tess_type y_type, int64_t d) {
    double sum[DELTA_WAYS] = {0};
    float x_buffer[DELTA_DIMS], y_buffer[DELTA_DIMS];
    for (int64_t first = 0; first < d; first += DELTA_DIMS) {
        const int64_t n = min_i64(d - first, DELTA_DIMS);
        const float *a = row_part(x, x_type, first, n, x_buffer);
        const float *b = row_part(y, y_type, first, n, y_buffer);
        int64_t i = 0;
        for (; i + DELTA_WAYS <= n; i += DELTA_WAYS)
            for (int u = 0; u < DELTA_WAYS; u++)
                sum[u] += (double)a[i + u] * (double)b[i + u];
        for (; i < n; i++)
            sum[0] += (double)a[i] * (double)b[i];
    }
    for (int far = DELTA_WAYS / 2; far > 0; far /= 2)
        for (int u = 0; u < far; u++)
            sum[u] += sum[u + far];
    return sum[0];
}

static double number_of(const struct view *view, int64_t b, int64_t h, int64_t i) {
    return view->data ? (double)*cpu_lse(view, b, h, i).data : 0;
}

/* dO . o of query i. */
static double product_of(const struct kernel_args *args, int64_t b, int64_t h, int64_t i) {
    const struct problem *p = args->problem;
    const struct gradient_operands *given = gradient_of(args);
    if (given->delta.data && given->stats.delta)
        return number_of(&given->delta, b, h, i) + number_of(&given->d_lse, b, h, i);
    const struct cpu_head d_o = cpu_head(&given->d_o, p->type, b, h);
    const struct cpu_head o = cpu_head(&given->forward.o, given->forward.o.type, b, h);
    double sum = dot(cpu_row(&d_o, 0, i), p->type, cpu_row(&o, 0, i), o.type, p->d_v);
    if (given->forward.o_rest.data) {
        const struct cpu_head rest = cpu_head(&given->forward.o_rest, p->type, b, h);
        sum += dot(cpu_row(&d_o, 0, i), p->type, cpu_row(&rest, 0, i), p->type, p->d_v);
    }
    return sum;
}

/* Fills what is known of query i; answers its share of the sink's gradient. */
static double query_run(const struct kernel_args *args, int64_t b, int64_t h, int64_t i) {
    const struct problem *p = args->problem;
    const struct gradient_operands *given = gradient_of(args);
    const struct query_stats *stats = &given->stats;
    const int64_t at = (b * p->heads_q + h) * p->n_q + i;
    const double lse = number_of(&given->forward.lse, b, h, i);
    double left = 1, taken = 0;
    if (isinf(lse)) {
        stats->base[at] = INFINITY;
        stats->left[at] = 1;
        stats->delta[at] = 0;
        return 0;
    }
    if (p->modifiers.sink) {
        const double more = (double)modifier_of(args)->sink[h] - lse;
        left = 1 / (1 + exp(more));
        taken = 1 / (1 + exp(-more));
    }
    const double product = product_of(args, b, h, i);
    stats->base[at] = (float)(lse * LOG2_E);
    stats->left[at] = (float)left;
    stats->delta[at] = (float)(left * product - number_of(&given->d_lse, b, h, i));
    return -taken * product;
}

static void delta_write(const struct kernel_args *args, int64_t b, int64_t h, int64_t i) {
    const struct gradient_operands *given = gradient_of(args);
    *cpu_lse(&given->delta, b, h, i).data =
        (float)(product_of(args, b, h, i) - number_of(&given->d_lse, b, h, i));
}

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct delta_job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const int64_t head = number / job->chunks, first = number % job->chunks * DELTA_ROWS;
    const int64_t b = head / p->heads_q, h = head % p->heads_q;
    double d_sink = 0;
    (void)thread;
    for (int64_t i = first; i < p->n_q && i < first + DELTA_ROWS; i++) {
        if (gradient_of(args)->stats.delta)
            d_sink += query_run(args, b, h, i);
        else
            delta_write(args, b, h, i);
    }
    if (job->d_sink)
        job->d_sink[number] = d_sink;
}

static void sinks_add(const struct delta_job *job) {
    const struct problem *p = job->args->problem;
    for (int64_t h = 0; h < p->heads_q; h++) {
        double sum = 0;
        for (int64_t b = 0; b < p->batch; b++)
            for (int64_t c = 0; c < job->chunks; c++)
                sum += job->d_sink[(b * p->heads_q + h) * job->chunks + c];
        gradient_of(job->args)->d_sink[h] = (float)sum;
    }
}

tess_status CPU_NAME(delta)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    const struct problem *p = args->problem;
    struct carve c = {.base = args->workspace};
    struct delta_job job;
    job_take(&c, args, &job);
    cpu_for_each(args, p->batch * p->heads_q * job.chunks, item_run, &job);
    if (job.d_sink && gradient_of(args)->stats.delta)
        sinks_add(&job);
    return TESS_OK;
}
