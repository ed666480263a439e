/* tessera verify: every backend, pipeline and kernel against the oracle, over cases. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/sweep.h"
#include "lab/files/cases.h"
#include "lab/check/check.h"
#include "lab/device/device.h"
#include "lab/fill/rng.h"
#include "lab/lists/source.h"
#include "cli/reference.h"
#include "lab/device/timer.h"

enum { SWEEP_CASES = 3200, QUICK_CASES = 400, MAX_KERNELS = 256, MAX_SHOWN = 20 };
enum { QUIET_SECONDS = 15 };    /* a log gets a line after so many, and what runs then */
enum { LEVEL_DRAW = 6 };        /* seed of the draws of a kernel for each case */
enum { BACKWARD_WIDEST = 256 }; /* dims of heads that CUDA's fused backward takes at most */
enum {
    DECODE_WIDEST = 576,
    DECODE_WIDEST_V = 512,
    DECODE_PIECE = 16,
    DECODE_GROUP = 128
}; /* and its decode; bytes; dims */

struct options {
    char **words; /* cases on the command line */
    int64_t n_words;
    const char *file;                   /* file of cases; NULL: none */
    struct lab_cases cases;             /* words' and file's; none: the sweep */
    int64_t sweep_cases, seed, threads; /* threads -1: as the case says */
    int backend;                        /* LAB_ANY: as the case says */
    bool list, lists,
        mlps; /* print the cases; the sweep is of lists on the device, of MLPs alone */
};

static const struct argp_option option_table[] = {
    {"cases", 'c', "FILE", 0,
     "Run the cases of FILE: a case a line, or a sweep with its alternatives in braces; # begins a "
     "comment",
     0},
    {"count", 'n', "N", 0, "Number of cases in the generated sweep (default 3200)", 0},
    {"seed", 's', "S", 0, "Seed of the sweep (default 1)", 0},
    {"lists", 'd', NULL, 0, "A sweep of lists on the device alone; else they are every fifth case",
     0},
    {"mlps", 'm', NULL, 0, "A sweep of MLPs alone; else they are every twentieth case", 0},
    {"quick", 'q', NULL, 0, "A sweep of 400 cases", 0},
    {"threads", 't', "T", 0, "Run every case with T threads", 0},
    {"backend", 'b', "NAME", 0, "Run every case on cpu or cuda alone", 0},
    {"list", 'l', NULL, 0, "Print the cases and run nothing", 0},
    {0}};

static error_t parse_backend(int *backend, const char *text) {
    for (int b = TESS_CPU; b <= TESS_CUDA; b++)
        if (strcmp(text, tess_backend_name((tess_backend)b)) == 0) {
            *backend = b;
            return 0;
        }
    report("verify", "--backend %s: cpu or cuda is needed", text);
    return EINVAL;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'c':
        return argument_once(&o->file, text, "verify", "cases");
    case 'n':
        return argument_number(&o->sweep_cases, text, 1, 100000000, "verify", "count");
    case 's':
        return argument_number(&o->seed, text, 0, INT64_MAX, "verify", "seed");
    case 'q':
        o->sweep_cases = QUICK_CASES;
        return 0;
    case 't':
        return argument_number(&o->threads, text, 0, 4096, "verify", "threads");
    case 'b':
        return parse_backend(&o->backend, text);
    case 'd':
        o->lists = true;
        return 0;
    case 'm':
        o->mlps = true;
        return 0;
    case 'l':
        o->list = true;
        return 0;
    case ARGP_KEY_ARGS:
        o->words = state->argv + state->next;
        o->n_words = state->argc - state->next;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Stages of an operation's pipeline, a bit each. */
static const unsigned stages_of[3][2] = {
    [TESS_ATTENTION] = {[TESS_FUSED] = 1 << TESS_STAGE_ATTENTION,
                        [TESS_STAGED] =
                            1 << TESS_STAGE_SDDMM | 1 << TESS_STAGE_SOFTMAX | 1 << TESS_STAGE_SPMM},
    [TESS_ATTENTION_BACKWARD] = {[TESS_FUSED] = 1 << TESS_STAGE_DELTA |
                                                1 << TESS_STAGE_GRADIENT_KEYS |
                                                1 << TESS_STAGE_GRADIENT_ROWS,
                                 [TESS_STAGED] = 1 << TESS_STAGE_DELTA | 1 << TESS_STAGE_SDDMM |
                                                 1 << TESS_STAGE_SOFTMAX_BACKWARD |
                                                 1 << TESS_STAGE_SPMM |
                                                 1 << TESS_STAGE_SPMM_TRANSPOSED},
    [TESS_MLP] = {[TESS_FUSED] = 1 << TESS_STAGE_MLP_UP | 1 << TESS_STAGE_MLP_DOWN},
};

/* Tally of one kernel. */
struct tally {
    tess_kernel_info info;
    int64_t cases, last; /* how many it ran in; the number of the last */
    double worst;
};

struct verify {
    struct tally kernels[MAX_KERNELS];
    int64_t n_kernels;
    int64_t passed, failed, runs, refused;
    unsigned asked[2];     /* [backend]: stages of some case that is not skipped, a bit each */
    char refusal[LAB_WHY]; /* the last one */
    const char
        *lacks[3][2][2]; /* [operation][backend][pipeline]: why it is skipped; NULL: it is not */
    int64_t widest_f32;  /* dims of f32 heads that CUDA's fused kernels take here at most */
    int64_t too_wide;    /* cases of the sweep that were skipped for it */
    int64_t cases;       /* how many there are to do */
    bool terminal;       /* stderr is one */
    double told;         /* when the last line of progress was written */
    double worst;        /* error over bound of all */
    struct lab_case nearest; /* whose it is */
};

static void find_kernels(struct verify *v) {
    for (int64_t k = 0; k < tess_kernel_count() && v->n_kernels < MAX_KERNELS; k++) {
        struct tally *t = &v->kernels[v->n_kernels];
        t->info = tess_kernel_info_init();
        if (tess_kernel_describe(k, &t->info, NULL) == TESS_OK)
            v->n_kernels++;
    }
    for (int op = TESS_ATTENTION; op <= TESS_MLP; op++)
        for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++)
            for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
                v->lacks[op][backend][pipeline] = lab_device_lacks(
                    (tess_backend)backend, (tess_operation)op, (tess_pipeline)pipeline);
}

/* Past 512 dims it is a device's shared memory that decides. */
static int64_t widest_f32(void) {
    static const int64_t dims[] = {1024, 768};
    tess_target target = tess_target_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *dense;
    shape.n_q = 1;
    if (tess_target_query(&target, TESS_CUDA, 0, NULL) != TESS_OK ||
        tess_pattern_from_spec(&dense, "dense", &shape, NULL) != TESS_OK)
        return dims[0];
    int64_t widest = 512;
    for (size_t i = 0; i < sizeof dims / sizeof *dims && widest == 512; i++) {
        tess_problem problem = tess_problem_init();
        tess_plan *plan;
        problem.batch = problem.heads_q = problem.heads_kv = problem.n_q = problem.n_kv = 1;
        problem.d_qk = problem.d_v = dims[i];
        if (tess_plan_create(&plan, &problem, dense, &target, NULL) == TESS_OK)
            widest = dims[i];
        tess_plan_free(plan);
    }
    tess_pattern_free(dense);
    return widest;
}

/* Whether CUDA's decode takes a problem: K and V of 16 or 8 bits, rows of whole pieces, weights that scales
 * of tokens may multiply, and scales of K that end with some group where it has a second view. */
static bool is_decoded(const struct lab_case *c) {
    const tess_problem p = lab_case_problem(c, TESS_FUSED);
    const int64_t element = (int64_t)tess_type_size(c->kv_type ? c->kv_type : c->type);
    return element <= 2 && c->d <= DECODE_WIDEST && c->dv <= DECODE_WIDEST_V &&
           !(c->type == TESS_F16 && c->kv_scale >= TESS_SCALE_TOKEN) &&
           !(c->rope && c->kv_scale && (c->d - c->rope) % DECODE_GROUP) &&
           !(c->rope && c->type == TESS_F32 && element == 1) && /* k_rope is f32 */
           c->rope % 8 == 0 && (c->d - c->rope) * element % DECODE_PIECE == 0 &&
           c->dv * element % DECODE_PIECE == 0 && p.alignment >= DECODE_PIECE;
}

/* Whether CUDA takes an MLP: 16 bits, rows of whole pieces, o of its type, and groups of rows that fill a tile. */
static bool is_mlp_of_cuda(const struct lab_case *c) {
    const tess_problem p = lab_case_problem(c, TESS_FUSED);
    return c->type != TESS_F32 && p.alignment >= 16 && c->d % 8 == 0 && c->dv % 8 == 0 &&
           !c->out32 && c->block_q >= 64;
}

/* Whether a case of the sweep has no fused kernel on this machine's GPU. */
static bool is_too_wide(const struct verify *v, const struct lab_case *c, tess_backend backend,
                        tess_pipeline pipeline) {
    const int64_t d = c->d > c->dv ? c->d : c->dv;
    if (backend == TESS_CUDA && lab_case_mlp(c))
        return !is_mlp_of_cuda(c);
    if (backend != TESS_CUDA || pipeline != TESS_FUSED)
        return false;
    if (lab_case_listed(c))
        return !is_decoded(c);
    return lab_case_backward(c) ? d > BACKWARD_WIDEST : c->type == TESS_F32 && d > v->widest_f32;
}

static void show_failure(const struct verify *v, const struct lab_case *c, const char *why) {
    char text[LAB_CASE_TEXT];
    if (v->failed >= MAX_SHOWN)
        return;
    lab_case_print(c, text);
    printf("FAILED tessera verify '%s'\n       %s\n", text, why);
}

/* On a terminal one line that is written over. Else, so that the log of a run that was stopped says how
 * far it was, a line now and then with what comes next. */
static void progress(struct verify *v, const struct lab_case *next) {
    const int64_t done = v->passed + v->failed;
    char text[LAB_CASE_TEXT];
    if (v->terminal) {
        if (!next && (done % 16 == 0 || done == v->cases))
            fprintf(stderr, "\rverify: %lld of %lld cases, %lld failed%s", (long long)done,
                    (long long)v->cases, (long long)v->failed, done == v->cases ? "\r\033[K" : "");
        return;
    }
    if (!next || lab_seconds() - v->told < QUIET_SECONDS)
        return;
    v->told = lab_seconds();
    lab_case_print(next, text);
    fprintf(stderr, "verify: %lld of %lld cases, %lld failed, next %s\n", (long long)done,
            (long long)v->cases, (long long)v->failed, text);
}

/* One run; adds to the tallies of the kernels that ran, which *ran names. 0 when it failed. */
static int check_one(struct verify *v, struct lab_work *work, tess_backend backend,
                     tess_pipeline pipeline, const char *kernel, const char *ran[LAB_STAGES]) {
    struct lab_outcome outcome;
    struct lab_case c = work->s.c;
    c.backend = (int)backend;
    c.pipeline = (int)pipeline;
    if (kernel)
        snprintf(c.kernel, sizeof c.kernel, "%s", kernel);
    progress(v, &c);
    lab_check(&outcome, work, backend, pipeline, kernel);
    memset(ran, 0, LAB_STAGES * sizeof *ran);
    if (outcome.verdict == LAB_REFUSED) {
        v->refused++;
        memcpy(v->refusal, outcome.message, sizeof v->refusal);
        return 1;
    }
    v->runs++;
    for (int64_t k = 0; k < v->n_kernels; k++) {
        struct tally *t = &v->kernels[k];
        const char *name = outcome.kernels[t->info.stage];
        if (t->info.backend != backend || !name || strcmp(name, t->info.name) != 0)
            continue;
        ran[t->info.stage] = name;
        t->cases += t->cases == 0 || t->last != v->passed + v->failed;
        t->last = v->passed + v->failed;
        t->worst = outcome.worst > t->worst ? outcome.worst : t->worst;
    }
    if (outcome.worst > v->worst) {
        v->worst = outcome.worst;
        v->nearest = c;
    }
    if (outcome.verdict == LAB_PASSED)
        return 1;
    show_failure(v, &c, outcome.message);
    return 0;
}

/* The kernels of a backend and of these stages that this machine can run; answers how many. */
static int64_t usable(const struct verify *v, tess_backend backend, unsigned stages,
                      const tess_kernel_info *found[MAX_KERNELS]) {
    int64_t n = 0;
    for (int64_t k = 0; k < v->n_kernels; k++) {
        const tess_kernel_info *info = &v->kernels[k].info;
        if (info->backend == backend && stages >> info->stage & 1 && !info->unusable)
            found[n++] = info;
    }
    return n;
}

/* One backend and pipeline. On the CPU a case of the sweep runs by one kernel: levels share their sources,
 * and more levels take no longer. Else the plan's choice runs, then every other kernel by name. */
static int check_pipeline(struct verify *v, struct lab_work *work, tess_backend backend,
                          tess_pipeline pipeline, int64_t number) {
    const tess_kernel_info *found[MAX_KERNELS];
    const char *ran[LAB_STAGES], *forced[LAB_STAGES];
    const unsigned sums = work->s.c.sum_rows ? 1 << TESS_STAGE_COLUMN_SUMS : 0;
    const unsigned stages = stages_of[work->s.c.operation][pipeline] | sums;
    int64_t n = work->s.c.kernel[0] ? 0 : usable(v, backend, stages, found);
    v->asked[backend] |= stages;
    if (number >= 0 && backend == TESS_CPU && n) {
        const char *drawn = found[lab_below(LEVEL_DRAW, (uint64_t)number, 0, n)]->name;
        int64_t refused = v->refused;
        int passed = check_one(v, work, backend, pipeline, drawn, ran);
        return v->refused == refused ? passed : check_one(v, work, backend, pipeline, NULL, ran);
    }
    int ok = check_one(v, work, backend, pipeline, NULL, ran);
    for (int64_t k = 0; k < n; k++)
        if (!(ran[found[k]->stage] && strcmp(ran[found[k]->stage], found[k]->name) == 0))
            ok &= check_one(v, work, backend, pipeline, found[k]->name, forced);
    return ok;
}

/* number: its place in the sweep, or -1 for a case of the command line. */
static void check_case(struct verify *v, const struct lab_case *c, int64_t number) {
    char why[LAB_WHY];
    struct lab_work work;
    int ok = 1;
    progress(v, c);
    if (lab_work_make(&work, c, why)) {
        show_failure(v, c, why);
        ok = 0;
    }
    for (int backend = TESS_CPU; backend <= TESS_CUDA && ok; backend++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            if (lab_case_asks(c, backend, pipeline) && !v->lacks[c->operation][backend][pipeline]) {
                if (number >= 0 &&
                    is_too_wide(v, c, (tess_backend)backend, (tess_pipeline)pipeline))
                    v->too_wide++;
                else
                    ok &= check_pipeline(v, &work, (tess_backend)backend, (tess_pipeline)pipeline,
                                         number);
            }
    lab_work_free(&work);
    v->passed += ok;
    v->failed += !ok;
    progress(v, NULL);
}

/* The case with this number, the caller's or the sweep's. */
static struct lab_case case_at(const struct options *o, int64_t number) {
    struct lab_case c = o->cases.count ? o->cases.at[number]
                                       : (o->lists  ? sweep_lists_case
                                          : o->mlps ? sweep_mlp_case
                                                    : sweep_case)((uint64_t)o->seed, number);
    if (o->threads >= 0)
        c.threads = o->threads;
    if (o->backend != LAB_ANY)
        c.backend = o->backend;
    return c;
}

/* The caller's cases: words, then the file's. */
static int cases_read(struct options *o) {
    char why[LAB_WHY];
    for (int64_t i = 0; i < o->n_words; i++) {
        struct lab_case c;
        if (lab_case_parse(&c, o->words[i], why))
            return report("verify", "%s", why);
        if (lab_cases_add(&o->cases, &c))
            return report("verify", "out of memory");
    }
    if (o->file && lab_cases_read(&o->cases, o->file, why))
        return report("verify", "%s", why);
    return EXIT_DONE;
}

/* Refuses bad cases before anything runs: what the library refuses, what this machine or build has
 * nothing for. */
static int cases_check(const struct options *o) {
    char why[LAB_WHY];
    for (int64_t i = 0; i < o->cases.count; i++) {
        const struct lab_case c = case_at(o, i);
        tess_pattern *pattern;
        tess_error error = tess_error_init();
        if (lab_memory_fits(&c, why))
            return report("verify", "%s", why);
        if (lab_case_spec(&c, &pattern, &error) != TESS_OK)
            return report("verify", "%s", error.message);
        tess_pattern_free(pattern);
        if (!o->list && lab_device_case(&c, why))
            return report("verify", "%s", why);
    }
    struct lab_case whole = lab_case_default();
    whole.backend = o->backend;
    if (!o->list && lab_device_case(&whole, why))
        return report("verify", "%s", why);
    return EXIT_DONE;
}

/* Summary of each kernel that some case asked for. */
static void summary_of_kernels(const struct verify *v) {
    for (int64_t k = 0; k < v->n_kernels; k++) {
        const struct tally *t = &v->kernels[k];
        if (t->cases)
            printf("  %-29s %7lld cases, worst error/bound %.3f\n", t->info.name,
                   (long long)t->cases, t->worst);
        else if (t->info.unusable)
            printf("  %-29s skipped: %s\n", t->info.name, t->info.unusable);
        else if (v->asked[t->info.backend] >> t->info.stage & 1)
            printf("  %-29s ran in no case\n", t->info.name);
    }
}

static void summary(const struct verify *v, const struct options *o) {
    summary_of_kernels(v);
    for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            const char *lacks = v->lacks[TESS_ATTENTION][backend][pipeline];
            int told = pipeline > TESS_FUSED && lacks &&
                       v->lacks[TESS_ATTENTION][backend][TESS_FUSED] &&
                       strcmp(lacks, v->lacks[TESS_ATTENTION][backend][TESS_FUSED]) == 0;
            if (lacks && !told)
                printf("  %s: %s, skipped\n", tess_backend_name((tess_backend)backend), lacks);
        }
    if (v->too_wide)
        printf(
            "  cuda fused: %lld cases skipped: backwards past %d dims, f32 heads past %lld, which "
            "take more shared memory than this GPU has, and lists on the device that its decode "
            "does not take\n",
            (long long)v->too_wide, BACKWARD_WIDEST, (long long)v->widest_f32);
    if (v->worst > 0) {
        char text[LAB_CASE_TEXT];
        lab_case_print(&v->nearest, text);
        printf("  nearest to its bound: tessera verify '%s'\n", text);
    }
    printf("verify: %lld cases, %lld passed, %lld failed", (long long)(v->passed + v->failed),
           (long long)v->passed, (long long)v->failed);
    if (o->cases.count)
        printf("\n");
    else
        printf(" (seed %lld)\n", (long long)o->seed);
}

static int run(struct verify *v, const struct options *o) {
    v->cases = o->cases.count ? o->cases.count : o->sweep_cases;
    v->terminal = isatty(STDERR_FILENO);
    v->told = lab_seconds();
    if (!o->cases
             .count) /* for tiny problems a team costs more than it brings; runs name their own */
        omp_set_num_threads(1);
    for (int64_t i = 0; i < v->cases; i++) {
        const struct lab_case c = case_at(o, i);
        char text[LAB_CASE_TEXT];
        lab_case_print(&c, text);
        if (o->list)
            printf("%s\n", text);
        else
            check_case(v, &c, o->cases.count ? -1 : i);
    }
    if (o->list)
        return EXIT_DONE;
    if (v->runs == 0 && v->failed == 0)
        return report("verify", "nothing ran: %s", v->refusal);
    summary(v, o);
    return v->failed ? EXIT_CHECK_FAILED : EXIT_DONE;
}

int verify_main(int argc, char **argv) {
    static const struct argp argp = {
        option_table,
        parse,
        "[CASE...]",
        "Holds every backend, pipeline and kernel against a double-precision oracle, over the "
        "cases given or a generated sweep."
        "\vA failing case is printed as the command that repeats it. Exit status: 0 all passed, "
        "1 some failed, 2 bad use.",
        NULL,
        reference_case_filter,
        NULL};
    struct options options = {
        .sweep_cases = SWEEP_CASES, .seed = 1, .threads = -1, .backend = LAB_ANY};
    int status = arguments_parse(&argp, "verify", argc, argv, &options);
    if (status != EXIT_DONE)
        return status;
    struct verify *v = calloc(1, sizeof *v);
    if (!v)
        return report("verify", "out of memory");
    find_kernels(v);
    v->widest_f32 = widest_f32();
    status = cases_read(&options);
    if (status == EXIT_DONE)
        status = cases_check(&options);
    if (status == EXIT_DONE)
        status = run(v, &options);
    lab_cases_free(&options.cases);
    free(v);
    return status;
}
