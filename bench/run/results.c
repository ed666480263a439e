/* Rows as JSON, as CSV and as a table. */
#include "run/results.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "commit.h"

static const double NOISY = 0.05;

int bench_rows_make(struct bench_rows *rows) {
    rows->array = json_array();
    return rows->array ? 0 : -1;
}

void bench_rows_free(struct bench_rows *rows) {
    json_decref(rows->array);
    rows->array = NULL;
}

int bench_rows_read(struct bench_rows *rows, const char *path, char why[LAB_WHY]) {
    json_error_t error;
    size_t i;
    json_t *row;
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT)
        return 0;
    if (!file) {
        snprintf(why, LAB_WHY, "cannot read '%.200s': %s", path, strerror(errno));
        return -1;
    }
    json_t *array = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    int sound = json_is_array(array);
    json_array_foreach(array, i, row) sound =
        sound && json_is_string(json_object_get(row, "asked"));
    if (!sound) {
        snprintf(why, LAB_WHY, "%.200s: not a JSON array of measurements", path);
        json_decref(array);
        return -1;
    }
    json_decref(rows->array);
    rows->array = array;
    return 0;
}

int bench_rows_mix(const struct bench_rows *rows, char why[LAB_WHY]) {
    tess_device_info own[2] = {tess_device_info_init(), tess_device_info_init()};
    size_t i;
    json_t *row;
    for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++)
        if (tess_device_describe((tess_backend)backend, 0, &own[backend], NULL) != TESS_OK)
            own[backend].name[0] = '\0';
    json_array_foreach(rows->array, i, row) {
        const char *version = json_string_value(json_object_get(row, "version"));
        const char *commit = json_string_value(json_object_get(row, "commit"));
        const char *device = json_string_value(json_object_get(row, "device"));
        if (!version || !commit || !device || !*device || strcmp(version, tess_version()) != 0 ||
            strcmp(commit, BENCH_COMMIT) != 0 ||
            (strcmp(device, own[0].name) != 0 && strcmp(device, own[1].name) != 0)) {
            snprintf(why, LAB_WHY, "a measurement of version %.40s, commit %.46s, on '%.100s'",
                     version ? version : "?", commit ? commit : "?", device ? device : "?");
            return -1;
        }
    }
    return 0;
}

/* Six digits say all that a clock can; a rate that is infinite says nothing. */
static json_t *real(double x) {
    char text[32];
    if (!isfinite(x))
        return json_null();
    snprintf(text, sizeof text, "%.6g", x);
    return json_real(strtod(text, NULL));
}

static json_t *block_text(const struct lab_case *c) {
    char text[48];
    snprintf(text, sizeof text, "%lldx%lld", (long long)c->block_q, (long long)c->block_kv);
    return json_string(text);
}

/* Lists on the device have their form's name, entries and share; or what they are chosen by, or a mask of. */
static json_t *pattern_text(const struct lab_case *c) {
    static const char *const forms[] = {"topk", "rows", "bits", "ranges", "mask"};
    char text[sizeof c->pattern + 8];
    if (!lab_case_listed(c))
        return json_string(c->pattern);
    if (c->select[0])
        snprintf(text, sizeof text, "%s", c->select);
    else if (!c->topk)
        snprintf(text, sizeof text, "mask(%s)", c->pattern);
    else
        snprintf(text, sizeof text, "%s(%lld,%.6g)", forms[c->form], (long long)c->topk, c->valid);
    return json_string(text);
}

static json_t *case_text(const struct lab_case *c) {
    char text[LAB_CASE_TEXT];
    lab_case_print(c, text);
    return json_string(text);
}

/* JSON's integers are signed here: a seed from 2^63 on is written in quotes. */
static json_t *seed_number(uint64_t seed) {
    char text[24];
    if (seed <= INT64_MAX)
        return json_integer((json_int_t)seed);
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    return json_string(text);
}

static json_t *object(const struct bench_result *r) {
    const struct lab_case *c = &r->c;
    static const char *const lists[] = {"q", "kv", "1"};
    char throttled[BENCH_THROTTLE_TEXT];
    bench_throttle_text(throttled, &r->throttle);
    const struct {
        const char *name;
        json_t *value;
    } fields[] = {
        {"asked", json_string(r->asked)},
        {"case", case_text(c)},
        {"b", json_integer(c->b)},
        {"h", json_integer(c->h)},
        {"hkv", json_integer(c->hkv)},
        {"n", json_integer(c->n)},
        {"nkv", json_integer(c->nkv)},
        {"d", json_integer(c->d)},
        {"dv", json_integer(c->dv)},
        {"dtype", json_string(tess_type_name(c->type))},
        {"block", block_text(c)},
        {"pattern", pattern_text(c)},
        {"topk", json_integer(c->topk)},
        {"valid", real(c->valid)},
        {"split", json_integer(c->part_keys)},
        {"lists", json_string(lists[c->lists])},
        {"seed", seed_number(c->seed)},
        {"softcap", real(c->softcap)},
        {"alibi", json_integer(c->alibi)},
        {"sink", json_integer(c->sink)},
        {"dropout", real(c->dropout)},
        {"op", json_string(lab_operation_name(c->operation))},
        {"cache", json_string(lab_cached_name(c->cache))},
        {"base", json_string(lab_base_name(c->base))},
        {"backend", json_string(tess_backend_name((tess_backend)c->backend))},
        {"pipeline", json_string(r->pipeline)},
        {"kernel", json_string(r->kernel)},
        {"timing", json_string(r->timing)},
        {"ms", real(r->ms)},
        {"ms_min", real(r->ms_min)},
        {"ms_max", real(r->ms_max)},
        {"noise", real(r->noise)},
        {"predicted_ms", real(r->predicted_ms)},
        {"host_us", real(r->host_us)},
        {"plan_ms", real(r->plan_ms)},
        {"upload_ms", real(r->upload_ms)},
        {"select_ms", real(r->select_ms)},
        {"fill_ms", real(r->fill_ms)},
        {"step_ms", real(r->step_ms)},
        {"step", json_string(r->step ? r->step : "")},
        {"runs", json_integer(r->runs)},
        {"pairs", json_integer(r->pairs)},
        {"tflops", real(r->tflops)},
        {"sddmm_ms", real(r->stage_ms[0])},
        {"softmax_ms", real(r->stage_ms[1])},
        {"spmm_ms", real(r->stage_ms[2])},
        {"projection_ms", real(r->projection_ms)},
        {"layer_ms", real(r->layer_ms)},
        {"over_floor", real(r->over_floor)},
        {"sddmm_over_floor", real(r->stage_over_floor[0])},
        {"softmax_over_floor", real(r->stage_over_floor[1])},
        {"spmm_over_floor", real(r->stage_over_floor[2])},
        {"copy_gbs", real(r->copy_gbs)},
        {"cache_gbs", real(r->cache_gbs)},
        {"matmul_tflops", real(r->matmul_tflops)},
        {"peak_tflops", real(r->peak_tflops)},
        {"peak_share", real(r->tflops / r->peak_tflops)},
        {"speedup", real(r->speedup)},
        {"layer_speedup", real(r->layer_speedup)},
        {"note", json_string(r->note)},
        {"device", json_string(r->device)},
        {"sm_mhz", r->throttle.sm_mhz ? json_integer(r->throttle.sm_mhz) : json_null()},
        {"throttled", json_string(throttled)},
        {"version", json_string(tess_version())},
        {"commit", json_string(BENCH_COMMIT)},
    };
    json_t *o = json_object();
    int failed = !o;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        failed |= json_object_set_new(o, fields[i].name, fields[i].value) != 0;
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

int bench_rows_add(struct bench_rows *rows, const struct bench_result *r) {
    return json_array_append_new(rows->array, object(r));
}

int bench_rows_hold(const struct bench_rows *rows, const char *asked) {
    size_t i;
    json_t *row;
    json_array_foreach(rows->array, i,
                       row) if (strcmp(json_string_value(json_object_get(row, "asked")), asked) ==
                                0) return 1;
    return 0;
}

/* Whether a case in words is c but for its pattern. */
static int same_but_pattern(const char *text, const struct lab_case *c) {
    char why[LAB_WHY], one[LAB_CASE_TEXT], other[LAB_CASE_TEXT];
    struct lab_case dense[2] = {*c, *c};
    if (!text || lab_case_parse(&dense[0], text, why))
        return 0;
    for (int i = 0; i < 2; i++) {
        snprintf(dense[i].pattern, sizeof dense[i].pattern, "dense");
        dense[i].block_q = dense[i].block_kv = 64;
        dense[i].lists = LAB_LISTS_1, dense[i].source = LAB_SOURCE_SPEC;
    }
    lab_case_print(&dense[0], one);
    lab_case_print(&dense[1], other);
    return strcmp(one, other) == 0;
}

const json_t *bench_rows_like(const struct bench_rows *rows, const struct bench_result *r) {
    static const char *const same[] = {"pipeline", "kernel", "timing"};
    json_t *wanted = object(r), *row;
    size_t i;
    const json_t *found = NULL;
    json_array_foreach(rows->array, i, row) {
        int alike = wanted != NULL && json_is_real(json_object_get(row, "ms"));
        if (!isnan(r->layer_ms)) /* any number: a layer is wanted */
            alike = alike && json_is_real(json_object_get(row, "layer_ms"));
        for (size_t f = 0; f < sizeof same / sizeof *same && alike; f++)
            alike = json_equal(json_object_get(row, same[f]), json_object_get(wanted, same[f]));
        if (alike && same_but_pattern(json_string_value(json_object_get(row, "case")), &r->c))
            found = row;
    }
    json_decref(wanted);
    return found;
}

/* ---- the table ---- */

void bench_print_head(FILE *out) {
    fprintf(out, "%10s %10s %10s %6s %10s %9s  %s\n", "ms", "min", "max", "runs", "plan ms",
            "TFLOP/s", "case");
}

void bench_print_legend(FILE *out) {
    fputs(
        "ms: the median of the runs; TFLOP/s: of listed pairs, 2 (d + dv) operations each, "
        "backward 2 (3 d + 2 dv);\n"
        "x floor: times the least that the machine's own rates of copying, of its cache and of\n"
        "multiplying allow; peak: of multiply-adds alone, on as many threads, in the same minute;\n"
        "predicted: by the plan's cost model, on a CPU for one thread; host: of a call\n",
        out);
}

/* Doubts about a measurement. */
static void print_doubts(FILE *out, const struct bench_result *r) {
    char throttled[BENCH_THROTTLE_TEXT];
    bench_throttle_text(throttled, &r->throttle);
    if (r->noise > NOISY)
        fprintf(out, "%10s  noisy: stretches of its runs differ by %.0f %%\n", "", 100 * r->noise);
    if (throttled[0])
        fprintf(out, "%10s  throttled by %s: SM clock down to %u MHz\n", "", throttled,
                r->throttle.sm_mhz);
}

static void print_part(FILE *out, const char *name, double ms, double over_floor) {
    if (isnan(ms))
        return;
    fprintf(out, "  %s %.4g ms", name, ms);
    if (!isnan(over_floor))
        fprintf(out, " (%.2f x floor)", over_floor);
}

void bench_print(FILE *out, const struct bench_result *r) {
    static const char *const stages[BENCH_STAGES] = {"sddmm", "softmax", "spmm"};
    char text[LAB_CASE_TEXT];
    lab_case_print(&r->c, text);
    if (r->note[0]) {
        fprintf(out, "%10s %s: %s  %s\n", "-", r->kernel, r->note, text);
        return;
    }
    int ours = r->c.pipeline != LAB_ANY;
    fprintf(out, "%10.4g %10.4g %10.4g %6lld %10.4g %9.4g  %s%s%s\n", r->ms, r->ms_min, r->ms_max,
            (long long)r->runs, isnan(r->plan_ms) ? 0 : r->plan_ms, r->tflops,
            ours ? "" : r->kernel, ours ? "" : ": ", text);
    print_doubts(out, r);
    if (isnan(r->stage_ms[0]) && isnan(r->over_floor) && isnan(r->speedup) &&
        isnan(r->peak_tflops) && isnan(r->predicted_ms) && isnan(r->host_us) && isnan(r->fill_ms))
        return;
    fprintf(out, "%10s", "");
    if (!isnan(r->host_us))
        fprintf(out, "  host %.1f us", r->host_us);
    print_part(out, "select", r->select_ms, NAN);
    print_part(out, "fill", r->fill_ms, NAN);
    print_part(out, r->step && strcmp(r->step, "direct") == 0 ? "direct" : "fill and run",
               r->step_ms, NAN);
    for (int i = 0; i < BENCH_STAGES; i++)
        print_part(out, stages[i], r->stage_ms[i], r->stage_over_floor[i]);
    print_part(out, "projections", r->projection_ms, NAN);
    print_part(out, "layer", r->layer_ms, NAN);
    if (!isnan(r->over_floor))
        fprintf(out, "  whole %.2f x floor", r->over_floor);
    if (!isnan(r->predicted_ms))
        fprintf(out, "  predicted %.4g ms", r->predicted_ms);
    if (!isnan(r->peak_tflops))
        fprintf(out, "  %.1f %% of the peak, which is %.4g TFLOP/s",
                100 * r->tflops / r->peak_tflops, r->peak_tflops);
    if (!isnan(r->speedup))
        fprintf(out, "  ours is %.2f x as fast", r->speedup);
    if (!isnan(r->layer_speedup))
        fprintf(out, ", as a layer %.2f x", r->layer_speedup);
    fputc('\n', out);
}

void bench_print_limits(FILE *out, const struct bench_limits *limits) {
    fprintf(out, "limits: copy %.0f GB/s, L2 cache %.0f GB/s, matmul", limits->copy_gbs,
            limits->cache_gbs);
    for (int t = TESS_F32; t <= TESS_BF16; t++)
        fprintf(out, " %s %.1f", tess_type_name((tess_type)t), limits->matmul_tflops[t]);
    fprintf(out, " TFLOP/s\n");
}

/* ---- files ---- */

int bench_write_json(FILE *out, const struct bench_rows *rows) {
    int failed = json_dumpf(rows->array, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0;
    fputc('\n', out);
    return failed ? -1 : 0;
}

/* Texts stand in quotes, with quotes doubled. */
static void write_cell(FILE *out, const json_t *value) {
    if (json_is_integer(value))
        fprintf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        fprintf(out, "%.6g", json_real_value(value));
    else if (json_is_string(value)) {
        fputc('"', out);
        for (const char *at = json_string_value(value); *at; at++)
            fprintf(out, *at == '"' ? "\"\"" : "%c", *at);
        fputc('"', out);
    }
}

int bench_write_csv(FILE *out, const struct bench_rows *rows) {
    size_t i;
    json_t *row, *value;
    const char *name, *separator = "";
    json_object_foreach(json_array_get(rows->array, 0), name, value) {
        fprintf(out, "%s%s", separator, name);
        separator = ",";
    }
    fputc('\n', out);
    json_array_foreach(rows->array, i, row) {
        separator = "";
        json_object_foreach(json_array_get(rows->array, 0), name, value) {
            fputs(separator, out);
            write_cell(out, json_object_get(row, name)); /* rows read from a file may lack it */
            separator = ",";
        }
        fputc('\n', out);
    }
    return 0;
}
