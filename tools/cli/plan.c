/* tessera plan: the plans of a case, in words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "lab/lists/listed.h"
#include "lab/lists/source.h"
#include "cli/reference.h"

enum { KEY_TARGET = 't', KEY_KEYS = 'k' };

struct options {
    const char *text;   /* the case */
    const char *target; /* NULL: this machine */
    int64_t keys;       /* keys of a query tile of a reserved plan; -1: the capacity's */
};

static const struct argp_option option_table[] = {
    {"target", KEY_TARGET, "NAME", 0,
     "Plan for a GPU that need not be here: h100, h200, a100, l40s, rtx4090, b200, rtx5090, or its "
     "architecture and multiprocessors, such as 90x132",
     0},
    {"keys", KEY_KEYS, "N", 0,
     "Of lists on the device: also what is predicted where each query tile lists N keys", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct options *options = state->input;
    switch (key) {
    case KEY_TARGET:
        return argument_once(&options->target, argument, "plan", "target");
    case KEY_KEYS:
        return argument_number(&options->keys, argument, 0, INT32_MAX, "plan", "keys");
    case ARGP_KEY_ARG:
        if (options->text) {
            report("plan", "%s: one case is enough", argument);
            return EINVAL;
        }
        options->text = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- targets by name ---- */

/* Bytes of shared memory that a block can ask for, by architecture (CUDA C++ Programming Guide,
 * compute capabilities). */
static int64_t shared_memory(int32_t architecture) {
    return architecture == 80 || architecture == 87    ? 163 * 1024
           : architecture == 90 || architecture == 100 ? 227 * 1024
                                                       : 99 * 1024;
}

static const struct {
    const char *name;
    int32_t architecture, multiprocessors;
    int64_t cache_mb, memory_gbs;
} gpus[] = {
    {"h200", 90, 132, 60, 4800},     {"h100", 90, 132, 50, 3350},    {"a100", 80, 108, 40, 2039},
    {"l40s", 89, 142, 96, 864},      {"rtx4090", 89, 128, 72, 1008}, {"b200", 100, 148, 126, 8000},
    {"rtx5090", 120, 170, 96, 1792},
};

static bool parse_target(tess_target *target, const char *text, struct reason *reason) {
    int architecture = 0, multiprocessors = 0, used = 0;
    *target = tess_target_init();
    target->backend = TESS_CUDA;
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (strcmp(text, gpus[i].name) == 0) {
            target->architecture = gpus[i].architecture;
            target->multiprocessors = gpus[i].multiprocessors;
            target->cache_size = gpus[i].cache_mb << 20;
            target->memory_rate = gpus[i].memory_gbs * 1000000000;
        }
    if (!target->architecture) {
        if (strspn(text, "0123456789x") != strlen(text) || strlen(text) > 9 ||
            sscanf(text, "%dx%d%n", &architecture, &multiprocessors, &used) != 2 || text[used] ||
            architecture < 10 || multiprocessors < 1)
            return reason_set(reason,
                              "--target %s: h100, h200, a100, l40s, rtx4090, b200, rtx5090 or "
                              "ARCHITECTUREx%s such as 90x132 is needed",
                              text, "MULTIPROCESSORS");
        target->architecture = architecture;
        target->multiprocessors = multiprocessors;
    }
    target->shared_memory_per_block = shared_memory(target->architecture);
    return true;
}

/* ---- plans ---- */

/* Plans; a plan of lists on the device is reserved, without these. */
static tess_status make_plan(tess_plan **plan, const struct lab_case *c,
                             const tess_problem *problem, const tess_pattern *pattern,
                             const tess_target *target, tess_error *error) {
    struct lab_listed listed;
    if (!lab_case_listed(c))
        return tess_plan_create(plan, problem, pattern, target, error);
    tess_status status = TESS_OUT_OF_MEMORY;
    if (lab_listed_make(&listed, c, 0) == 0) {
        const tess_device_pattern declared = lab_listed_declared(&listed);
        status = tess_plan_reserve(plan, problem, &declared, target, error);
    }
    lab_listed_free(&listed);
    return status;
}

/* Questions of the command line about a case. */
struct asked {
    const tess_target *target; /* NULL: this machine's first device */
    int64_t keys;              /* see options */
};

/* Prediction for a run of a reserved plan where each query tile lists `keys` keys. */
static void print_keys(const tess_plan *plan, const tess_plan_info *info, int64_t keys) {
    printf("            %.4g ms where each query tile lists %lld keys\n",
           1e3 * tess_plan_predict(plan, keys * info->query_tiles), (long long)keys);
}

/* Sets what the run is predicted to take. */
static bool print_plan(const struct lab_case *c, const struct asked *asked, tess_backend backend,
                       tess_pipeline pipeline, const tess_pattern *pattern, double *seconds,
                       struct reason *reason) {
    tess_error error = tess_error_init();
    tess_target target = asked->target ? *asked->target : tess_target_init();
    tess_problem problem = lab_case_problem(c, pipeline);
    tess_plan_info info = tess_plan_info_init();
    tess_plan *plan;
    if ((!asked->target && tess_target_query(&target, backend, 0, &error) != TESS_OK) ||
        make_plan(&plan, c, &problem, pattern, &target, &error) != TESS_OK ||
        tess_plan_describe(plan, &info, &error) != TESS_OK)
        return reason_set_error(reason, &error);
    size_t length = tess_plan_print(plan, NULL, 0);
    char *text = malloc(length + 1);
    if (text) {
        tess_plan_print(plan, text, length + 1);
        printf("%s%s", text, length && text[length - 1] == '\n' ? "" : "\n");
    }
    if (asked->keys >= 0)
        print_keys(plan, &info, asked->keys);
    *seconds = info.predicted_seconds;
    free(text);
    tess_plan_free(plan);
    return text != NULL || reason_set(reason, "out of memory");
}

/* Whether tess_attention or tess_attention_backward, which have no options, compute the case. */
static bool is_one_call(const struct lab_case *c) {
    return !lab_case_listed(c) && !c->d_lse && !c->o_rest && c->given != LAB_GIVEN_DELTA &&
           c->gradients <= (TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V) &&
           !lab_case_modifies(c) && !(c->scale < 0 || c->scale > 0) && !c->kernel[0] &&
           !c->tile_rows && !c->part_keys && !c->threads && !c->base;
}

/* Every pipeline that the case leaves open; where one has a plan, why another has none, and which of
 * both the one call takes. Answers how many have one; 0: *reason says why not. */
static int print_pipelines(const struct lab_case *c, const struct asked *asked,
                           tess_backend backend, const tess_pattern *pattern,
                           struct reason *reason) {
    double seconds[2] = {INFINITY, INFINITY};
    int planned = 0, without = LAB_ANY;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        if (!lab_case_asks(c, (int)backend, pipeline))
            continue;
        if (print_plan(c, asked, backend, (tess_pipeline)pipeline, pattern, &seconds[pipeline],
                       reason))
            planned++;
        else
            without = pipeline;
    }
    if (planned && without != LAB_ANY)
        printf("%s %s: no plan: %s\n", tess_backend_name(backend), lab_pipeline_name(without),
               reason->text);
    /* Predictions that memory bounds are equal: the call compares the costs behind them. */
    const bool known =
        seconds[TESS_FUSED] < seconds[TESS_STAGED] || seconds[TESS_STAGED] < seconds[TESS_FUSED];
    if (planned && known && c->pipeline == LAB_ANY && is_one_call(c))
        printf("  tess_attention%s takes the %s pipeline\n",
               lab_case_backward(c) ? "_backward" : "",
               lab_pipeline_name(seconds[TESS_FUSED] < seconds[TESS_STAGED] ? TESS_FUSED
                                                                            : TESS_STAGED));
    return planned;
}

/* Every backend that the case leaves open. */
static int print_plans(const struct lab_case *c, const struct asked *asked,
                       const tess_pattern *pattern) {
    for (int backend = asked->target ? TESS_CUDA : TESS_CPU; backend <= TESS_CUDA; backend++) {
        struct reason reason;
        const bool open = c->backend == LAB_ANY && backend == TESS_CUDA && !asked->target;
        if ((c->backend == LAB_ANY || c->backend == backend) &&
            !print_pipelines(c, asked, (tess_backend)backend, pattern, &reason) && !open)
            return report("plan", "%s", reason.text);
    }
    return EXIT_DONE;
}

int plan_main(int argc, char **argv) {
    static const struct argp argp = {
        option_table,
        parse,
        "CASE",
        "Prints the plan of a case for every backend and pipeline that it does not name."
        "\vA case is one line of key=value pairs, for example\n"
        "  h=16,n=16384,d=128,dtype=bf16,block=128x128,pattern=random(0.1,1)\n\n"
        "What is printed:\n"
        "  tile       queries that a kernel takes at once; what other heights take\n"
        "  lists      query tiles and the keys that they list, each once a tile: keys\n"
        "             of all its queries (full), and others (masked)\n"
        "  use        listed pairs of a query and a key, of those that are computed\n"
        "  schedule   pieces of work: query tiles, or parts of split ones\n"
        "  memory     workspace: of a run; image: of the plan's lists on a device\n"
        "  pairs      of a query and a key that it lists, over all heads\n"
        "  bytes      of inputs that are listed and of the output, each moved once\n"
        "  floor      what the device's memory takes for these bytes\n"
        "  predicted  what costs say that a run takes, never less than the floor",
        NULL,
        reference_case_filter,
        NULL};
    struct options options = {.keys = -1};
    int status = arguments_parse(&argp, "plan", argc, argv, &options);
    if (status != EXIT_DONE)
        return status;
    if (!options.text)
        return report("plan", "a case is needed, e.g. n=4096,d=64,pattern=causal");
    struct lab_case c;
    struct reason reason;
    tess_target target;
    char why[LAB_WHY];
    if (lab_case_parse(&c, options.text, why) != 0)
        return report("plan", "%s", why);
    if (options.target && !parse_target(&target, options.target, &reason))
        return report("plan", "%s", reason.text);
    if (options.target && c.backend == TESS_CPU)
        return report("plan", "--target is a GPU, and the case says backend=cpu");
    if (options.keys >= 0 && !lab_case_listed(&c))
        return report("plan",
                      "--keys is of lists on the device (topk=...), which the case has not");
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    if (lab_case_pattern(&c, &pattern, &error) != TESS_OK) {
        reason_set_error(&reason, &error);
        return report("plan", "%s", reason.text);
    }
    const struct asked asked = {options.target ? &target : NULL, options.keys};
    char full[LAB_CASE_TEXT];
    lab_case_print(&c, full);
    printf("%s\n", full);
    status = print_plans(&c, &asked, pattern);
    tess_pattern_free(pattern);
    return status;
}
