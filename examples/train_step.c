/*
 * Training through two sparse attention layers, in plain C. Their parameters are the projections of
 * Q, K, V and the output; gradients of attention are plans that run tess_run, all others are loops.
 * The inputs are tensors of a real model (examples/data): 128 tokens, each with its 32 queries of one
 * head; the targets are what two other such layers answer. To build it:
 *
 *     cc train_step.c $(pkg-config --cflags --libs tessera) -lm
 *     ./a.out data/minilm.safetensors
 *
 * Answers 0 if the loss falls in each of the first 20 steps, ends under half of the first, and is the
 * same by the fused and the staged pipeline to 1e-4.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera.h>

enum { N = 128, HEADS = 2, DIM = 16, WIDTH = HEADS * DIM, LAYERS = 2, STEPS = 50, FALLING = 20 };
enum { Q, K, V, OUT, MATRICES };
static const float rate = 0.05f;

typedef float matrix[WIDTH][WIDTH];
typedef float tokens[N][WIDTH]; /* shape of q, k, v and o: [N][HEADS][DIM] */

/* Tensors that a forward keeps for the backward. */
struct layer {
    matrix w[MATRICES], d_w[MATRICES];
    tokens x, q, k, v, o, y; /* y = x + o W_out */
    float lse[HEADS][N];
};

static struct layer layers[LAYERS];
static tokens input, target;

static void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "train_step: %s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

/* ---- dense parts ---- */

/* to = from w, or added to it. */
static void multiply(tokens to, tokens from, matrix w, int add) {
    for (int i = 0; i < N; i++)
        for (int c = 0; c < WIDTH; c++) {
            float sum = add ? to[i][c] : 0;
            for (int d = 0; d < WIDTH; d++)
                sum += from[i][d] * w[d][c];
            to[i][c] = sum;
        }
}

/* Gradients of y = x w: d_w = x^T d_y, and d_x += d_y w^T. */
static void multiply_backward(matrix d_w, tokens d_x, tokens x, tokens d_y, matrix w) {
    for (int d = 0; d < WIDTH; d++)
        for (int c = 0; c < WIDTH; c++) {
            float sum = 0;
            for (int i = 0; i < N; i++)
                sum += x[i][d] * d_y[i][c];
            d_w[d][c] = sum;
        }
    for (int i = 0; i < N; i++)
        for (int d = 0; d < WIDTH; d++)
            for (int c = 0; c < WIDTH; c++)
                d_x[i][d] += d_y[i][c] * w[d][c];
}

/* ---- attention: a plan for each direction, both planned once ---- */

struct attention {
    tess_plan *forward, *backward;
    void *workspace; /* serves one run at a time */
    size_t size;
};

static tess_plan *plan_make(tess_operation operation, tess_pipeline pipeline,
                            const tess_pattern *pattern) {
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_plan *plan;
    problem.operation = operation;
    problem.pipeline = pipeline;
    problem.batch = 1, problem.heads_q = problem.heads_kv = HEADS;
    problem.n_q = problem.n_kv = N, problem.d_qk = problem.d_v = DIM;
    require(tess_plan_create(&plan, &problem, pattern, NULL, &error), &error);
    return plan;
}

static struct attention attention_make(tess_pipeline pipeline, const tess_pattern *pattern) {
    struct attention a = {plan_make(TESS_ATTENTION, pipeline, pattern),
                          plan_make(TESS_ATTENTION_BACKWARD, pipeline, pattern), NULL, 0};
    const size_t one = tess_plan_workspace_size(a.forward);
    const size_t other = tess_plan_workspace_size(a.backward);
    a.size = ((one > other ? one : other) + 63) / 64 * 64;
    a.workspace = a.size ? aligned_alloc(64, a.size) : NULL;
    if (a.size && !a.workspace) {
        fprintf(stderr, "train_step: out of memory\n");
        exit(EXIT_FAILURE);
    }
    return a;
}

static void attention_free(struct attention *a) {
    tess_plan_free(a->forward);
    tess_plan_free(a->backward);
    free(a->workspace);
}

static tess_tensor view(tokens x) {
    return tess_tensor_bnhd(x, TESS_F32, 1, N, HEADS, DIM);
}

/* grad NULL: the forward, of l's q, k and v to its o and lse; else gradients, of d_o to d_q, d_k and d_v. */
struct attention_gradients {
    tokens d_o, d_q, d_k, d_v;
};

static void attend(const struct attention *a, struct layer *l, struct attention_gradients *grad) {
    tess_error error = tess_error_init();
    tess_arguments run = tess_arguments_init();
    const tess_tensor q = view(l->q), k = view(l->k), v = view(l->v), o = view(l->o);
    const tess_tensor lse = tess_tensor_bhnd(l->lse, TESS_F32, 1, HEADS, N, 1);
    tess_tensor d_o, d_q, d_k, d_v;
    run.q = &q, run.k = &k, run.v = &v, run.o = &o, run.lse = &lse;
    run.workspace = a->workspace, run.workspace_size = a->size;
    if (grad) {
        d_o = view(grad->d_o), d_q = view(grad->d_q), d_k = view(grad->d_k), d_v = view(grad->d_v);
        run.d_o = &d_o, run.d_q = &d_q, run.d_k = &d_k, run.d_v = &d_v;
    }
    require(tess_run(grad ? a->backward : a->forward, &run, &error, NULL), &error);
}

/* ---- the network ---- */

static void layer_forward(const struct attention *a, struct layer *l, tokens x) {
    memcpy(l->x, x, sizeof l->x);
    multiply(l->q, l->x, l->w[Q], 0);
    multiply(l->k, l->x, l->w[K], 0);
    multiply(l->v, l->x, l->w[V], 0);
    attend(a, l, NULL);
    memcpy(l->y, l->x, sizeof l->y);
    multiply(l->y, l->o, l->w[OUT], 1);
}

/* d: the gradient of y, which becomes that of x. */
static void layer_backward(const struct attention *a, struct layer *l, tokens d) {
    static struct attention_gradients g;
    memset(g.d_o, 0, sizeof g.d_o);
    multiply_backward(l->d_w[OUT], g.d_o, l->o, d,
                      l->w[OUT]); /* d stays, for the skip connection */
    attend(a, l, &g);
    multiply_backward(l->d_w[Q], d, l->x, g.d_q, l->w[Q]);
    multiply_backward(l->d_w[K], d, l->x, g.d_k, l->w[K]);
    multiply_backward(l->d_w[V], d, l->x, g.d_v, l->w[V]);
}

static void network_forward(const struct attention *a) {
    for (int l = 0; l < LAYERS; l++)
        layer_forward(a, &layers[l], l == 0 ? input : layers[l - 1].y);
}

/* The mean square of what the last layer lacks of the target; d becomes its gradient. */
static double loss(tokens d) {
    double sum = 0;
    for (int i = 0; i < N; i++)
        for (int c = 0; c < WIDTH; c++) {
            const float miss = layers[LAYERS - 1].y[i][c] - target[i][c];
            sum += (double)(miss * miss);
            d[i][c] = 2 * miss / (N * WIDTH);
        }
    return sum / (N * WIDTH);
}

/* Small numbers, for which a seed is the same everywhere. */
static void draw(unsigned seed, float size) {
    for (int l = 0; l < LAYERS; l++)
        for (int m = 0; m < MATRICES; m++)
            for (int x = 0; x < WIDTH * WIDTH; x++) {
                seed = seed * 1664525u + 1013904223u;
                layers[l].w[m][x / WIDTH][x % WIDTH] =
                    size * ((float)(seed >> 8) / 8388608.0f - 1.0f);
            }
}

static void descend(void) {
    for (int l = 0; l < LAYERS; l++)
        for (int m = 0; m < MATRICES; m++)
            for (int x = 0; x < WIDTH * WIDTH; x++)
                layers[l].w[m][x / WIDTH][x % WIDTH] -=
                    rate * layers[l].d_w[m][x / WIDTH][x % WIDTH];
}

/* Targets from two layers of another seed, then training from a seed of its own. */
static void train(double losses[STEPS + 1], tess_pipeline pipeline, const tess_pattern *pattern) {
    struct attention a = attention_make(pipeline, pattern);
    static tokens d;
    draw(1, 0.5f);
    network_forward(&a);
    memcpy(target, layers[LAYERS - 1].y, sizeof target);
    draw(2, 0.3f);
    for (int step = 0; step <= STEPS; step++) {
        network_forward(&a);
        losses[step] = loss(d);
        for (int l = LAYERS - 1; l >= 0; l--)
            layer_backward(&a, &layers[l], d);
        descend();
    }
    attention_free(&a);
}

/* ---- the data ---- */

static float half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size =
        exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return bits >> 15 ? -size : size;
}

/* The first head of `q`, F16 [1, 12, 512, 32] at the beginning of the data. */
static void read_input(const char *path) {
    FILE *file = fopen(path, "rb");
    unsigned char length[8], row[2 * WIDTH];
    int whole = file && fread(length, 1, sizeof length, file) == sizeof length;
    const long header = whole ? length[0] + 256L * length[1] : 0;
    whole = whole && fseek(file, 8 + header, SEEK_SET) == 0;
    for (int i = 0; i < N && whole; i++) {
        whole = fread(row, 1, sizeof row, file) == sizeof row;
        for (int c = 0; c < WIDTH; c++)
            input[i][c] = 0.5f * half((uint16_t)(row[2 * c] | row[2 * c + 1] << 8));
    }
    if (file)
        fclose(file);
    if (!whole) {
        fprintf(stderr, "train_step: %s cannot be read\n", path);
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv) {
    static double fused[STEPS + 1], staged[STEPS + 1];
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    double apart = 0;
    int falls = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: train_step data/minilm.safetensors\n");
        return EXIT_FAILURE;
    }
    read_input(argv[1]);
    shape.n_q = N, shape.block_q = shape.block_kv = 16;
    require(tess_pattern_from_spec(&pattern, "longformer(48,8)&causal", &shape, &error), &error);
    train(fused, TESS_FUSED, pattern);
    train(staged, TESS_STAGED, pattern);
    tess_pattern_free(pattern);

    for (int step = 0; step <= STEPS; step++) {
        if (step % 10 == 0)
            printf("step %2d  loss %.6f fused, %.6f staged\n", step, fused[step], staged[step]);
        falls += step > 0 && step <= FALLING && fused[step] < fused[step - 1];
        const double error = fabs(fused[step] - staged[step]) / fused[step];
        apart = error <= apart ? apart : error; /* NaN too, which no later step makes good */
        if (isnan(error))
            break;
    }
    printf("the loss falls in %d of the first %d steps, ends at %.3f of the first; the pipelines "
           "differ by "
           "%.1e\n",
           falls, FALLING, fused[STEPS] / fused[0], apart);
    return falls == FALLING && fused[STEPS] < 0.5 * fused[0] && apart < 1e-4 ? EXIT_SUCCESS
                                                                             : EXIT_FAILURE;
}
