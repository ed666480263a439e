/*
 * Deltas of a denoising model: activations of a diffusion transformer move little from step to step, so a full step
 * finds which columns matter and caches the rest, and the steps after it compute these columns alone (Chipmunk;
 * DeltaDiT). A layer is attention and an MLP. A full step of its attention, all of it on the device:
 *
 *     run, dense        o, lse, and column sums of groups of queries by the lse of the full step before
 *     tess_select       the KEEP columns of each group with the largest sums, and the first ones
 *     tess_columns_convert   packs them to bits: what a layer keeps between steps
 *     run, kept         o and lse over these columns
 *     tess_unmerge      o and lse over all others: the cached base
 *
 * A sparse step fills lists from the bits and runs over them with the base, which it joins. The MLP follows, over what
 * attention left:
 *
 *     full      all hidden columns: o, and the hidden layer's activations, into caches; means of groups of tokens
 *     choose    means of groups again. A column's score is how far fc1 of the mean has moved from the cached one, to
 *               either side; tess_select keeps as many columns of both sides
 *     sparse    a delta over the kept columns, which brings o and the cached activations up to date
 *
 * Each kind of step is a list of calls for all layers for either half, and on CUDA a captured graph. Queries, keys and
 * values are those of a real model (examples/data), which drift: each step turns them towards those of another head.
 * TEXTS texts follow one another, each a part of a turn ahead. Weights of the MLPs are drawn. To build it:
 *
 *     cc denoise.c $(pkg-config --cflags --libs tessera) -lm
 *     cc -DEXAMPLE_CUDA -DTEXTS=16 denoise.c $(pkg-config --cflags --libs tessera) -lm -lcudart
 *     ./a.out data/minilm.safetensors [DRIFT [STEPS [STILL]]]
 *
 * Errors are of attention, of the MLP over the same tokens, and of both. Answers 0 if steps differ from dense ones by
 * little, by nothing more without drift, and column sums by today's lse add up to the queries.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deltas.h"

#ifndef TEXTS
#define TEXTS 1
#endif
enum { LAYERS = 2, HEADS = 12, DIM = 32, REFRESH = 10, CHOOSE_EACH = 5 };
enum { TEXT = 512, TOKENS = TEXTS * TEXT, WORDS = TOKENS / 64 };
enum { GROUP = TEXTS > 1 ? 128 : 64, GROUPS = TOKENS / GROUP, KEEP = TOKENS * 3 / 16, FORCED = 4 };
enum {
    WIDTH = HEADS * DIM,
    HIDDEN = 4 * WIDTH,
    KEEP_HIDDEN = HIDDEN * 3 / 10,
    HIDDEN_WORDS = HIDDEN / 64
};

typedef uint16_t f16;
typedef f16 tokens[HEADS][TOKENS][DIM];
typedef f16 outputs[TOKENS][HEADS][DIM]; /* a token's heads side by side: rows of the MLP */
typedef float rows[HEADS][TOKENS];

#include "minilm.h"

/* Tensors of a layer, in the memory of the backend; here the host sees it too. */
struct memory {
    tokens q, k, v;
    outputs o, kept_o, base_o;
    rows lse, reference, kept_lse, base_lse;
    float sums[HEADS][GROUPS][TOKENS];
    int32_t indices[HEADS][GROUPS][KEEP], counts[HEADS][GROUPS];
    uint64_t bits[HEADS][GROUPS][WORDS];
    struct {
        f16 w1[HIDDEN][WIDTH], w2[HIDDEN][WIDTH], bias[HIDDEN], bias_out[WIDTH];
        f16 moved[HIDDEN][2]
                 [WIDTH]; /* w1 and -w1: fc1 of today's mean, less that of the cached one */
        outputs o, dense_o;
        f16 hidden[HIDDEN][TOKENS];      /* cached activations */
        f16 means[GROUPS][2][WIDTH];     /* today's, and those of the full step */
        float scores[2][GROUPS][HIDDEN]; /* to either side */
        uint64_t bits[2][GROUPS][HIDDEN_WORDS];
    } mlp;
};

/* Plans, which layers share, and what serves one run at a time. */
static tess_plan *dense_plan, *kept_plan, *dense_mlp, *kept_mlp;
static void *workspace, *dense_image, *kept_image, *dense_mlp_image, *kept_mlp_image;
static size_t workspace_size;
static struct memory *layers[LAYERS];

/* ---- steps ---- */

static tess_tensor view(tokens x) {
    return tess_tensor_bhnd(x, TESS_F16, 1, HEADS, TOKENS, DIM);
}
static tess_tensor view_outputs(outputs x) {
    return tess_tensor_bnhd(x, TESS_F16, 1, TOKENS, HEADS, DIM);
}
static tess_tensor matrix(const void *x, int64_t n, int64_t dim) {
    return tess_tensor_bhnd(x, TESS_F16, 1, 1, n, dim);
}
static tess_tensor view_rows(rows x) {
    return tess_tensor_bhnd(x, TESS_F32, 1, HEADS, TOKENS, 1);
}

/* A run of a layer's q, k and v; its o and lse may be those of a part. */
struct run {
    tess_tensor q, k, v, o, lse, base_o, base_lse, reference, sums;
    tess_arguments arguments;
};

static void run_begin(struct run *r, struct memory *m, outputs o, rows lse) {
    r->q = view(m->q), r->k = view(m->k), r->v = view(m->v), r->o = view_outputs(o);
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

/* The rest of a dense run, as the base of the steps to come; and its lse as the next reference. */
static void cache(struct memory *m, tess_stream stream) {
    tess_error error = tess_error_init();
    struct run r;
    const tess_tensor o = view_outputs(m->o), lse = view_rows(m->lse),
                      kept_o = view_outputs(m->kept_o), kept_lse = view_rows(m->kept_lse),
                      base_o = view_outputs(m->base_o), base_lse = view_rows(m->base_lse),
                      reference = view_rows(m->reference);
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
        const tess_tensor sums =
            tess_tensor_bhnd(layers[l]->sums, TESS_F32, 1, HEADS, GROUPS, TOKENS);
        columns_choose(&sums, KEEP, FORCED, layers[l]->indices[0][0], layers[l]->counts[0],
                       layers[l]->bits[0][0], stream);
        cache(layers[l], stream);
    }
}

static void sparse(const void *none, tess_stream stream) {
    (void)none;
    for (int l = 0; l < LAYERS; l++) {
        struct memory *m = layers[l];
        struct run r;
        run_begin(&r, m, m->o, m->lse);
        r.base_o = view_outputs(m->base_o), r.base_lse = view_rows(m->base_lse);
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

/* ---- the MLP's ---- */

/* A run of a layer's MLP over its attention's o; hidden and base_o where caches are written. */
struct mlp_run {
    tess_tensor x, w1, w2, o, bias, bias_out, hidden;
    tess_arguments arguments;
};

static void mlp_begin(struct mlp_run *r, struct memory *m, outputs o, int caches) {
    r->x = matrix(m->o, TOKENS, WIDTH), r->o = matrix(o, TOKENS, WIDTH);
    r->w1 = matrix(m->mlp.w1, HIDDEN, WIDTH), r->w2 = matrix(m->mlp.w2, HIDDEN, WIDTH);
    r->bias = matrix(m->mlp.bias, 1, HIDDEN), r->bias_out = matrix(m->mlp.bias_out, 1, WIDTH);
    r->hidden = matrix(m->mlp.hidden, HIDDEN, TOKENS);
    r->arguments = tess_arguments_init();
    r->arguments.q = &r->x, r->arguments.k = &r->w1, r->arguments.v = &r->w2;
    r->arguments.o = &r->o, r->arguments.bias = &r->bias, r->arguments.bias_out = &r->bias_out;
    r->arguments.activations = caches ? &r->hidden : NULL;
    r->arguments.workspace = workspace, r->arguments.workspace_size = workspace_size;
}

static void dense_mlp_run(struct memory *m, outputs o, int caches, tess_stream stream) {
    tess_error error = tess_error_init();
    struct mlp_run r;
    mlp_begin(&r, m, o, caches);
    r.arguments.image = dense_mlp_image;
    r.arguments.image_size = tess_plan_image_size(dense_mlp);
    require(tess_run(dense_mlp, &r.arguments, &error, stream), &error);
}

/* Means of groups of tokens; at: 0 today's, 1 those of a full step. */
static void mean(struct memory *m, int at, tess_stream stream) {
    tess_error error = tess_error_init();
    tess_pooling pooling = tess_pooling_init();
    const tess_tensor x = matrix(m->o, TOKENS, WIDTH);
    tess_tensor means = matrix(m->mlp.means[0][at], GROUPS, WIDTH);
    means.stride[2] = 2 * WIDTH;
    pooling.block = GROUP;
    require(tess_pool(backend, &pooling, &x, &means, &error, stream), &error);
}

/* Scores to one side, and the `keep` columns with the largest, beside those of `before`, to bits. */
static void choose_side(struct memory *m, int side, int64_t keep, const uint64_t *before,
                        tess_stream stream) {
    tess_error error = tess_error_init();
    tess_scoring scoring = tess_scoring_init();
    tess_selection selection = tess_selection_init();
    tess_selected selected = tess_selected_init();
    const tess_tensor q = matrix(m->mlp.means, GROUPS, 2 * WIDTH),
                      k = matrix(m->mlp.moved, HIDDEN, 2 * WIDTH),
                      scores =
                          tess_tensor_bhnd(m->mlp.scores[side], TESS_F32, 1, 1, GROUPS, HIDDEN);
    scoring.scale = side ? -1 : 1;
    require(tess_pool_score(backend, &scoring, &q, &k, &scores, &error, stream), &error);
    selection.k = keep, selection.keep = before, selection.keep_rows = before ? GROUPS : 0;
    selected.capacity = keep, selected.bits = m->mlp.bits[side][0];
    require(tess_select(backend, &selection, &scores, &selected, &error, stream), &error);
}

static tess_device_pattern hidden_pattern(struct memory *m) {
    tess_device_pattern p = tess_device_pattern_init();
    p.form = TESS_BLOCK_BITS, p.n_q = TOKENS, p.n_kv = HIDDEN, p.block_q = GROUP, p.block_kv = 1;
    p.batch = p.heads = 1, p.capacity = (int64_t)GROUPS * KEEP_HIDDEN;
    p.bits = m ? m->mlp.bits[1][0] : NULL;
    return p;
}

static void full_mlp(const void *none, tess_stream stream) {
    (void)none;
    for (int l = 0; l < LAYERS; l++) {
        dense_mlp_run(layers[l], layers[l]->mlp.o, 1, stream);
        mean(layers[l], 1, stream);
    }
}

static void sparse_mlp(const void *none, tess_stream stream) {
    (void)none;
    for (int l = 0; l < LAYERS; l++) {
        struct memory *m = layers[l];
        tess_error error = tess_error_init();
        const tess_device_pattern pattern = hidden_pattern(m);
        struct mlp_run r;
        mlp_begin(&r, m, m->mlp.o, 1);
        r.arguments.base = TESS_BASE_ADD, r.arguments.base_o = &r.o;
        require(tess_plan_fill_run(kept_mlp, &pattern, kept_mlp_image,
                                   tess_plan_image_size(kept_mlp), NULL, &r.arguments, &error,
                                   stream),
                &error);
    }
}

static void choose_mlp(const void *none, tess_stream stream) {
    for (int l = 0; l < LAYERS; l++) {
        struct memory *m = layers[l];
        mean(m, 0, stream);
        choose_side(m, 0, KEEP_HIDDEN / 2, NULL, stream);
        choose_side(m, 1, KEEP_HIDDEN, m->mlp.bits[0][0], stream);
    }
    sparse_mlp(none, stream);
}

static void dense_mlp_step(const void *none, tess_stream stream) {
    (void)none;
    for (int l = 0; l < LAYERS; l++)
        dense_mlp_run(layers[l], layers[l]->mlp.dense_o, 0, stream);
}

enum { FULL, CHOOSE, SPARSE, DENSE, KINDS };
enum { ATTENTION, MLP, HALVES };
static struct step kinds[KINDS][HALVES] = {{{full, NULL, NULL}, {full_mlp, NULL, NULL}},
                                           {{sparse, NULL, NULL}, {choose_mlp, NULL, NULL}},
                                           {{sparse, NULL, NULL}, {sparse_mlp, NULL, NULL}},
                                           {{dense, NULL, NULL}, {dense_mlp_step, NULL, NULL}}};
static const char *const kind_names[KINDS] = {"full", "choose", "sparse", "dense"};

static double kind_ms(int kind, int half) {
    for (int l = 0; l < LAYERS; l++)
        bring(layers[l], sizeof *layers[l]);
    return launch_ms(&kinds[kind][half]);
}

static void *image_make(const tess_plan *plan) {
    tess_error error = tess_error_init();
    const size_t size = tess_plan_image_size(plan);
    void *image = size ? allocate(size) : NULL;
    require(tess_plan_upload(plan, image, size, &error, NULL), &error);
    return image;
}

static void plans_make(void) {
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_target target = tess_target_init();
    const tess_device_pattern kept = kept_pattern(NULL), hidden = hidden_pattern(NULL);
    problem.batch = 1, problem.heads_q = problem.heads_kv = HEADS;
    problem.n_q = problem.n_kv = TOKENS, problem.d_qk = problem.d_v = DIM, problem.type = TESS_F16;
    require(tess_target_query(&target, backend, -1, &error), &error);
    plans_of_layer(&dense_plan, &kept_plan, problem, &kept, GROUP, GROUP, &target);
    problem.operation = TESS_MLP, problem.activation = TESS_GELU_TANH;
    problem.heads_q = problem.heads_kv = 1;
    problem.n_kv = HIDDEN, problem.d_qk = problem.d_v = WIDTH;
    require(tess_plan_create(&dense_mlp, &problem, NULL, &target, &error), &error);
    require(tess_plan_reserve(&kept_mlp, &problem, &hidden, &target, &error), &error);
    const tess_plan *const plans[] = {dense_plan, kept_plan, dense_mlp, kept_mlp};
    for (int p = 0; p < 4; p++)
        if (tess_plan_workspace_size(plans[p]) > workspace_size)
            workspace_size = tess_plan_workspace_size(plans[p]);
    workspace = allocate(workspace_size);
    dense_image = image_make(dense_plan), dense_mlp_image = image_make(dense_mlp);
    kept_image = allocate(tess_plan_image_size(kept_plan));
    kept_mlp_image = allocate(tess_plan_image_size(kept_mlp));
}

/* ---- the model's part ---- */

static void weights_draw(struct memory *m) {
    const float range = sqrtf(3.0f / WIDTH);
    for (int f = 0; f < HIDDEN; f++) {
        m->mlp.bias[f] = narrow(drawn(0.1f));
        for (int d = 0; d < WIDTH; d++) {
            const float w = drawn(4 * range);
            m->mlp.w1[f][d] = m->mlp.moved[f][0][d] = narrow(w);
            m->mlp.moved[f][1][d] = narrow(-w);
            m->mlp.w2[f][d] = narrow(drawn(range / 2));
        }
    }
    for (int d = 0; d < WIDTH; d++)
        m->mlp.bias_out[d] = narrow(drawn(0.1f));
}

/* Heads of layer l at an angle between those of two heads of the model. */
static void project(int l, double angle) {
    tokens *const to[] = {&layers[l]->q, &layers[l]->k, &layers[l]->v};
    for (int n = 0; n < TOKENS; n++) {
        const double turned = angle + 0.1 * (n / TEXT);
        const float near = (float)cos(turned), far = (float)sin(turned);
        for (int t = 0; t < 3; t++)
            for (int h = 0; h < HEADS; h++)
                for (int d = 0; d < DIM; d++)
                    (*to[t])[h][n][d] = narrow(near * model[t][(h + l) % HEADS][n % TEXT][d] +
                                               far * model[t][(h + l + 1) % HEADS][n % TEXT][d]);
    }
}

/* ---- what is told and checked ---- */

/* Norm of the difference of two outputs, of the second's. */
static double difference(outputs a, outputs b) {
    double error = 0, size = 0;
    for (int n = 0; n < TOKENS; n++)
        for (int h = 0; h < HEADS; h++)
            for (int d = 0; d < DIM; d++) {
                const double x = (double)wide(a[n][h][d]), y = (double)wide(b[n][h][d]);
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
static double denoise(double drift, int steps) {
    static outputs o[LAYERS], mlp_o[LAYERS];
    double worst = 0;
    printf("drift %g\n%4s %6s %9s %26s %26s %26s\n%51s %8s %8s %8s %8s %8s %8s %8s %8s\n", drift,
           "step", "kind", "kept mass", "error", "ms", "speed-up", "attn", "mlp", "both", "attn",
           "mlp", "both", "attn", "mlp", "both");
    for (int step = 0; step < steps; step++) {
        const int since = step % REFRESH;
        const int kind = since == 0 ? FULL : since % CHOOSE_EACH == 1 ? CHOOSE : SPARSE;
        double mass = 0, error[3] = {0}, ms[KINDS][HALVES] = {{0}};
        for (int l = 0; l < LAYERS && (step == 0 || drift != 0); l++)
            project(l, drift * step);
        for (int k = 0; k < KINDS * HALVES && step == 0;
             k++) /* makes graphs, and today's lse the reference */
            launch(&kinds[k / HALVES][k % HALVES]);
        for (int half = 0; half < HALVES; half++)
            ms[kind][half] = kind_ms(kind, half);
        ms[DENSE][MLP] = kind_ms(DENSE, MLP); /* over what this step's attention left */
        for (int l = 0; l < LAYERS; l++) {
            mass += kept_mass(layers[l]) / LAYERS;
            error[MLP] = fmax(error[MLP], difference(layers[l]->mlp.o, layers[l]->mlp.dense_o));
            memcpy(o[l], layers[l]->o, sizeof o[l]);
            memcpy(mlp_o[l], layers[l]->mlp.o, sizeof mlp_o[l]);
        }
        for (int half = 0; half < HALVES; half++)
            ms[DENSE][half] = kind_ms(DENSE, half);
        for (int l = 0; l < LAYERS; l++) {
            error[ATTENTION] = fmax(error[ATTENTION], difference(o[l], layers[l]->o));
            error[HALVES] = fmax(error[HALVES], difference(mlp_o[l], layers[l]->mlp.dense_o));
        }
        const double *now = ms[kind], *whole = ms[DENSE];
        const double both = now[0] + now[1], whole_both = whole[0] + whole[1];
        printf("%4d %6s %9.4f %8.2g %8.2g %8.2g %8.3f %8.3f %8.3f %8.2f %8.2f %8.2f\n", step,
               kind_names[kind], mass, error[0], error[1], error[2], now[0], now[1], both,
               whole[0] / now[0], whole[1] / now[1], whole_both / both);
        for (int e = 0; e <= HALVES; e++)
            worst = fmax(worst, error[e]);
    }
    return worst;
}

int main(int argc, char **argv) {
    if (tess_device_count(backend) < 1) {
        printf("no device\n");
        return 77;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: %s minilm.safetensors [DRIFT [STEPS [STILL]]]\n", argv[0]);
        return EXIT_FAILURE;
    }
    const int steps = argc > 3 ? atoi(argv[3]) : 11;
    const int still_steps = argc > 4 ? atoi(argv[4]) : steps; /* which change nothing */
    model_read(argv[1]);
    for (int l = 0; l < LAYERS; l++) {
        layers[l] = allocate(sizeof *layers[l]);
        memset(layers[l], 0, sizeof *layers[l]);
        weights_draw(layers[l]);
    }
    plans_make();
    const double still = denoise(0, still_steps), missing = mass_missing(layers[LAYERS - 1]);
    const double moved = denoise(argc > 2 ? atof(argv[2]) : 0.01, steps);
    printf("without drift steps differ from dense ones by %.2g, column sums from queries by %.2g; "
           "with it by %.2g\n",
           still, missing, moved);
    tess_plan *const plans[] = {dense_plan, kept_plan, dense_mlp, kept_mlp};
    void *const images[] = {dense_image, kept_image, dense_mlp_image, kept_mlp_image, workspace};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
        tess_plan_free(plans[p]);
    for (int l = 0; l < LAYERS; l++)
        release(layers[l]);
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        if (images[i])
            release(images[i]);
    return still < 2e-3 && missing < 1e-3 && moved < 0.2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
