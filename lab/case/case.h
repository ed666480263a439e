/*
 * Case strings: one line that names a whole experiment, the same for verify, bench, plan and the
 * repro line of a failing check.
 *
 *     b=1,h=16,hkv=16,n=16384,nkv=16384,d=128,dv=128,dtype=bf16,block=128x128,
 *     pattern=random(0.1,1),backend=cuda,pipeline=fused,lists=q,kernel=NAME,seed=0
 *
 * Keys in any order; commas inside parentheses belong to the value. Further keys, for tests:
 *
 *     source=spec|mask|topk|lists|counts|blocks|bits
 *                                   the pattern goes through this constructor (default spec);
 *                                   topk needs block=1x1, the last three a pattern of whole blocks
 *     layout=bhnd|bnhd|padded       of all tensors (default bhnd); padded = bnhd with gaps
 *     align=BYTES                   data pointers are aligned to this and no more (default 16, for
 *                                   which the benchmark takes 64)
 *     fill=NAME                     see fill.h (default normal)
 *     threads=T                     0, the default, as many as the machine offers
 *     scale=X                       0, the default, is 1/sqrt(d)
 *     tile=ROWS, split=KEYS         fused: tile_rows and part_keys of the problem (default 0)
 *     softcap=C, alibi=1, sink=1, dropout=P
 *                                   score modifiers, see modifiers.h (default 0, none)
 *     sums=ROWS                     queries of a group of column sums (default 0, none)
 *     sumtype=f32|bf16              their type (default f32)
 *     sumref=any|near               lse_reference of every second head, or of each, is near today's (default any)
 *     op=attention|backward|mlp     what is computed (default attention)
 *     activation=gelu|gelu_tanh|silu|relu|identity
 *                                   of an MLP (default gelu)
 *     bias=LETTERS                  of an MLP: h of hidden columns, o of outputs, f in f32 (default none)
 *     cache=none|store|delta        of an MLP's activations: runs write it, or subtract it as well and start
 *                                   from a base (default none), see run/mlp.h
 *     grads=LETTERS                 backward: gradients of q, k, v, a (slopes) and s (sinks); those
 *                                   of q, k and v by default
 *     dlse=1, orest=1               backward: with a gradient of lse; with o_rest (default 0)
 *     given=o|o32|delta             backward: what runs read, o, o in f32 or delta (default o)
 *     out32=1                       o, or of a backward gradients, in f32 whatever the type (default 0)
 *     page=ROWS                     K and V in pages of so many rows, in drawn places (default 0: none)
 *     kvtype=q|f16|bf16|e4m3|e5m2   type of K and V (default q: as q's)
 *     kvscale=none|tensor|head|token|group
 *                                   what scales of K and V are shared by (default none), see cache.h
 *     vink=1                        V is the first dims of K (default 0)
 *     q0=LETTERS, k0=..., v0=...    what of q, K or V is one in memory, by a stride of 0: b batches, or pages
 *                                   where K and V are paged, h heads, n rows (default none)
 *     rope=DIMS                     last dims of q and k in second views (default 0). K's have q's type
 *                                   where kvtype has 8 bits; q has one view where seed is odd
 *     base=none|merge|add           runs start from a drawn base (default none), see base.h
 *
 * Lists that live on the device (listed.h): a reserved plan, filled, instead of a pattern's.
 *
 *     topk=K, valid=SHARE           entries of a block row, and how many of them name a block
 *                                   (default 1); blocks are 1x1 unless block= says otherwise
 *     form=indices|rows|bits|ranges|mask of the device pattern (default indices)
 *     entries=LETTERS               c counts, d duplicates, e empty rows, f padding first, l lengths,
 *                                   m padding between, o overflows, p promises, r room for one block
 *                                   more, u in any order, w entries that are not to be (default none:
 *                                   ascending, padding last)
 *     cut=none|causal|window|ahead  of the device pattern (default none)
 *     select=WORDS                  instead of topk=: block columns are those that tess_select chooses of drawn
 *                                   scores, see choice.h; form indices or bits
 *     pattern=SPEC,form=mask        a mask on the device of what the pattern lists
 */
#ifndef LAB_CASE_H
#define LAB_CASE_H

#include "tessera.h"

#define LAB_CASE_TEXT 640 /* bytes that hold any printed case */
#define LAB_WHY 320       /* bytes that hold any reason given by the lab */
#define LAB_CASE_HELP 4096
#define LAB_ANY (-1) /* backend or pipeline left out: every one there is */

enum lab_lists { LAB_LISTS_Q, LAB_LISTS_KV, LAB_LISTS_1 };
enum lab_source {
    LAB_SOURCE_SPEC,
    LAB_SOURCE_MASK,
    LAB_SOURCE_TOPK,
    LAB_SOURCE_LISTS,
    LAB_SOURCE_COUNTS, /* this one and two more hand over whole blocks only */
    LAB_SOURCE_BLOCKS,
    LAB_SOURCE_BITS
};
enum lab_layout { LAB_BHND, LAB_BNHD, LAB_PADDED };
enum lab_fill {
    LAB_FILL_NORMAL,
    LAB_FILL_POSITIVE, /* sums whose terms have one sign, and constant columns of V */
    LAB_FILL_LARGE,
    LAB_FILL_HUGE,
    LAB_FILL_SUBNORMAL,
    LAB_FILL_EXTREME,
    LAB_FILL_SINK,
    LAB_FILL_NANK,
    LAB_FILL_NANV,
    LAB_FILL_INF,
    LAB_FILL_OFFSET,
    LAB_FILL_TOP,
    LAB_FILL_TINY, /* for cases that name them: verify's sweep does not draw them */
    LAB_FILL_CANCEL
};
enum lab_cut { LAB_CUT_NONE, LAB_CUT_CAUSAL, LAB_CUT_WINDOW, LAB_CUT_AHEAD };

/* Letters of entries=, in their order. */
enum lab_entries {
    LAB_ENTRIES_COUNTS = 1,
    LAB_ENTRIES_DUPLICATES = 2,
    LAB_ENTRIES_EMPTY = 4,
    LAB_ENTRIES_FIRST = 8,
    LAB_ENTRIES_LENGTHS = 16,
    LAB_ENTRIES_MIXED = 32,
    LAB_ENTRIES_OVERFLOW = 64,
    LAB_ENTRIES_PROMISED = 128,
    LAB_ENTRIES_ROOM = 256,
    LAB_ENTRIES_UNORDERED = 512,
    LAB_ENTRIES_WRONG = 1024,
    LAB_ENTRIES_ALL = 2047
};
/* Letters of bias=; an MLP's cache. */
enum lab_biases { LAB_BIAS_HIDDEN = 1, LAB_BIAS_OUT = 2, LAB_BIAS_F32 = 4, LAB_BIAS_ALL = 7 };
enum lab_cached { LAB_CACHE_NONE, LAB_CACHE_STORE, LAB_CACHE_DELTA };
/* Letters of q0=, k0= and v0=. */
enum lab_shares { LAB_SHARES_B = 1, LAB_SHARES_H = 2, LAB_SHARES_N = 4, LAB_SHARES_ALL = 7 };
enum lab_source_of_delta { LAB_GIVEN_O, LAB_GIVEN_O32, LAB_GIVEN_DELTA };

struct lab_case {
    int64_t b, h, hkv, n, nkv, d, dv;
    tess_type type;
    int64_t block_q, block_kv;
    char pattern[256];
    int backend;     /* a tess_backend or LAB_ANY */
    int pipeline;    /* a tess_pipeline or LAB_ANY */
    char kernel[64]; /* "" lets the plan choose */
    enum lab_lists lists;
    uint64_t seed;
    enum lab_source source;
    enum lab_layout layout;
    enum lab_fill fill;
    int64_t align;
    int64_t threads;
    double scale;
    int64_t tile_rows, part_keys;
    double softcap, dropout;
    int64_t alibi, sink; /* 0 or 1 */
    int64_t sum_rows;    /* 0: no column sums */
    tess_type sum_type;
    int64_t sum_near;         /* 0 or 1 */
    tess_operation operation; /* and what the backward alone has: */
    int64_t gradients;        /* TESS_GRADIENT_..., 0: of q, k and v */
    int64_t d_lse, o_rest;    /* 0 or 1 */
    enum lab_source_of_delta given;
    int64_t out32;              /* 0 or 1: of either operation */
    int64_t page, v_in_k, rope; /* and what fused attention alone has */
    int64_t q0, k0, v0;         /* LAB_SHARES_... */
    tess_type kv_type;          /* 0: as q's */
    tess_scaling kv_scale;
    tess_base base;
    tess_activation activation; /* and what an MLP alone has */
    int64_t biases;             /* LAB_BIAS_... */
    enum lab_cached cache;
    int64_t topk;    /* 0: no lists on the device are drawn; what follows belongs to them */
    char select[64]; /* "": none are chosen */
    double valid;
    tess_form form;
    int64_t entries; /* LAB_ENTRIES_... */
    enum lab_cut cut;
};

/* The defaults. */
struct lab_case lab_case_default(void);

/* Reads text into *c. Answers 0, or -1 with one line in why: the key and what is wrong with it. */
int lab_case_parse(struct lab_case *c, const char *text, char why[LAB_WHY]);

/* Writes what a case is, a line for each of its keys. */
void lab_case_help(char text[LAB_CASE_HELP]);

/* Writes the case in full (test keys only where they differ from their defaults); parsing it gives
 * the same case. */
void lab_case_print(const struct lab_case *c, char text[LAB_CASE_TEXT]);

/* The shape of the case's pattern: as many lists as `lists` says. */
tess_pattern_shape lab_case_shape(const struct lab_case *c);

/* Strides of a tensor of the given sizes in a layout. */
void lab_layout_strides(enum lab_layout layout, const int64_t size[4], int64_t stride[4]);

/* Whether the case has lists on the device. */
static inline int lab_case_listed(const struct lab_case *c) {
    return c->topk > 0 || c->select[0] || c->form == TESS_MASK;
}

/* Whether the case asks for a backend and pipeline: it names them, or none. Plans of lists on the device
 * are fused. */
static inline int lab_case_asks(const struct lab_case *c, int backend, int pipeline) {
    return (c->backend == LAB_ANY || c->backend == backend) &&
           (c->pipeline == LAB_ANY || c->pipeline == pipeline) &&
           !(lab_case_listed(c) && pipeline != TESS_FUSED);
}

/* Whether the case has score modifiers. */
static inline int lab_case_modifies(const struct lab_case *c) {
    return c->softcap > 0 || c->alibi || c->sink || c->dropout > 0;
}

/* Whether K and V are not rows of q's type. */
static inline int lab_case_caches(const struct lab_case *c) {
    return c->page || c->kv_type || c->v_in_k || c->rope;
}

/* Whether q has all its dims in one view. */
static inline int lab_case_q_whole(const struct lab_case *c) {
    return c->rope == 0 || c->seed % 2;
}

static inline int lab_case_backward(const struct lab_case *c) {
    return c->operation == TESS_ATTENTION_BACKWARD;
}

static inline int lab_case_mlp(const struct lab_case *c) {
    return c->operation == TESS_MLP;
}

/* Whether o, which attention writes, is f32 beside q of 16 bits. */
static inline int lab_case_o_f32(const struct lab_case *c) {
    return c->out32 && !lab_case_backward(c) && c->type != TESS_F32;
}

/* The type of o, which a backward reads. */
static inline tess_type lab_case_o_type(const struct lab_case *c) {
    return lab_case_o_f32(c) || c->given == LAB_GIVEN_O32 ? TESS_F32 : c->type;
}

/* Whether a backward case asks for one of TESS_GRADIENT_... */
static inline int lab_case_wants(const struct lab_case *c, int64_t gradient) {
    const int64_t all = TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V;
    return lab_case_backward(c) && ((c->gradients ? c->gradients : all) & gradient) != 0;
}

/* The case's problem for one pipeline. kernel points into *c. */
tess_problem lab_case_problem(const struct lab_case *c, tess_pipeline pipeline);

const char *lab_pipeline_name(int pipeline); /* "fused", "staged" */
const char *lab_fill_name(enum lab_fill fill);
const char *lab_base_name(int64_t base);                  /* "none", "merge", "add" */
const char *lab_cached_name(enum lab_cached cache);       /* "none", "store", "delta" */
const char *lab_operation_name(tess_operation operation); /* "attention", "backward", "mlp" */

#endif
