/*
 * Score modifiers: softcap and ALiBi on the scores of a tile, dropout on its weights.
 *
 * Dropout draws words of 16 bits by tiles of 16 x 16 whole-problem queries and keys, 32 calls of
 * Philox4x32-7 each (Salmon, Moraes, Dror, Shaw, 2011):
 *
 *     key      the seed, low word first
 *     counter  j / 16, i / 16, head, 4 (i mod 8) + (j mod 8) / 2
 *     word     of eight, low half first: 4 (i / 8 mod 2) + 2 (j / 8 mod 2) + j mod 2
 *
 * A weight is kept where its word is not below `dropped`. What is kept is multiplied at the end,
 * together with 1 / l.
 */
#ifndef TESSERA_CPU_MODIFY_H
#define TESSERA_CPU_MODIFY_H

#include "tile/tile.h"

enum { MODIFY_SCORES = 1, MODIFY_WEIGHTS = 2 };

#define MODIFY_DRAWN 16 /* queries and keys of a tile of draws */
#define MODIFY_QUADS 4  /* a call draws keys c, c + 1, c + 8, c + 9 of it for queries r, r + 8 */

/* The modifiers of a tile's scores, and what a superblock's keys have of them. */
struct modify {
    int capped, biased, drops;
    float in, out;                           /* out * tanh(in * score) */
    _Alignas(64) float slope[CPU_TILE_ROWS]; /* slope of each row, in the unit of scores */
    _Alignas(64) float back[CPU_TILE_ROWS];  /* queries from the tile's first to the row's */
    const struct modifiers *modifiers;
    int64_t first_position;     /* p_0, which follows today's length */
    const int32_t *position;    /* position of each key, or NULL: the key's number and first_key */
    int64_t first, rows, heads; /* the first query, rows and heads of the tile */
    int64_t head;               /* the first head, in the whole problem */
    uint32_t seed[2];
    float distance[CPU_KEYS]; /* j - p of the tile's first query */
    uint64_t keep[CPU_KEYS];  /* the rows that keep a key */
};

/* Begins with rows from query `first` on of heads h ... h + heads - 1; scores are `unit` times those of
 * natural logarithms. Answers whether there is anything to do to what the caller computes: scores,
 * weights or both. */
static inline int modify_begin(struct modify *m, const struct kernel_args *args, int what,
                               int64_t b, int64_t h, int64_t heads, int64_t first, int64_t rows,
                               double unit) {
    const struct modifiers *modifiers = &args->problem->modifiers;
    const struct modifier_operands *given = modifier_of(args);
    m->capped = modifiers->softcap != 0 && what & MODIFY_SCORES;
    m->biased = modifiers->alibi && what & MODIFY_SCORES;
    m->drops = modifiers->dropped && what & MODIFY_WEIGHTS;
    m->modifiers = modifiers;
    m->first_position = modifiers->first_position;
    if (args->work.lengths)
        m->first_position += args->work.lengths[b] - args->problem->n_kv;
    if (!(m->capped || m->biased || m->drops))
        return 0;
    m->in = m->capped ? (float)(1 / (modifiers->softcap * unit)) : 0;
    m->out = (float)(modifiers->softcap * unit);
    m->position = modifiers->key_positions ? given->key_positions : NULL;
    m->first = first, m->rows = rows, m->heads = heads;
    m->head = modifiers->first_head + b * modifiers->heads + h;
    for (int64_t r = 0; r < CPU_TILE_ROWS; r++) {
        m->slope[r] = m->biased ? (float)((double)given->alibi[h + r % heads] * unit) : 0;
        m->back[r] = (float)(r / heads);
    }
    if (m->drops)
        m->seed[0] = (uint32_t)*given->seed, m->seed[1] = (uint32_t)(*given->seed >> 32);
    return 1;
}

static inline int modify_scored(const struct modify *m) {
    return m->capped || m->biased;
}

/* Position of a key in the whole problem, and the same as dropout counts it. */
static inline int64_t modify_position(const struct modify *m, int32_t key) {
    return m->position ? m->position[key] : key + m->modifiers->first_key;
}
static inline uint32_t draw_position(const struct modify *m, int32_t key) {
    return (uint32_t)modify_position(m, key);
}

/* Distance of a key from the tile's first query: exact up to 2^24, rounded beyond. */
static inline float modify_distance(const struct modify *m, int32_t key) {
    return (float)(modify_position(m, key) - m->first_position - m->first);
}

/* ---- scores ---- */

/* tanh(x): x times a rational minimax fit in x^2 up to 8, from where on it is 1 to 2^-22. */
V_INLINE vf v_tanh(vf x) {
    x = v_max(v_set(-8.0f), x); /* NaN stays */
    x = -v_max(v_set(-8.0f), -x);
    const vf z = x * x;
    vf p = v_fma(v_set(1.52314735e-08f), z, v_set(2.1895062e-05f));
    vf q = v_fma(v_set(8.52267333e-07f), z, v_set(0.000341133185f));
    p = v_fma(p, z, v_set(0.00357162254f));
    q = v_fma(q, z, v_set(0.0261645373f));
    p = v_fma(p, z, v_set(0.134445190f));
    q = v_fma(q, z, v_set(0.467778474f));
    p = v_fma(p, z, v_set(1.0f));
    q = v_fma(q, z, v_set(1.0f));
    return x * p / q;
}

/* Softcap on n vectors. */
static inline void modify_cap(const struct modify *m, float *st, int64_t n) {
    const vf in = v_set(m->in), out = v_set(m->out);
    for (int64_t i = 0; i < n * CPU_LANES; i += CPU_LANES)
        v_store(st + i, out * v_tanh(in * v_load(st + i)));
}

/* Softcap and ALiBi on the group of lanes at `lane`; number[j], or j, is the place of key j in the
 * superblock. */
static inline void modify_scores(const struct modify *m, float *st, int64_t lane, int vectors,
                                 int32_t n, const int32_t *number) {
    if (m->capped)
        modify_cap(m, st, (int64_t)n * vectors);
    for (int v = 0; m->biased && v < vectors; v++) {
        const vf slope = v_load(m->slope + lane + v * CPU_LANES);
        const vf back = v_load(m->back + lane + v * CPU_LANES);
        float *s = st + v * CPU_LANES;
        for (int32_t j = 0; j < n; j++, s += vectors * CPU_LANES)
            v_store(s, v_fma(slope, m->distance[number ? number[j] : j] - back, v_load(s)));
    }
}

/* ---- draws ---- */

/* CPU_LANES calls of Philox4x32-7: counters become words. */
V_INLINE void philox(vu c[4], const uint32_t seed[2]) {
    uint32_t key[2] = {seed[0], seed[1]};
    V_FOR(round, 7) {
        vu low[2], high[2];
        v_multiply_wide(c[0], 0xD2511F53u, &low[0], &high[0]);
        v_multiply_wide(c[2], 0xCD9E8D57u, &low[1], &high[1]);
        c[0] = high[1] ^ c[1] ^ key[0];
        c[1] = low[1];
        c[2] = high[0] ^ c[3] ^ key[1];
        c[3] = low[0];
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
}

/* keep[c] = the queries 16 i ... 16 i + 15 that keep key 16 j + c, for c in the quads of the mask. */
static inline void draw_tile(const struct modify *m, uint32_t head, uint32_t i, uint32_t j,
                             unsigned quads, uint16_t keep[MODIFY_DRAWN]) {
    const vu lane = {V_LANES}, limit = (vu){0} + (uint32_t)m->modifiers->dropped;
    enum { EACH = CPU_LANES < 8 ? CPU_LANES : 8 }; /* lanes of a quad's 8 calls */
    memset(keep, 0, MODIFY_DRAWN * sizeof *keep);
    for (uint32_t x = 0; x < 8 * MODIFY_QUADS; x += CPU_LANES) {
        if (!(quads >> x / 8 & (CPU_LANES > 8 ? 3 : 1)))
            continue;
        const vu call = lane + x;
        vu c[4] = {(vu){0} + j, (vu){0} + i, (vu){0} + head, (call & 7) * 4 + (call >> 3)};
        philox(c, m->seed);
        for (uint32_t word = 0; word < 8; word++) {
            const vu drawn = c[word / 2] >> (word % 2 * 16) & 0xffff;
            const uint32_t bits = v_bits((vi)(drawn >= limit));
            for (uint32_t at = 0; at < CPU_LANES; at += EACH) {
                const uint32_t quad = (x + at) / 8, key = word / 2 % 2 * 8 + 2 * quad + word % 2;
                keep[key] |=
                    (uint16_t)((bits >> at & ((1u << EACH) - 1)) << (word / 4 * 8 + (x + at) % 8));
            }
        }
    }
}

/* Adds to keep what one head draws for queries 16 i ... 16 i + 15 of n keys. */
static inline void draw_band(struct modify *m, int64_t head, int64_t i, const int32_t *key,
                             int32_t n) {
    const int64_t first = m->first + m->modifiers->first_query, queries = m->rows / m->heads;
    const int64_t shift = i * MODIFY_DRAWN - first; /* from the tile's first query */
    const uint64_t all = UINT64_MAX >> (64 - queries);
    for (int32_t j = 0, end; j < n; j = end) {
        const uint32_t at = draw_position(m, key[j]) / MODIFY_DRAWN;
        uint16_t keep[MODIFY_DRAWN];
        unsigned quads = 0;
        for (end = j; end < n && draw_position(m, key[end]) / MODIFY_DRAWN == at; end++)
            quads |= 1u << draw_position(m, key[end]) % 8 / 2;
        draw_tile(m, (uint32_t)(m->head + head), (uint32_t)i, at, quads, keep);
        for (int32_t x = j; x < end; x++) {
            const uint64_t drawn = keep[draw_position(m, key[x]) % MODIFY_DRAWN];
            uint64_t bits = (shift < 0 ? drawn >> -shift : drawn << shift) & all;
            if (m->heads == 1)
                m->keep[x] |= bits;
            for (; m->heads > 1 && bits; bits &= bits - 1)
                m->keep[x] |= UINT64_C(1) << (__builtin_ctzll(bits) * m->heads + head);
        }
    }
}

/* Sets what the n keys of a superblock have. */
static inline void modify_keys(struct modify *m, const int32_t *key, int32_t n) {
    for (int32_t j = 0; m->biased && j < n; j++)
        m->distance[j] = modify_distance(m, key[j]);
    if (!m->drops)
        return;
    const int64_t first = m->first + m->modifiers->first_query,
                  last = first + m->rows / m->heads - 1;
    memset(m->keep, 0, (size_t)n * sizeof *m->keep);
    for (int64_t head = 0; head < m->heads; head++)
        for (int64_t i = first / MODIFY_DRAWN; i <= last / MODIFY_DRAWN; i++)
            draw_band(m, head, i, key, n);
}

/* Weights of the group of lanes at `lane`: 0 where they are dropped. */
static inline void modify_weights(const struct modify *m, float *st, int64_t lane, int vectors,
                                  int32_t n, const int32_t *number) {
    for (int32_t j = 0; j < n; j++) {
        const uint64_t keep = m->keep[number ? number[j] : j] >> lane;
        for (int v = 0; v < vectors; v++, st += CPU_LANES)
            v_store(st, v_pick((uint32_t)(keep >> (v * CPU_LANES)), v_load(st), (vf){0}));
    }
}

/* Bit x: row r of the tile keeps the key at `position`[x], for CPU_LANES keys. */
static inline uint32_t draw_row(const struct modify *m, int64_t r, vu position) {
    const uint32_t i = (uint32_t)(m->first + m->modifiers->first_query + r / m->heads);
    const vu half = (vu)((position >> 3 & 1) == 1), odd = (vu)((position & 1) == 1);
    vu c[4] = {position >> 4, (vu){0} + (i >> 4), (vu){0} + (uint32_t)(m->head + r % m->heads),
               (position >> 1 & 3) + 4 * (i & 7)};
    philox(c, m->seed);
    const vu low = i >> 3 & 1 ? c[2] : c[0], high = i >> 3 & 1 ? c[3] : c[1];
    const vu both = (high & half) | (low & ~half);
    const vu word = ((both >> 16) & odd) | (both & 0xffff & ~odd);
    return v_bits((vi)(word >= (vu){0} + (uint32_t)m->modifiers->dropped));
}

/* ---- rows at last ---- */

/* Sum of a row of head h with its sink, which joins here, once (docs/semantics.md). m and l in base 2. */
static inline double modify_denominator(const struct kernel_args *args, int64_t h, double m,
                                        double l) {
    return args->problem->modifiers.sink && l > 0
               ? l + exp2((double)modifier_of(args)->sink[h] * LOG2_E - m)
               : l;
}

/* Multiple of the weights that dropout keeps. */
static inline double modify_kept(const struct kernel_args *args) {
    return 65536.0 / (65536 - args->problem->modifiers.dropped);
}

/* Factor of the sums of weighted values of a row of head h; +Inf: the row is empty. */
static inline float modify_factor(const struct kernel_args *args, int64_t h, double m, double l) {
    return (float)(modify_kept(args) / modify_denominator(args, h, m, l));
}

#endif
