/* The public functions of lists that live on the device: reserve, fill, report. */
#include "plan/problem.h"
#include "plan/reserve.h"
#include "base/status.h"

/* Whether the queries or keys are a part of a longer problem's. */
static int is_slice(const struct problem *p) {
    const struct modifiers *m = &p->modifiers;
    return m->first_query || m->first_key || m->key_positions ||
           m->first_position != p->n_kv - p->n_q;
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
    tess_status status = check_problem(&resolved, &kernel, problem, function, error);
    if (!status && resolved.operation != TESS_ATTENTION)
        status = error_set(error, TESS_UNSUPPORTED, function, "problem",
                           "problem: the backward does not read lists from an image: use "
                           "tess_plan_create");
    if (!status && resolved.pipeline != TESS_FUSED)
        status = error_set(error, TESS_UNSUPPORTED, function, "problem",
                           "problem: the staged pipeline does not read lists from an image: use "
                           "TESS_FUSED, or tess_plan_create");
    if (!status && is_slice(&resolved))
        status =
            error_set(error, TESS_UNSUPPORTED, function, "problem",
                      "problem: positions of a reserved plan follow today's lengths: query_offset, "
                      "key_offset, whole_n_q, whole_n_kv and key_positions must be 0");
    if (!status)
        status = check_device_pattern(&shape, pattern, &resolved, function, error);
    if (!status)
        status = check_target(&where, target, function, error);
    if (!status)
        status = check_backend(&backend, where.backend, function, "target", error);
    if (!status && resolved.strict && !backend->host_images)
        status =
            error_set(error, TESS_UNSUPPORTED, function, "problem",
                      "problem: strict is 1: a fill on CUDA waits for nothing and can answer no "
                      "fault. Leave strict 0 and read tess_plan_report");
    if (status)
        return status;
    status = reserve_make(plan, &resolved, kernel, &shape, &where, backend, &inner);
    return status ? error_pass(error, &inner, function, inner.argument) : TESS_OK;
}

tess_status tess_plan_fill(const tess_plan *plan, const tess_device_pattern *pattern, void *image,
                           size_t image_size, tess_error *error, tess_stream stream) {
    const char *function = __func__;
    tess_device_pattern given;
    if (!plan || !plan->reserved)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "plan",
                         plan ? "the plan has lists of its own: make one by tess_plan_reserve"
                              : "plan is NULL");
    tess_status status = check_filling(&given, pattern, plan, function, error);
    if (status)
        return status;
    if (!image || (uintptr_t)image % IMAGE_ALIGNMENT)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "image is NULL or not aligned to %d bytes", IMAGE_ALIGNMENT);
    if (image_size < plan->image)
        return error_set(error, TESS_WORKSPACE_TOO_SMALL, function, "image",
                         "the image has %zu bytes and must have %zu", image_size, plan->image);
    return reserve_fill(plan, &given, image, stream, error);
}

tess_status tess_plan_report(const tess_plan *plan, const void *image, tess_fill_report *report,
                             tess_error *error) {
    const char *function = __func__;
    tess_fill_report known = tess_fill_report_init();
    if (!plan || !plan->reserved)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "plan",
                         plan ? "the plan has lists of its own: make one by tess_plan_reserve"
                              : "plan is NULL");
    if (!image || (uintptr_t)image % sizeof(int64_t) || reserve_report(plan, image, &known))
        return error_set(error, TESS_INVALID_ARGUMENT, function, "image",
                         "image is NULL, misaligned, or this plan has not filled it");
    const char *wrong =
        report ? struct_give(report, &known, sizeof known, REPORT_FIRST_SIZE) : "it is NULL";
    return wrong ? error_set(error, TESS_INVALID_ARGUMENT, function, "report", "report: %s", wrong)
                 : TESS_OK;
}
