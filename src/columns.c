/* tess_columns_convert: checks both forms, then converts. */
#include "plan/problem.h"
#include "base/status.h"

static tess_status told(const char *argument, const char *words, tess_error *error) {
    return error_set(error, TESS_INVALID_ARGUMENT, "tess_columns_convert", argument, "%s: %s",
                     argument, words);
}

/* Rows, columns and a capacity that have a default. */
static const char *sizes_wrong(tess_columns *c) {
    if (c->rows < 1 || c->rows > INT32_MAX)
        return "rows is not in 1 ... 2^31 - 1";
    if (c->columns < 1 || c->columns > INT32_MAX)
        return "columns is not in 1 ... 2^31 - 1";
    if (c->capacity < 0 || c->capacity > INT32_MAX)
        return "capacity is not in 0 ... 2^31 - 1";
    c->capacity = c->capacity ? c->capacity : c->columns;
    if ((uintptr_t)c->bits % sizeof *c->bits || (uintptr_t)c->indices % sizeof *c->indices ||
        (uintptr_t)c->counts % sizeof *c->counts)
        return "bits, indices or counts is not aligned to its elements";
    return NULL;
}

static tess_status columns_take(tess_columns *out, const char *argument, const tess_columns *given,
                                tess_error *error) {
    const char *wrong = given ? struct_take(out, sizeof *out, sizeof *out, given) : "it is NULL";
    wrong = wrong ? wrong : sizes_wrong(out);
    return wrong ? told(argument, wrong, error) : TESS_OK;
}

tess_status tess_columns_convert(tess_backend backend, const tess_columns *from,
                                 const tess_columns *to, tess_error *error, tess_stream stream) {
    struct columns_args args = {.stream = stream};
    const struct backend *b;
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (!status)
        status = columns_take(&args.from, "from", from, error);
    if (!status)
        status = columns_take(&args.to, "to", to, error);
    if (status)
        return status;
    const int forms = !!args.from.bytes + !!args.from.bits + !!args.from.indices;
    if (forms != 1)
        return told("from", "one of bytes, bits and indices must be given", error);
    if (args.from.counts && !args.from.indices)
        return told("from", "counts is given, and has no use without indices", error);
    if (!args.to.bytes && !args.to.bits && !args.to.indices && !args.to.counts)
        return told("to", "no array is given", error);
    if (args.to.rows != args.from.rows || args.to.columns != args.from.columns)
        return told("to", "rows and columns are not those of from", error);
    args.words = (args.from.columns + 63) / 64;
    return b->call.columns(&args, error);
}
