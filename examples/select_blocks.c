/*
 * Blocks of keys that a layer chooses for itself, as MoBA and its like do (arXiv:2502.13189): queries and keys are
 * pooled by blocks, pairs of blocks scored, the best KEEP blocks of each block row chosen, causal, and attention runs
 * over them. Nothing comes to the host on the way: five calls, which on CUDA one captured graph replays over new
 * tensors. The first block and each row's own are kept whatever their scores. To build it:
 *
 *     cc select_blocks.c $(pkg-config --cflags --libs tessera) -lm
 *     cc -DEXAMPLE_CUDA select_blocks.c $(pkg-config --cflags --libs tessera) -lm -lcudart
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "either.h"

enum { HEADS = 4, HEADS_KV = 2, TOKENS = 1000, DIM = 64, BLOCK = 64, KEEP = 5, STEPS = 4 };
enum { BLOCKS = (TOKENS + BLOCK - 1) / BLOCK };

typedef uint16_t bf16;

/* In the memory of the backend; here the host sees it too. */
static bf16 (*q)[TOKENS][DIM], (*k)[TOKENS][DIM], (*v)[TOKENS][DIM], (*o)[TOKENS][DIM];
static float (*pooled_q)[BLOCKS][DIM], (*pooled_k)[BLOCKS][DIM], (*scores)[BLOCKS][BLOCKS];
static int32_t (*indices)[BLOCKS][KEEP], (*counts)[BLOCKS];

/* ---- the layer ---- */

/* Declarations, made once. */
struct layer {
    tess_pooling pooling;
    tess_scoring scoring;
    tess_selection selection;
    tess_selected selected;
    tess_device_pattern pattern;
    tess_tensor q, k, v, o, pooled_q, pooled_k, scores;
    tess_plan *plan;
    tess_arguments arguments;
    void *image;
};

/* A step: from q, k and v to o, in the order of the stream. */
static void give(const void *context, tess_stream stream) {
    const struct layer *l = context;
    tess_error error = tess_error_init();
    require(tess_pool(backend, &l->pooling, &l->q, &l->pooled_q, &error, stream), &error);
    require(tess_pool(backend, &l->pooling, &l->k, &l->pooled_k, &error, stream), &error);
    require(tess_pool_score(backend, &l->scoring, &l->pooled_q, &l->pooled_k, &l->scores, &error,
                            stream),
            &error);
    require(tess_select(backend, &l->selection, &l->scores, &l->selected, &error, stream), &error);
    require(tess_plan_fill_run(l->plan, &l->pattern, l->image, tess_plan_image_size(l->plan), NULL,
                               &l->arguments, &error, stream),
            &error);
}

/* ---- what differs between backends: memory, and how a step is launched ---- */

static void layer_make(struct layer *l) {
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_target target = tess_target_init();
    l->pooling = tess_pooling_init(), l->pooling.block = BLOCK; /* the mean */
    l->scoring = tess_scoring_init(), l->scoring.causal = 1;
    l->scoring.block_q = l->scoring.block_kv = BLOCK;
    l->scoring.n_q = l->scoring.n_kv = TOKENS;
    l->selection = tess_selection_init(), l->selection.k = KEEP, l->selection.causal = 1;
    l->selection.keep_first = l->selection.keep_last = 1;
    l->selection.block_q = l->selection.block_kv = BLOCK;
    l->selection.n_q = l->selection.n_kv = TOKENS;
    l->selected = tess_selected_init(), l->selected.capacity = KEEP;
    l->selected.indices = indices[0][0], l->selected.counts = counts[0];
    l->pattern = tess_device_pattern_blocks(indices[0][0], counts[0], 1, HEADS, TOKENS, TOKENS,
                                            BLOCK, BLOCK, KEEP);
    l->pattern.cut_lo = INT64_MIN; /* and up to a query's own position: causal */
    l->pattern.promises = TESS_DISTINCT | TESS_ASCENDING | TESS_PADDED_LAST;

    l->q = tess_tensor_bhnd(q, TESS_BF16, 1, HEADS, TOKENS, DIM);
    l->k = tess_tensor_bhnd(k, TESS_BF16, 1, HEADS_KV, TOKENS, DIM);
    l->v = tess_tensor_bhnd(v, TESS_BF16, 1, HEADS_KV, TOKENS, DIM);
    l->o = tess_tensor_bhnd(o, TESS_BF16, 1, HEADS, TOKENS, DIM);
    l->pooled_q = tess_tensor_bhnd(pooled_q, TESS_F32, 1, HEADS, BLOCKS, DIM);
    l->pooled_k = tess_tensor_bhnd(pooled_k, TESS_F32, 1, HEADS_KV, BLOCKS, DIM);
    l->scores = tess_tensor_bhnd(scores, TESS_F32, 1, HEADS, BLOCKS, BLOCKS);
    require(tess_problem_from_tensors(&problem, &l->q, &l->k, &l->v, &l->o, &error), &error);
    require(tess_target_query(&target, backend, -1, &error), &error);
    require(tess_plan_reserve(&l->plan, &problem, &l->pattern, &target, &error), &error);

    l->arguments = tess_arguments_init();
    l->arguments.q = &l->q, l->arguments.k = &l->k, l->arguments.v = &l->v, l->arguments.o = &l->o;
    l->arguments.workspace_size = tess_plan_workspace_size(l->plan);
    l->arguments.workspace = allocate(l->arguments.workspace_size);
    l->image = allocate(tess_plan_image_size(l->plan));
}

/* ---- a model's part ---- */

static float wide(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Tensors that a model's projections would give. */
static void project(bf16 *x, size_t count) {
    static unsigned seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float y = (float)(seed >> 8) / 8388608.0f - 1.0f;
        uint32_t bits;
        memcpy(&bits, &y, sizeof bits);
        x[i] = (bf16)(bits >> 16);
    }
}

/* ---- the host's answer ---- */

static double mean(bf16 (*x)[DIM], int block, int d) {
    const int end = (block + 1) * BLOCK < TOKENS ? (block + 1) * BLOCK : TOKENS;
    double sum = 0;
    for (int i = block * BLOCK; i < end; i++)
        sum += (double)wide(x[i][d]);
    return sum / (end - block * BLOCK);
}

/* How far the scores of a block row are from the definition. */
static double scores_differ(int h, int row) {
    double most = 0;
    for (int j = 0; j < BLOCKS; j++) {
        double sum = 0;
        for (int d = 0; d < DIM; d++)
            sum += mean(q[h], row, d) * mean(k[h / (HEADS / HEADS_KV)], j, d) / sqrt(DIM);
        if (j <= row)
            most = fmax(most, fabs(sum - (double)scores[h][row][j]));
        else if (scores[h][row][j] > -INFINITY)
            return INFINITY;
    }
    return most;
}

/* Whether a block row lists the first block, its own, and of those between the ones with the highest scores. */
static int row_chosen(int h, int row) {
    const int32_t *x = indices[h][row], n = row + 1 < KEEP ? row + 1 : KEEP;
    int listed[BLOCKS] = {0};
    for (int i = 0; i < counts[h][row]; i++)
        listed[x[i]] = 1;
    if (counts[h][row] != n || !listed[0] || !listed[row])
        return 0;
    for (int in = 1; in < row; in++)
        for (int out = 1; out < row; out++)
            if (listed[in] && !listed[out] && scores[h][row][in] < scores[h][row][out])
                return 0;
    return 1;
}

/* How far the outputs are from those of a pattern of the host with the same blocks. */
static double outputs_differ(void) {
    static bf16 expected[HEADS][TOKENS][DIM];
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *blocks, *causal, *both;
    double most = 0;
    const tess_tensor tq = tess_tensor_bhnd(q, TESS_BF16, 1, HEADS, TOKENS, DIM);
    const tess_tensor tk = tess_tensor_bhnd(k, TESS_BF16, 1, HEADS_KV, TOKENS, DIM);
    const tess_tensor tv = tess_tensor_bhnd(v, TESS_BF16, 1, HEADS_KV, TOKENS, DIM);
    const tess_tensor to = tess_tensor_bhnd(expected, TESS_BF16, 1, HEADS, TOKENS, DIM);
    shape.n_q = TOKENS, shape.block_q = shape.block_kv = BLOCK, shape.heads = HEADS;
    require(tess_pattern_from_counts(&blocks, indices[0][0], counts[0], KEEP, &shape, &error),
            &error);
    require(tess_pattern_from_spec(&causal, "causal", &shape, &error), &error);
    require(tess_pattern_intersection(&both, blocks, causal, &error), &error);
    require(tess_attention(TESS_CPU, &tq, &tk, &tv, both, &to, NULL, &error), &error);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < TOKENS; i++)
            for (int d = 0; d < DIM; d++)
                most = fmax(most, fabs((double)wide(o[h][i][d]) - (double)wide(expected[h][i][d])));
    tess_pattern_free(blocks);
    tess_pattern_free(causal);
    tess_pattern_free(both);
    return most;
}

int main(void) {
    struct layer layer;
    struct step step = {give, &layer, NULL};
    double worst_score = 0, worst = 0;
    int wrong = 0;
    if (tess_device_count(backend) < 1) {
        printf("no device\n");
        return 77;
    }
    q = allocate(HEADS * sizeof *q), o = allocate(HEADS * sizeof *o);
    k = allocate(HEADS_KV * sizeof *k), v = allocate(HEADS_KV * sizeof *v);
    pooled_q = allocate(HEADS * sizeof *pooled_q), pooled_k = allocate(HEADS_KV * sizeof *pooled_k);
    scores = allocate(HEADS * sizeof *scores);
    indices = allocate(HEADS * sizeof *indices), counts = allocate(HEADS * sizeof *counts);
    layer_make(&layer);
    for (int n = 0; n < STEPS; n++) {
        project(q[0][0], HEADS * sizeof *q / sizeof(bf16));
        project(k[0][0], HEADS_KV * sizeof *k / sizeof(bf16));
        project(v[0][0], HEADS_KV * sizeof *v / sizeof(bf16));
        launch(&step);
        for (int h = 0; h < HEADS; h++)
            for (int row = 0; row < BLOCKS; row++) {
                worst_score = fmax(worst_score, scores_differ(h, row));
                wrong += !row_chosen(h, row);
            }
        worst = fmax(worst, outputs_differ());
    }
    printf(
        "%d steps by one plan: %d of %d blocks for each of %d block rows, %d rows chosen wrongly; "
        "scores differ from the definition by %.2g, outputs from patterns of the host by %.2g at "
        "most\n",
        STEPS, KEEP, BLOCKS, HEADS * BLOCKS, wrong, worst_score, worst);
    tess_plan_free(layer.plan);
    void *const all[] = {q,          k,      v,       o,      pooled_q,
                         pooled_k,   scores, indices, counts, layer.arguments.workspace,
                         layer.image};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(all[i]);
    return worst_score < 1e-5 && worst < 1e-2 && !wrong ? EXIT_SUCCESS : EXIT_FAILURE;
}
