/* Measurements as a table, as JSON and as CSV. Both files have the same fields. */
#include "results.h"

#include <jansson.h>
#include <math.h>

void bench_print_head(FILE *out) {
    fprintf(out, "%10s %10s %10s %6s %10s %9s  %s\n", "ms", "min", "max", "runs", "plan ms",
            "TFLOP/s", "case");
}

void bench_print(FILE *out, const struct bench_result *r) {
    char text[LAB_CASE_TEXT];
    lab_case_print(&r->c, text);
    fprintf(out, "%10.4g %10.4g %10.4g %6lld %10.4g %9.4g  %s\n", r->ms, r->ms_min, r->ms_max,
            (long long)r->runs, r->plan_ms, r->tflops, text);
}

/* Six digits say all that a clock can. */
static json_t *real(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", x);
    return json_real(strtod(text, NULL));
}

static json_t *object(const struct bench_result *r) {
    const struct lab_case *c = &r->c;
    static const char *const lists[] = {"q", "kv", "1"};
    char block[48], text[LAB_CASE_TEXT];
    snprintf(block, sizeof block, "%lldx%lld", (long long)c->block_q, (long long)c->block_kv);
    lab_case_print(c, text);
    const struct {
        const char *name;
        json_t *value;
    } fields[] = {
        {"case", json_string(text)},
        {"b", json_integer(c->b)},
        {"h", json_integer(c->h)},
        {"hkv", json_integer(c->hkv)},
        {"n", json_integer(c->n)},
        {"nkv", json_integer(c->nkv)},
        {"d", json_integer(c->d)},
        {"dv", json_integer(c->dv)},
        {"dtype", json_string(tess_type_name(c->type))},
        {"block", json_string(block)},
        {"pattern", json_string(c->pattern)},
        {"lists", json_string(lists[c->lists])},
        {"seed", json_integer((json_int_t)c->seed)},
        {"backend", json_string(tess_backend_name((tess_backend)c->backend))},
        {"pipeline", json_string(lab_pipeline_name(c->pipeline))},
        {"kernel", json_string(r->kernel)},
        {"ms", real(r->ms)},
        {"ms_min", real(r->ms_min)},
        {"ms_max", real(r->ms_max)},
        {"plan_ms", real(r->plan_ms)},
        {"upload_ms", real(r->upload_ms)},
        {"runs", json_integer(r->runs)},
        {"pairs", json_integer(r->pairs)},
        {"tflops", real(r->tflops)},
        {"device", json_string(r->device)},
        {"version", json_string(tess_version())},
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

int bench_write_json(FILE *out, const struct bench_result *results, int64_t count) {
    json_t *array = json_array();
    int failed = !array;
    for (int64_t i = 0; i < count; i++)
        failed |= json_array_append_new(array, object(&results[i])) != 0;
    failed = failed || json_dumpf(array, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0;
    fputc('\n', out);
    json_decref(array);
    return failed ? -1 : 0;
}

/* Texts stand in quotes, with quotes doubled. */
static void write_cell(FILE *out, const json_t *value) {
    if (json_is_integer(value))
        fprintf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        fprintf(out, "%.6g", json_real_value(value));
    else {
        fputc('"', out);
        for (const char *at = json_string_value(value); *at; at++)
            fprintf(out, *at == '"' ? "\"\"" : "%c", *at);
        fputc('"', out);
    }
}

int bench_write_csv(FILE *out, const struct bench_result *results, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        json_t *o = object(&results[i]);
        const char *name, *separator = "";
        json_t *value;
        if (!o)
            return -1;
        if (i == 0) {
            json_object_foreach(o, name, value) {
                fprintf(out, "%s%s", separator, name);
                separator = ",";
            }
            fputc('\n', out);
        }
        separator = "";
        json_object_foreach(o, name, value) {
            fputs(separator, out);
            write_cell(out, value);
            separator = ",";
        }
        fputc('\n', out);
        json_decref(o);
    }
    return 0;
}
