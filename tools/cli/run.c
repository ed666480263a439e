/* tessera run: attention on files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/compute.h"
#include "lab/device/device.h"
#include "cli/pattern_options.h"
#include "cli/reference.h"

/* Options that may each be given once, in the order of `choices`; then flags. */
enum { Q, K, V, OUT, LSE, DO, O, DQ, DK, DV, BACKEND, PIPELINE, DTYPE, SCALE, THREADS, CHOICES };
enum { VERBOSE = CHOICES, BACKWARD };
enum { KEY_FIRST = 0x2000 };

static const struct argp_option choices[] = {
    {"q", KEY_FIRST + Q, "FILE", 0, "queries, [B,H,N,D], [H,N,D] or [N,D]", 2},
    {"k", KEY_FIRST + K, "FILE", 0, "keys", 2},
    {"v", KEY_FIRST + V, "FILE", 0, "values", 2},
    {"out", KEY_FIRST + OUT, "FILE", 0, "where the output goes", 2},
    {"lse", KEY_FIRST + LSE, "FILE", 0,
     "where the log-sum-exp of each row goes; with --backward where it comes from", 2},
    {"do", KEY_FIRST + DO, "FILE", 0, "backward: the gradient of the output", 2},
    {"o", KEY_FIRST + O, "FILE", 0, "backward: the output, as --out or in f32", 2},
    {"dq", KEY_FIRST + DQ, "FILE", 0, "backward: where the gradient of the queries goes", 2},
    {"dk", KEY_FIRST + DK, "FILE", 0, "backward: where that of the keys goes", 2},
    {"dv", KEY_FIRST + DV, "FILE", 0, "backward: where that of the values goes", 2},
    {"backend", KEY_FIRST + BACKEND, "NAME", 0, "auto (default), cpu or cuda", 3},
    {"pipeline", KEY_FIRST + PIPELINE, "NAME", 0, "fused (default), staged or oracle", 3},
    {"dtype", KEY_FIRST + DTYPE, "TYPE", 0, "convert the inputs first: f32, f16 or bf16", 3},
    {"scale", KEY_FIRST + SCALE, "X", 0, "of the scores; default 1/sqrt(d)", 3},
    {"threads", KEY_FIRST + THREADS, "T", 0, "CPU threads; default all", 3},
    {"verbose", KEY_FIRST + VERBOSE, NULL, 0, "say on stderr what ran and how long it took", 3},
    {"backward", KEY_FIRST + BACKWARD, NULL, 0,
     "compute gradients from --do, --o and --lse into one or more of --dq, --dk and --dv", 3},
    {0},
};

struct run_options {
    struct pattern_options pattern;
    struct modifier_options modifiers;
    struct compute_options compute;
    const char *text[CHOICES];
    int dtype;
    bool backward;
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct run_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->pattern;
        state->child_inputs[1] = &options->modifiers;
        return 0;
    case ARGP_KEY_ARG:
        report("run", "%s: every argument needs its option", argument);
        return EINVAL;
    case KEY_FIRST + VERBOSE:
        options->compute.verbose = true;
        return 0;
    case KEY_FIRST + BACKWARD:
        options->backward = true;
        return 0;
    default:
        if (key < KEY_FIRST || key >= KEY_FIRST + CHOICES)
            return ARGP_ERR_UNKNOWN;
        return argument_once(&options->text[key - KEY_FIRST], argument, "run",
                             choices[key - KEY_FIRST].name);
    }
}

/* The number that a name stands for. */
static bool parse_name(const char *option, const char *text, const char *const *names,
                       const int *values, int *value, struct reason *reason) {
    for (int i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0) {
            *value = values[i];
            return true;
        }
    return reason_set(reason, "--%s %s: %s, %s or %s is needed", option, text, names[0], names[1],
                      names[2]);
}

/* Inputs that a run and a backward need, and what each lacks. */
static bool check_files(const struct run_options *options, struct reason *reason) {
    static const struct {
        bool backward;
        int needs[7], lacks[6]; /* ended by CHOICES */
    } ways[] = {{false, {Q, K, V, OUT, CHOICES}, {DO, O, DQ, DK, DV, CHOICES}},
                {true, {Q, K, V, DO, O, LSE, CHOICES}, {OUT, CHOICES}}};
    for (const int *at = ways[options->backward].needs; *at != CHOICES; at++)
        if (!options->text[*at])
            return reason_set(reason, "--%s is needed", choices[*at].name);
    for (const int *at = ways[options->backward].lacks; *at != CHOICES; at++)
        if (options->text[*at])
            return reason_set(reason, "--%s %s --backward", choices[*at].name,
                              options->backward ? "does not go with" : "goes with");
    return !options->backward || options->text[DQ] || options->text[DK] || options->text[DV] ||
           reason_set(reason, "--dq, --dk or --dv is needed");
}

static void output_names(const char *names[OUTPUTS], const struct run_options *options) {
    const char *const *text = options->text;
    const char *const all[OUTPUTS] = {text[OUT], options->backward ? NULL : text[LSE], text[DQ],
                                      text[DK], text[DV]};
    memcpy(names, all, sizeof all);
}

static bool check_options(struct run_options *options, struct reason *reason) {
    static const struct {
        int choice;
        const char *names[4];
        int values[3];
    } named[] = {
        {BACKEND, {"auto", "cpu", "cuda", NULL}, {BACKEND_AUTO, TESS_CPU, TESS_CUDA}},
        {PIPELINE, {"fused", "staged", "oracle", NULL}, {TESS_FUSED, TESS_STAGED, PIPELINE_ORACLE}},
        {DTYPE, {"f32", "f16", "bf16", NULL}, {TESS_F32, TESS_F16, TESS_BF16}},
    };
    int *values[] = {&options->compute.backend, &options->compute.pipeline, &options->dtype};
    const char *names[OUTPUTS];
    if (!check_files(options, reason))
        return false;
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (options->text[named[i].choice] &&
            !parse_name(choices[named[i].choice].name, options->text[named[i].choice],
                        named[i].names, named[i].values, values[i], reason))
            return false;
    if (options->text[SCALE] &&
        !argument_real(&options->compute.scale, options->text[SCALE], "scale", reason))
        return false;
    if (options->compute.pipeline == PIPELINE_ORACLE && options->compute.backend == TESS_CUDA)
        return reason_set(reason, "--pipeline oracle runs on the CPU only");
    output_names(names, options);
    return pattern_options_check(&options->pattern, reason) &&
           modifier_options_check(&options->modifiers, reason) &&
           attention_output_check(names, reason);
}

/* ---- files in, files out ------------------------------------------------------------------------
 */

/* A contiguous tensor in memory of its own. */
static bool make_view(tess_tensor *view, tess_type type, const int64_t size[3], int64_t dim,
                      struct reason *reason) {
    int64_t elements;
    size_t bytes;
    if (__builtin_mul_overflow(size[0] * size[1] * size[2], dim, &elements) ||
        __builtin_mul_overflow(elements, (int64_t)tess_type_size(type), &bytes))
        return reason_set(reason, "the size of the output overflows");
    void *data = lab_device_alloc(TESS_CPU, bytes);
    *view = tess_tensor_bhnd(data, type, size[0], size[1], size[2], dim);
    return data || reason_set(reason, "out of memory for an output of %zu bytes", bytes);
}

static bool make_output(struct attention_output *output, const struct attention_input *input,
                        const struct run_options *options, struct reason *reason) {
    const tess_tensor *q = &input->view[INPUT_Q], *k = &input->view[INPUT_K],
                      *v = &input->view[INPUT_V];
    const struct {
        tess_type type;
        const int64_t *size;
        int64_t dim;
        bool made; /* attention's two always, as a run leaves both */
    } all[OUTPUTS] = {{q->type, q->size, v->size[3], !options->backward},
                      {TESS_F32, q->size, 1, !options->backward},
                      {q->type, q->size, q->size[3], options->text[DQ] != NULL},
                      {q->type, k->size, k->size[3], options->text[DK] != NULL},
                      {q->type, v->size, v->size[3], options->text[DV] != NULL}};
    output->rank = input->rank;
    output_names(output->name, options);
    for (int i = 0; i < OUTPUTS; i++)
        if (all[i].made &&
            !make_view(&output->view[i], all[i].type, all[i].size, all[i].dim, reason))
            return false;
    return true;
}

static bool check_shapes(const struct attention_input *input, struct reason *reason) {
    const int64_t *q = input->view[INPUT_Q].size, *k = input->view[INPUT_K].size,
                  *v = input->view[INPUT_V].size;
    if (k[0] != q[0] || v[0] != q[0])
        return reason_set(reason, "batches differ: q has %lld, k %lld, v %lld", (long long)q[0],
                          (long long)k[0], (long long)v[0]);
    if (k[1] != v[1] || q[1] % k[1] != 0)
        return reason_set(reason, "heads do not fit: q has %lld, k %lld, v %lld", (long long)q[1],
                          (long long)k[1], (long long)v[1]);
    if (k[2] != v[2])
        return reason_set(reason, "k has %lld rows, v has %lld", (long long)k[2], (long long)v[2]);
    if (k[3] != q[3])
        return reason_set(reason, "q has %lld columns, k has %lld", (long long)q[3],
                          (long long)k[3]);
    return true;
}

/* Checks of inputs that a backward reads besides. */
static bool check_gradients(const struct attention_input *input, struct reason *reason) {
    static const char *const names[] = {[INPUT_DO] = "do", [INPUT_O] = "o", [INPUT_LSE] = "lse"};
    const int64_t *q = input->view[INPUT_Q].size;
    for (int i = INPUT_DO; i <= INPUT_LSE; i++) {
        const int64_t *t = input->view[i].size;
        const int64_t dim = i == INPUT_LSE ? 1 : input->view[INPUT_V].size[3];
        if (t[0] != q[0] || t[1] != q[1] || t[2] != q[2] || t[3] != dim)
            return reason_set(
                reason, "%s is [%lld,%lld,%lld,%lld]; q and v ask for [%lld,%lld,%lld,%lld]",
                names[i], (long long)t[0], (long long)t[1], (long long)t[2], (long long)t[3],
                (long long)q[0], (long long)q[1], (long long)q[2], (long long)dim);
    }
    return true;
}

static bool compute(struct run_options *options, const struct attention_input *input,
                    struct reason *reason) {
    const tess_tensor *q = &input->view[INPUT_Q], *k = &input->view[INPUT_K];
    struct pattern_sizes sizes = {q->size[0], q->size[1], k->size[1], q->size[2], k->size[2]};
    struct attention_output output = {.rank = 0};
    struct lab_modifiers modifiers = {.alibi = {0}};
    tess_pattern *pattern = NULL;
    tess_device_pattern topk = {.indices = NULL};
    options->pattern.q = q, options->pattern.k = k;
    bool done = check_shapes(input, reason) &&
                (!options->backward || check_gradients(input, reason)) &&
                modifier_options_make(&modifiers, &options->modifiers, q->size[1], reason) &&
                pattern_options_make(&pattern, &options->pattern, &sizes, reason) &&
                pattern_options_topk(&topk, &options->pattern, &sizes, reason) &&
                make_output(&output, input, options, reason);
    options->compute.topk = topk.indices ? &topk : NULL;
    done = done && compute_run(&options->compute, input, pattern, &modifiers, &output, reason) &&
           attention_output_write(&output, reason);
    for (int i = 0; i < OUTPUTS; i++)
        lab_device_free(TESS_CPU, output.view[i].data);
    lab_modifiers_free(&modifiers);
    free((void *)(uintptr_t)topk.indices);
    tess_pattern_free(pattern);
    return done;
}

int run_main(int argc, char **argv) {
    static const struct argp_child children[] = {
        {&pattern_argp, 0, NULL, 0}, {&modifier_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {choices,
                                     parse,
                                     NULL,
                                     "Sparse attention on .npy and .safetensors (FILE:NAME) files."
                                     "\vThe output has the shape of Q with V's last axis; the "
                                     "log-sum-exp lacks that axis. Gradients "
                                     "have the shapes of Q, K and V. "
                                     "Results depend neither on the threads nor on other programs.",
                                     children,
                                     reference_spec_filter,
                                     NULL};
    struct run_options options = {.pattern = {.command = "run"},
                                  .modifiers = {.command = "run"},
                                  .compute = {.backend = BACKEND_AUTO},
                                  .dtype = -1};
    struct reason reason;
    int status = arguments_parse(&argp, "run", argc, argv, &options);
    if (status != EXIT_DONE)
        return status;
    if (options.text[THREADS] && argument_number(&options.compute.threads, options.text[THREADS], 1,
                                                 4096, "run", "threads") != 0)
        return EXIT_BAD;
    if (!check_options(&options, &reason))
        return report("run", "%s", reason.text);
    const char *const names[INPUTS] = {
        options.text[Q],  options.text[K], options.text[V],
        options.text[DO], options.text[O], options.backward ? options.text[LSE] : NULL};
    options.compute.operation = options.backward ? TESS_ATTENTION_BACKWARD : TESS_ATTENTION;
    options.compute.modifiers = &options.modifiers;
    struct attention_input input;
    if (!attention_input_open(&input, names, options.dtype, &reason))
        return report("run", "%s", reason.text);
    bool done = compute(&options, &input, &reason);
    attention_input_close(&input);
    return done ? EXIT_DONE : report("run", "%s", reason.text);
}
