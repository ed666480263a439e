/* tessera run: attention on files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/attention_input.h"
#include "cli/attention_output.h"
#include "cli/commands.h"
#include "lab/device.h"
#include "lab/half.h"
#include "lab/oracle.h"
#include "lab/timer.h"
#include "cli/modifier_options.h"
#include "cli/pattern_options.h"
#include "cli/reference.h"

enum { BACKEND_AUTO = -1, PIPELINE_ORACLE = 2 };

/* Options that may each be given once, in the order of `choices`. */
enum { Q, K, V, OUT, LSE, BACKEND, PIPELINE, DTYPE, SCALE, THREADS, CHOICES, VERBOSE = CHOICES };
enum { KEY_FIRST = 0x2000 };

static const struct argp_option choices[] = {
    {"q", KEY_FIRST + Q, "FILE", 0, "queries, [B,H,N,D], [H,N,D] or [N,D]", 2},
    {"k", KEY_FIRST + K, "FILE", 0, "keys", 2},
    {"v", KEY_FIRST + V, "FILE", 0, "values", 2},
    {"out", KEY_FIRST + OUT, "FILE", 0, "where the output goes", 2},
    {"lse", KEY_FIRST + LSE, "FILE", 0, "where the log-sum-exp of each row goes", 2},
    {"backend", KEY_FIRST + BACKEND, "NAME", 0, "auto (default), cpu or cuda", 3},
    {"pipeline", KEY_FIRST + PIPELINE, "NAME", 0, "fused (default), staged or oracle", 3},
    {"dtype", KEY_FIRST + DTYPE, "TYPE", 0, "convert the inputs first: f32, f16 or bf16", 3},
    {"scale", KEY_FIRST + SCALE, "X", 0, "of the scores; default 1/sqrt(d)", 3},
    {"threads", KEY_FIRST + THREADS, "T", 0, "CPU threads; default all", 3},
    {"verbose", KEY_FIRST + VERBOSE, NULL, 0, "say on stderr what ran and how long it took", 3},
    {0},
};

struct run_options {
    struct pattern_options pattern;
    struct modifier_options modifiers;
    const char *text[CHOICES];
    int backend, pipeline, dtype;
    double scale;
    int64_t threads;
    bool verbose;
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
        options->verbose = true;
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
    int *values[] = {&options->backend, &options->pipeline, &options->dtype};
    for (int i = Q; i <= OUT; i++)
        if (!options->text[i])
            return reason_set(reason, "--%s is needed", choices[i].name);
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (options->text[named[i].choice] &&
            !parse_name(choices[named[i].choice].name, options->text[named[i].choice],
                        named[i].names, named[i].values, values[i], reason))
            return false;
    if (options->text[SCALE] &&
        !argument_real(&options->scale, options->text[SCALE], "scale", reason))
        return false;
    if (options->pipeline == PIPELINE_ORACLE && options->backend == TESS_CUDA)
        return reason_set(reason, "--pipeline oracle runs on the CPU only");
    return pattern_options_check(&options->pattern, reason) &&
           modifier_options_check(&options->modifiers, reason) &&
           attention_output_check(options->text + OUT, reason);
}

/* ---- computing ---------------------------------------------------------------------------------
 */

static bool run_oracle(const struct run_options *options, const struct attention_input *input,
                       const tess_pattern *pattern, const struct lab_modifiers *modifiers,
                       struct attention_output *output, struct reason *reason) {
    struct lab_oracle oracle;
    const struct lab_case c = {.scale = options->scale,
                               .softcap = options->modifiers.softcap,
                               .dropout = options->modifiers.dropout};
    const struct lab_scoring scoring = lab_modifiers_scoring(modifiers, &c);
    int failed = lab_oracle_run(&oracle, &input->view[INPUT_Q], &input->view[INPUT_K],
                                &input->view[INPUT_V], pattern, &scoring, NULL, 0);
    const tess_tensor *q = &input->view[INPUT_Q];
    for (int64_t x = 0; !failed && x < oracle.rows; x++) {
        struct lab_place p = oracle.place[x];
        int64_t row = (p.b * q->size[1] + p.h) * q->size[2] + p.i;
        for (int64_t d = 0; d < oracle.d_v; d++)
            lab_put(output->view[OUTPUT_O].data, q->type, row * oracle.d_v + d,
                    oracle.o[x * oracle.d_v + d]);
        ((float *)output->view[OUTPUT_LSE].data)[row] = (float)oracle.lse[x];
    }
    lab_oracle_free(&oracle);
    return !failed || reason_set(reason, "out of memory");
}

/* Turns a device's reason, NULL when there is none, into ours. */
static bool worked(const char *why, struct reason *reason) {
    return !why || reason_set(reason, "the device: %s", why);
}

/* Memory of a backend that stands for host memory. */
struct placed {
    tess_tensor view;
    size_t size;
};

static bool place(struct placed *placed, const tess_tensor *host, tess_backend backend, bool copy,
                  struct reason *reason) {
    placed->view = *host;
    if (backend == TESS_CPU)
        return true;
    placed->size = tess_type_size(host->type);
    for (int i = 0; i < 4; i++)
        placed->size *= (size_t)host->size[i];
    placed->view.data = lab_device_alloc(backend, placed->size);
    if (!placed->view.data)
        return reason_set(reason, "%zu bytes do not fit the device", placed->size);
    return !copy ||
           worked(lab_device_to_device(backend, placed->view.data, host->data, placed->size),
                  reason);
}

/* What a plan needs besides tensors, in its backend's memory. */
struct room {
    void *workspace, *image;
    size_t workspace_size, image_size;
};

static bool room_make(struct room *room, const tess_plan *plan, tess_backend backend,
                      struct reason *reason) {
    tess_error error = tess_error_init();
    room->workspace_size = tess_plan_workspace_size(plan);
    room->workspace = lab_device_alloc(backend, room->workspace_size);
    if (!room->workspace)
        return reason_set(reason, "out of memory for a workspace of %zu bytes",
                          room->workspace_size);
    room->image_size = tess_plan_image_size(plan);
    if (room->image_size == 0)
        return true;
    room->image = lab_device_alloc(backend, room->image_size);
    if (!room->image)
        return reason_set(reason, "out of memory for a plan of %zu bytes", room->image_size);
    return tess_plan_upload(plan, room->image, room->image_size, &error, NULL) == TESS_OK ||
           reason_set_error(reason, &error);
}

static bool run_placed(const tess_plan *plan, struct placed p[INPUTS + OUTPUTS],
                       const struct room *room, const struct lab_modifiers *modifiers,
                       tess_backend backend, struct reason *reason) {
    struct lab_mirror arrays;
    tess_error error = tess_error_init();
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &p[INPUT_Q].view, arguments.k = &p[INPUT_K].view, arguments.v = &p[INPUT_V].view;
    arguments.o = &p[INPUTS + OUTPUT_O].view, arguments.lse = &p[INPUTS + OUTPUT_LSE].view;
    arguments.workspace = room->workspace, arguments.workspace_size = room->workspace_size;
    arguments.image = room->image, arguments.image_size = room->image_size;
    lab_mirror_make(&arrays, backend);
    bool done =
        lab_modifiers_place(modifiers, &arrays, &arguments) == 0 || worked(arrays.why, reason);
    if (done && tess_run(plan, &arguments, &error, NULL) != TESS_OK)
        done = reason_set_error(reason, &error);
    done = done && worked(lab_device_synchronize(backend), reason);
    lab_mirror_free(&arrays);
    return done;
}

static bool run_plan(const tess_plan *plan, tess_backend backend,
                     const struct attention_input *input, const struct lab_modifiers *modifiers,
                     struct attention_output *output, struct reason *reason) {
    struct placed p[INPUTS + OUTPUTS] = {{.size = 0}};
    struct room room = {0};
    bool done = room_make(&room, plan, backend, reason);
    for (int i = 0; done && i < INPUTS; i++)
        done = place(&p[i], &input->view[i], backend, true, reason);
    for (int i = 0; done && i < OUTPUTS; i++)
        done = place(&p[INPUTS + i], &output->view[i], backend, false, reason);
    done = done && run_placed(plan, p, &room, modifiers, backend, reason);
    for (int i = 0; i < INPUTS + OUTPUTS && backend != TESS_CPU; i++) {
        if (done && i >= INPUTS)
            done = worked(lab_device_to_host(backend, output->view[i - INPUTS].data, p[i].view.data,
                                             p[i].size),
                          reason);
        if (p[i].size)
            lab_device_free(backend, p[i].view.data);
    }
    lab_device_free(backend, room.workspace);
    lab_device_free(backend, room.image);
    return done;
}

static bool make_plan(tess_plan **plan, const struct run_options *options, tess_backend backend,
                      const struct attention_input *input, const tess_pattern *pattern,
                      struct reason *reason) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = tess_problem_init();
    *plan = NULL;
    if (tess_target_query(&target, backend, 0, &error) != TESS_OK ||
        tess_problem_from_tensors(&problem, &input->view[INPUT_Q], &input->view[INPUT_K],
                                  &input->view[INPUT_V], NULL, &error) != TESS_OK)
        return reason_set_error(reason, &error);
    problem.pipeline = (tess_pipeline)options->pipeline;
    problem.scale = options->scale;
    problem.softcap = options->modifiers.softcap;
    problem.alibi = options->modifiers.text[MODIFIER_ALIBI] != NULL;
    problem.sink = options->modifiers.text[MODIFIER_SINK] != NULL;
    problem.dropout = options->modifiers.dropout;
    problem.threads = options->threads;
    return tess_plan_create(plan, &problem, pattern, &target, &error) == TESS_OK ||
           reason_set_error(reason, &error);
}

/* auto: CUDA where a device is here and a plan for it can be made, else the CPU. */
static bool run_kernels(const struct run_options *options, const struct attention_input *input,
                        const tess_pattern *pattern, const struct lab_modifiers *modifiers,
                        struct attention_output *output, struct reason *reason) {
    tess_plan *plan = NULL;
    tess_backend backend = options->backend == TESS_CUDA ? TESS_CUDA : TESS_CPU;
    if (options->backend == BACKEND_AUTO &&
        !lab_device_lacks(TESS_CUDA, (tess_pipeline)options->pipeline) &&
        make_plan(&plan, options, TESS_CUDA, input, pattern, reason))
        backend = TESS_CUDA;
    if (!plan && !make_plan(&plan, options, backend, input, pattern, reason))
        return false;
    double start = lab_seconds();
    bool done = run_plan(plan, backend, input, modifiers, output, reason);
    if (done && options->verbose) {
        const char *kernel = tess_plan_kernel(
            plan, options->pipeline == TESS_FUSED ? TESS_STAGE_ATTENTION : TESS_STAGE_SDDMM);
        fprintf(stderr, "tessera: run: %s, %s, %.3f s\n", tess_backend_name(backend),
                kernel ? kernel : "no kernel", lab_seconds() - start);
    }
    tess_plan_free(plan);
    return done;
}

/* ---- files in, files out ------------------------------------------------------------------------
 */

static bool make_output(struct attention_output *output, const struct attention_input *input,
                        const struct run_options *options, struct reason *reason) {
    const tess_tensor *q = &input->view[INPUT_Q], *v = &input->view[INPUT_V];
    int64_t rows = q->size[0] * q->size[1] * q->size[2], elements;
    size_t size;
    output->rank = input->rank;
    output->name[OUTPUT_O] = options->text[OUT];
    output->name[OUTPUT_LSE] = options->text[LSE];
    if (__builtin_mul_overflow(rows, v->size[3], &elements) ||
        __builtin_mul_overflow(elements, (int64_t)tess_type_size(q->type), &size))
        return reason_set(reason, "the size of the output overflows");
    void *o = lab_device_alloc(TESS_CPU, size);
    void *lse = lab_device_alloc(TESS_CPU, (size_t)rows * sizeof(float));
    output->view[OUTPUT_O] =
        tess_tensor_bhnd(o, q->type, q->size[0], q->size[1], q->size[2], v->size[3]);
    output->view[OUTPUT_LSE] =
        tess_tensor_bhnd(lse, TESS_F32, q->size[0], q->size[1], q->size[2], 1);
    return (o && lse) || reason_set(reason, "out of memory for an output of %zu bytes", size);
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

static bool compute(const struct run_options *options, const struct attention_input *input,
                    struct reason *reason) {
    const tess_tensor *q = &input->view[INPUT_Q], *k = &input->view[INPUT_K];
    struct pattern_sizes sizes = {q->size[0], q->size[1], k->size[1], q->size[2], k->size[2]};
    struct attention_output output = {.rank = 0};
    struct lab_modifiers modifiers = {.alibi = {0}};
    tess_pattern *pattern = NULL;
    bool done = check_shapes(input, reason) &&
                modifier_options_make(&modifiers, &options->modifiers, q->size[1], reason) &&
                pattern_options_make(&pattern, &options->pattern, &sizes, reason) &&
                make_output(&output, input, options, reason) &&
                (options->pipeline == PIPELINE_ORACLE ? run_oracle : run_kernels)(
                    options, input, pattern, &modifiers, &output, reason) &&
                attention_output_write(&output, reason);
    for (int i = 0; i < OUTPUTS; i++)
        lab_device_free(TESS_CPU, output.view[i].data);
    lab_modifiers_free(&modifiers);
    tess_pattern_free(pattern);
    return done;
}

int run_main(int argc, char **argv) {
    static const struct argp_child children[] = {
        {&pattern_argp, 0, NULL, 0}, {&modifier_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        choices,
        parse,
        NULL,
        "Sparse attention on .npy and .safetensors (FILE:NAME) files."
        "\vThe output has the shape of Q with V's last axis; the log-sum-exp lacks that axis. "
        "Results depend neither on the threads nor on other programs.",
        children,
        reference_spec_filter,
        NULL};
    struct run_options options = {.pattern = {.command = "run"},
                                  .modifiers = {.command = "run"},
                                  .backend = BACKEND_AUTO,
                                  .dtype = -1};
    struct reason reason;
    int status = arguments_parse(&argp, "run", argc, argv, &options);
    if (status != EXIT_DONE)
        return status;
    if (options.text[THREADS] &&
        argument_number(&options.threads, options.text[THREADS], 1, 4096, "run", "threads") != 0)
        return EXIT_BAD;
    if (!check_options(&options, &reason))
        return report("run", "%s", reason.text);
    const char *const names[INPUTS] = {options.text[Q], options.text[K], options.text[V]};
    struct attention_input input;
    if (!attention_input_open(&input, names, options.dtype, &reason))
        return report("run", "%s", reason.text);
    bool done = compute(&options, &input, &reason);
    attention_input_close(&input);
    return done ? EXIT_DONE : report("run", "%s", reason.text);
}
