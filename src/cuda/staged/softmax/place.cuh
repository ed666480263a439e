/* Stage 2, softmax: addresses of rows, and arithmetic. */
#ifndef TESSERA_CUDA_SOFTMAX_PLACE_CUH
#define TESSERA_CUDA_SOFTMAX_PLACE_CUH

#include "staged/block_row.cuh"

#define SOFTMAX_LOG2_E 1.4426950408889634f

/* ---- rows ---- */

/* A coming row: row r of an item, no row where the item has fewer. The other fields are loaded from
 * the image long before they are used. */
struct softmax_place {
    int64_t item;
    int32_t r;
    int32_t batch_head, block_row, tiles;
    int64_t scores;
};

/* Distance, in items and rows, between rows that a group takes one after another. */
struct softmax_stride {
    int32_t items, rows;
};

DEVICE struct block_row_scores block_row_scores_at(const struct block_row_scores *record) {
    static_assert(sizeof(struct block_row_scores) == sizeof(uint4), "one piece");
    union {
        uint4 piece;
        struct block_row_scores row;
    } at;
    at.piece = *reinterpret_cast<const uint4 *>(record);
    return at.row;
}

/* Loads an item's fields. Items are numbered as their scores are in memory, or else longest first. */
DEVICE void softmax_look_up(struct softmax_place &to, const struct staged_params &p) {
    const int64_t item = min(to.item, p.n_items - 1);
    if (p.in_order) {
        const struct block_row_scores at = block_row_scores_at(p.image.rows + item);
        to.batch_head = at.batch_head;
        to.block_row = (int32_t)(item - at.batch_head * p.rows);
        to.tiles = at.tiles;
        to.scores = at.scores;
    } else {
        const struct block_row_place at = block_row_place_at(p.image.block_rows + item);
        to.batch_head = at.batch_head;
        to.block_row = at.row;
        to.tiles = (int32_t)at.tiles; /* n_kv keys at most */
        to.scores = at.scores;
    }
}

DEVICE void softmax_advance(struct softmax_place &to, const struct softmax_stride &by,
                            const struct staged_params &p) {
    to.item += by.items;
    to.r += by.rows;
    if (to.r >= p.height) {
        to.r -= (int32_t)p.height;
        to.item++;
    }
    softmax_look_up(to, p);
}

/* Address of a row's lse. */
DEVICE float *softmax_lse_at(const struct staged_params &p, int32_t batch_head, int64_t query) {
    const int32_t b = (int32_t)divided((uint32_t)batch_head, p.by_heads_q);
    const int32_t h = batch_head - b * p.heads_q;
    return static_cast<float *>(p.lse.data) + b * p.lse.stride[0] + h * p.lse.stride[1] +
           query * p.lse.stride[2];
}

/* ---- arithmetic ---- */

DEVICE float softmax_max4(const float4 &x) {
    return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
}

/* exp(x - base), flushed to 0 below 2^-126: a row's sum is at least 1 and would not change. */
DEVICE float softmax_exp(float x, float base) {
    float prob;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(prob) : "f"((x - base) * SOFTMAX_LOG2_E));
    return prob;
}
DEVICE float4 softmax_exp4(const float4 &x, float base) {
    return {softmax_exp(x.x, base), softmax_exp(x.y, base), softmax_exp(x.z, base),
            softmax_exp(x.w, base)};
}
DEVICE float softmax_sum4(const float4 &x) {
    return x.x + x.y + x.z + x.w;
}

/* NaN unless x is 0: P where the factor of a row is NaN. */
DEVICE float softmax_nan(float x) {
    return x == 0 ? 0.0f : NAN;
}
DEVICE float4 softmax_scaled4(const float4 &x, float factor) {
    return {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}

/* The lse of a row with this maximum and sum. */
DEVICE float softmax_lse(float top, double sum) {
    return sum == 0 ? -INFINITY : (float)(top + log(sum));
}

/* Base that is subtracted from scores: the maximum, or 0 for -Inf. */
DEVICE float softmax_base(float top) {
    return top == -INFINITY ? 0.0f : top;
}

#endif
