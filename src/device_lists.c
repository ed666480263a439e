/* The public functions of lists that live on the device: reserve, fill, report; fill and run in one. */
#include "arguments.h"
#include "plan/mlp.h"
#include "plan/problem.h"
#include "plan/reserve.h"
#include "base/status.h"

/* Refuses a problem, which may be NULL or not valid, whose queries or keys lie in a longer one. */
static tess_status slice_refused(const tess_problem *problem, const char *function,
                                 tess_error *error) {
    tess_problem p;
    if (!problem || struct_take(&p, sizeof p, PROBLEM_FIRST_SIZE, problem))
        return TESS_OK;
    const uint64_t n_q = (uint64_t)(p.whole_n_q ? p.whole_n_q : p.n_q);
    const uint64_t n_kv = (uint64_t)(p.whole_n_kv ? p.whole_n_kv : p.n_kv);
    const int moved = n_kv - n_q != (uint64_t)p.n_kv - (uint64_t)p.n_q;
    const struct {
        const char *name;
        int64_t value;
        int given;
    } fields[] = {{"query_offset", p.query_offset, p.query_offset != 0},
                  {"key_offset", p.key_offset, p.key_offset != 0},
                  {"key_positions", p.key_positions, p.key_positions != 0},
                  {"whole_n_q", p.whole_n_q, moved && p.whole_n_q},
                  {"whole_n_kv", p.whole_n_kv, moved}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given)
            return error_set(error, TESS_UNSUPPORTED, function, "problem",
                             "problem: %s is %lld, and must be 0: positions of a reserved plan "
                             "follow today's lengths; tess_plan_create takes parts of a problem",
                             fields[i].name, (long long)fields[i].value);
    return TESS_OK;
}

tess_status tess_plan_reserve(tess_plan **plan, const tess_problem *problem,
                              const tess_device_pattern *pattern, const tess_target *target,
                              tess_error *error) {
    const char *function = __func__, *kernel;
    const struct backend *backend;
    tess_error inner = tess_error_init();
    struct problem resolved;
    struct fill_shape shape;
    tess_target where;
    if (!plan)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "plan", "plan is NULL");
    *plan = NULL;
    tess_status status = slice_refused(problem, function, error);
    if (!status)
        status = check_problem(&resolved, &kernel, problem, function, error);
    if (!status && resolved.operation == TESS_ATTENTION_BACKWARD)
        status = error_set(error, TESS_UNSUPPORTED, function, "problem",
                           "problem: the backward does not read lists from an image: use "
                           "tess_plan_create");
    if (!status && resolved.pipeline != TESS_FUSED)
        status = error_set(error, TESS_UNSUPPORTED, function, "problem",
                           "problem: the staged pipeline does not read lists from an image: use "
                           "TESS_FUSED, or tess_plan_create");
    if (!status)
        status = check_device_pattern(&shape, pattern, &resolved, function, error);
    if (!status && resolved.operation == TESS_MLP)
        status = mlp_check_shape(&shape, function, error);
    if (!status)
        status = check_target(&where, target, function, error);
    if (!status)
        status = check_backend(&backend, where.backend, function, "target", error);
    if (!status && resolved.strict && !backend->on_host)
        status =
            error_set(error, TESS_UNSUPPORTED, function, "problem",
                      "problem: strict is 1: a fill on CUDA waits for nothing and can answer no "
                      "fault. Leave strict 0 and read tess_plan_report");
    if (status)
        return status;
    status = reserve_make(plan, &resolved, kernel, &shape, &where, backend, &inner);
    return status ? error_pass(error, &inner, function, inner.argument) : TESS_OK;
}

static tess_status check_reserved(const tess_plan *plan, const char *function, tess_error *error) {
    return plan && plan->filled
               ? TESS_OK
               : error_set(error, TESS_INVALID_ARGUMENT, function, "plan",
                           plan ? "the plan has lists of its own: make one by tess_plan_reserve"
                                : "plan is NULL");
}

tess_status tess_plan_fill(const tess_plan *plan, const tess_device_pattern *pattern, void *image,
                           size_t image_size, tess_error *error, tess_stream stream) {
    const char *function = __func__;
    tess_device_pattern given;
    tess_status status = check_reserved(plan, function, error);
    if (!status)
        status = check_filling(&given, pattern, plan, function, error);
    if (status)
        return status;
    if (!image || (uintptr_t)image % IMAGE_ALIGNMENT)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "image is NULL or not aligned to %d bytes", IMAGE_ALIGNMENT);
    if (image_size < plan->image)
        return error_set(error, TESS_WORKSPACE_TOO_SMALL, function, "image",
                         "the image has %zu bytes and must have %zu", image_size, plan->image);
    const struct filling filling = {&given, NULL};
    return reserve_fill(plan, &filling, function, image, stream, error);
}

/* Refuses a fill and run without an image where the kernel does not read these lists itself. */
static tess_status check_direct(const tess_plan *plan, const tess_device_pattern *pattern,
                                const void *report, const char *function, tess_error *error) {
    const char *wrong = !reserve_direct(plan)
                            ? "image is NULL, and the plan's kernel reads lists from an image: "
                              "give one of tess_plan_image_size bytes"
                        : !(pattern->promises & TESS_DISTINCT)
                            ? "image is NULL, and indices are not promised to be TESS_DISTINCT"
                        : report ? "image is NULL, and a report is asked for, which a fill makes"
                                 : NULL;
    return wrong ? error_set(error, TESS_INVALID_ARGUMENT, function, "image", "%s", wrong)
                 : TESS_OK;
}

/* The arguments of a run that fills its image, which is no member of them. */
static tess_status check_run_filling(tess_arguments *out, const tess_arguments *given, void *image,
                                     size_t image_size, const char *function, tess_error *error) {
    const char *wrong =
        given ? struct_take(out, sizeof *out, ARGUMENTS_FIRST_SIZE, given) : "it is NULL";
    if (!wrong && out->image)
        wrong = "image is given, and must be NULL: the call fills the image that it is handed";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "arguments", "arguments: %s",
                         wrong);
    out->struct_size = sizeof *out;
    out->image = image, out->image_size = image_size;
    return TESS_OK;
}

tess_status tess_plan_fill_run(const tess_plan *plan, const tess_device_pattern *pattern,
                               void *image, size_t image_size, void *report,
                               const tess_arguments *arguments, tess_error *error,
                               tess_stream stream) {
    struct call call = call_run(plan ? plan->problem.operation : TESS_ATTENTION, __func__);
    tess_device_pattern lists;
    tess_arguments given;
    struct kernel_args args;
    union operands operands;
    tess_status status = check_reserved(plan, __func__, error);
    if (!status)
        status = check_filling(&lists, pattern, plan, __func__, error);
    if (!status && (uintptr_t)report % sizeof(int64_t))
        status = error_set(error, TESS_INVALID_ARGUMENT, __func__, "report",
                           "report is not aligned to %zu bytes", sizeof(int64_t));
    if (!status)
        status = check_run_filling(&given, arguments, image, image_size, __func__, error);
    if (!image)
        call.reads |= USES_LISTS;
    if (!status && !image)
        status = check_direct(plan, &lists, report, __func__, error);
    if (!status)
        status = arguments_take(&args, &operands, plan, &given, &call, plan->workspace, error);
    if (status)
        return status;
    struct carve carve = {.base = args.workspace};
    args.workspace = plan_carve(plan, &carve, &operands);
    args.stream = stream;
    if (!image) {
        args.work.given = &lists;
        return passes_run(plan, plan->passes, plan->n_passes, NULL, &args, error);
    }
    const struct filling filling = {&lists, report};
    return passes_run(plan, plan->passes, plan->n_passes, &filling, &args, error);
}

tess_status tess_plan_report(const tess_plan *plan, const void *image, tess_fill_report *report,
                             tess_error *error) {
    const char *function = __func__;
    tess_fill_report known = tess_fill_report_init();
    const tess_status status = check_reserved(plan, function, error);
    if (status)
        return status;
    if (!image || (uintptr_t)image % sizeof(int64_t) || reserve_report(plan, image, &known))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "image is NULL, misaligned, or this plan has not filled it");
    const char *wrong =
        report ? struct_give(report, &known, sizeof known, REPORT_FIRST_SIZE) : "it is NULL";
    return wrong ? error_set(error, TESS_INVALID_ARGUMENT, function, "report", "report: %s", wrong)
                 : TESS_OK;
}
