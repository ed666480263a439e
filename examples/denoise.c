/*
 * Deltas of a denoising model: attention of a diffusion transformer moves little from step to step, so a full step
 * finds which columns matter and caches the rest, and the steps after it compute these columns alone (Chipmunk;
 * DeltaDiT). A full step of a layer, all of it on the device:
 *
 *     run, dense        o, lse, and column sums of groups of queries by the lse of the full step before
 *     tess_select       the KEEP columns of each group with the largest sums, and the first ones
 *     tess_columns_convert   packs them to bits: what a layer keeps between steps
 *     run, kept         o and lse over these columns
 *     tess_unmerge      o and lse over all others: the cached base
 *
 * A sparse step fills lists from the bits and runs over them with the base, which it joins. Each kind of step is one
 * list of calls for all layers, and on CUDA one captured graph. Queries, keys and values are those of a real model
 * (examples/data), which drift: each step turns them towards those of another head. A layer is its attention alone; an
 * MLP with activations cached likewise would stand behind it in `full` and `sparse`. To build it:
 *
 *     cc denoise.c $(pkg-config --cflags --libs tessera) -lm
 *     cc -DEXAMPLE_CUDA denoise.c $(pkg-config --cflags --libs tessera) -lm -lcudart
 *     ./a.out data/minilm.safetensors [DRIFT]
 *
 * Answers 0 if steps differ from dense ones by little, by nothing more in 50 steps without drift, and column sums by
 * today's lse add up to the queries.
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "either.h"

enum { LAYERS = 2, HEADS = 12, TOKENS = 512, DIM = 32, STEPS = 50, REFRESH = 10 };
enum { GROUP = 64, GROUPS = TOKENS / GROUP, KEEP = 96, FORCED = 4, WORDS = TOKENS / 64 };

typedef uint16_t f16;
typedef f16 tokens[HEADS][TOKENS][DIM];
typedef float rows[HEADS][TOKENS];

/* Tensors of a layer, in the memory of the backend; here the host sees it too. */
struct memory {
    tokens q, k, v, o, kept_o, base_o;
    rows lse, reference, kept_lse, base_lse;
    float sums[HEADS][GROUPS][TOKENS];
    int32_t indices[HEADS][GROUPS][KEEP], counts[HEADS][GROUPS];
    uint64_t bits[HEADS][GROUPS][WORDS];
};

/* Plans, which layers share, and what serves one run at a time. */
static tess_plan *dense_plan, *kept_plan;
static void *workspace, *dense_image, *kept_image;
static size_t workspace_size;
static struct memory *layers[LAYERS];
static float model[3][HEADS][TOKENS][DIM]; /* q, k and v of the file */

/* ---- steps ---- */

static tess_tensor view(tokens x) {
    return tess_tensor_bhnd(x, TESS_F16, 1, HEADS, TOKENS, DIM);
}
static tess_tensor view_rows(rows x) {
    return tess_tensor_bhnd(x, TESS_F32, 1, HEADS, TOKENS, 1);
}

/* A run of a layer's q, k and v; its o and lse may be those of a part. */
struct run {
    tess_tensor q, k, v, o, lse, base_o, base_lse, reference, sums;
    tess_arguments arguments;
};

static void run_begin(struct run *r, struct memory *m, tokens o, rows lse) {
    r->q = view(m->q), r->k = view(m->k), r->v = view(m->v), r->o = view(o);
    r->lse = view_rows(lse);
    r->arguments = tess_arguments_init();
    r->arguments.q = &r->q, r->arguments.k = &r->k, r->arguments.v = &r->v;
    r->arguments.o = &r->o, r->arguments.lse = &r->lse;
    r->arguments.workspace = workspace, r->arguments.workspace_size = workspace_size;
}

static tess_device_pattern kept_pattern(struct memory *m) {
    tess_device_pattern p = tess_device_pattern_init();
    p.form = TESS_BLOCK_BITS, p.n_q = p.n_kv = TOKENS, p.block_q = GROUP, p.block_kv = 1;
    p.batch = 1, p.heads = HEADS, p.capacity = (int64_t)HEADS * GROUPS * KEEP;
    p.bits = m ? m->bits[0][0] : NULL;
    return p;
}

static void kept_run(struct memory *m, struct run *r, tess_stream stream) {
    tess_error error = tess_error_init();
    const tess_device_pattern pattern = kept_pattern(m);
    require(tess_plan_fill_run(kept_plan, &pattern, kept_image, tess_plan_image_size(kept_plan),
                               NULL, &r->arguments, &error, stream),
            &error);
}

static void dense_run(struct memory *m, tess_stream stream) {
    tess_error error = tess_error_init();
    struct run r;
    run_begin(&r, m, m->o, m->lse);
    r.reference = view_rows(m->reference);
    r.sums = tess_tensor_bhnd(m->sums, TESS_F32, 1, HEADS, GROUPS, TOKENS);
    r.arguments.lse_reference = &r.reference, r.arguments.column_sums = &r.sums;
    r.arguments.image = dense_image, r.arguments.image_size = tess_plan_image_size(dense_plan);
    require(tess_run(dense_plan, &r.arguments, &error, stream), &error);
}

/* Columns by their sums: as indices, then packed. */
static void choose(struct memory *m, tess_stream stream) {
    tess_error error = tess_error_init();
    tess_selection selection = tess_selection_init();
    tess_selected selected = tess_selected_init();
    tess_columns from = tess_columns_init(), to = tess_columns_init();
    const tess_tensor sums = tess_tensor_bhnd(m->sums, TESS_F32, 1, HEADS, GROUPS, TOKENS);
    selection.k = KEEP, selection.keep_first = FORCED;
    selected.capacity = KEEP, selected.indices = m->indices[0][0], selected.counts = m->counts[0];
    require(tess_select(backend, &selection, &sums, &selected, &error, stream), &error);
    from.rows = (int64_t)HEADS * GROUPS, from.columns = TOKENS, from.capacity = KEEP;
    from.indices = m->indices[0][0], from.counts = m->counts[0];
    to.rows = from.rows, to.columns = TOKENS, to.bits = m->bits[0][0];
    require(tess_columns_convert(backend, &from, &to, &error, stream), &error);
}

/* The rest of a dense run, as the base of the steps to come; and its lse as the next reference. */
static void cache(struct memory *m, tess_stream stream) {
    tess_error error = tess_error_init();
    struct run r;
    const tess_tensor o = view(m->o), lse = view_rows(m->lse), kept_o = view(m->kept_o),
                      kept_lse = view_rows(m->kept_lse), base_o = view(m->base_o),
                      base_lse = view_rows(m->base_lse), reference = view_rows(m->reference);
    const tess_tensor *const whole[] = {&o}, *const whole_lse[] = {&lse};
    run_begin(&r, m, m->kept_o, m->kept_lse);
    kept_run(m, &r, stream);
    require(tess_unmerge(backend, &o, &lse, &kept_o, &kept_lse, &base_o, &base_lse, &error, stream),
            &error);
    /* A merge of one part copies it. */
    require(tess_merge(backend, 1, whole, whole_lse, &o, &reference, &error, stream), &error);
}

static void full(const void *none, tess_stream stream) {
    (void)none;
    for (int l = 0; l < LAYERS; l++) {
        dense_run(layers[l], stream);
        choose(layers[l], stream);
        cache(layers[l], stream);
    }
}

static void sparse(const void *none, tess_stream stream) {
    (void)none;
    for (int l = 0; l < LAYERS; l++) {
        struct memory *m = layers[l];
        struct run r;
        run_begin(&r, m, m->o, m->lse);
        r.base_o = view(m->base_o), r.base_lse = view_rows(m->base_lse);
        r.arguments.base = TESS_BASE_MERGE;
        r.arguments.base_o = &r.base_o, r.arguments.base_lse = &r.base_lse;
        kept_run(m, &r, stream);
    }
}

/* A step that errors and speed-ups are told beside. */
static void dense(const void *none, tess_stream stream) {
    (void)none;
    for (int l = 0; l < LAYERS; l++)
        dense_run(layers[l], stream);
}

enum { FULL, SPARSE, DENSE, KINDS };
static struct step kinds[KINDS] = {{full, NULL, NULL}, {sparse, NULL, NULL}, {dense, NULL, NULL}};

static double launch_ms(int kind) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    launch(&kinds[kind]);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return 1e3 * (double)(to.tv_sec - from.tv_sec) + 1e-6 * (double)(to.tv_nsec - from.tv_nsec);
}

static void plans_make(void) {
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_target target = tess_target_init();
    tess_pattern *pattern;
    const tess_device_pattern kept = kept_pattern(NULL);
    shape.n_q = shape.n_kv = TOKENS, shape.block_q = shape.block_kv = GROUP;
    problem.batch = 1, problem.heads_q = problem.heads_kv = HEADS;
    problem.n_q = problem.n_kv = TOKENS, problem.d_qk = problem.d_v = DIM, problem.type = TESS_F16;
    require(tess_target_query(&target, backend, -1, &error), &error);
    require(tess_plan_reserve(&kept_plan, &problem, &kept, &target, &error), &error);
    problem.sum_rows = GROUP;
    require(tess_pattern_from_spec(&pattern, "dense", &shape, &error), &error);
    require(tess_plan_create(&dense_plan, &problem, pattern, &target, &error), &error);
    tess_pattern_free(pattern);
    const size_t one = tess_plan_workspace_size(dense_plan);
    const size_t other = tess_plan_workspace_size(kept_plan);
    workspace_size = one > other ? one : other;
    workspace = allocate(workspace_size);
    kept_image = allocate(tess_plan_image_size(kept_plan));
    if (tess_plan_image_size(dense_plan)) {
        dense_image = allocate(tess_plan_image_size(dense_plan));
        require(tess_plan_upload(dense_plan, dense_image, tess_plan_image_size(dense_plan), &error,
                                 NULL),
                &error);
    }
}

/* ---- the model's part ---- */

static float wide(f16 x) {
    const int exponent = x >> 10 & 31, digits = x & 1023;
    const float y =
        exponent ? ldexpf((float)(1024 + digits), exponent - 25) : ldexpf((float)digits, -24);
    return x & 0x8000 ? -y : y;
}

/* Rounded to nearest; numbers of the model are within f16's normal range, or 0. */
static f16 narrow(float x) {
    int exponent;
    const float half = frexpf(fabsf(x), &exponent); /* in [1/2, 1) */
    long digits = lrintf(half * 2048) + (long)(exponent + 13) * 1024;
    if (digits < 1024)
        digits = 0;
    return (f16)((x < 0 ? 0x8000 : 0) | digits);
}

/* Tensors of the file: its header ends where their offsets count from. */
static void model_read(const char *path) {
    static const char *const names[] = {"\"q\"", "\"k\"", "\"v\""};
    FILE *file = fopen(path, "rb");
    static tokens stored;
    uint64_t length = 0;
    char header[4096] = "";
    int good = file && fread(&length, sizeof length, 1, file) == 1 && length < sizeof header &&
               fread(header, 1, (size_t)length, file) == length;
    for (int t = 0; t < 3 && good; t++) {
        const char *at = strstr(header, names[t]);
        at = at ? strstr(at, "data_offsets\":[") : NULL;
        const long begin = at ? strtol(at + strlen("data_offsets\":["), NULL, 10) : -1;
        good = begin >= 0 && fseek(file, (long)(sizeof length + length) + begin, SEEK_SET) == 0 &&
               fread(stored, sizeof stored, 1, file) == 1;
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < TOKENS; n++)
                for (int d = 0; d < DIM; d++)
                    model[t][h][n][d] = wide(stored[h][n][d]);
    }
    if (file)
        fclose(file);
    if (!good) {
        fprintf(stderr, "denoise: %s holds no q, k and v of %d x %d x %d\n", path, HEADS, TOKENS,
                DIM);
        exit(EXIT_FAILURE);
    }
}

/* Heads of layer l at an angle between those of two heads of the model. */
static void project(int l, double angle) {
    tokens *const to[] = {&layers[l]->q, &layers[l]->k, &layers[l]->v};
    const float near = (float)cos(angle), far = (float)sin(angle);
    for (int t = 0; t < 3; t++)
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < TOKENS; n++)
                for (int d = 0; d < DIM; d++)
                    (*to[t])[h][n][d] = narrow(near * model[t][(h + l) % HEADS][n][d] +
                                               far * model[t][(h + l + 1) % HEADS][n][d]);
}

/* ---- what is told and checked ---- */

/* Norm of the difference of two outputs, of the second's. */
static double difference(tokens a, tokens b) {
    double error = 0, size = 0;
    for (int h = 0; h < HEADS; h++)
        for (int n = 0; n < TOKENS; n++)
            for (int d = 0; d < DIM; d++) {
                const double x = (double)wide(a[h][n][d]), y = (double)wide(b[h][n][d]);
                error += (x - y) * (x - y), size += y * y;
            }
    return sqrt(error / size);
}

/* Share of the attention that the kept columns have by today's lse: what the base does not. */
static double kept_mass(struct memory *m) {
    double mass = 0;
    for (int h = 0; h < HEADS; h++)
        for (int n = 0; n < TOKENS; n++)
            mass += 1 - exp((double)m->base_lse[h][n] - (double)m->lse[h][n]);
    return mass / (HEADS * TOKENS);
}

/* How far sums of a group are from its number of queries, at most. */
static double mass_missing(struct memory *m) {
    double most = 0;
    for (int h = 0; h < HEADS; h++)
        for (int g = 0; g < GROUPS; g++) {
            double mass = 0;
            for (int j = 0; j < TOKENS; j++)
                mass += (double)m->sums[h][g][j];
            most = fmax(most, fabs(mass / GROUP - 1));
        }
    return most;
}

/* Steps with this drift, in radians each. Answers the largest error of a step. */
static double denoise(double drift) {
    static tokens o[LAYERS];
    static rows lse[LAYERS];
    double worst = 0;
    printf("drift %g\n%4s %6s %9s %9s %8s %8s\n", drift, "step", "kind", "kept mass", "error", "ms",
           "speed-up");
    for (int step = 0; step < STEPS; step++) {
        const int kind = step % REFRESH ? SPARSE : FULL;
        double mass = 0, error = 0;
        for (int l = 0; l < LAYERS; l++)
            project(l, drift * step);
        for (int k = 0; k < KINDS && step == 0;
             k++) /* makes graphs, and today's lse the reference */
            launch(&kinds[k]);
        const double ms = launch_ms(kind);
        for (int l = 0; l < LAYERS; l++) {
            mass += kept_mass(layers[l]) / LAYERS;
            memcpy(o[l], layers[l]->o, sizeof o[l]);
            memcpy(lse[l], layers[l]->lse, sizeof lse[l]);
        }
        const double dense_ms = launch_ms(DENSE);
        for (int l = 0; l < LAYERS; l++)
            error = fmax(error, difference(o[l], layers[l]->o));
        printf("%4d %6s %9.4f %9.2g %8.3f %8.2f\n", step, kind == FULL ? "full" : "sparse", mass,
               error, ms, dense_ms / ms);
        worst = fmax(worst, error);
    }
    return worst;
}

int main(int argc, char **argv) {
    if (tess_device_count(backend) < 1) {
        printf("no device\n");
        return 77;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: %s minilm.safetensors [DRIFT]\n", argv[0]);
        return EXIT_FAILURE;
    }
    model_read(argv[1]);
    for (int l = 0; l < LAYERS; l++) {
        layers[l] = allocate(sizeof *layers[l]);
        memset(layers[l], 0, sizeof *layers[l]);
    }
    plans_make();
    const double still = denoise(0), missing = mass_missing(layers[LAYERS - 1]);
    const double moved = denoise(argc > 2 ? atof(argv[2]) : 0.01);
    printf("without drift steps differ from dense ones by %.2g, column sums from queries by %.2g; "
           "with it by %.2g\n",
           still, missing, moved);
    tess_plan_free(dense_plan);
    tess_plan_free(kept_plan);
    for (int l = 0; l < LAYERS; l++)
        release(layers[l]);
    release(workspace);
    release(kept_image);
    if (dense_image)
        release(dense_image);
    return still < 2e-3 && missing < 1e-3 && moved < 0.2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
