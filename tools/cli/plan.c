/* tessera plan: the plans of a case, in words. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "lab/case.h"

static error_t parse(int key, char *argument, struct argp_state *state) {
    const char **text = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (*text) {
            report("plan", "%s: one case is enough", argument);
            return EINVAL;
        }
        *text = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool print_plan(const struct lab_case *c, tess_backend backend, tess_pipeline pipeline,
                       const tess_pattern *pattern, struct reason *reason) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = lab_case_problem(c, pipeline);
    tess_plan *plan;
    if (tess_target_query(&target, backend, 0, &error) != TESS_OK ||
        tess_plan_create(&plan, &problem, pattern, &target, &error) != TESS_OK)
        return reason_set_error(reason, &error);
    size_t length = tess_plan_print(plan, NULL, 0);
    char *text = malloc(length + 1);
    if (text) {
        tess_plan_print(plan, text, length + 1);
        printf("%s%s", text, length && text[length - 1] == '\n' ? "" : "\n");
    }
    free(text);
    tess_plan_free(plan);
    return text != NULL || reason_set(reason, "out of memory");
}

/* Every backend and pipeline that the case leaves open; what cannot be planned is then named. */
static int print_plans(const struct lab_case *c, const tess_pattern *pattern) {
    for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++) {
        if (c->backend != LAB_ANY && c->backend != backend)
            continue;
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            struct reason reason;
            if ((c->pipeline != LAB_ANY && c->pipeline != pipeline) ||
                print_plan(c, (tess_backend)backend, (tess_pipeline)pipeline, pattern, &reason))
                continue;
            bool open = c->backend == LAB_ANY && backend == TESS_CUDA;
            if (!open)
                return report("plan", "%s", reason.text);
            printf("%s %s: no plan: %s\n", tess_backend_name((tess_backend)backend),
                   lab_pipeline_name(pipeline), reason.text);
        }
    }
    return EXIT_DONE;
}

int plan_main(int argc, char **argv) {
    static const struct argp argp = {
        NULL,
        parse,
        "CASE",
        "Prints the plan of a case for every backend and pipeline that it does not name."
        "\vA case is one line of key=value pairs, for example\n"
        "  h=16,n=16384,d=128,dtype=bf16,block=128x128,pattern=random(0.1,1)",
        NULL,
        NULL,
        NULL};
    const char *text = NULL;
    int status = arguments_parse(&argp, "plan", argc, argv, &text);
    if (status != EXIT_DONE)
        return status;
    if (!text)
        return report("plan", "a case is needed, e.g. n=4096,d=64,pattern=causal");
    struct lab_case c;
    char why[LAB_WHY];
    if (lab_case_parse(&c, text, why) != 0)
        return report("plan", "%s", why);
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    if (lab_case_pattern(&c, &pattern, &error) != TESS_OK) {
        struct reason reason;
        reason_set_error(&reason, &error);
        return report("plan", "%s", reason.text);
    }
    char full[LAB_CASE_TEXT];
    lab_case_print(&c, full);
    printf("%s\n", full);
    status = print_plans(&c, pattern);
    tess_pattern_free(pattern);
    return status;
}
