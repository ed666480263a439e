/* Cases from the command line and from sweep files. */
#include "run/cases.h"

#include <stdio.h>
#include <stdlib.h>

#include "lab/files/cases.h"
#include "lab/memory/guard.h"

enum { LINE_WORDS = 16 };
#define BLANKS " \t"

static const char no_memory[] = "out of memory";

/* Names the case a kernel that this machine cannot run? */
static int kernel_lacks(const struct lab_case *c, char why[LAB_WHY]) {
    for (int64_t k = 0; c->kernel[0] && k < tess_kernel_count(); k++) {
        tess_kernel_info info = tess_kernel_info_init();
        if (tess_kernel_describe(k, &info, NULL) != TESS_OK || strcmp(info.name, c->kernel) != 0 ||
            !info.unusable)
            continue;
        snprintf(why, LAB_WHY, "%s: %s", info.name, info.unusable);
        return -1;
    }
    return 0;
}

/* `where` begins the message: "" or, of a sweep, "FILE:LINE: ". A case of a sweep that the machine
 * lacks something for is skipped: sweeps are written for many machines. */
static int add_case(struct bench_cases *all, const char *text, const struct bench_method *method,
                    const char *where) {
    char why[LAB_WHY];
    if (all->count == all->room) {
        int64_t room = all->room ? 2 * all->room : 16;
        struct bench_case *more = realloc(all->at, (size_t)room * sizeof *more);
        if (!more)
            return bench_refuse("%s", no_memory);
        all->at = more;
        all->room = room;
    }
    struct bench_case *one = &all->at[all->count];
    one->method = *method;
    if (lab_case_parse(&one->c, text, why))
        return bench_refuse("%s%s", where, why);
    if (!lab_memory_fits(&one->c, why) && !lab_device_case(&one->c, why) &&
        !kernel_lacks(&one->c, why)) {
        all->count++;
        return BENCH_DONE;
    }
    if (!*where)
        return bench_refuse("%s", why);
    if (all->skipped++ == 0)
        memcpy(all->why, why, sizeof all->why);
    return BENCH_DONE;
}

/* One line without braces: options, then the case. */
static int add_line(struct bench_cases *all, char *line, const struct bench_method *given,
                    const char *where) {
    char *words[LINE_WORDS + 2]; /* [0] is the parser's, the last ends them */
    char name[LAB_WHY + 20];
    struct bench_method method = *given;
    int count = 0;
    while (strncmp(line, "--", 2) == 0) {
        if (count == LINE_WORDS)
            return bench_refuse("%smore than %d options", where, LINE_WORDS);
        words[++count] = line;
        line += strcspn(line, BLANKS);
        if (*line)
            *line++ = '\0';
        line += strspn(line, BLANKS);
    }
    words[count + 1] = NULL;
    snprintf(name, sizeof name, "tessera: bench: %.*s", (int)strlen(where) - 2, where);
    if (count && bench_method_parse(&method, words + 1, count, name))
        return BENCH_BAD;
    return add_case(all, line, &method, where);
}

struct sweep {
    struct bench_cases *all;
    const struct bench_method *method;
};

static int take_line(void *context, char *line, const char *where) {
    const struct sweep *sweep = context;
    return add_line(sweep->all, line, sweep->method, where);
}

static int read_sweep(struct bench_cases *all, const char *path,
                      const struct bench_method *method) {
    struct sweep sweep = {all, method};
    char why[LAB_WHY];
    int status = lab_lines_read(path, take_line, &sweep, why);
    return status < 0 ? bench_refuse("%s", why) : status;
}

int bench_cases_read(struct bench_cases *cases, const struct bench_options *options) {
    int status = BENCH_DONE;
    memset(cases, 0, sizeof *cases);
    for (int64_t i = 0; i < options->n_cases && status == BENCH_DONE; i++)
        status = add_case(cases, options->cases[i], &options->method, "");
    if (status == BENCH_DONE && options->sweep)
        status = read_sweep(cases, options->sweep, &options->method);
    if (status == BENCH_DONE && cases->count == 0 && cases->skipped && !options->resume)
        return bench_refuse("all %lld cases are skipped: %s", (long long)cases->skipped,
                            cases->why);
    if (status == BENCH_DONE && cases->count == 0 && !options->resume)
        status = bench_refuse("no cases: give some, or --sweep FILE");
    return status;
}

void bench_cases_free(struct bench_cases *cases) {
    free(cases->at);
    memset(cases, 0, sizeof *cases);
}
