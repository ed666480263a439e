/* Rejecting device patterns: what is declared of them, never what their lists say. */
#include "plan/problem.h"
#include "plan/reserve.h"

#include "base/status.h"

#include <string.h>

/* Positions and keys differ by less: limits of a cut beyond it cut nothing. */
#define CUT_FAR (INT64_C(1) << 33)

/* Entries of all lists: so many that no sum of theirs overflows. */
#define ENTRIES_MOST (INT64_C(1) << 48)

/* Arrays, and the forms that have them. */
struct form_array {
    const char *name;
    size_t alignment;
    int needed, allowed; /* bits 1 << form */
};
enum {
    INDICES = 1 << TESS_INDICES,
    BLOCK_ROWS = 1 << TESS_BLOCK_ROWS,
    BLOCK_BITS = 1 << TESS_BLOCK_BITS,
    RANGES = 1 << TESS_RANGES,
    MASK = 1 << TESS_MASK,
    EVERY_FORM = INDICES | BLOCK_ROWS | BLOCK_BITS | RANGES | MASK
};
static const struct form_array arrays[] = {
    {"indices", sizeof(int32_t), INDICES | BLOCK_ROWS | RANGES, INDICES | BLOCK_ROWS | RANGES},
    {"counts", sizeof(int32_t), 0, INDICES | RANGES},
    {"row_ptr", sizeof(int64_t), BLOCK_ROWS, BLOCK_ROWS},
    {"bits", sizeof(uint64_t), BLOCK_BITS, BLOCK_BITS},
    {"lengths", sizeof(int32_t), 0, EVERY_FORM},
    {"mask", 1, MASK, MASK},
};

static const char *const form_names[] = {"TESS_INDICES", "TESS_BLOCK_ROWS", "TESS_BLOCK_BITS",
                                         "TESS_RANGES", "TESS_MASK"};

/* The pattern as it is given, with every default resolved. NULL, or what is wrong by itself. */
static const char *pattern_take(tess_device_pattern *p, const tess_device_pattern *given) {
    const char *wrong =
        given ? struct_take(p, sizeof *p, DEVICE_PATTERN_FIRST_SIZE, given) : "it is NULL";
    if (wrong)
        return wrong;
    if ((unsigned)p->form > TESS_MASK)
        return "form is not TESS_INDICES, TESS_BLOCK_ROWS, TESS_BLOCK_BITS, TESS_RANGES or "
               "TESS_MASK";
    p->n_kv = p->n_kv ? p->n_kv : p->n_q;
    if (!p->block_q)
        return "block_q is 0: name it; a list for each query has 1";
    if (!p->block_kv && p->form != TESS_RANGES)
        return "block_kv is 0: name it; a list of single keys has 1";
    p->block_kv = p->block_kv ? p->block_kv : 1;
    p->batch = p->batch ? p->batch : 1;
    p->heads = p->heads ? p->heads : 1;
    if (p->capacity < 0 || p->capacity > INT32_MAX)
        return "capacity is not in 0 ... 2^31 - 1";
    if (p->cut_lo > p->cut_hi)
        return "cut_lo is above cut_hi: no key would count";
    if (p->promises & ~(int64_t)(TESS_DISTINCT | TESS_ASCENDING | TESS_PADDED_LAST))
        return "promises is not a sum of TESS_DISTINCT, TESS_ASCENDING and TESS_PADDED_LAST";
    return NULL;
}

/* Blocks that cannot be filled. */
static tess_status blocks_check(const tess_device_pattern *p, const char *function,
                                tess_error *error) {
    const int64_t q = p->block_q, kv = p->block_kv;
    if (p->form == TESS_RANGES && kv != 1)
        return error_set(error, TESS_UNSUPPORTED, function, "pattern",
                         "pattern: block_kv is %lld: ranges are of keys, leave it 0 or 1",
                         (long long)kv);
    if (q < 1 || q > INT32_MAX || (q % 64 && (q > 64 || q & (q - 1))))
        return error_set(error, TESS_UNSUPPORTED, function, "pattern",
                         "pattern: block_q is %lld: blocks of 1, 2, 4 ... 64 queries or of a "
                         "multiple of 64 can be filled",
                         (long long)q);
    if (kv < 1 || kv > 128 || kv & (kv - 1))
        return error_set(error, TESS_UNSUPPORTED, function, "pattern",
                         "pattern: block_kv is %lld: blocks of 1, 2, 4 ... 128 keys can be filled",
                         (long long)kv);
    return TESS_OK;
}

static tess_status sizes_check(const tess_device_pattern *p, const struct problem *problem,
                               const char *function, tess_error *error) {
    if (p->n_q != problem->n_q || p->n_kv != problem->n_kv)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                         "pattern is for %lld x %lld, the problem has %lld queries and %lld keys",
                         (long long)p->n_q, (long long)p->n_kv, (long long)problem->n_q,
                         (long long)problem->n_kv);
    return check_lists(p->batch, p->heads, problem, function, error);
}

/* The capacity where none is given: the most that can be. Rows of BLOCK_ROWS may be padded beyond. */
static int64_t capacity_most(const struct fill_shape *s) {
    const int64_t lists = s->batch * s->heads;
    int64_t blocks;
    if (s->form == TESS_RANGES)
        return FILL_RANGES;
    if (fill_is_padded(s->form))
        return s->cols;
    return __builtin_mul_overflow(lists * s->rows, s->cols, &blocks) ? INT64_MAX : blocks;
}

static tess_status capacity_check(const struct fill_shape *s, const char *function,
                                  tess_error *error) {
    static const struct {
        const char *what, *unit;
    } bounds[] = {[TESS_INDICES] = {"a block row has", "block columns (blocks of block_kv keys)"},
                  [TESS_BLOCK_BITS] = {"all lists together have", "blocks"},
                  [TESS_RANGES] = {"a block row has at most", "ranges"},
                  [TESS_MASK] = {"a block row has", "block columns (blocks of block_kv keys)"}};
    const int64_t most = capacity_most(s);
    int64_t rows = s->batches * s->heads * s->rows, entries;
    if (rows > INT32_MAX)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                         "pattern: there are %lld block rows over all lists: they may be 2^31 - 1",
                         (long long)rows);
    if (s->form != TESS_BLOCK_ROWS && s->capacity > most)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                         "pattern: capacity is %lld: %s %lld %s", (long long)s->capacity,
                         bounds[s->form].what, (long long)most, bounds[s->form].unit);
    if (s->form == TESS_BLOCK_ROWS || s->form == TESS_BLOCK_BITS)
        rows = s->batches;
    if (s->capacity > INT32_MAX || __builtin_mul_overflow(rows, s->capacity, &entries) ||
        entries > ENTRIES_MOST)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                         "pattern: a capacity of %lld does not fit: it may be 2^31 - 1, and 2^48 "
                         "over all lists",
                         (long long)s->capacity);
    return TESS_OK;
}

tess_status check_device_pattern(struct fill_shape *out, const tess_device_pattern *given,
                                 const struct problem *problem, const char *function,
                                 tess_error *error) {
    tess_device_pattern p;
    const char *wrong = pattern_take(&p, given);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern: %s", wrong);
    tess_status status = sizes_check(&p, problem, function, error);
    if (!status)
        status = blocks_check(&p, function, error);
    if (status)
        return status;
    *out = (struct fill_shape){
        .form = p.form,
        .n_q = p.n_q,
        .n_kv = p.n_kv,
        .block_q = p.block_q,
        .block_kv = p.block_kv,
        .batch = p.batch,
        .heads = p.heads,
        .batches = problem->batch,
        .rows = (p.n_q + p.block_q - 1) / p.block_q,
        .cols = (p.n_kv + p.block_kv - 1) / p.block_kv,
        .capacity = p.capacity,
        .cut = p.cut_lo || p.cut_hi,
        .cut_lo = max_i64(-CUT_FAR, min_i64(p.cut_lo, CUT_FAR)),
        .cut_hi = max_i64(-CUT_FAR, min_i64(p.cut_hi, CUT_FAR)),
        .threads = problem->threads,
    };
    if (!out->capacity)
        out->capacity = capacity_most(out);
    return capacity_check(out, function, error);
}

static tess_status arrays_check(const tess_device_pattern *p, const char *function,
                                tess_error *error) {
    const void *const given[] = {p->indices, p->counts, p->row_ptr, p->bits, p->lengths, p->mask};
    const int form = 1 << p->form;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const char *wrong = !given[i] && arrays[i].needed & form      ? "is NULL, and must be given"
                            : given[i] && !(arrays[i].allowed & form) ? "is given, and has no use"
                            : (uintptr_t)given[i] % arrays[i].alignment
                                ? "is not aligned to its elements"
                                : NULL;
        if (wrong)
            return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                             "pattern: %s %s for %s", arrays[i].name, wrong, form_names[p->form]);
    }
    return TESS_OK;
}

tess_status check_filling(tess_device_pattern *out, const tess_device_pattern *given,
                          const tess_plan *plan, const char *function, tess_error *error) {
    const struct fill_shape *was = plan->filled;
    struct fill_shape is;
    tess_status status = check_device_pattern(&is, given, &plan->problem, function, error);
    if (status)
        return status;
    const struct {
        const char *name;
        int64_t is, was;
    } fields[] = {{"form", is.form, was->form},
                  {"block_q", is.block_q, was->block_q},
                  {"block_kv", is.block_kv, was->block_kv},
                  {"batch", is.batch, was->batch},
                  {"heads", is.heads, was->heads},
                  {"capacity", is.capacity, was->capacity},
                  {"cut_lo", is.cut_lo, was->cut_lo},
                  {"cut_hi", is.cut_hi, was->cut_hi}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].is != fields[i].was)
            return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                             "pattern: %s is %lld, and the plan was reserved for %lld",
                             fields[i].name, (long long)fields[i].is, (long long)fields[i].was);
    const char *wrong = pattern_take(out, given);
    return wrong
               ? error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern: %s", wrong)
               : arrays_check(out, function, error);
}
