/* tessera bench: measures cases, prints a table and writes files. */
#define _POSIX_C_SOURCE 200809L
#include "run/bench.h"

#include <stdlib.h>
#include <unistd.h>

#include "run/against.h"
#include "run/baseline.h"
#include "run/cases.h"
#include "lab/device/timer.h"

struct bench {
    struct bench_options options;
    struct bench_cases cases;
    struct bench_rows rows;
    struct bench_limits limits;
    double began;
    bool printed_head, printed_limits;
};

/* ---- files ---- */

/* Before hours of measuring: can the files be made? Nothing is left of the trial. */
static int try_outputs(const struct bench_options *o) {
    char why[LAB_WHY];
    const char *const paths[] = {o->json, o->csv};
    if (o->json && o->csv && lab_output_same(o->json, o->csv))
        return bench_refuse("--json and --csv name the same file");
    for (int i = 0; i < 2; i++) {
        struct lab_output trial;
        if (paths[i] && lab_output_open(&trial, paths[i], why))
            return bench_refuse("%s", why);
        if (paths[i])
            lab_output_abandon(&trial);
    }
    return BENCH_DONE;
}

static int write_output(const struct bench_rows *rows, const char *path,
                        int (*write)(FILE *, const struct bench_rows *)) {
    char why[LAB_WHY];
    struct lab_output output;
    int status = BENCH_DONE;
    if (!path)
        return BENCH_DONE;
    if (lab_output_open(&output, path, why))
        return bench_refuse("%s", why);
    if (write(output.file, rows))
        status = bench_refuse("out of memory for the output files");
    else if (lab_output_commit(&output, why))
        status = bench_refuse("%s", why);
    lab_output_abandon(&output);
    return status;
}

static int write_outputs(const struct bench *b) {
    int status = write_output(&b->rows, b->options.json, bench_write_json);
    return status ? status : write_output(&b->rows, b->options.csv, bench_write_csv);
}

/* ---- measuring ---- */

/* Before anything else is printed. */
static void hide_progress(void) {
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
}

/* One measurement more, left in *last. A kernel that the case names belongs to one backend and
 * pipeline only: the others tell why in refusal. */
static int measure(struct bench *b, struct bench_setting *s, const struct bench_method *method,
                   tess_backend backend, tess_pipeline pipeline, struct bench_result *last,
                   char refusal[LAB_WHY]) {
    char why[LAB_WHY];
    struct bench_result r;
    const char *no_limits = backend == TESS_CUDA ? bench_limits_measure(&b->limits) : NULL;
    if (no_limits)
        return bench_refuse("the limits: %s", no_limits);
    int status = bench_measure(&r, s, backend, pipeline, method, &b->limits, why);
    hide_progress();
    if (status == BENCH_REFUSED) {
        memcpy(refusal, why, LAB_WHY);
        return BENCH_DONE;
    }
    if (status != BENCH_DONE) {
        bench_refuse("%s: %s", s->asked, why);
        return status;
    }
    if (bench_rows_add(&b->rows, &r))
        return bench_refuse("out of memory");
    if (b->limits.measured && !b->printed_limits)
        bench_print_limits(stdout, &b->limits);
    b->printed_limits = b->limits.measured;
    if (!b->printed_head)
        bench_print_head(stdout);
    b->printed_head = true;
    bench_print(stdout, &r);
    fflush(stdout);
    *last = r;
    return status;
}

static int measure_case(struct bench *b, const struct bench_case *one, const char *asked) {
    char why[LAB_WHY], refusal[LAB_WHY] = "";
    struct bench_setting s;
    struct bench_result last;
    int status = BENCH_DONE;
    size_t before = json_array_size(b->rows.array);
    if (bench_setting_make(&s, &one->c, &one->method, asked, why)) {
        hide_progress();
        status = bench_refuse("%s: %s", s.asked, why);
    }
    for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED && status == BENCH_DONE; pipeline++)
            if (lab_case_asks(&one->c, backend, pipeline) &&
                !lab_device_lacks((tess_backend)backend, one->c.operation, (tess_pipeline)pipeline))
                status = measure(b, &s, &one->method, (tess_backend)backend,
                                 (tess_pipeline)pipeline, &last, refusal);
    if (status == BENCH_DONE && json_array_size(b->rows.array) == before)
        status = bench_refuse("%s: %s", s.asked, refusal);
    if (status == BENCH_DONE)
        status = bench_baselines(&b->rows, &s, &one->method, &last);
    bench_setting_free(&s);
    return status;
}

/* About how long a case takes beside others: a part that all have, and one that grows with the
 * dense work, which bounds the sparse. */
static double weight(const struct lab_case *c) {
    return 1 + 1e-11 * (double)(c->b * c->h * c->n) * (double)c->nkv * (double)(c->d + c->dv);
}

/* The line that tells how far it is, on a terminal only: `measured` is the weight of the cases that
 * this run has measured. */
static void show_progress(const struct bench *b, int64_t done, double measured) {
    double left = 0;
    if (!isatty(STDERR_FILENO))
        return;
    for (int64_t i = done; i < b->cases.count; i++)
        left += weight(&b->cases.at[i].c);
    fprintf(stderr, "\r\033[Kbench: %lld of %lld cases", (long long)done,
            (long long)b->cases.count);
    if (measured > 0)
        fprintf(stderr, ", about %.0f s left", (lab_seconds() - b->began) / measured * left);
}

static int measure_all(struct bench *b) {
    const struct bench_options *o = &b->options;
    int64_t left = 0;
    double measured = 0;
    int status = BENCH_DONE;
    for (int64_t i = 0; i < b->cases.count && status == BENCH_DONE; i++) {
        char asked[BENCH_ASKED_TEXT];
        const struct bench_case *one = &b->cases.at[i];
        bench_asked(asked, &one->method, &one->c);
        if (o->resume && bench_rows_hold(&b->rows, asked))
            continue;
        if (o->time_limit > 0 && lab_seconds() - b->began > o->time_limit) {
            left++;
            continue;
        }
        show_progress(b, i, measured);
        status = measure_case(b, one, asked);
        measured += weight(&one->c);
        if (status == BENCH_DONE && o->resume)
            status = write_outputs(b);
    }
    hide_progress();
    if (b->printed_head)
        bench_print_legend(stdout);
    if (b->cases.skipped > 0)
        printf("bench: %lld of %lld cases are skipped (the first: %s)\n",
               (long long)b->cases.skipped, (long long)(b->cases.skipped + b->cases.count),
               b->cases.why);
    if (left > 0)
        printf("bench: %lld of %lld cases are left\n", (long long)left, (long long)b->cases.count);
    return status;
}

static int run(struct bench *b) {
    const struct bench_options *o = &b->options;
    char why[LAB_WHY];
    int status = bench_cases_read(&b->cases, o);
    if (status == BENCH_DONE)
        status = try_outputs(o);
    if (status == BENCH_DONE && o->resume && bench_rows_read(&b->rows, o->json, why))
        status = bench_refuse("%s", why);
    if (status == BENCH_DONE && b->cases.count > 0 && bench_rows_mix(&b->rows, why))
        status =
            bench_refuse("%.200s has %s: continue it there, or use another file", o->json, why);
    if (status == BENCH_DONE)
        status = measure_all(b);
    if (status == BENCH_DONE)
        status = write_outputs(b);
    if (status == BENCH_DONE && o->against)
        status = bench_against(&b->rows, o->against);
    return status;
}

int bench_main(int argc, char **argv) {
    struct bench b;
    memset(&b, 0, sizeof b);
    b.options.method.seconds = 0.5;
    b.began = lab_seconds();
    int status = bench_options_parse(&b.options, argc, argv);
    if (status != BENCH_DONE)
        return status;
    if (bench_rows_make(&b.rows))
        return bench_refuse("out of memory");
    status = run(&b);
    bench_cases_free(&b.cases);
    bench_rows_free(&b.rows);
    return status;
}
