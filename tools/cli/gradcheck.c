/* tessera gradcheck: gradients against central differences of the forward. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/gradcheck_probe.h"
#include "cli/reference.h"
#include "lab/device/device.h"

enum { KEY_ELEMENTS = 'e', KEY_DIRECTIONS = 'd', KEY_BACKEND = 'b', KEY_PIPELINE = 'p' };

static const double MULTIPLICATIONS =
    2e7; /* most in one run of the oracle, of which there are hundreds */

struct options {
    const char *text, *backend, *pipeline;
    int64_t elements, directions; /* counts for each input */
};

static const struct argp_option option_table[] = {
    {"backend", KEY_BACKEND, "NAME", 0, "cpu or cuda; the case's, or cpu", 0},
    {"pipeline", KEY_PIPELINE, "NAME", 0, "fused or staged; the case's, or both", 0},
    {"elements", KEY_ELEMENTS, "N", 0, "Elements of each input that are moved alone (default 12)",
     0},
    {"directions", KEY_DIRECTIONS, "N", 0,
     "Random directions in which each input is moved (default 4)", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case KEY_BACKEND:
        return argument_once(&o->backend, argument, "gradcheck", "backend");
    case KEY_PIPELINE:
        return argument_once(&o->pipeline, argument, "gradcheck", "pipeline");
    case KEY_ELEMENTS:
        return argument_number(&o->elements, argument, 0, 1000000, "gradcheck", "elements");
    case KEY_DIRECTIONS:
        return argument_number(&o->directions, argument, 0, 1000000, "gradcheck", "directions");
    case ARGP_KEY_ARG:
        return argument_once(&o->text, argument, "gradcheck", "CASE");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- one backend and pipeline ---- */

static tess_status plans_make(struct gradcheck *c, tess_backend backend, tess_pipeline pipeline,
                              tess_error *error) {
    tess_target target = tess_target_init();
    tess_problem backward = lab_case_problem(&c->s.c, pipeline), forward = backward;
    forward.operation = TESS_ATTENTION, forward.gradients = 0, forward.kernel = NULL;
    tess_status status = tess_target_query(&target, backend, 0, error);
    if (status == TESS_OK)
        status = lab_planned_make(&c->forward, &forward, c->s.pattern, &target, error);
    if (status == TESS_OK)
        status = lab_planned_make(&c->backward, &backward, c->s.pattern, &target, error);
    return status;
}

/* o and lse of the forward, then gradients. 0, or -1 and why. */
static int gradients_run(struct gradcheck *c, char why[LAB_WHY]) {
    struct lab_setting *s = &c->s;
    const struct lab_run run = lab_setting_run(s, &c->backward);
    struct lab_run delta = run;
    delta.o = &s->o, delta.wanted = NULL;
    if (isnan(gradcheck_loss(c))) {
        snprintf(why, LAB_WHY, "the forward gives no finite loss");
        return -1;
    }
    if (s->c.given == LAB_GIVEN_DELTA && lab_run_delta(&delta, why))
        return -1;
    return lab_run_whole(&run, why);
}

static int check_pipeline(struct gradcheck *c, tess_backend backend, tess_pipeline pipeline) {
    char why[LAB_WHY], who[32];
    tess_error error = tess_error_init();
    int status = EXIT_DONE;
    snprintf(who, sizeof who, "%s %s", tess_backend_name(backend), lab_pipeline_name(pipeline));
    if (plans_make(c, backend, pipeline, &error) != TESS_OK)
        status = report("gradcheck", "%s: %s", who, error.message);
    else if (gradients_run(c, why))
        status = report("gradcheck", "%s: %s", who, why);
    for (int i = 0; i < GRADCHECK_INPUTS && status == EXIT_DONE; i++)
        if (lab_case_wants(&c->s.c, c->inputs[i].wanted) && gradcheck_probe(c, &c->inputs[i], who))
            status = report("gradcheck", "out of memory");
    lab_planned_free(&c->forward);
    lab_planned_free(&c->backward);
    return status;
}

static int check_all(struct gradcheck *c) {
    char text[LAB_CASE_TEXT];
    const struct lab_case *asked = &c->s.c;
    const int backend = asked->backend == LAB_ANY ? TESS_CPU : asked->backend;
    int status = EXIT_DONE;
    lab_case_print(asked, text);
    printf("gradcheck %s\n", text);
    for (int p = TESS_FUSED; p <= TESS_STAGED && status == EXIT_DONE; p++)
        if (asked->pipeline == LAB_ANY || asked->pipeline == p)
            status = check_pipeline(c, (tess_backend)backend, (tess_pipeline)p);
    return status != EXIT_DONE ? status : c->failed ? EXIT_CHECK_FAILED : EXIT_DONE;
}

/* ---- the case ---- */

/* Options take the place of the case's keys. */
static int named(int *value, const char *option, const char *text, const char *const names[2]) {
    for (int i = 0; text && i < 2; i++)
        if (strcmp(text, names[i]) == 0) {
            *value = i;
            return EXIT_DONE;
        }
    return text ? report("gradcheck", "--%s %s: %s or %s is needed", option, text, names[0],
                         names[1])
                : EXIT_DONE;
}

static const char *refuses(const struct lab_case *c) {
    const double work = (double)(c->b * c->h * c->n) * (double)c->nkv * (double)(c->d + c->dv);
    if (c->type != TESS_F32)
        return "dtype=f32 is needed, as differences of 16-bit outputs are those of their rounding";
    if (c->o_rest)
        return "orest=1: an o in f32 has no rest, leave it out";
    if (c->fill != LAB_FILL_NORMAL && c->fill != LAB_FILL_POSITIVE)
        return "fill=normal or fill=positive is needed";
    return work > MULTIPLICATIONS
               ? "the case is too large: b*h*n*nkv*(d+dv) up to 2e7 is quick enough"
               : NULL;
}

static int case_read(struct lab_case *c, const struct options *o) {
    static const char *const backends[] = {"cpu", "cuda"}, *const pipelines[] = {"fused", "staged"};
    char text[LAB_CASE_TEXT], why[LAB_WHY];
    if (!o->text)
        return report("gradcheck", "a case is needed, e.g. h=2,n=40,d=16,pattern=causal");
    snprintf(text, sizeof text, "%.600s%s", o->text, strstr(o->text, "op=") ? "" : ",op=backward");
    if (lab_case_parse(c, text, why) != 0)
        return report("gradcheck", "%s", why);
    if (named(&c->backend, "backend", o->backend, backends) ||
        named(&c->pipeline, "pipeline", o->pipeline, pipelines))
        return EXIT_BAD;
    if (!lab_case_backward(c))
        return report("gradcheck", "op=backward is what is checked");
    if (refuses(c))
        return report("gradcheck", "%s", refuses(c));
    return lab_device_case(c, why) ? report("gradcheck", "%s", why) : EXIT_DONE;
}

int gradcheck_main(int argc, char **argv) {
    static const struct argp argp = {option_table,
                                     parse,
                                     "CASE",
                                     "Compares the library's gradients with central differences of "
                                     "its own forward in f32, and the "
                                     "oracle's with those of the oracle."
                                     "\vBoth elements and random directions are moved. Prints the "
                                     "worst of each input. Exit status: "
                                     "0 all within their bounds, 1 some are not, 2 bad use.",
                                     NULL,
                                     reference_case_filter,
                                     NULL};
    struct options options = {.elements = 12, .directions = 4};
    struct gradcheck check = {0};
    struct lab_case c;
    char why[LAB_WHY];
    int status = arguments_parse(&argp, "gradcheck", argc, argv, &options);
    if (status == EXIT_DONE && options.elements + options.directions == 0)
        status = report("gradcheck", "--elements 0 --directions 0 leaves nothing to check");
    if (status == EXIT_DONE)
        status = case_read(&c, &options);
    if (status != EXIT_DONE)
        return status;
    check.elements = options.elements, check.directions = options.directions;
    if (lab_setting_make(&check.s, &c, why))
        status = report("gradcheck", "%s", why);
    else if (lab_setting_gradients(&check.s, check.s.pattern, &check.gradients) ||
             gradcheck_noise(&check))
        status = report("gradcheck", "out of memory for the oracle");
    if (status == EXIT_DONE) {
        gradcheck_inputs(&check);
        status = check_all(&check);
    }
    lab_gradients_free(&check.gradients);
    lab_setting_free(&check.s);
    return status;
}
