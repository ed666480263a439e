/* Patterns of chosen blocks: pooled blocks, their scores and the choice, on the CPU. */
#include "cli/pattern_select.h"

#include <stdlib.h>
#include <string.h>

#include "io/tensor_file.h"
#include "lab/case/choice.h"

/* A choice under way. */
struct choosing {
    tess_selection selection;
    tess_pattern_shape *shape;
    tess_tensor scores;
    struct tensor_file file; /* has the scores, or none */
    void *memory[4];         /* scores and what they come from; indices and counts: the last two */
    int64_t capacity;
};
enum { INDICES = 2, COUNTS };

static int64_t blocks_of(int64_t n, int64_t block) {
    return (n + block - 1) / block;
}

static bool room(void **memory, int64_t count, size_t size, struct reason *reason) {
    size_t bytes;
    if (!__builtin_mul_overflow((size_t)count, size, &bytes))
        *memory = malloc(bytes ? bytes : 1);
    return *memory || reason_set(reason, "out of memory for the choice of blocks");
}

/* Scores of a file: their last two axes are block rows and block columns. */
static bool scores_open(struct choosing *c, const char *name, const struct pattern_sizes *sizes,
                        struct reason *reason) {
    char text[SHAPE_TEXT];
    if (!tensor_file_open(&c->file, name, reason))
        return false;
    const struct tensor *t = &c->file.tensor;
    const int type = element_storage(t->type);
    if (type < 0 || t->rank < 2 || t->rank > 4 || t->size == 0)
        return reason_set(
            reason, "%.200s: %s %s; scores are f16, bf16 or f32 [Nq,Nk], [H,Nq,Nk] or [B,H,Nq,Nk]",
            name, element_name(t->type), tensor_shape_text(t, text));
    int64_t size[4] = {1, 1, 1, 1};
    memcpy(size + 4 - t->rank, t->shape, (size_t)t->rank * sizeof *size);
    c->scores = tess_tensor_bhnd(t->data, (tess_type)type, size[0], size[1], size[2], size[3]);
    c->shape->n_q = sizes->n_q ? sizes->n_q : size[2] * c->shape->block_q;
    c->shape->n_kv = sizes->n_kv ? sizes->n_kv : size[3] * c->shape->block_kv;
    return (size[2] == blocks_of(c->shape->n_q, c->shape->block_q) &&
            size[3] == blocks_of(c->shape->n_kv, c->shape->block_kv)) ||
           reason_set(reason,
                      "%.200s: %lld by %lld scores; %lld queries and %lld keys have %lld by "
                      "%lld blocks",
                      name, (long long)size[2], (long long)size[3], (long long)c->shape->n_q,
                      (long long)c->shape->n_kv,
                      (long long)blocks_of(c->shape->n_q, c->shape->block_q),
                      (long long)blocks_of(c->shape->n_kv, c->shape->block_kv));
}

static bool pool(struct choosing *c, int place, const tess_tensor *x, int64_t block,
                 tess_tensor *pooled, struct reason *reason) {
    tess_error error = tess_error_init();
    tess_pooling pooling = tess_pooling_init();
    const int64_t *n = x->size, blocks = blocks_of(n[2], block);
    pooling.block = block;
    if (!room(&c->memory[place], n[0] * n[1] * blocks * n[3], sizeof(float), reason))
        return false;
    *pooled = tess_tensor_bhnd(c->memory[place], TESS_F32, n[0], n[1], blocks, n[3]);
    return tess_pool(TESS_CPU, &pooling, x, pooled, &error, NULL) == TESS_OK ||
           reason_set_error(reason, &error);
}

/* Scores of the means of blocks of queries and keys, for each query head. */
static bool scores_make(struct choosing *c, const tess_tensor *q, const tess_tensor *k,
                        struct reason *reason) {
    tess_error error = tess_error_init();
    tess_scoring scoring = tess_scoring_init();
    tess_tensor pooled_q, pooled_k;
    void *scores = NULL;
    const int64_t rows = blocks_of(q->size[2], c->shape->block_q);
    const int64_t cols = blocks_of(k->size[2], c->shape->block_kv);
    scoring.block_q = c->shape->block_q, scoring.block_kv = c->shape->block_kv;
    scoring.n_q = c->shape->n_q = q->size[2], scoring.n_kv = c->shape->n_kv = k->size[2];
    scoring.causal = c->selection.causal;
    bool done = pool(c, 0, q, c->shape->block_q, &pooled_q, reason) &&
                pool(c, 1, k, c->shape->block_kv, &pooled_k, reason) &&
                room(&scores, q->size[0] * q->size[1] * rows * cols, sizeof(float), reason);
    c->scores = tess_tensor_bhnd(scores, TESS_F32, q->size[0], q->size[1], rows, cols);
    done = done && (tess_pool_score(TESS_CPU, &scoring, &pooled_q, &pooled_k, &c->scores, &error,
                                    NULL) == TESS_OK ||
                    reason_set_error(reason, &error));
    free(c->memory[0]);
    free(c->memory[1]);
    c->memory[0] = scores, c->memory[1] = NULL;
    return done;
}

static bool choose(struct choosing *c, const struct pattern_sizes *sizes, struct reason *reason) {
    tess_error error = tess_error_init();
    tess_selected selected = tess_selected_init();
    tess_selection *s = &c->selection;
    const int64_t *n = c->scores.size, rows = n[0] * n[1] * n[2];
    s->block_q = c->shape->block_q, s->block_kv = c->shape->block_kv;
    s->n_q = c->shape->n_q, s->n_kv = c->shape->n_kv;
    s->k = s->k < n[3] ? s->k : n[3];
    c->capacity = s->mode == TESS_SELECT_EXACT ? s->k : n[3];
    c->shape->batch = n[0], c->shape->heads = n[1];
    if (!pattern_options_fit(c->shape, sizes, reason) ||
        !room(&c->memory[INDICES], rows * c->capacity, sizeof(int32_t), reason) ||
        !room(&c->memory[COUNTS], rows, sizeof(int32_t), reason))
        return false;
    selected.capacity = c->capacity;
    selected.indices = c->memory[INDICES], selected.counts = c->memory[COUNTS];
    return tess_select(TESS_CPU, s, &c->scores, &selected, &error, NULL) == TESS_OK ||
           reason_set_error(reason, &error);
}

/* The blocks as a pattern, which a causal choice cuts at the diagonal. */
static bool blocks_make(tess_pattern **pattern, const struct choosing *c, struct reason *reason) {
    tess_error error = tess_error_init();
    tess_pattern *blocks, *causal = NULL;
    tess_status status = tess_pattern_from_counts(&blocks, c->memory[INDICES], c->memory[COUNTS],
                                                  c->capacity, c->shape, &error);
    if (!status && !c->selection.causal) {
        *pattern = blocks;
        return true;
    }
    if (!status)
        status = tess_pattern_from_spec(&causal, "causal", c->shape, &error);
    if (!status)
        status = tess_pattern_intersection(pattern, blocks, causal, &error);
    tess_pattern_free(causal);
    tess_pattern_free(blocks);
    return status == TESS_OK || reason_set_error(reason, &error);
}

bool pattern_select_make(tess_pattern **pattern, const struct pattern_options *options,
                         tess_pattern_shape *shape, const struct pattern_sizes *sizes,
                         struct reason *reason) {
    struct choosing c = {.shape = shape};
    char why[LAB_WHY];
    shape->block_q = shape->block_q ? shape->block_q : 64;
    shape->block_kv = shape->block_kv ? shape->block_kv : 64;
    if (lab_choice_parse(&c.selection, options->text[FROM_SELECT], why))
        return reason_set(reason, "--select %s", why);
    if (!options->scores && (!options->q || !options->k))
        return reason_set(reason, "--select needs --scores, or --q and --k");
    const bool done = (options->scores ? scores_open(&c, options->scores, sizes, reason)
                                       : scores_make(&c, options->q, options->k, reason)) &&
                      choose(&c, sizes, reason) && blocks_make(pattern, &c, reason);
    tensor_file_close(&c.file);
    for (size_t i = 0; i < sizeof c.memory / sizeof *c.memory; i++)
        free(c.memory[i]);
    return done;
}
