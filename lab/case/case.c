/* Case strings: parsing and printing. A table holds the keys. */
#include "lab/case/rules.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TOKENS INT64_C(2147483647)

enum kind { COUNT, NUMBER, SEED, WORD, LETTERS, TEXT, BLOCK, REAL };

/* A key: where its value goes and what it may be. Words stand for 0, 1, ... or, where the field may
 * be LAB_ANY, are looked up the same way. */
struct key {
    const char *name;
    enum kind kind;
    size_t offset, size;
    int64_t max;
    const char *const *words;
    const char *help;
};

static const char *const type_words[] = {"f32", "f16", "bf16", NULL};
static const char *const backend_words[] = {"cpu", "cuda", NULL};
static const char *const pipeline_words[] = {"fused", "staged", NULL};
static const char *const lists_words[] = {"q", "kv", "1", NULL};
static const char *const source_words[] = {"spec",   "mask",   "topk", "lists",
                                           "counts", "blocks", "bits", NULL};
static const char *const layout_words[] = {"bhnd", "bnhd", "padded", NULL};
static const char *const fill_words[] = {"normal",  "positive", "large", "huge",   "subnormal",
                                         "extreme", "sink",     "nank",  "nanv",   "inf",
                                         "offset",  "top",      "tiny",  "cancel", NULL};
static const char *const operation_words[] = {"attention", "backward", "mlp", NULL};
static const char *const activation_words[] = {"gelu", "gelu_tanh", "silu",
                                               "relu", "identity",  NULL};
static const char *const cached_words[] = {"none", "store", "delta", NULL};
static const char *const kv_type_words[] = {"q", "f16", "bf16", "e4m3", "e5m2", NULL};
static const char *const kv_scale_words[] = {"none", "tensor", "head", "token", "group", NULL};
static const char *const base_words[] = {"none", "merge", "add", NULL}; /* tess_base */
static const char *const sum_words[] = {"any", "near", NULL};
static const char *const given_words[] = {"o", "o32", "delta", NULL};
static const char *const form_words[] = {"indices", "rows", "bits", "ranges", "mask", NULL};
static const char *const cut_words[] = {"none", "causal", "window", "ahead", NULL};
/* Bit i of a set of letters is letters[i]. */
static const char *const gradient_letters[] = {"qkvas", NULL};
static const char *const bias_letters[] = {"hof", NULL};
static const char *const shares_letters[] = {"bhn", NULL};
static const char *const entry_letters[] = {"cdeflmopruw", NULL};

#define FIELD(field) offsetof(struct lab_case, field), sizeof(((struct lab_case *)0)->field)
static const struct key keys[] = {
    {"b", COUNT, FIELD(b), MAX_TOKENS, NULL, "batches; 1"},
    {"h", COUNT, FIELD(h), MAX_TOKENS, NULL, "query heads; 8"},
    {"hkv", COUNT, FIELD(hkv), MAX_TOKENS, NULL, "key and value heads, which divide h; as h"},
    {"n", COUNT, FIELD(n), MAX_TOKENS, NULL, "queries; 4096"},
    {"nkv", COUNT, FIELD(nkv), MAX_TOKENS, NULL, "keys; as n"},
    {"d", COUNT, FIELD(d), MAX_TOKENS, NULL, "dims of q and k; 64"},
    {"dv", COUNT, FIELD(dv), MAX_TOKENS, NULL, "dims of v; as d"},
    {"dtype", WORD, FIELD(type), 0, type_words, "f32, f16 or bf16; f32"},
    {"block", BLOCK, FIELD(block_q), MAX_TOKENS, NULL, "queries by keys of a block; 64x64"},
    {"pattern", TEXT, FIELD(pattern), 0, NULL, "a SPEC (tessera --help spec); dense"},
    {"backend", WORD, FIELD(backend), 0, backend_words, "cpu or cuda; each there is"},
    {"pipeline", WORD, FIELD(pipeline), 0, pipeline_words, "fused or staged; each there is"},
    {"kernel", TEXT, FIELD(kernel), 0, NULL,
     "a kernel by its name (tessera info --kernels); the plan's choice"},
    {"lists", WORD, FIELD(lists), 0, lists_words,
     "q, kv or 1: random terms draw for each such head, or once; q"},
    {"seed", SEED, FIELD(seed), 0, NULL, "of the tensors; 0"},
    {"source", WORD, FIELD(source), 0, source_words,
     "by spec, mask, topk, lists, counts, blocks or bits; spec"},
    {"layout", WORD, FIELD(layout), 0, layout_words, "bhnd, bnhd or padded: how tensors lie; bhnd"},
    {"fill", WORD, FIELD(fill), 0, fill_words,
     "what tensors hold, such as normal, large, subnormal, inf; normal"},
    {"align", COUNT, FIELD(align), 64, NULL, "bytes that data pointers are aligned to; 16"},
    {"threads", NUMBER, FIELD(threads), 4096, NULL, "CPU threads; all"},
    {"scale", REAL, FIELD(scale), 0, NULL, "of the scores; 1/sqrt(d)"},
    {"tile", NUMBER, FIELD(tile_rows), 256, NULL, "rows of a query tile; the plan's choice"},
    {"split", NUMBER, FIELD(part_keys), INT64_MAX, NULL,
     "fewest keys of a part of a split tile; the plan's choice"},
    {"softcap", REAL, FIELD(softcap), 0, NULL, "C: scores become C tanh(score / C); none"},
    {"alibi", NUMBER, FIELD(alibi), 1, NULL, "1: ALiBi's slopes, of both signs; 0"},
    {"sink", NUMBER, FIELD(sink), 1, NULL, "1: a sink for each head; 0"},
    {"dropout", REAL, FIELD(dropout), 0, NULL, "share of the weights that is dropped; 0"},
    {"sums", NUMBER, FIELD(sum_rows), MAX_TOKENS, NULL,
     "queries of a group of column sums; 0, none"},
    {"sumtype", WORD, FIELD(sum_type), 0, type_words, "of column sums: f32 or bf16; f32"},
    {"sumref", WORD, FIELD(sum_near), 0, sum_words,
     "lse_reference of column sums: any or near; any"},
    {"op", WORD, FIELD(operation), 0, operation_words, "attention, backward or mlp; attention"},
    {"grads", LETTERS, FIELD(gradients), 0, gradient_letters,
     "backward: of q, k, v, a (slopes), s (sinks); qkv"},
    {"dlse", NUMBER, FIELD(d_lse), 1, NULL, "1: backward with a gradient of lse; 0"},
    {"orest", NUMBER, FIELD(o_rest), 1, NULL, "1: backward with what rounding took from o; 0"},
    {"given", WORD, FIELD(given), 0, given_words, "backward: o, o32 (o in f32) or delta; o"},
    {"out32", NUMBER, FIELD(out32), 1, NULL, "1: o in f32, or gradients in f32; 0"},
    {"page", NUMBER, FIELD(page), 4096, NULL, "rows of a page of K and V; 0, not paged"},
    {"kvtype", WORD, FIELD(kv_type), 0, kv_type_words, "of K and V: q, f16, bf16, e4m3, e5m2; q"},
    {"kvscale", WORD, FIELD(kv_scale), 0, kv_scale_words,
     "of K and V: none, tensor, head, token or group; none"},
    {"vink", NUMBER, FIELD(v_in_k), 1, NULL, "1: V is the first dims of K; 0"},
    {"q0", LETTERS, FIELD(q0), 0, shares_letters,
     "strides of 0 in q: b batches, h heads, n rows; none"},
    {"k0", LETTERS, FIELD(k0), 0, shares_letters, "of K; b is pages where there are some; none"},
    {"v0", LETTERS, FIELD(v0), 0, shares_letters, "of V, as k0; none"},
    {"rope", NUMBER, FIELD(rope), MAX_TOKENS, NULL, "last dims of q and k in second views; 0"},
    {"base", WORD, FIELD(base), 0, base_words,
     "drawn outputs that runs start from: merge, add; none"},
    {"activation", WORD, FIELD(activation), 0, activation_words,
     "mlp: gelu, gelu_tanh, silu, relu or identity; gelu"},
    {"bias", LETTERS, FIELD(biases), 0, bias_letters,
     "mlp: h of hidden columns, o of outputs, f in f32; none"},
    {"cache", WORD, FIELD(cache), 0, cached_words,
     "mlp: of activations, none, store or delta; none"},
    {"topk", COUNT, FIELD(topk), MAX_TOKENS, NULL,
     "entries of a block row of lists on the device; a pattern"},
    {"valid", REAL, FIELD(valid), 0, NULL, "topk: share of entries that are no padding; 1"},
    {"form", WORD, FIELD(form), 0, form_words,
     "indices, rows, bits, ranges or mask (of a pattern, too); indices"},
    {"select", TEXT, FIELD(select), 0, NULL,
     "of scores: topk(K) or threshold(X), +first(N), +last(N); none"},
    {"entries", LETTERS, FIELD(entries), 0, entry_letters,
     "topk: how lists are drawn, letters (semantics.md); ascending"},
    {"cut", WORD, FIELD(cut), 0, cut_words, "topk: none, causal, window or ahead; none"},
};
#define N_KEYS (sizeof keys / sizeof keys[0])

struct lab_case lab_case_default(void) {
    struct lab_case c;
    memset(&c, 0, sizeof c);
    c.b = 1, c.h = 8, c.hkv = 8, c.n = 4096, c.nkv = 4096, c.d = 64, c.dv = 64;
    c.type = TESS_F32;
    c.block_q = 64, c.block_kv = 64;
    snprintf(c.pattern, sizeof c.pattern, "dense");
    c.backend = LAB_ANY, c.pipeline = LAB_ANY;
    c.align = 16;
    c.valid = 1;
    return c;
}

/* A whole decimal number without sign, at most max, at *text, which it moves past. */
static int read_number(const char **text, uint64_t max, uint64_t *out) {
    uint64_t x = 0;
    const char *at = *text;
    if (*at < '0' || *at > '9')
        return -1;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(x, 10, &x) ||
            __builtin_add_overflow(x, (uint64_t)(*at - '0'), &x) || x > max)
            return -1;
    *text = at;
    *out = x;
    return 0;
}

static int read_word(const struct key *key, const char *value, void *field, char why[LAB_WHY]) {
    char list[96] = "";
    for (int w = 0; key->words[w]; w++) {
        if (strcmp(value, key->words[w]) == 0) {
            memcpy(field, &w, sizeof w);
            return 0;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", w ? ", " : "",
                 key->words[w]);
    }
    return lab_case_refuse(why, "%s=%.60s: one of %s is expected", key->name, value, list);
}

static int read_letters(const struct key *key, const char *value, void *field, char why[LAB_WHY]) {
    const char *letters = key->words[0];
    int64_t set = 0;
    for (const char *at = value; *at; at++) {
        const char *letter = strchr(letters, *at);
        if (!letter || set & (1 << (letter - letters)))
            return lab_case_refuse(why, "%s=%.60s: letters of %s are expected, each once",
                                   key->name, value, letters);
        set |= 1 << (letter - letters);
    }
    memcpy(field, &set, sizeof set);
    return set ? 0 : lab_case_refuse(why, "%s: a letter of %s is expected", key->name, letters);
}

static int read_value(const struct key *key, const char *value, struct lab_case *c,
                      char why[LAB_WHY]) {
    char *field = (char *)c + key->offset;
    const char *at = value;
    uint64_t x, y;
    char *end;
    switch (key->kind) {
    case COUNT:
    case NUMBER:
        if (read_number(&at, (uint64_t)key->max, &x) || *at || (key->kind == COUNT && x == 0))
            return lab_case_refuse(why, "%s=%.60s: a whole number from %d to %lld is expected",
                                   key->name, value, key->kind == COUNT, (long long)key->max);
        memcpy(field, &(int64_t){(int64_t)x}, sizeof(int64_t));
        return 0;
    case SEED:
        if (read_number(&at, UINT64_MAX, &x) || *at)
            return lab_case_refuse(why, "%s=%.60s: a whole number of at most 64 bits is expected",
                                   key->name, value);
        memcpy(field, &x, sizeof x);
        return 0;
    case BLOCK:
        if (read_number(&at, (uint64_t)key->max, &x) || *at++ != 'x' ||
            read_number(&at, (uint64_t)key->max, &y) || *at || x == 0 || y == 0)
            return lab_case_refuse(why, "%s=%.60s: QUERIESxKEYS is expected, like 64x64", key->name,
                                   value);
        c->block_q = (int64_t)x, c->block_kv = (int64_t)y;
        return 0;
    case TEXT:
        if (strlen(value) >= key->size)
            return lab_case_refuse(why, "%s: longer than %zu characters", key->name, key->size - 1);
        if (*value == '\0')
            return lab_case_refuse(why, "%s: a value is expected", key->name);
        memcpy(field, value, strlen(value) + 1);
        return 0;
    case REAL:
        errno = 0;
        double d = strtod(value, &end);
        if (end == value || *end || errno || !(d > -1e30 && d < 1e30))
            return lab_case_refuse(why, "%s=%.60s: a finite number is expected", key->name, value);
        memcpy(field, &d, sizeof d);
        return 0;
    case LETTERS:
        return read_letters(key, value, field, why);
    case WORD:
        break;
    }
    return read_word(key, value, field, why);
}

/* Length of the item at text: up to the next comma outside parentheses. */
static size_t item_length(const char *text) {
    size_t i = 0;
    int depth = 0;
    for (; text[i] && (text[i] != ',' || depth > 0); i++)
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -(depth > 0) : 0;
    return i;
}

static int read_item(struct lab_case *c, char *item, const char *given[N_KEYS + 1],
                     char why[LAB_WHY]) {
    char *equals = strchr(item, '=');
    if (!equals)
        return lab_case_refuse(why, "'%.60s': KEY=VALUE is expected", item);
    *equals = '\0';
    for (size_t k = 0; k < N_KEYS; k++) {
        if (strcmp(item, keys[k].name) != 0)
            continue;
        if (lab_case_was_given(given, keys[k].name))
            return lab_case_refuse(why, "%s is given twice", item);
        size_t n = 0;
        while (given[n])
            n++;
        given[n] = keys[k].name;
        return read_value(&keys[k], equals + 1, c, why);
    }
    char names[400] = "";
    for (size_t k = 0; k < N_KEYS; k++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? ", " : "",
                 keys[k].name);
    return lab_case_refuse(why, "'%.60s' is no key of a case; there are %s", item, names);
}

int lab_case_parse(struct lab_case *c, const char *text, char why[LAB_WHY]) {
    const char *given[N_KEYS + 1] = {0}; /* names, ended by NULL */
    char item[LAB_CASE_TEXT];
    *c = lab_case_default();
    for (;;) {
        size_t length = item_length(text);
        if (length == 0)
            return lab_case_refuse(why, "KEY=VALUE is expected where the case has nothing");
        if (length >= sizeof item)
            return lab_case_refuse(why, "'%.60s...' is too long", text);
        memcpy(item, text, length);
        item[length] = '\0';
        if (read_item(c, item, given, why))
            return -1;
        if (text[length] == '\0')
            return lab_case_complete(c, given, why);
        text += length + 1;
    }
}

void lab_case_help(char text[LAB_CASE_HELP]) {
    size_t used = (size_t)snprintf(text, LAB_CASE_HELP,
                                   "CASE is KEY=VALUE,KEY=VALUE... in any order. Keys, and what is "
                                   "taken without:\n");
    for (size_t k = 0; k < N_KEYS && used < LAB_CASE_HELP; k++)
        used += (size_t)snprintf(text + used, LAB_CASE_HELP - used, "  %-10s %s\n", keys[k].name,
                                 keys[k].help);
}

struct printer {
    char *text;
    size_t used;
};

static void put(struct printer *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct printer *p, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(p->text + p->used, LAB_CASE_TEXT - p->used, format, arguments);
    va_end(arguments);
    if (n > 0)
        p->used += (size_t)n;
    if (p->used >= LAB_CASE_TEXT)
        p->used = LAB_CASE_TEXT - 1;
}

static void put_letters(struct printer *p, const char *name, const char *letters, int64_t set) {
    if (set)
        put(p, ",%s=", name);
    for (int i = 0; letters[i]; i++)
        if (set & (1 << i))
            put(p, "%c", letters[i]);
}

static void print_listed(struct printer *p, const struct lab_case *c) {
    if (c->select[0])
        put(p, ",select=%s", c->select);
    else if (c->topk)
        put(p, ",topk=%lld,valid=%.17g", (long long)c->topk, c->valid);
    else
        put(p, ",pattern=%s", c->pattern);
    if (c->form != TESS_INDICES)
        put(p, ",form=%s", form_words[c->form]);
    put_letters(p, "entries", entry_letters[0], c->entries);
    if (c->cut != LAB_CUT_NONE)
        put(p, ",cut=%s", cut_words[c->cut]);
}

static void print_mlp(struct printer *p, const struct lab_case *c) {
    put(p, ",op=%s", operation_words[c->operation]);
    if (c->activation)
        put(p, ",activation=%s", activation_words[c->activation]);
    put_letters(p, "bias", bias_letters[0], c->biases);
    if (c->cache)
        put(p, ",cache=%s", cached_words[c->cache]);
}

static void print_backward(struct printer *p, const struct lab_case *c) {
    put(p, ",op=%s", operation_words[c->operation]);
    put_letters(p, "grads", gradient_letters[0], c->gradients);
    if (c->d_lse)
        put(p, ",dlse=1");
    if (c->o_rest)
        put(p, ",orest=1");
    if (c->given != LAB_GIVEN_O)
        put(p, ",given=%s", given_words[c->given]);
}

void lab_case_print(const struct lab_case *c, char text[LAB_CASE_TEXT]) {
    struct printer p = {text, 0};
    put(&p, "b=%lld,h=%lld,hkv=%lld,n=%lld,nkv=%lld,d=%lld,dv=%lld,dtype=%s,block=%lldx%lld",
        (long long)c->b, (long long)c->h, (long long)c->hkv, (long long)c->n, (long long)c->nkv,
        (long long)c->d, (long long)c->dv, type_words[c->type], (long long)c->block_q,
        (long long)c->block_kv);
    if (lab_case_listed(c))
        print_listed(&p, c);
    else
        put(&p, ",pattern=%s", c->pattern);
    if (c->backend != LAB_ANY)
        put(&p, ",backend=%s", backend_words[c->backend]);
    if (c->pipeline != LAB_ANY)
        put(&p, ",pipeline=%s", pipeline_words[c->pipeline]);
    put(&p, ",lists=%s", lists_words[c->lists]);
    if (c->kernel[0])
        put(&p, ",kernel=%s", c->kernel);
    put(&p, ",seed=%llu", (unsigned long long)c->seed);
    if (c->source != LAB_SOURCE_SPEC)
        put(&p, ",source=%s", source_words[c->source]);
    if (c->layout != LAB_BHND)
        put(&p, ",layout=%s", layout_words[c->layout]);
    if (c->align != 16)
        put(&p, ",align=%lld", (long long)c->align);
    if (c->fill != LAB_FILL_NORMAL)
        put(&p, ",fill=%s", fill_words[c->fill]);
    if (c->threads != 0)
        put(&p, ",threads=%lld", (long long)c->threads);
    if (c->tile_rows != 0)
        put(&p, ",tile=%lld", (long long)c->tile_rows);
    if (c->part_keys != 0)
        put(&p, ",split=%lld", (long long)c->part_keys);
    if (c->scale < 0 || c->scale > 0)
        put(&p, ",scale=%.17g", c->scale);
    if (c->softcap > 0)
        put(&p, ",softcap=%.17g", c->softcap);
    if (c->alibi)
        put(&p, ",alibi=1");
    if (c->sink)
        put(&p, ",sink=1");
    if (c->dropout > 0)
        put(&p, ",dropout=%.17g", c->dropout);
    if (c->sum_rows)
        put(&p, ",sums=%lld", (long long)c->sum_rows);
    if (c->sum_type)
        put(&p, ",sumtype=%s", type_words[c->sum_type]);
    if (c->sum_near)
        put(&p, ",sumref=near");
    if (lab_case_backward(c))
        print_backward(&p, c);
    if (lab_case_mlp(c))
        print_mlp(&p, c);
    if (c->out32)
        put(&p, ",out32=1");
    if (c->page)
        put(&p, ",page=%lld", (long long)c->page);
    if (c->kv_type)
        put(&p, ",kvtype=%s", kv_type_words[c->kv_type]);
    if (c->kv_scale)
        put(&p, ",kvscale=%s", kv_scale_words[c->kv_scale]);
    if (c->v_in_k)
        put(&p, ",vink=1");
    if (c->rope)
        put(&p, ",rope=%lld", (long long)c->rope);
    if (c->base)
        put(&p, ",base=%s", base_words[c->base]);
    put_letters(&p, "q0", shares_letters[0], c->q0);
    put_letters(&p, "k0", shares_letters[0], c->k0);
    put_letters(&p, "v0", shares_letters[0], c->v0);
}

const char *lab_pipeline_name(int pipeline) {
    return pipeline_words[pipeline];
}

const char *lab_fill_name(enum lab_fill fill) {
    return fill_words[fill];
}

const char *lab_base_name(int64_t base) {
    return base_words[base];
}

const char *lab_cached_name(enum lab_cached cache) {
    return cached_words[cache];
}

const char *lab_operation_name(tess_operation operation) {
    return operation_words[operation];
}
