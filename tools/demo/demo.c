/*
 * The demonstration: what sparse attention gives and costs, on one screen.
 *
 *     demo DATA.safetensors FOLDER
 *
 * Part 1 runs two patterns on q, k, v of real text: a fixed one, and one chosen from the data. Part
 * 2 shows how time grows with length. The outputs and the chosen lists are written to FOLDER.
 * Answers 0 only if fused and staged agree, and the softmax mass kept is what was found by other
 * means when the data were made (examples/data/README.md).
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo/demo.h"
#include "lab/fill/half.h"
#include "lab/files/output.h"
#include "lab/device/timer.h"
#include "io/lists_file.h"
#include "io/report.h"
#include "io/tensor_file.h"

enum {
    BLOCK = 32,    /* part 1: tokens in a block */
    TOP = 4,       /* part 1: key blocks kept for each block of queries */
    HEAD = 4,      /* part 1: the head that is drawn */
    LONGEST = 8192 /* part 2 */
};
static const char fixed_spec[] = "longformer(64,16)";
static const char long_spec[] = "window(64,64)";

/* Results of a pattern. */
struct result {
    const char *name;
    double expected_mass; /* examples/data/README.md */
    tess_pattern *pattern;
    double seconds[2]; /* one run's: TESS_FUSED, TESS_STAGED */
    uint16_t *o[2];    /* f16, as the input */
    float *lse[2];
    double pairs; /* share of all query-key pairs */
    double mass;  /* share of the softmax mass of dense attention, mean over queries and heads */
    double error; /* relative L2 distance from the output of dense attention */
};

void demo_require(tess_status status, const tess_error *error) {
    if (status)
        exit(report("demo", "%s: %s", tess_status_name(status), error->message));
}

void *demo_allocate(size_t count, size_t size) {
    void *p = aligned_alloc(64, (count * size / 64 + 1) * 64);
    if (!p)
        exit(report("demo", "out of memory"));
    return p;
}

/* One of q, k, v; *file keeps the data. */
static tess_tensor load(struct tensor_file *file, const char *path, const char *name) {
    struct reason reason;
    char text[4096];
    snprintf(text, sizeof text, "%s:%s", path, name);
    if (!tensor_file_open(file, text, &reason))
        exit(report("demo", "%s", reason.text));
    const struct tensor *t = &file->tensor;
    if (t->type != ELEMENT_F16 || t->rank != 4 || t->shape[0] != 1 || t->shape[2] % BLOCK != 0)
        exit(report("demo", "%s: f16 of shape [1,H,N,D] is needed, N a multiple of %d", text,
                    BLOCK));
    return tess_tensor_bhnd(t->data, TESS_F16, 1, t->shape[1], t->shape[2], t->shape[3]);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs a plan once to warm up, then 3 to 25 times within about half a second: the median. */
static double time_run(const tess_plan *plan, const tess_arguments *arguments) {
    enum { MOST = 25 };
    double seconds[MOST], begin = lab_seconds();
    tess_error error = tess_error_init();
    demo_require(tess_run(plan, arguments, &error, NULL), &error);
    int runs = 0;
    while (runs < 3 || (runs < MOST && lab_seconds() - begin < 0.5)) {
        double start = lab_seconds();
        demo_require(tess_run(plan, arguments, &error, NULL), &error);
        seconds[runs++] = lab_seconds() - start;
    }
    qsort(seconds, (size_t)runs, sizeof *seconds, compare_doubles);
    return seconds[runs / 2];
}

/* Attention by one pipeline: its outputs, which the caller frees, and its time. */
static double attend(const struct demo_input *in, const tess_pattern *pattern,
                     tess_pipeline pipeline, uint16_t **o, float **lse) {
    tess_error error = tess_error_init();
    *o = demo_allocate((size_t)(in->heads * in->n * in->dim), sizeof **o);
    *lse = demo_allocate((size_t)(in->heads * in->n), sizeof **lse);
    tess_tensor to = tess_tensor_bhnd(*o, TESS_F16, 1, in->heads, in->n, in->dim);
    tess_tensor tl = tess_tensor_bhnd(*lse, TESS_F32, 1, in->heads, in->n, 1);
    tess_problem problem = tess_problem_init();
    demo_require(tess_problem_from_tensors(&problem, &in->q, &in->k, &in->v, &to, &error), &error);
    problem.pipeline = pipeline;
    tess_plan *plan;
    demo_require(tess_plan_create(&plan, &problem, pattern, NULL, &error), &error);

    tess_arguments arguments = tess_arguments_init();
    arguments.q = &in->q, arguments.k = &in->k, arguments.v = &in->v;
    arguments.o = &to, arguments.lse = &tl;
    arguments.workspace_size = tess_plan_workspace_size(plan);
    arguments.workspace = demo_allocate(1, arguments.workspace_size);
    double seconds = time_run(plan, &arguments);
    free(arguments.workspace);
    tess_plan_free(plan);
    return seconds;
}

static tess_pattern *spec_pattern(const char *spec, int64_t n, int64_t block) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = n;
    shape.block_q = shape.block_kv = block;
    tess_pattern *pattern;
    demo_require(tess_pattern_from_spec(&pattern, spec, &shape, &error), &error);
    return pattern;
}

/* ||a - b|| / ||b||. */
static double distance(const uint16_t *a, const uint16_t *b, int64_t count) {
    double difference = 0.0, norm = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double x = lab_f16_to_double(a[i]), y = lab_f16_to_double(b[i]);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(difference / norm);
}

/* Runs both pipelines and holds the outcome against dense attention. */
static void measure(struct result *r, const struct demo_input *in, const struct result *dense) {
    tess_error error = tess_error_init();
    for (int p = TESS_FUSED; p <= TESS_STAGED; p++)
        r->seconds[p] = attend(in, r->pattern, (tess_pipeline)p, &r->o[p], &r->lse[p]);
    tess_pattern_info info = tess_pattern_info_init();
    demo_require(tess_pattern_describe(r->pattern, &info, &error), &error);
    double lists = (double)(info.batch * info.heads), n = (double)in->n;
    r->pairs = (double)info.pairs / (lists * n * n);
    int64_t rows = in->heads * in->n;
    for (int64_t i = 0; i < rows; i++)
        r->mass += exp((double)r->lse[0][i] - dense->lse[0][i]) / (double)rows;
    r->error = distance(r->o[0], dense->o[0], rows * in->dim);
}

static void print_table(const struct result *r, int count) {
    printf("%-22s %9s %11s %14s %11s %11s\n", "pattern", "pairs", "mass kept", "output error",
           "fused", "staged");
    for (int i = 0; i < count; i++)
        printf("%-22s %7.1f %% %9.1f %% %12.1f %% %8.2f ms %8.2f ms\n", r[i].name, 100 * r[i].pairs,
               100 * r[i].mass, 100 * r[i].error, 1e3 * r[i].seconds[0], 1e3 * r[i].seconds[1]);
}

/* A file of the folder, to be written whole or not at all. */
static struct lab_output output_open(const char *folder, const char *name) {
    char path[4096], why[LAB_WHY];
    struct lab_output output;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (lab_output_open(&output, path, why))
        exit(report("demo", "%s", why));
    return output;
}

static void output_close(struct lab_output *output, bool written) {
    char why[LAB_WHY] = "an output cannot be written";
    if (!written)
        lab_output_abandon(output);
    if (!written || lab_output_commit(output, why))
        exit(report("demo", "%s", why));
}

static struct named_tensor named(const char *name, enum element_type type, const void *data,
                                 int rank, const tess_tensor *like) {
    struct named_tensor t = {.name = name, .tensor = {.type = type, .rank = rank, .data = data}};
    memcpy(t.tensor.shape, like->size, sizeof *like->size * (size_t)rank);
    tensor_measure(&t.tensor);
    return t;
}

/* o.safetensors: outputs and lse; top_blocks.safetensors: the chosen lists. */
static void save(const char *folder, const struct demo_input *in, const struct result *fixed,
                 const struct result *chosen) {
    const struct named_tensor tensors[] = {
        named("o_longformer", ELEMENT_F16, fixed->o[TESS_FUSED], 4, &in->q),
        named("lse_longformer", ELEMENT_F32, fixed->lse[TESS_FUSED], 3, &in->q),
        named("o_top_blocks", ELEMENT_F16, chosen->o[TESS_FUSED], 4, &in->q),
        named("lse_top_blocks", ELEMENT_F32, chosen->lse[TESS_FUSED], 3, &in->q),
    };
    struct lab_output output = output_open(folder, "o.safetensors");
    size_t count = sizeof tensors / sizeof *tensors;
    output_close(&output, safetensors_write(output.file, tensors, count, NULL));

    tess_error error = tess_error_init();
    tess_lists lists = tess_lists_init();
    demo_require(tess_pattern_lists(chosen->pattern, &lists, &error), &error);
    output = output_open(folder, "top_blocks.safetensors");
    output_close(&output, lists_file_write(output.file, &lists));
}

/* The first n tokens of one head of the input, which is repeated as often as needed. */
static tess_tensor repeat(const tess_tensor *t, int64_t n) {
    int64_t row = t->size[3];
    uint16_t *data = demo_allocate((size_t)(n * row), sizeof *data);
    for (int64_t i = 0; i < n; i++)
        memcpy(data + i * row, (const uint16_t *)t->data + i % t->size[2] * row,
               sizeof *data * (size_t)row);
    return tess_tensor_bhnd(data, TESS_F16, 1, 1, n, row);
}

/* Seconds of fused attention over n tokens of one head; *pairs is the share computed. */
static double time_length(const struct demo_input *in, const char *spec, int64_t n, double *pairs) {
    tess_error error = tess_error_init();
    struct demo_input one = {.heads = 1, .n = n, .dim = in->dim};
    one.q = repeat(&in->q, n), one.k = repeat(&in->k, n), one.v = repeat(&in->v, n);
    tess_pattern *pattern = spec_pattern(spec, n, 64);
    tess_pattern_info info = tess_pattern_info_init();
    demo_require(tess_pattern_describe(pattern, &info, &error), &error);
    *pairs = (double)info.pairs / ((double)n * (double)n);
    uint16_t *o;
    float *lse;
    double seconds = attend(&one, pattern, TESS_FUSED, &o, &lse);
    tess_pattern_free(pattern);
    free(one.q.data);
    free(one.k.data);
    free(one.v.data);
    free(o);
    free(lse);
    return seconds;
}

static void print_lengths(const struct demo_input *in) {
    printf("\n2. Where it pays: one head, the same text repeated, %s against dense, fused\n\n",
           long_spec);
    printf("%-22s %9s %11s %14s %11s\n", "tokens", "pairs", "window", "dense", "faster");
    for (int64_t n = LONGEST / 16; n <= LONGEST; n *= 4) {
        double pairs, all;
        double sparse = time_length(in, long_spec, n, &pairs);
        double dense = time_length(in, "dense", n, &all);
        printf("%-22" PRId64 " %7.1f %% %8.2f ms %11.2f ms %9.1f x\n", n, 100 * pairs, 1e3 * sparse,
               1e3 * dense, dense / sparse);
    }
}

/* The program's own check; see the top. */
static int check(const struct result *r, const struct demo_input *in) {
    double apart = distance(r->o[TESS_STAGED], r->o[TESS_FUSED], in->heads * in->n * in->dim);
    if (!(fabs(r->mass - r->expected_mass) <= 0.001))
        return report("demo", "%s keeps %.4f of the mass, not %.3f", r->name, r->mass,
                      r->expected_mass);
    if (!(apart <= 1e-3))
        return report("demo", "%s: fused and staged differ by %.1e", r->name, apart);
    return EXIT_DONE;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return report("demo", "usage: demo DATA.safetensors FOLDER");
    tess_error error = tess_error_init();
    struct tensor_file files[3];
    struct demo_input in = {.q = load(&files[0], argv[1], "q"),
                            .k = load(&files[1], argv[1], "k"),
                            .v = load(&files[2], argv[1], "v")};
    in.heads = in.q.size[1], in.n = in.q.size[2], in.dim = in.q.size[3];
    if (memcmp(in.q.size, in.k.size, sizeof in.q.size) != 0 ||
        memcmp(in.q.size, in.v.size, sizeof in.q.size) != 0)
        return report("demo", "%s: q, k and v differ in shape", argv[1]);
    struct result r[3] = {
        {.name = "dense", .expected_mass = 1.0, .pattern = spec_pattern("dense", in.n, BLOCK)},
        {.name = fixed_spec,
         .expected_mass = 0.653,
         .pattern = spec_pattern(fixed_spec, in.n, BLOCK)},
        {.name = "top 4 of 16 blocks",
         .expected_mass = 0.733,
         .pattern = demo_top_blocks(&in, BLOCK, TOP)},
    };
    for (int i = 0; i < 3; i++)
        measure(&r[i], &in, &r[0]);

    tess_device_info device = tess_device_info_init();
    demo_require(tess_device_describe(TESS_CPU, 0, &device, &error), &error);
    printf("1. Real text: q, k, v of one layer of MiniLM, %" PRId64 " tokens, %" PRId64
           " heads of %" PRId64 ", f16\n   %s, %d threads, %s kernels\n\n",
           in.n, in.heads, in.dim, device.name, device.multiprocessors, tess_cpu_isa());
    print_table(r, 3);
    printf(
        "\n"
        "Pairs are the query-key products computed. Mass kept is the share of dense attention's\n"
        "softmax weights that fall on them; output error is the distance from dense attention's\n"
        "output. What is not looked at is lost, and this model was never trained to do without.\n"
        "The chosen blocks keep more than the fixed window, of more pairs. Times are medians of\n"
        "runs, without planning and without choosing the blocks.\n"
        "\n");
    const struct demo_picture pictures[2] = {{r[1].name, r[1].pattern, 0},
                                             {"top 4 of 16 blocks, head 4", r[2].pattern, HEAD}};
    demo_draw(pictures, in.n, BLOCK);
    print_lengths(&in);
    save(argv[2], &in, &r[1], &r[2]);

    int status = EXIT_DONE;
    for (int i = 0; i < 3; i++) {
        if (check(&r[i], &in))
            status = EXIT_CHECK_FAILED;
        tess_pattern_free(r[i].pattern);
        for (int p = 0; p < 2; p++) {
            free(r[i].o[p]);
            free(r[i].lse[p]);
        }
        tensor_file_close(&files[i]);
    }
    return status;
}
