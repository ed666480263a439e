/* Patterns from options: a spec, a mask, block lists, top-k indices or chosen blocks. */
#include "cli/pattern_select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/tensor_file.h"

enum {
    KEY_FIRST = 0x1000,
    KEY_BLOCK = KEY_FIRST + PATTERN_SOURCES,
    KEY_SCORES,
    KEY_CAUSAL, /* options of other programs */
    KEY_WINDOW
};

static const struct argp_option options_table[] = {
    {NULL, 0, NULL, 0,
     "Pattern, exactly one of --pattern, --mask, --lists, --topk and --select:", 1},
    {"pattern", KEY_FIRST + FROM_SPEC, "SPEC", 0,
     "in words: terms such as causal, window(256,256), random(0.1,1), joined by + and &", 1},
    {"mask", KEY_FIRST + FROM_MASK, "M.npy", 0,
     "bool or u8 [Nq,Nk], [H,Nq,Nk] or [B,H,Nq,Nk], not 0 = listed", 1},
    {"lists", KEY_FIRST + FROM_LISTS, "L.safetensors", 0,
     "block lists row_ptr, col_idx, as --export writes them", 1},
    {"topk", KEY_FIRST + FROM_TOPK, "I.npy", 0,
     "int32 or int64 key indices [Nq,k] or [H,Nq,k], -1 = none", 1},
    {"select", KEY_FIRST + FROM_SELECT, "WORDS", 0,
     "blocks chosen of scores: topk(K), threshold(X) or top_p(P), then +first(N), +last(N), "
     "&causal",
     1},
    {"scores", KEY_SCORES, "S.npy", 0,
     "scores of blocks, [rows,columns], [H,..] or [B,H,..]; without, those of the means of q and k",
     1},
    {"block", KEY_BLOCK, "QxK", 0, "queries by keys of a block, default 64x64 (not with --topk)",
     1},
    {"causal", KEY_CAUSAL, NULL, OPTION_HIDDEN, NULL, 1},
    {"window", KEY_WINDOW, "N", OPTION_HIDDEN, NULL, 1},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct pattern_options *options = state->input;
    if (key == KEY_CAUSAL || key == KEY_WINDOW) {
        report(options->command, key == KEY_CAUSAL
                                     ? "--causal is no option: --pattern causal"
                                     : "--window is no option: --pattern 'window(left,right)'");
        return EINVAL;
    }
    if (key == KEY_SCORES)
        return argument_once(&options->scores, argument, options->command, "scores");
    if (key == KEY_BLOCK)
        return argument_once(&options->block, argument, options->command, "block");
    if (key < KEY_FIRST || key >= KEY_FIRST + PATTERN_SOURCES)
        return ARGP_ERR_UNKNOWN;
    return argument_once(&options->text[key - KEY_FIRST], argument, options->command,
                         options_table[key - KEY_FIRST + 1].name);
}

const struct argp pattern_argp = {options_table, parse, NULL, NULL, NULL, NULL, NULL};

static const char *option_name(int source) {
    return options_table[source + 1].name;
}

bool pattern_options_check(const struct pattern_options *options, struct reason *reason) {
    int named = -1;
    for (int i = 0; i < PATTERN_SOURCES; i++) {
        if (!options->text[i])
            continue;
        if (named >= 0)
            return reason_set(reason, "--%s and --%s are two patterns; give one",
                              option_name(named), option_name(i));
        named = i;
    }
    if (named < 0)
        return reason_set(reason,
                          "a pattern is needed: --pattern, --mask, --lists, --topk or --select");
    if (named != FROM_SELECT && options->scores)
        return reason_set(reason, "--scores goes with --select");
    if (named == FROM_TOPK && options->block)
        return reason_set(reason,
                          "--block goes with --pattern, --mask, --lists and --select; --topk has "
                          "blocks of 1x1");
    return true;
}

const char *pattern_options_name(const struct pattern_options *options) {
    const char *name = NULL;
    for (int i = 0; i < PATTERN_SOURCES; i++)
        name = options->text[i] ? options->text[i] : name;
    return name;
}

/* Blocks as given, or 0 x 0. */
static bool parse_block(const char *text, tess_pattern_shape *shape, struct reason *reason) {
    if (!text)
        return true;
    long long q = 0, kv = 0;
    int used = 0;
    if (strspn(text, "0123456789x") != strlen(text) || strlen(text) > 21 ||
        sscanf(text, "%lldx%lld%n", &q, &kv, &used) != 2 || text[used] || q < 1 || kv < 1)
        return reason_set(reason, "--block %s: two numbers from 1 up are needed, such as 64x64",
                          text);
    shape->block_q = q;
    shape->block_kv = kv;
    return true;
}

bool pattern_options_fit(const tess_pattern_shape *shape, const struct pattern_sizes *sizes,
                         struct reason *reason) {
    if ((sizes->n_q && shape->n_q != sizes->n_q) || (sizes->n_kv && shape->n_kv != sizes->n_kv))
        return reason_set(reason, "made for %lld queries and %lld keys, not for %lld and %lld",
                          (long long)shape->n_q, (long long)shape->n_kv,
                          (long long)(sizes->n_q ? sizes->n_q : shape->n_q),
                          (long long)(sizes->n_kv ? sizes->n_kv : shape->n_kv));
    if (sizes->batch && shape->batch != 1 && shape->batch != sizes->batch)
        return reason_set_count(reason, "batches", shape->batch, sizes->batch, sizes->batch);
    if (sizes->heads_q && shape->heads != 1 && shape->heads != sizes->heads_kv &&
        shape->heads != sizes->heads_q)
        return reason_set_count(reason, "heads", shape->heads, sizes->heads_kv, sizes->heads_q);
    return true;
}

static bool make_spec(tess_pattern **pattern, const char *spec, tess_pattern_shape *shape,
                      const struct pattern_sizes *sizes, struct reason *reason) {
    tess_error error = tess_error_init();
    shape->n_q = sizes->n_q;
    shape->n_kv = sizes->n_kv;
    shape->batch = sizes->batch;
    shape->heads = sizes->heads_q;
    if (shape->n_q < 1)
        return reason_set(reason, "--n is needed: the number of queries");
    return tess_pattern_from_spec(pattern, spec, shape, &error) == TESS_OK ||
           reason_set_error(reason, &error);
}

static bool make_mask(tess_pattern **pattern, const struct tensor *mask, tess_pattern_shape *shape,
                      const struct pattern_sizes *sizes, struct reason *reason) {
    char text[SHAPE_TEXT];
    if (mask->type != ELEMENT_BOOL && mask->type != ELEMENT_U8)
        return reason_set(reason, "elements are %s; a mask is bool or u8",
                          element_name(mask->type));
    if (mask->rank < 2 || mask->rank > 4 || mask->size == 0)
        return reason_set(reason, "shape %s; a mask is [Nq,Nk], [H,Nq,Nk] or [B,H,Nq,Nk]",
                          tensor_shape_text(mask, text));
    shape->n_q = mask->shape[mask->rank - 2];
    shape->n_kv = mask->shape[mask->rank - 1];
    shape->heads = mask->rank > 2 ? mask->shape[mask->rank - 3] : 1;
    shape->batch = mask->rank > 3 ? mask->shape[0] : 1;
    tess_error error = tess_error_init();
    if (shape->n_q == 1 && sizes->n_q > 1 && shape->n_kv == sizes->n_kv)
        return reason_set(reason,
                          "shape %s; a row for all queries, as of key padding, is to be repeated "
                          "for each of the %lld",
                          tensor_shape_text(mask, text), (long long)sizes->n_q);
    return pattern_options_fit(shape, sizes, reason) &&
           (tess_pattern_from_mask(pattern, mask->data, shape, &error) == TESS_OK ||
            reason_set_error(reason, &error));
}

/* Indices in 32 bits: those of 64 that do not fit are past all keys, or below -1, and stay so. */
static int32_t *narrow(const struct tensor *topk) {
    size_t count = topk->size / element_size(topk->type);
    int32_t *indices = malloc(count * sizeof *indices);
    if (indices && topk->type == ELEMENT_I32) {
        memcpy(indices, topk->data, topk->size);
        return indices;
    }
    for (size_t i = 0; indices && i < count; i++) {
        int64_t index;
        memcpy(&index, (const char *)topk->data + i * sizeof index, sizeof index);
        indices[i] = index > INT32_MAX ? INT32_MAX : index < INT32_MIN ? INT32_MIN : (int32_t)index;
    }
    return indices;
}

static bool make_topk(tess_pattern **pattern, const struct tensor *topk, tess_pattern_shape *shape,
                      const struct pattern_sizes *sizes, struct reason *reason) {
    char text[SHAPE_TEXT];
    if (topk->type != ELEMENT_I32 && topk->type != ELEMENT_I64)
        return reason_set(reason, "elements are %s; indices are i32 or i64",
                          element_name(topk->type));
    if (topk->rank < 2 || topk->rank > 3 || topk->size == 0)
        return reason_set(reason, "shape %s; indices are [Nq,k] or [H,Nq,k]",
                          tensor_shape_text(topk, text));
    shape->n_q = topk->shape[topk->rank - 2];
    shape->n_kv = sizes->n_kv ? sizes->n_kv : shape->n_q;
    shape->heads = topk->rank > 2 ? topk->shape[0] : 1;
    shape->batch = 1;
    tess_error error = tess_error_init();
    int64_t k = topk->shape[topk->rank - 1];
    if (!pattern_options_fit(shape, sizes, reason))
        return false;
    int32_t *narrowed = topk->type == ELEMENT_I64 ? narrow(topk) : NULL;
    if (topk->type == ELEMENT_I64 && !narrowed)
        return reason_set(reason, "out of memory for its indices");
    bool made = tess_pattern_from_topk(pattern, narrowed ? narrowed : topk->data, k, shape,
                                       &error) == TESS_OK ||
                reason_set_error(reason, &error);
    free(narrowed);
    return made;
}

static bool make_lists(tess_pattern **pattern, const char *path, tess_pattern_shape *shape,
                       const struct pattern_sizes *sizes, struct reason *reason) {
    struct lists_file file;
    struct reason why;
    shape->n_q = sizes->n_q;
    shape->n_kv = sizes->n_kv;
    if (!lists_file_open(&file, path, shape, sizes, reason))
        return false;
    tess_pattern_shape made = tess_pattern_shape_init();
    made.n_q = file.lists.n_q, made.n_kv = file.lists.n_kv;
    made.batch = file.lists.batch, made.heads = file.lists.heads;
    tess_error error = tess_error_init();
    bool done = pattern_options_fit(&made, sizes, &why) &&
                (tess_pattern_from_lists(pattern, &file.lists, &error) == TESS_OK ||
                 reason_set_error(&why, &error));
    lists_file_close(&file);
    return done || reason_set(reason, "%.200s: %.270s", path, why.text);
}

bool pattern_options_topk(tess_device_pattern *pattern, const struct pattern_options *options,
                          const struct pattern_sizes *sizes, struct reason *reason) {
    struct tensor_file file;
    *pattern = tess_device_pattern_init();
    if (!options->text[FROM_TOPK])
        return true;
    if (!tensor_file_open(&file, options->text[FROM_TOPK], reason))
        return false;
    const struct tensor *topk = &file.tensor;
    *pattern = tess_device_pattern_topk(narrow(topk), NULL, 1, topk->rank > 2 ? topk->shape[0] : 1,
                                        sizes->n_q, sizes->n_kv, topk->shape[topk->rank - 1]);
    tensor_file_close(&file);
    return pattern->indices || reason_set(reason, "out of memory for the indices of --topk");
}

bool pattern_options_make(tess_pattern **pattern, const struct pattern_options *options,
                          const struct pattern_sizes *sizes, struct reason *reason) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    *pattern = NULL;
    if (!parse_block(options->block, &shape, reason))
        return false;
    if (options->text[FROM_SPEC])
        return make_spec(pattern, options->text[FROM_SPEC], &shape, sizes, reason);
    if (options->text[FROM_LISTS])
        return make_lists(pattern, options->text[FROM_LISTS], &shape, sizes, reason);
    if (options->text[FROM_SELECT])
        return pattern_select_make(pattern, options, &shape, sizes, reason);
    const char *name =
        options->text[FROM_MASK] ? options->text[FROM_MASK] : options->text[FROM_TOPK];
    struct tensor_file file;
    struct reason why;
    if (!tensor_file_open(&file, name, reason))
        return false;
    bool made = (options->text[FROM_MASK] ? make_mask : make_topk)(pattern, &file.tensor, &shape,
                                                                   sizes, &why);
    tensor_file_close(&file);
    return made || reason_set(reason, "%.200s: %.270s", name, why.text);
}
