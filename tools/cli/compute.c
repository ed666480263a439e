/* Plans and runs for `tessera run`. */
#include "cli/compute.h"

#include <stdio.h>
#include <string.h>

#include "lab/device/device.h"
#include "lab/oracle/gradients.h"
#include "lab/fill/half.h"
#include "lab/device/timer.h"

/* Rounds `count` numbers into a view. */
static void put_all(const tess_tensor *view, const double *from, int64_t count) {
    for (int64_t x = 0; view->data && x < count; x++)
        lab_put(view->data, view->type, x, from[x]);
}

static int oracle_forward(const struct attention_input *input, const tess_pattern *pattern,
                          const struct lab_scoring *scoring, struct attention_output *output) {
    struct lab_oracle oracle;
    const int failed = lab_oracle_run(&oracle, &input->view[INPUT_Q], &input->view[INPUT_K],
                                      &input->view[INPUT_V], pattern, scoring, NULL, 0);
    if (!failed) { /* rows are in the order of a contiguous tensor's */
        put_all(&output->view[OUTPUT_O], oracle.o, oracle.rows * oracle.d_v);
        put_all(&output->view[OUTPUT_LSE], oracle.lse, oracle.rows);
    }
    lab_oracle_free(&oracle);
    return failed;
}

static int oracle_backward(const struct attention_input *input, const tess_pattern *pattern,
                           const struct lab_scoring *scoring, struct attention_output *output) {
    const struct lab_gradients_of inputs = {
        .q = &input->view[INPUT_Q],
        .k = &input->view[INPUT_K],
        .v = &input->view[INPUT_V],
        .d_o = &input->view[INPUT_DO],
        .pattern = pattern,
        .scoring = scoring,
    };
    struct lab_gradients gradients;
    const int failed = lab_gradients_run(&gradients, &inputs);
    const struct lab_gradient *const from[] = {&gradients.q, &gradients.k, &gradients.v};
    for (int i = 0; i < 3 && !failed; i++)
        put_all(&output->view[OUTPUT_DQ + i], from[i]->value, from[i]->rows * from[i]->dim);
    lab_gradients_free(&gradients);
    return failed;
}

static bool run_oracle(const struct compute_options *options, const struct attention_input *input,
                       const tess_pattern *pattern, const struct lab_modifiers *modifiers,
                       struct attention_output *output, struct reason *reason) {
    const struct lab_case c = {.scale = options->scale,
                               .softcap = options->modifiers->softcap,
                               .dropout = options->modifiers->dropout};
    const struct lab_scoring scoring = lab_modifiers_scoring(modifiers, &c);
    const int failed = (options->operation == TESS_ATTENTION ? oracle_forward : oracle_backward)(
        input, pattern, &scoring, output);
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
    if (backend == TESS_CPU || !host->data)
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

/* Memory that a plan needs besides tensors, in its backend's memory. */
struct room {
    void *workspace, *image, *indices;
    size_t workspace_size, image_size;
    tess_device_pattern lists; /* lists of a reserved plan, in its backend's memory */
};

static bool room_lists(struct room *room, const tess_device_pattern *topk, const tess_tensor *q,
                       tess_backend backend, struct reason *reason) {
    const size_t size = (size_t)(topk->heads * q->size[2] * topk->capacity) * sizeof(int32_t);
    room->lists = *topk;
    if (backend == TESS_CPU)
        return true;
    room->lists.indices = room->indices = lab_device_alloc(backend, size);
    if (!room->indices)
        return reason_set(reason, "%zu bytes of indices do not fit the device", size);
    return worked(lab_device_to_device(backend, room->indices, topk->indices, size), reason);
}

/* topk: what a reserved plan is filled from, NULL: the plan has lists. */
static bool room_make(struct room *room, const tess_plan *plan, const tess_device_pattern *topk,
                      const tess_tensor *q, tess_backend backend, struct reason *reason) {
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
    if (topk)
        return room_lists(room, topk, q, backend, reason);
    return tess_plan_upload(plan, room->image, room->image_size, &error, NULL) == TESS_OK ||
           reason_set_error(reason, &error);
}

/* Slots of tensors in a run's arguments, which have one for O and one for the LSE. */
#define SLOT(field) offsetof(tess_arguments, field)
static const size_t input_slots[INPUTS] = {SLOT(q),   SLOT(k), SLOT(v),
                                           SLOT(d_o), SLOT(o), SLOT(lse)};
static const size_t output_slots[OUTPUTS] = {SLOT(o), SLOT(lse), SLOT(d_q), SLOT(d_k), SLOT(d_v)};

static void hand_over(tess_arguments *arguments, size_t slot, const struct placed *placed) {
    const tess_tensor *view = &placed->view;
    if (view->data)
        memcpy((char *)arguments + slot, &view, sizeof view);
}

static tess_status room_run(const tess_plan *plan, const struct room *room,
                            tess_arguments *arguments, tess_error *error) {
    if (room->lists.struct_size)
        return tess_plan_fill_run(plan, &room->lists, room->image, room->image_size, NULL,
                                  arguments, error, NULL);
    arguments->image = room->image, arguments->image_size = room->image_size;
    return tess_run(plan, arguments, error, NULL);
}

static bool run_placed(const tess_plan *plan, const struct placed p[INPUTS + OUTPUTS],
                       const struct room *room, const struct lab_modifiers *modifiers,
                       tess_backend backend, struct reason *reason) {
    struct lab_mirror arrays;
    tess_error error = tess_error_init();
    tess_arguments arguments = tess_arguments_init();
    for (int i = 0; i < INPUTS; i++)
        hand_over(&arguments, input_slots[i], &p[i]);
    for (int i = 0; i < OUTPUTS; i++)
        hand_over(&arguments, output_slots[i], &p[INPUTS + i]);
    arguments.workspace = room->workspace, arguments.workspace_size = room->workspace_size;
    lab_mirror_make(&arrays, backend);
    bool done =
        lab_modifiers_place(modifiers, &arrays, &arguments) == 0 || worked(arrays.why, reason);
    if (done && room_run(plan, room, &arguments, &error) != TESS_OK)
        done = reason_set_error(reason, &error);
    done = done && worked(lab_device_synchronize(backend), reason);
    lab_mirror_free(&arrays);
    return done;
}

/* Device pattern of --topk in the fused pipeline, with no more indices a query than keys; NULL: the plan is
 * made of a pattern. */
static const tess_device_pattern *filled_from(const struct compute_options *options) {
    const tess_device_pattern *topk = options->topk;
    const int fills = topk && topk->capacity <= topk->n_kv &&
                      options->operation == TESS_ATTENTION && options->pipeline == TESS_FUSED;
    return fills ? topk : NULL;
}

static bool run_plan(const struct compute_options *options, const tess_plan *plan,
                     tess_backend backend, const struct attention_input *input,
                     const struct lab_modifiers *modifiers, struct attention_output *output,
                     struct reason *reason) {
    struct placed p[INPUTS + OUTPUTS] = {{.size = 0}};
    struct room room = {0};
    bool done =
        room_make(&room, plan, filled_from(options), &input->view[INPUT_Q], backend, reason);
    for (int i = 0; done && i < INPUTS; i++)
        done = place(&p[i], &input->view[i], backend, true, reason);
    for (int i = 0; done && i < OUTPUTS; i++)
        done = place(&p[INPUTS + i], &output->view[i], backend, false, reason);
    done = done && run_placed(plan, p, &room, modifiers, backend, reason);
    for (int i = 0; i < INPUTS + OUTPUTS && backend != TESS_CPU; i++) {
        if (done && i >= INPUTS && p[i].size)
            done = worked(lab_device_to_host(backend, output->view[i - INPUTS].data, p[i].view.data,
                                             p[i].size),
                          reason);
        if (p[i].size)
            lab_device_free(backend, p[i].view.data);
    }
    lab_device_free(backend, room.workspace);
    lab_device_free(backend, room.image);
    lab_device_free(backend, room.indices);
    return done;
}

/* The gradients that have somewhere to go. */
static int64_t gradients_of(const struct attention_output *output) {
    static const int64_t wanted[] = {TESS_GRADIENT_Q, TESS_GRADIENT_K, TESS_GRADIENT_V};
    int64_t gradients = 0;
    for (int i = 0; i < 3; i++)
        gradients |= output->view[OUTPUT_DQ + i].data ? wanted[i] : 0;
    return gradients;
}

static bool make_plan(tess_plan **plan, const struct compute_options *options, tess_backend backend,
                      const struct attention_input *input, const tess_pattern *pattern,
                      const struct attention_output *output, struct reason *reason) {
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
    problem.operation = options->operation;
    problem.gradients = gradients_of(output);
    problem.softcap = options->modifiers->softcap;
    problem.alibi = options->modifiers->text[MODIFIER_ALIBI] != NULL;
    problem.sink = options->modifiers->text[MODIFIER_SINK] != NULL;
    problem.dropout = options->modifiers->dropout;
    problem.threads = options->threads;
    if (options->operation ==
        TESS_ATTENTION_BACKWARD) /* dO and O may lie otherwise in their files */
        problem.alignment = (int64_t)tess_type_size(problem.type);
    if (!filled_from(options))
        return tess_plan_create(plan, &problem, pattern, &target, &error) == TESS_OK ||
               reason_set_error(reason, &error);
    tess_device_pattern declared = *options->topk;
    declared.indices = NULL;
    if (tess_plan_reserve(plan, &problem, &declared, &target, &error) == TESS_OK)
        return true;
    struct reason why;
    reason_set_error(&why, &error);
    return reason_set(
        reason,
        error.status != TESS_UNSUPPORTED || backend == TESS_CPU
            ? "%.400s"
            : "%.400s; --topk on CUDA is for --dtype f16 and bf16, or f32 over K and V of "
              "these, and heads of up to 576 dims: else --pipeline staged, or --backend cpu",
        why.text);
}

/* Kernel of the largest pass. */
static const char *main_kernel(const tess_plan *plan) {
    static const tess_stage stages[] = {TESS_STAGE_ATTENTION, TESS_STAGE_SDDMM,
                                        TESS_STAGE_GRADIENT_KEYS, TESS_STAGE_GRADIENT_ROWS};
    const char *kernel = NULL;
    for (size_t s = 0; s < sizeof stages / sizeof *stages && !kernel; s++)
        kernel = tess_plan_kernel(plan, stages[s]);
    return kernel;
}

/* auto: CUDA where a device is here and a plan for it can be made, else the CPU. */
static bool run_kernels(const struct compute_options *options, const struct attention_input *input,
                        const tess_pattern *pattern, const struct lab_modifiers *modifiers,
                        struct attention_output *output, struct reason *reason) {
    tess_plan *plan = NULL;
    tess_backend backend = options->backend == TESS_CUDA ? TESS_CUDA : TESS_CPU;
    if (options->backend == BACKEND_AUTO &&
        !lab_device_lacks(TESS_CUDA, options->operation, (tess_pipeline)options->pipeline) &&
        make_plan(&plan, options, TESS_CUDA, input, pattern, output, reason))
        backend = TESS_CUDA;
    if (!plan && !make_plan(&plan, options, backend, input, pattern, output, reason))
        return false;
    double start = lab_seconds();
    bool done = run_plan(options, plan, backend, input, modifiers, output, reason);
    if (done && options->verbose) {
        const char *kernel = main_kernel(plan);
        fprintf(stderr, "tessera: run: %s, %s, %.3f s\n", tess_backend_name(backend),
                kernel ? kernel : "no kernel", lab_seconds() - start);
    }
    tess_plan_free(plan);
    return done;
}

bool compute_run(const struct compute_options *options, const struct attention_input *input,
                 const tess_pattern *pattern, const struct lab_modifiers *modifiers,
                 struct attention_output *output, struct reason *reason) {
    return (options->pipeline == PIPELINE_ORACLE ? run_oracle : run_kernels)(
        options, input, pattern, modifiers, output, reason);
}
