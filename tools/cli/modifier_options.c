/* Softcap, ALiBi, sinks and dropout from options. */
#include "cli/modifier_options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/tensor_file.h"

enum { KEY_FIRST = 0x3000 };

static const struct argp_option options_table[] = {
    {NULL, 0, NULL, 0, "Score modifiers:", 4},
    {"softcap", KEY_FIRST + MODIFIER_SOFTCAP, "C", 0, "a score s becomes C tanh(s / C)", 4},
    {"alibi", KEY_FIRST + MODIFIER_ALIBI, "FILE", 0,
     "adds slope * (j - p) to the score of key j and the query at p; FILE has a slope for each "
     "query head, [H]; the word standard stands for the slopes of the ALiBi paper",
     4},
    {"sink", KEY_FIRST + MODIFIER_SINK, "FILE", 0,
     "a logit for each query head, [H], joins the denominator and carries no value", 4},
    {"dropout", KEY_FIRST + MODIFIER_DROPOUT, "P", 0,
     "a weight becomes 0 with probability P, else 1/(1 - P) times itself", 4},
    {"dropout-seed", KEY_FIRST + MODIFIER_SEED, "S", 0, "seed of what is dropped; default 0", 4},
    {0},
};

static const char *option_name(int which) {
    return options_table[which + 1].name;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct modifier_options *options = state->input;
    if (key < KEY_FIRST || key >= KEY_FIRST + MODIFIER_OPTIONS)
        return ARGP_ERR_UNKNOWN;
    return argument_once(&options->text[key - KEY_FIRST], argument, options->command,
                         option_name(key - KEY_FIRST));
}

const struct argp modifier_argp = {options_table, parse, NULL, NULL, NULL, NULL, NULL};

/* ---- numbers ---- */

static bool parse_seed(uint64_t *seed, const char *text, struct reason *reason) {
    errno = 0;
    *seed = strtoull(text, NULL, 10);
    return (*text && strspn(text, "0123456789") == strlen(text) && !errno) ||
           reason_set(reason, "--dropout-seed %s: a whole number from 0 to 2^64 - 1 is needed",
                      text);
}

bool modifier_options_check(struct modifier_options *options, struct reason *reason) {
    const char *const *text = options->text;
    const char *cap = text[MODIFIER_SOFTCAP], *share = text[MODIFIER_DROPOUT];
    if (cap && !argument_real(&options->softcap, cap, "softcap", reason))
        return false;
    if (options->softcap != 0 && !(options->softcap >= 0x1p-64 && options->softcap <= 0x1p64))
        return reason_set(reason, "--softcap %s: 2^-64 to 2^64 is needed, or 0 for none", cap);
    if (share && !argument_real(&options->dropout, share, "dropout", reason))
        return false;
    if (!(options->dropout >= 0 && options->dropout <= 65535.0 / 65536))
        return reason_set(reason, "--dropout %s: a probability from 0 to 65535/65536 is needed",
                          share);
    if (text[MODIFIER_SEED] && !share)
        return reason_set(reason, "--dropout-seed goes with --dropout");
    return !text[MODIFIER_SEED] || parse_seed(&options->seed, text[MODIFIER_SEED], reason);
}

/* ---- arrays ---- */

/* Slopes of the ALiBi paper: 2^(-8/H), 2^(-16/H), ... for a power of two; else those of the largest
 * power of two P below H, and then every other one of 2 P. */
static void standard_slopes(float *slope, int64_t heads) {
    int64_t power = 1;
    while (power <= heads / 2)
        power *= 2;
    for (int64_t h = 0; h < heads; h++)
        slope[h] = (float)(h < power ? exp2(-8.0 * (double)(h + 1) / (double)power)
                                     : exp2(-4.0 * (double)(2 * (h - power) + 1) / (double)power));
}

static bool take_array(float *to, const struct tensor *from, int64_t heads, int which,
                       struct reason *reason) {
    char shape[SHAPE_TEXT];
    if (element_storage(from->type) < 0 && from->type != ELEMENT_F64)
        return reason_set(reason, "elements are %s; f16, bf16, f32 or f64 are needed",
                          element_name(from->type));
    if (from->rank != 1 || from->shape[0] != heads)
        return reason_set(reason, "shape %s; [%lld] is needed, a number for each query head",
                          tensor_shape_text(from, shape), (long long)heads);
    for (int64_t h = 0; h < heads; h++) {
        to[h] = (float)tensor_get(from, h);
        if (isnan(to[h]) || (which == MODIFIER_ALIBI && isinf(to[h])))
            return reason_set(reason, "the %s of head %lld is %s",
                              which == MODIFIER_ALIBI ? "slope" : "sink", (long long)h,
                              isnan(to[h]) ? "NaN" : "infinite");
    }
    return true;
}

static bool make_array(struct lab_buffer *buffer, const struct modifier_options *options,
                       int64_t heads, int which, struct reason *reason) {
    const char *name = options->text[which];
    struct tensor_file file;
    struct reason why;
    if (!name)
        return true;
    if (lab_buffer_make(buffer, (size_t)heads * sizeof(float), sizeof(float)))
        return reason_set(reason, "out of memory for %lld heads", (long long)heads);
    float *to = (float *)(void *)buffer->data;
    if (which == MODIFIER_ALIBI && strcmp(name, "standard") == 0) {
        standard_slopes(to, heads);
        return true;
    }
    if (!tensor_file_open(&file, name, &why))
        return reason_set(reason, "--%s %.400s", option_name(which), why.text);
    bool taken = take_array(to, &file.tensor, heads, which, &why);
    tensor_file_close(&file);
    return taken || reason_set(reason, "--%s %.200s: %.200s", option_name(which), name, why.text);
}

bool modifier_options_make(struct lab_modifiers *made, const struct modifier_options *options,
                           int64_t heads, struct reason *reason) {
    *made = (struct lab_modifiers){.alibi = {0}};
    if (!make_array(&made->alibi, options, heads, MODIFIER_ALIBI, reason) ||
        !make_array(&made->sink, options, heads, MODIFIER_SINK, reason))
        return false;
    if (options->dropout > 0 && lround(options->dropout * 65536) > 0) {
        if (lab_buffer_make(&made->seed, sizeof options->seed, sizeof options->seed))
            return reason_set(reason, "out of memory for the seed");
        memcpy(made->seed.data, &options->seed, sizeof options->seed);
    }
    return true;
}
