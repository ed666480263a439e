/*
 * The rules by which tess_select chooses columns, so that every backend chooses the same ones. The file compiles
 * as C11 and as CUDA C, where FILL_RULE names its functions' qualifiers.
 *
 * A key is a score as an unsigned number, in the same order:
 *
 *     0            never chosen: NaN and -Inf, and columns past the row's end
 *     low ... high all other scores, -0 as +0; high is +Inf
 *     SELECT_KEPT  columns that come before all others
 *
 * A row chooses the columns whose keys are above one key, and of those equal to it the first few.
 */
#ifndef TESSERA_SELECT_RULES_H
#define TESSERA_SELECT_RULES_H

#include "lists/fill_rules.h"
#include "tessera.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SELECT_MOST_COLUMNS (1 << 20)

/* ---- columns of today ---- */

/* Keys that are there today, of a number that may be any. */
FILL_RULE int64_t pool_length(const int32_t *lengths, int64_t batch, int64_t n) {
    return lengths ? fill_least(n, fill_most(0, lengths[batch])) : n;
}

/* Columns of block row `row`, of so many keys: its last query stands at key position `last`. 32 bits hold all keys, and
 * divide faster. */
FILL_RULE int64_t score_columns(int64_t row, int64_t block_q, int64_t block_kv, int64_t n_q,
                                int64_t length, int causal) {
    const int64_t last = fill_least(n_q, (row + 1) * block_q) - 1 + length - n_q;
    const int64_t keys = causal ? fill_least(length, fill_most(0, last + 1)) : length;
    return (uint32_t)(keys + block_kv - 1) / (uint32_t)block_kv;
}

/* ---- rows ---- */

struct select_shape {
    int64_t batch, heads, rows, n;
    int64_t capacity, words; /* entries and words of a row of the result */
    int64_t k, keep_first, keep_last;
    int64_t block_q, block_kv, n_q, n_kv;
    int64_t keep_rows; /* rows of bits of columns that are kept; 0: none */
    int32_t mode, causal;
    uint32_t bound; /* THRESHOLD: the lowest key that is chosen */
    uint32_t share; /* TOP_P: p in 2^-31 */
};

/* A row of today. Columns kept ... tail - 1 are chosen by their scores, but for those that have a bit; those around them
 * are kept. */
struct select_row {
    int32_t end;  /* columns; -1: k or the length is bad */
    int32_t kept; /* columns 0 ... kept - 1 come first */
    int32_t tail; /* and so do tail ... end - 1 */
    int32_t k;    /* columns to choose */
};

/* length: keys of the row's batch; k: columns that it is to choose. */
FILL_RULE struct select_row select_row_of(const struct select_shape *s, int64_t row, int64_t length,
                                          int64_t k) {
    struct select_row out = {-1, 0, 0, 0};
    if (length < 0 || length > s->n * s->block_kv || k < 0)
        return out;
    const int64_t end = score_columns(row, s->block_q, s->block_kv, s->n_q, length, s->causal);
    out.end = (int32_t)end;
    out.kept = (int32_t)fill_least(s->keep_first, end);
    out.tail = (int32_t)fill_most(end - s->keep_last, out.kept);
    out.k = (int32_t)fill_least(k, s->n);
    /* With k below their number, the lowest of the columns that are kept are all that there is to choose. */
    if (s->mode == TESS_SELECT_EXACT && out.k <= out.kept)
        out.kept = out.tail = out.end = out.k;
    else if (s->mode == TESS_SELECT_EXACT && out.k < out.kept + out.end - out.tail)
        out.end = out.tail + out.k - out.kept;
    return out;
}

/* ---- keys ---- */

/* Keys of a type of scores: of 32 or 16 bits. */
struct select_keys {
    int32_t bits;
    uint32_t low, high;
};
FILL_RULE struct select_keys select_keys_of(tess_type type) {
    const struct select_keys f32 = {32, 0x00800000u, 0xff800000u};
    const struct select_keys f16 = {16, 0x0400u, 0xfc00u}, bf16 = {16, 0x0080u, 0xff80u};
    return type == TESS_F32 ? f32 : type == TESS_F16 ? f16 : bf16;
}

#define SELECT_KEPT(bits) (UINT32_MAX >> (32 - (bits)))

/* The key of a score whose storage, of so many bits, is `stored`. */
FILL_RULE uint32_t select_key(uint32_t stored, int32_t bits, uint32_t low, uint32_t high) {
    const uint32_t sign = UINT32_C(1) << (bits - 1);
    stored = stored == sign ? 0 : stored; /* -0 */
    const uint32_t key = stored ^ (stored & sign ? SELECT_KEPT(bits) : sign);
    return key - low <= high - low ? key : 0;
}

/* The storage of the score with this key. */
FILL_RULE uint32_t select_stored(uint32_t key, int32_t bits) {
    const uint32_t sign = UINT32_C(1) << (bits - 1);
    return key & sign ? key ^ sign : key ^ SELECT_KEPT(bits);
}

/* The score whose storage is `stored`. */
FILL_RULE float select_score(uint32_t stored, tess_type type) {
    const uint32_t sign = (stored & 0x8000) << 16, magnitude = stored & 0x7fff;
    uint32_t word = type == TESS_F32 ? stored : stored << 16;
    float x;
    if (type == TESS_F16) /* exponent bias 15 to 127; Inf and NaN have the largest exponent */
        word = sign | ((magnitude << 13) + ((magnitude < 0x7c00 ? 112u : 224u) << 23));
    memcpy(&x, &word, sizeof x);
    if (type == TESS_F16 && magnitude < 0x0400)
        x = (sign ? -1.0f : 1.0f) / 16777216.0f * (float)magnitude;
    return x;
}

/* The lowest key of the type whose score is at least x, which is not NaN. */
FILL_RULE uint32_t select_bound(float x, struct select_keys keys, tess_type type) {
    uint32_t low = keys.low, high = keys.high; /* +Inf will do for any x */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (select_score(select_stored(middle, keys.bits), type) < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- digits ---- */

/* Keys are sought by digits, the highest first: 11, 11 and 10 bits, or 11 and 5. */
#define SELECT_DIGIT_BITS 11
#define SELECT_DIGITS (1 << SELECT_DIGIT_BITS)

/* The lowest bit of the next digit, where bits from `known` on are known. */
FILL_RULE int32_t select_shift(int32_t known) {
    return known > SELECT_DIGIT_BITS ? known - SELECT_DIGIT_BITS : 0;
}

/* ---- weights of TOP_P ---- */

#define SELECT_WEIGHT_BITS 40 /* fraction: sums over a row stay below 2^61 */
#define SELECT_SHARE_BITS 31

/* exp(score - most) in 2^-40, cut off. most: the row's largest score, and no score is NaN. 2^x is 2^i times the first
 * terms of exp(r ln 2), |r| <= 1/2; each operation is a fused one, or exact. */
FILL_RULE uint64_t select_weight(float score, float most) {
    const float log2e = 1.44269504f, round = 12582912.0f; /* 1.5 * 2^23 */
    const float less = score == most ? 0 : score - most;
    if (!(less > -30.0f)) /* 2^-43 */
        return 0;
    const float near = fmaf(less, log2e, round) - round, r = fmaf(less, log2e, -near);
    float x = 1.5403530e-4f;
    x = fmaf(x, r, 1.3333558e-3f);
    x = fmaf(x, r, 9.6181291e-3f);
    x = fmaf(x, r, 5.5504109e-2f);
    x = fmaf(x, r, 2.4022651e-1f);
    x = fmaf(x, r, 6.9314718e-1f);
    x = fmaf(x, r, 1.0f);
    return (uint64_t)(uint32_t)(x * 16777216.0f) << (SELECT_WEIGHT_BITS - 24) >> (int32_t)-near;
}

/* The mass that is to be reached, of so much: at least 1 where there is any. */
FILL_RULE uint64_t select_mass(uint64_t sum, uint32_t share) {
    const uint64_t low = (sum & SELECT_KEPT(31)) * share, high = (sum >> 31) * share;
    return high + (low >> 31) + ((low & SELECT_KEPT(31)) != 0);
}

#endif
