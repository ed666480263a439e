/* Rejecting callers: problems, tensors, and patterns that do not fit a problem. */
#include "plan/problem.h"

#include "plan/caches.h"
#include "plan/mlp.h"
#include "base/status.h"
#include "base/threads.h"

#include <float.h>
#include <math.h>

/* The fewest keys of a part of a split tile, unless the problem says otherwise. */
#define DEFAULT_PART_KEYS 1024

/* Softcaps whose inverse and product with log2(e) are normal numbers of f32. */
#define SOFTCAP_LEAST 0x1p-64
#define SOFTCAP_MOST 0x1p64

/* Names of a tensor's sizes, for messages. */
static const char *const size_names[4] = {"batches", "heads", "rows", "dims"};

/* A field of a problem that must lie in 1 ... most. */
struct problem_size {
    const char *name;
    int64_t value, most;
};

/* Whether the elements of a [batch, heads, n, d] tensor, in bytes, fit 64 bits with room. */
static int tensor_fits(int64_t batch, int64_t heads, int64_t n, int64_t d) {
    int64_t elements;
    return !__builtin_mul_overflow(batch, heads, &elements) &&
           !__builtin_mul_overflow(elements, n, &elements) &&
           !__builtin_mul_overflow(elements, d, &elements) && elements <= INT64_MAX / 8;
}

static const char *sizes_wrong(const tess_problem *p) {
    int64_t d = p->d_qk > p->d_v ? p->d_qk : p->d_v;
    int64_t n = p->n_q > p->n_kv ? p->n_q : p->n_kv;
    if (p->heads_q % p->heads_kv)
        return "heads_kv does not divide heads_q";
    if (p->batch > INT32_MAX / p->heads_q)
        return "batch * heads_q is past 2^31 - 1";
    if (!tensor_fits(p->batch, p->heads_q, n, d))
        return "the tensors do not fit 64 bits";
    if (p->rope_dims < 0 || p->rope_dims >= p->d_qk)
        return "rope_dims is not in 0 ... d_qk - 1";
    return NULL;
}

static const char *options_wrong(const tess_problem *p) {
    if (!type_is_of_queries(p->type))
        return "type is not TESS_F32, TESS_F16 or TESS_BF16";
    if (p->pipeline != TESS_FUSED && p->pipeline != TESS_STAGED)
        return "pipeline is not TESS_FUSED or TESS_STAGED";
    if (!(fabs(p->scale) <= FLT_MAX))
        return "scale is not a finite f32 number";
    if (p->alignment < 0 || p->alignment > 4096 || (p->alignment & (p->alignment - 1)))
        return "alignment is not a power of two up to 4096";
    if (p->alignment && (size_t)p->alignment < caches_element(p))
        return "alignment is less than the size of an element";
    if (p->threads < 0 || p->threads > THREADS_LEGAL)
        return "threads is not in 0 ... 65536";
    if (p->tile_rows < 0 || p->tile_rows > 256)
        return "tile_rows is not in 0 ... 256";
    if (p->part_keys < 0)
        return "part_keys is negative";
    if (p->strict < 0 || p->strict > 1)
        return "strict is not 0 or 1";
    return NULL;
}

/* Whether the problem's n items from `offset` on are some of the `whole` problem's, which are `most` at
 * most; else an error. */
static tess_status slice_check(const char *what, int64_t offset, int64_t n, int64_t whole,
                               int64_t most, const char *function, tess_error *error) {
    struct words words;
    if (whole < n || whole > most)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem",
                         "problem: the whole problem has %lld %s, not %lld ... %lld",
                         (long long)whole, what, (long long)n, (long long)most);
    if (offset < 0 || offset > whole - n)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem",
                         "problem: the offset of its %s is %lld, not %s: the whole problem has "
                         "%lld, of which these are %lld",
                         what, (long long)offset, words_range(&words, 0, whole - n),
                         (long long)whole, (long long)n);
    return TESS_OK;
}

static tess_status slices_check(const tess_problem *p, const char *function, tess_error *error) {
    const int64_t counters = UINT32_MAX; /* heads of all batches have 32 bits */
    tess_status status = slice_check("query heads", p->head_offset, p->heads_q, p->whole_heads_q,
                                     INT32_MAX, function, error);
    if (!status)
        status = slice_check("batches", p->batch_offset, p->batch, counters / p->whole_heads_q,
                             counters, function, error);
    if (!status)
        status = slice_check("queries", p->query_offset, p->n_q, p->whole_n_q, INT32_MAX, function,
                             error);
    if (!status)
        status = slice_check("keys", p->key_offset, p->key_positions ? 1 : p->n_kv, p->whole_n_kv,
                             INT32_MAX, function, error);
    return status;
}

static const char *operation_wrong(const tess_problem *p) {
    const int64_t known = TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V |
                          TESS_GRADIENT_ALIBI | TESS_GRADIENT_SINK;
    if ((unsigned)p->operation > TESS_MLP)
        return "operation is not TESS_ATTENTION, TESS_ATTENTION_BACKWARD or TESS_MLP";
    if (p->gradients & ~known)
        return "gradients has bits beside those of TESS_GRADIENT_...";
    if (p->spill_size < 0)
        return "spill_size is negative";
    if (p->o_rest < 0 || p->o_rest > 1)
        return "o_rest is not 0 or 1";
    if (p->o_f32 < 0 || p->o_f32 > 1)
        return "o_f32 is not 0 or 1";
    if (p->operation == TESS_MLP && p->o_rest)
        return "o_rest is asked for, and operation is TESS_MLP: o of f32 (o_f32) is not rounded";
    if (p->operation == TESS_ATTENTION && p->o_f32 && p->o_rest)
        return "o_rest is asked for, and rounding takes nothing from o of f32 (o_f32)";
    if (p->operation != TESS_ATTENTION_BACKWARD && p->gradients)
        return "gradients are asked for, and operation is not TESS_ATTENTION_BACKWARD";
    if (p->operation != TESS_ATTENTION_BACKWARD && p->spill_size)
        return "spill_size is given, and operation is not TESS_ATTENTION_BACKWARD";
    if (p->gradients & TESS_GRADIENT_ALIBI && !p->alibi)
        return "the gradient of ALiBi's slopes is asked for, and alibi is 0";
    if (p->sum_rows < 0 || p->sum_rows > INT32_MAX)
        return "sum_rows is not in 0 ... 2^31 - 1";
    if (p->sum_type != TESS_F32 && p->sum_type != TESS_BF16)
        return "sum_type is not TESS_F32 or TESS_BF16";
    if (p->sum_rows && (p->operation != TESS_ATTENTION || p->pipeline != TESS_FUSED))
        return "sum_rows is given, and column sums are of the fused pipeline of TESS_ATTENTION";
    if (p->gradients & TESS_GRADIENT_SINK && !p->sink)
        return "the gradient of the sinks is asked for, and sink is 0";
    return NULL;
}

/* The gradients that a problem asks for. */
static int64_t gradients_of(const tess_problem *p) {
    if (p->operation != TESS_ATTENTION_BACKWARD || p->gradients)
        return p->gradients;
    return TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V;
}

/* The type of o that a run writes. */
static tess_type type_of_outputs(const tess_problem *p) {
    return p->operation != TESS_ATTENTION_BACKWARD && p->o_f32 ? TESS_F32 : p->type;
}

static const char *modifiers_wrong(const tess_problem *p) {
    if (p->softcap != 0 && !(p->softcap >= SOFTCAP_LEAST && p->softcap <= SOFTCAP_MOST))
        return "softcap is not 0 or within 2^-64 ... 2^64";
    if (p->alibi < 0 || p->alibi > 1)
        return "alibi is not 0 or 1";
    if (p->sink < 0 || p->sink > 1)
        return "sink is not 0 or 1";
    if (!(p->dropout >= 0 && p->dropout <= 65535.0 / 65536))
        return "dropout is not within 0 ... 65535/65536";
    if (p->key_positions < 0 || p->key_positions > 1)
        return "key_positions is not 0 or 1";
    if (p->key_positions && p->key_offset)
        return "key_offset is given beside key_positions, which say where each key is";
    return NULL;
}

static struct modifiers modifiers_of(const tess_problem *p) {
    return (struct modifiers){
        .softcap = p->softcap,
        .alibi = (int32_t)p->alibi,
        .sink = (int32_t)p->sink,
        .seed = p->dropout > 0,
        .key_positions = (int32_t)p->key_positions,
        .dropped = (int32_t)lround(p->dropout * 65536),
        .first_head = p->batch_offset * p->whole_heads_q + p->head_offset,
        .heads = p->whole_heads_q,
        .first_query = p->query_offset,
        .first_key = p->key_offset,
        .first_position = p->query_offset + p->whole_n_kv - p->whole_n_q,
    };
}

tess_status check_problem(struct problem *out, const char **kernel, const tess_problem *given,
                          const char *function, tess_error *error) {
    tess_problem p;
    if (!given)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem", "problem is NULL");
    const char *wrong = struct_take(&p, sizeof p, PROBLEM_FIRST_SIZE, given);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem", "problem: %s", wrong);
    const struct problem_size sizes[] = {
        {"batch", p.batch, INT32_MAX},       {"heads_q", p.heads_q, INT32_MAX},
        {"heads_kv", p.heads_kv, INT32_MAX}, {"n_q", p.n_q, INT32_MAX},
        {"n_kv", p.n_kv, INT32_MAX},         {"d_qk", p.d_qk, CHECK_MAX_DIM},
        {"d_v", p.d_v, CHECK_MAX_DIM}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return error_set(error, TESS_INVALID_ARGUMENT, function, "problem",
                             "problem: %s is %lld, not in 1 ... %lld%s", sizes[i].name,
                             (long long)sizes[i].value, (long long)sizes[i].most,
                             sizes[i].value ? "" : ": set it, or leave the call out");
    p.whole_heads_q = p.whole_heads_q ? p.whole_heads_q : p.heads_q;
    p.whole_n_q = p.whole_n_q ? p.whole_n_q : p.n_q;
    p.whole_n_kv = p.whole_n_kv ? p.whole_n_kv : p.n_kv;
    if (!(wrong = sizes_wrong(&p)) && !(wrong = options_wrong(&p)) &&
        !(wrong = modifiers_wrong(&p)) && !(wrong = mlp_wrong(&p)))
        wrong = operation_wrong(&p);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem", "problem: %s", wrong);
    tess_status status = slices_check(&p, function, error);
    struct caches caches;
    if (!status)
        status = caches_check(&caches, &p, function, error);
    if (status)
        return status;

    *out = (struct problem){
        .operation = p.operation,
        .gradients = gradients_of(&p),
        .spill_size = p.spill_size,
        .o_rest = (int32_t)p.o_rest,
        .pipeline = p.pipeline,
        .type = p.type,
        .o_type = type_of_outputs(&p),
        .batch = p.batch,
        .heads_q = p.heads_q,
        .heads_kv = p.heads_kv,
        .n_q = p.n_q,
        .n_kv = p.n_kv,
        .d_qk = p.d_qk,
        .d_v = p.d_v,
        .rope_dims = p.rope_dims,
        .scale = p.scale != 0 ? p.scale : 1 / sqrt((double)p.d_qk),
        .alignment = p.alignment ? p.alignment : 16,
        .threads = threads_limit(p.threads),
        .tile_rows = (int32_t)p.tile_rows,
        .part_keys = p.part_keys ? p.part_keys : DEFAULT_PART_KEYS,
        .parts_asked = p.part_keys != 0,
        .strict = (int32_t)p.strict,
        .sum_rows = (int32_t)p.sum_rows,
        .sum_type = p.sum_type,
        .modifiers = modifiers_of(&p),
        .caches = caches,
        .activation = p.activation,
    };
    if (p.operation == TESS_MLP)
        out->scale = 1, out->part_keys = INT64_MAX;
    if (out->part_keys <= INT64_MAX - SCHEDULE_CHUNK)
        out->part_keys = (out->part_keys + SCHEDULE_CHUNK - 1) / SCHEDULE_CHUNK * SCHEDULE_CHUNK;
    *kernel = p.kernel;
    return TESS_OK;
}

tess_status check_size(const char *name, int which, int64_t value, int64_t most,
                       const char *function, tess_error *error) {
    if (value >= 1 && value <= most)
        return TESS_OK;
    return error_set(error, TESS_INVALID_ARGUMENT, function, name,
                     "%s has %lld %s, not 1 ... %lld%s", name, (long long)value, size_names[which],
                     (long long)most, value ? "" : ": of nothing leave the call out");
}

const char *check_given(tess_tensor *out, const tess_tensor *given) {
    const char *wrong = check_stored(out, given);
    return !wrong && type_is_8bit(out->type) ? "type is not TESS_F32, TESS_F16 or TESS_BF16"
                                             : wrong;
}

const char *check_stored(tess_tensor *out, const tess_tensor *given) {
    const char *wrong = given ? struct_take(out, sizeof *out, sizeof *out, given) : "it is NULL";
    return !wrong && !tess_type_size(out->type) ? "type is not one of TESS_F32 ... TESS_E5M2"
                                                : wrong;
}

void alignment_lower(int64_t *alignment, const tess_tensor *t) {
    int64_t element = (int64_t)tess_type_size(t->type);
    for (; *alignment > element; *alignment /= 2) {
        int fits = (uintptr_t)t->data % (uintptr_t)*alignment == 0;
        for (int i = 0; i < 3; i++)
            fits &= t->size[i] == 1 || t->stride[i] % (*alignment / element) == 0;
        if (fits)
            return;
    }
}

/* Whether keys or values that were to be [batch, heads, n, dims] look like [pages, heads, page_size, dims]. */
static int looks_paged(const tess_tensor *t, const struct tensor_rule *rule) {
    const int64_t pages = t->size[0], rows = t->size[2];
    return rule->of_keys && t->size[1] == rule->size[1] && t->size[3] == rule->size[3] &&
           pages > rule->size[0] && rows > 0 && rows <= CACHES_PAGE_MOST && !(rows & (rows - 1));
}

/* Whether weights [.., F, N] look like [.., N, F]. */
static int looks_transposed(const tess_tensor *t, const struct tensor_rule *rule) {
    return rule->weights && t->size[2] == rule->size[3] && t->size[3] == rule->size[2];
}
#define ROWS_WANTED                                                                                \
    ": W2 has a row for each hidden column, [F, N]; torch stores [N, F]: transpose it once, and "  \
    "keep it contiguous"

/* Refusals by the alignment that the problem declares. */
static const char data_unaligned[] = "data is not aligned as the problem declares";
static const char stride_unaligned[] =
    "a stride is not a multiple of the alignment that the problem declares";

/* NULL, or what is wrong with the strides: in 64 bits, aligned, and for outputs without overlap. */
static const char *strides_wrong(const tess_tensor *t, const struct tensor_rule *rule,
                                 int64_t alignment) {
    int64_t element = (int64_t)tess_type_size(t->type), last = 0, span;
    int order[4], n = 0;
    if (t->size[3] > 1 && t->stride[3] != 1)
        return "the last stride is not 1";
    for (int i = 0; i < 4; i++) {
        if (t->size[i] == 1)
            continue;
        if (t->stride[i] < 0)
            return "a stride is negative";
        if (__builtin_mul_overflow(t->size[i] - 1, t->stride[i], &span) ||
            __builtin_add_overflow(last, span, &last) || last > INT64_MAX / 8)
            return "the last element's offset does not fit 64 bits";
        if (i < 3 && t->stride[i] % (alignment / element))
            return stride_unaligned;
        int at = n++;
        for (; at && t->stride[order[at - 1]] > t->stride[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    int64_t extent = 1; /* elements that the dimensions so far reach over */
    for (int i = 0; rule->output && i < n; i++) {
        if (t->stride[order[i]] < extent)
            return "elements of an output overlap";
        extent += (t->size[order[i]] - 1) * t->stride[order[i]];
    }
    return NULL;
}

tess_status check_tensor(struct view *out, const tess_tensor *given, const struct tensor_rule *rule,
                         const char *function, tess_error *error) {
    tess_tensor t;
    if (!given)
        return error_set(error, TESS_INVALID_ARGUMENT, function, rule->name, "%s is NULL",
                         rule->name);
    const char *wrong = struct_take(&t, sizeof t, sizeof t, given);
    if (!wrong && !t.data)
        wrong = "data is NULL";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, rule->name, "%s: %s", rule->name,
                         wrong);
    if (t.type != rule->type && !(rule->or_f32 && t.type == TESS_F32)) {
        const char *name = tess_type_name(t.type);
        return error_set(error, TESS_INVALID_ARGUMENT, function, rule->name,
                         "%s has type %s, should be %s%s", rule->name, name ? name : "unknown",
                         tess_type_name(rule->type),
                         rule->or_f32 && rule->type != TESS_F32 ? " or f32" : "");
    }
    for (int i = 0; i < 4; i++)
        if (t.size[i] != rule->size[i])
            return error_set(error, TESS_INVALID_ARGUMENT, function, rule->name,
                             "%s has %lld %s, should have %lld%s", rule->name, (long long)t.size[i],
                             size_names[i], (long long)rule->size[i],
                             looks_paged(&t, rule)        ? ": is K paged? set page_size"
                             : looks_transposed(&t, rule) ? ROWS_WANTED
                                                          : "");
    const int64_t alignment = max_i64(rule->alignment, (int64_t)tess_type_size(t.type));
    if ((uintptr_t)t.data % (uintptr_t)alignment)
        wrong = data_unaligned;
    else
        wrong = strides_wrong(&t, rule, alignment);
    if (wrong && rule->weights && t.size[3] > 1 && t.stride[3] != 1)
        return error_set(error, TESS_INVALID_ARGUMENT, function, rule->name, "%s: %s%s", rule->name,
                         wrong, ROWS_WANTED);
    if (wrong == data_unaligned || wrong == stride_unaligned)
        return error_set(error, TESS_INVALID_ARGUMENT, function, rule->name, "%s: %s (%lld bytes)",
                         rule->name, wrong, (long long)alignment);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, rule->name, "%s: %s", rule->name,
                         wrong);
    *out = (struct view){.data = t.data, .type = t.type};
    for (int i = 0; i < 3; i++)
        out->stride[i] = t.size[i] == 1 ? 0 : t.stride[i];
    return TESS_OK;
}

tess_status check_backend(const struct backend **out, tess_backend backend, const char *function,
                          const char *argument, tess_error *error) {
    *out = backend_get(backend);
    if (*out)
        return TESS_OK;
    if (tess_backend_name(backend))
        return error_set(error, TESS_NO_CUDA, function, argument,
                         "this library was built without CUDA");
    return error_set(error, TESS_INVALID_ARGUMENT, function, argument,
                     "%s is not TESS_CPU or TESS_CUDA", argument);
}

tess_status check_lists(int64_t batch, int64_t heads, const struct problem *problem,
                        const char *function, tess_error *error) {
    const struct {
        const char *what;
        int64_t n, fits[3]; /* ascending */
    } counts[] = {{"batches", batch, {1, problem->batch, problem->batch}},
                  {"heads", heads, {1, problem->heads_kv, problem->heads_q}}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int64_t n = counts[i].n, *fits = counts[i].fits;
        struct words words;
        if (n != fits[0] && n != fits[1] && n != fits[2])
            return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                             "pattern has lists for %lld %s, should have %s", (long long)n,
                             counts[i].what, words_choice(&words, fits, 3));
    }
    return TESS_OK;
}

tess_status check_pattern(const tess_pattern *pattern, const struct problem *problem,
                          const char *function, tess_error *error) {
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    const struct bcsr *m = &pattern->lists;
    if (m->n_q != problem->n_q || m->n_kv != problem->n_kv)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                         "pattern is for %lld x %lld, the tensors are %lld queries and %lld keys%s",
                         (long long)m->n_q, (long long)m->n_kv, (long long)problem->n_q,
                         (long long)problem->n_kv,
                         m->n_q == 1 && m->n_kv == problem->n_kv
                             ? ": a row for all queries, as of key padding, is to be repeated"
                             : "");
    return check_lists(m->batch, m->heads, problem, function, error);
}
