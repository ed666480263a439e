/* Names of everything that has one, and the details of a failed call. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *name, *text;
} status_words[] = {
    [TESS_OK] = {"TESS_OK", "success"},
    [TESS_INVALID_ARGUMENT] = {"TESS_INVALID_ARGUMENT", "an argument is not valid"},
    [TESS_INVALID_LIST] = {"TESS_INVALID_LIST", "block lists break a rule"},
    [TESS_UNSUPPORTED] = {"TESS_UNSUPPORTED", "no kernel computes this"},
    [TESS_OUT_OF_MEMORY] = {"TESS_OUT_OF_MEMORY", "an allocation failed"},
    [TESS_WORKSPACE_TOO_SMALL] = {"TESS_WORKSPACE_TOO_SMALL", "the workspace is too small"},
    [TESS_NO_CUDA] = {"TESS_NO_CUDA", "no CUDA in this build or on this machine"},
    [TESS_CUDA_ERROR] = {"TESS_CUDA_ERROR", "the CUDA runtime reported an error"},
};

static const char *const fault_names[] = {
    [TESS_FAULT_NONE] = "none",
    [TESS_FAULT_NULL] = "null",
    [TESS_FAULT_NOT_MONOTONE] = "not monotone",
    [TESS_FAULT_NEGATIVE] = "negative",
    [TESS_FAULT_OUT_OF_RANGE] = "out of range",
    [TESS_FAULT_UNSORTED] = "unsorted",
    [TESS_FAULT_DUPLICATE] = "duplicate",
    [TESS_FAULT_OVERFLOW] = "overflow",
};

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [TESS_F32] = {"f32", 4},   [TESS_F16] = {"f16", 2},   [TESS_BF16] = {"bf16", 2},
    [TESS_E4M3] = {"e4m3", 1}, [TESS_E5M2] = {"e5m2", 1},
};

static const char *const backend_names[] = {[TESS_CPU] = "cpu", [TESS_CUDA] = "cuda"};

static const char *const stage_names[] = {
    [TESS_STAGE_ATTENTION] = "attention",
    [TESS_STAGE_SDDMM] = "sddmm",
    [TESS_STAGE_SOFTMAX] = "softmax",
    [TESS_STAGE_SPMM] = "spmm",
    [TESS_STAGE_DELTA] = "delta",
    [TESS_STAGE_GRADIENT_KEYS] = "gradient_keys",
    [TESS_STAGE_GRADIENT_ROWS] = "gradient_rows",
    [TESS_STAGE_SOFTMAX_BACKWARD] = "softmax_backward",
    [TESS_STAGE_SPMM_TRANSPOSED] = "spmm_transposed",
    [TESS_STAGE_COLUMN_SUMS] = "column_sums",
    [TESS_STAGE_MLP_UP] = "mlp_up",
    [TESS_STAGE_MLP_DOWN] = "mlp_down",
};

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define TEXT(number) TEXT_(number)
#define TEXT_(number) #number

const char *tess_version(void) {
    return TEXT(TESS_VERSION_MAJOR) "." TEXT(TESS_VERSION_MINOR) "." TEXT(TESS_VERSION_PATCH);
}

const char *tess_status_name(tess_status status) {
    return (size_t)status < COUNT(status_words) ? status_words[status].name : NULL;
}

const char *tess_status_text(tess_status status) {
    return (size_t)status < COUNT(status_words) ? status_words[status].text : NULL;
}

const char *tess_list_fault_name(tess_list_fault fault) {
    return (size_t)fault < COUNT(fault_names) ? fault_names[fault] : NULL;
}

const char *tess_type_name(tess_type type) {
    return (size_t)type < COUNT(types) ? types[type].name : NULL;
}

size_t tess_type_size(tess_type type) {
    return (size_t)type < COUNT(types) ? types[type].size : 0;
}

const char *tess_backend_name(tess_backend backend) {
    return (size_t)backend < COUNT(backend_names) ? backend_names[backend] : NULL;
}

const char *tess_stage_name(tess_stage stage) {
    return (size_t)stage < COUNT(stage_names) ? stage_names[stage] : NULL;
}

/* A struct_size of 0, a tess_error that was only zeroed, means the size in version 0.1. */
#define ERROR_FIRST_SIZE (offsetof(tess_error, message) + 256)

/* Writes as much as the caller's struct has room for, which may be less than any version's. */
static void error_give(tess_error *error, const tess_error *filled) {
    if (!error)
        return;
    size_t given_size = error->struct_size;
    if (!given_size)
        error->struct_size = ERROR_FIRST_SIZE;
    struct_give(error, filled, sizeof *filled, sizeof given_size);
    error->struct_size = given_size;
}

static void error_fill(tess_error *error, tess_error filled, const char *format, va_list words) {
    vsnprintf(filled.message, sizeof filled.message, format, words);
    for (char *c = filled.message; *c; c++) /* names that a caller gave may hold anything */
        if ((unsigned char)*c < ' ' || *c == '\x7f')
            *c = '?';
    error_give(error, &filled);
}

/* Details without a place. */
static tess_error error_of(tess_status status, const char *function, const char *argument) {
    return (tess_error){.status = status,
                        .function = function,
                        .argument = argument,
                        .batch = -1,
                        .head = -1,
                        .row = -1,
                        .position = -1};
}

tess_status error_set(tess_error *error, tess_status status, const char *function,
                      const char *argument, const char *format, ...) {
    va_list words;
    va_start(words, format);
    error_fill(error, error_of(status, function, argument), format, words);
    va_end(words);
    return status;
}

tess_status error_set_at(tess_error *error, tess_status status, const char *function,
                         const char *argument, int64_t position, const char *format, ...) {
    tess_error filled = error_of(status, function, argument);
    va_list words;
    filled.position = position;
    va_start(words, format);
    error_fill(error, filled, format, words);
    va_end(words);
    return status;
}

tess_status error_set_list(tess_error *error, tess_list_fault fault, const char *function,
                           const char *argument, int64_t batch, int64_t head, int64_t row,
                           int64_t position, const char *format, ...) {
    tess_error filled = error_of(TESS_INVALID_LIST, function, argument);
    va_list words;
    filled.fault = fault;
    filled.batch = batch, filled.head = head, filled.row = row, filled.position = position;
    va_start(words, format);
    error_fill(error, filled, format, words);
    va_end(words);
    return TESS_INVALID_LIST;
}

tess_status error_set_memory(tess_error *error, const char *function, size_t bytes) {
    return error_set(error, TESS_OUT_OF_MEMORY, function, NULL, "could not allocate %zu bytes",
                     bytes);
}

tess_status error_pass(tess_error *error, const tess_error *from, const char *function,
                       const char *argument) {
    tess_error filled = *from;
    filled.function = function;
    filled.argument = argument;
    error_give(error, &filled);
    return from->status;
}

const char *words_range(struct words *words, int64_t from, int64_t to) {
    const int used = snprintf(words->text, sizeof words->text, "%lld", (long long)from);
    if (to != from)
        snprintf(words->text + used, sizeof words->text - (size_t)used, " ... %lld", (long long)to);
    return words->text;
}

const char *words_choice(struct words *words, const int64_t *number, int n) {
    int used = snprintf(words->text, sizeof words->text, "%lld", (long long)number[0]);
    for (int i = 1; i < n; i++)
        if (number[i] != number[i - 1])
            used += snprintf(words->text + used, sizeof words->text - (size_t)used, "%s%lld",
                             number[i] == number[n - 1] ? " or " : ", ", (long long)number[i]);
    return words->text;
}

/* A struct_size this far past any version's is a struct that nobody initialised. */
#define STRUCT_SIZE_LIMIT 4096

static int struct_size_is_set(size_t given_size, size_t first) {
    return given_size >= first && given_size <= STRUCT_SIZE_LIMIT;
}

const char *struct_take(void *known, size_t size, size_t first, const void *given) {
    size_t given_size;
    memcpy(&given_size, given, sizeof given_size);
    if (!struct_size_is_set(given_size, first))
        return "struct_size is not set: start from its _init function";
    for (size_t i = size; i < given_size; i++)
        if (((const unsigned char *)given)[i])
            return "fields are set that this version of the library does not know";
    memset(known, 0, size);
    memcpy(known, given, given_size < size ? given_size : size);
    return NULL;
}

const char *struct_give(void *given, const void *known, size_t size, size_t first) {
    size_t given_size;
    memcpy(&given_size, given, sizeof given_size);
    if (!struct_size_is_set(given_size, first))
        return "struct_size is not set: start from its _init function";
    memcpy((char *)given + sizeof given_size, (const char *)known + sizeof given_size,
           (given_size < size ? given_size : size) - sizeof given_size);
    return NULL;
}
