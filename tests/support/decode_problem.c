/* Problems for CUDA's decode. */
#include "support/decode_problem.h"

#include <stdio.h>

enum { WORK = 40000000 };

/* blocks: of lists that Hopper's forward takes too. */
static struct device_sizes sizes_draw(uint64_t seed, int64_t d, int blocks) {
    struct device_sizes s = {.form = (tess_form)PICK(0, 0, 0, 1, 2, 3)};
    s.batch = PICK(1, 1, 1, 2);
    s.heads_kv = PICK(2, 1, 1, 2);
    s.heads_q = s.heads_kv * PICK(3, 1, 2, 3, 4, 6, 8, 16, 16, 17, 24, 32, 64, 128);
    s.list_batch = PICK(4, 1, 0) ? 1 : s.batch;
    s.list_heads = pick(seed, 5, (const int64_t[]){1, s.heads_kv, s.heads_q}, 3);
    s.n_q = PICK(6, 1, 1, 1, 2, 5, 33, 70);
    s.n_kv = PICK(7, 1, 40, 300, 700, 2100, 5000);
    s.block_q = PICK(8, 1, 1, 2, 16, 64, 128);
    s.block_kv = s.form == TESS_RANGES ? 1 : PICK(9, 1, 1, 2, 16, 64, 128);
    if (blocks) {
        s.heads_q = s.heads_kv * PICK(60, 1, 2, 3, 8), s.list_heads = PICK(61, 1, s.heads_q);
        s.n_q = PICK(62, 8, 33, 70, 130), s.form = (tess_form)PICK(63, 0, 1, 2);
        s.block_q = PICK(64, 8, 16, 64, 128), s.block_kv = PICK(65, 16, 32, 64, 128);
    }
    while (s.n_kv > 1 && s.batch * s.heads_q * s.n_q * s.n_kv * d > WORK)
        s.n_kv = (s.n_kv + 1) / 2;
    const int64_t rows = (s.n_q + s.block_q - 1) / s.block_q;
    const int64_t cols = (s.n_kv + s.block_kv - 1) / s.block_kv;
    const int64_t all = s.list_batch * s.list_heads * rows * cols;
    s.hostile = (int)PICK(10, 0, 1);
    if (s.form == TESS_INDICES)
        s.capacity = PICK(11, 0, 1) ? cols : 1 + lab_below(seed, 78, 1001, cols);
    else if (s.form == TESS_RANGES)
        s.capacity = PICK(11, 1, 2, 3, 4);
    else
        s.capacity = all;
    if (PICK(13, 0, 0, 1)) {
        s.cut_lo = PICK(14, INT64_MIN, -9, -70, -600);
        s.cut_hi = PICK(15, 0, 4, INT64_MAX, 90);
    }
    s.counts = (s.form == TESS_INDICES || s.form == TESS_RANGES) && PICK(16, 0, 1);
    s.lengths = (int)PICK(17, 0, 1, 1);
    s.promises = 0;
    return s;
}

static int is_8bit(tess_type type) {
    return type == TESS_E4M3 || type == TESS_E5M2;
}

/* Scales, as the kernels have them: groups of 128 dims, whole in the first view of K, and of values by token
 * where weights are of bf16. */
static void scales_draw(tess_problem *p, uint64_t seed, int by_token) {
    const int64_t d_k = p->d_qk - p->rope_dims;
    const int groups = d_k % 128 == 0 && p->d_v % 128 == 0 && by_token;
    if (is_8bit(p->k_type) && (!p->rope_dims || d_k % 128 == 0))
        p->k_scale = (tess_scaling)PICK(46, 0, 1, 2, by_token || !p->v_in_k ? 3 : 2,
                                        groups ? TESS_SCALE_GROUP : 1);
    if (is_8bit(p->v_type))
        p->v_scale =
            (tess_scaling)PICK(47, 0, 1, 2, by_token ? 3 : 2, groups ? TESS_SCALE_GROUP : 1);
}

/* Pages, second views, and types: K and V of q's type, or beside q of f32 of one type of 16 bits; or of 8
 * bits, in rows of whole 16 bytes. plain: q's type, and pages alone. */
static void caches_draw(struct decode_problem *t, uint64_t seed, int plain) {
    tess_problem *p = &t->problem;
    const tess_type of_16 = p->type          ? TESS_F32 /* q's type */
                            : PICK(49, 0, 1) ? TESS_F16
                                             : TESS_BF16;
    p->k_type = p->v_type = of_16;
    if (!plain && PICK(50, 0, 0, 1))
        p->rope_dims = PICK(51, 8, 16, 64) < p->d_qk ? PICK(51, 8, 16, 64) : 8;
    t->v_in_k &= p->d_v <= p->d_qk - p->rope_dims;
    if (PICK(40, 0, 1, 1)) {
        p->page_size = PICK(41, 0, 1, 2, 16, 64, 256, 4096);
        p->v_in_k = t->v_in_k && PICK(42, 0, 1);
    }
    if (!plain && (p->d_qk - p->rope_dims) % 16 == 0 && p->d_v % 16 == 0 && PICK(43, 0, 1)) {
        p->k_type = (tess_type)PICK(44, of_16, TESS_E4M3, TESS_E4M3, TESS_E5M2);
        p->v_type = (tess_type)PICK(45, of_16, p->k_type, p->k_type, TESS_E4M3, TESS_E5M2);
    }
    if (p->v_in_k)
        p->v_type = TESS_F32;
    const int of_8 = is_8bit(p->k_type) || is_8bit(p->v_type);
    const int only_8 = is_8bit(p->k_type) && (p->v_in_k || is_8bit(p->v_type)) && !p->rope_dims;
    scales_draw(p, seed, p->type == TESS_BF16 || of_16 == TESS_BF16 || (!p->type && only_8));
    if (p->rope_dims && !p->type)
        p->k_rope_type = of_16;
    t->v_in_k &= !p->page_size && !of_8 && !p->v_in_k;
}

/* Hopper's forward takes one type of 16 bits, whole pages of granules, and no small scales. */
static void blocks_draw(struct decode_problem *t, uint64_t seed) {
    const tess_problem *p = &t->problem;
    if (p->type == TESS_F32 || p->o_f32 || p->rope_dims || p->k_type || p->v_type ||
        p->scale != 0 || (p->page_size && p->page_size < 16))
        return;
    const int wide = p->d_qk > 64 || p->d_v > 64 || PICK(67, 0, 0, 1);
    snprintf(t->blocks, sizeof t->blocks, "cuda_decode_%s_sm90_blocks_%s%s",
             p->type == TESS_F16 ? "f16" : "bf16", wide ? "d128" : "d64",
             wide && PICK(68, 0, 1) ? "_r128" : "");
}

/* A cache that Hopper's decode reads in 8 bits: 512 dims, and up to 64 of a second view, with V in K. */
static void codes_draw(struct decode_problem *t, uint64_t seed) {
    tess_problem *p = &t->problem;
    p->type = (tess_type)PICK(82, TESS_F16, TESS_BF16), p->softcap = 0, p->alibi = 0,
    p->dropout = 0;
    p->rope_dims = PICK(83, 0, 8, 16, 32, 64), p->d_qk = 512 + p->rope_dims;
    p->d_v = PICK(84, 128, 512), p->v_in_k = 1, t->v_in_k = 0;
    p->k_type = (tess_type)PICK(85, TESS_E4M3, TESS_E5M2), p->v_type = TESS_F32;
    p->k_scale = p->v_scale = TESS_SCALE_NONE, p->k_rope_type = TESS_F32;
    scales_draw(p, seed, p->type == TESS_BF16);
}

struct decode_problem decode_problem_draw(uint64_t seed) {
    const int blocks = PICK(66, 0, 0, 0, 1) == 1;
    const int64_t d = blocks ? PICK(69, 32, 64, 64, 96, 128)
                             : PICK(20, 32, 64, 72, 96, 128, 192, 256, 320, 512, 576);
    struct decode_problem t = {.sizes = sizes_draw(seed, d, blocks)};
    tess_problem *p = &t.problem;
    *p = device_problem(&t.sizes, d);
    p->type = (tess_type)PICK(21, TESS_F16, TESS_BF16, TESS_F16, TESS_BF16, TESS_F32);
    p->o_f32 = PICK(52, 0, 0, 0, 1);
    const int plain =
        blocks && PICK(71, 1, 1, 1, 0) == 1; /* problems that Hopper's forward takes */
    if (plain)
        p->type = (tess_type)PICK(72, TESS_F16, TESS_BF16), p->o_f32 = 0;
    p->d_v = PICK(22, 0, 0, 8, 64) ? pick(seed, 23, (const int64_t[]){8, 64, 128}, 3) : d;
    if (p->d_v > 512)
        p->d_v = 512;
    p->alignment = 16;
    p->part_keys = PICK(24, 0, 0, 128, 256);
    p->scale = PICK(25, 0, 0, 1) ? 1e-3 : 0;
    p->softcap = (double)PICK(26, 0, 0, 0, 5);
    p->sink = PICK(27, 0, 0, 1);
    p->alibi = t.sizes.batch == 1 && PICK(28, 0, 0, 1); /* the oracle has one position for all */
    p->dropout = PICK(29, 0, 0, 0, 1) ? 0.25 : 0;
    t.v_in_k = p->d_v <= d && PICK(30, 0, 1);
    caches_draw(&t, seed, plain);
    if (d == 512 && PICK(81, 0, 1))
        codes_draw(&t, seed);
    if (blocks)
        blocks_draw(&t, seed);
    return t;
}
