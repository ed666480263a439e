/*
 * Stage 2 on the CPU: softmax of every row of the scores, in place, with sinks and dropout. A row is
 * contiguous, so it streams: maximum, weights and sum, division. Nothing stands in for -Inf: where
 * the maximum is -Inf, 0 is subtracted, and all weights are exactly 0.
 */
#include "tile/modify.h"
#include "tile/parallel.h"
#include "staged/block_row.h"

/* Elements whose weights are summed in f32 before the sum goes on in double. */
#define SUM_CHUNK (CPU_CHUNK * CPU_LANES)

size_t CPU_NAME(softmax_workspace)(const struct kernel_args *args) {
    (void)args;
    return 0;
}

static float row_max(const float *x, int64_t n) {
    vf top = v_set(-INFINITY);
    int64_t i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        top = v_max(v_load_any(x + i), top);
    float m = -INFINITY;
    for (int lane = 0; lane < CPU_LANES; lane++)
        m = top[lane] > m ? top[lane] : m;
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* A vector of the row's last n < CPU_LANES elements, filled up. */
static vf tail_load(const float *x, int64_t n, float fill) {
    vf tail = v_set(fill);
    memcpy(&tail, x, (size_t)n * sizeof *x);
    return tail;
}

/* x = exp(x - m), and the sum. */
static double row_weigh(float *x, int64_t n, float m) {
    const vf base = v_set(m), log2_e = v_set((float)LOG2_E);
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += SUM_CHUNK) {
        int64_t i = begin, end = n - begin < SUM_CHUNK ? n : begin + SUM_CHUNK;
        vf part = {0};
        for (; i + CPU_LANES <= end; i += CPU_LANES) {
            vf p = v_exp2((v_load_any(x + i) - base) * log2_e);
            v_store_any(x + i, p);
            part += p;
        }
        if (i < end) {
            vf p = v_exp2((tail_load(x + i, end - i, -INFINITY) - base) * log2_e);
            memcpy(x + i, &p, (size_t)(end - i) * sizeof *x);
            part += p;
        }
        for (int lane = 0; lane < CPU_LANES; lane++)
            sum += (double)part[lane];
    }
    return sum;
}

/* x *= scale; zeros stay zero even where scale is NaN. */
static void row_scale(float *x, int64_t n, float scale) {
    const vf factor = v_set(scale);
    int64_t i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES) {
        vf p = v_load_any(x + i);
        v_store_any(x + i, v_select((vi)(p == (vf){0}), p, p * factor));
    }
    for (; i < n; i++)
        x[i] = x[i] == 0 ? 0 : x[i] * scale;
}

/* One row's weights of a superblock: 0 where `bit` of a key's word is not set. NaN stays, so that its
 * row has one. Keys stand side by side but for those that no row lists. */
static void row_drop(float *x, const struct cpu_block_row_keys *s, const uint32_t *keep,
                     uint32_t bit) {
    const int32_t n = s->keys.n;
    const int gaps = n < s->to - s->from;
    int32_t j = 0;
    for (; !gaps && j + CPU_LANES <= n; j += CPU_LANES) {
        const vf p = v_load_any(x + s->from + j);
        const vi kept = (vi)((*(const vu *)(keep + j) & bit) != 0);
        v_store_any(x + s->from + j, v_select(kept | (vi)(p != p), p, (vf){0}));
    }
    for (; j < n; j++)
        if (!(keep[j] & bit) && !isnan(x[s->at[j]]))
            x[s->at[j]] = 0;
}

/* The weights of a block row's rows that are dropped. */
static void block_row_drop(const struct kernel_args *args, const struct cpu_block_row *s) {
    _Alignas(64)
        uint32_t keep[2][CPU_KEYS_SHORT]; /* bits of rows 0 ... 31 of a chunk, and of the others */
    struct cpu_block_row_keys keys;
    struct modify modify;
    for (int64_t row = 0; row < s->rows; row += CPU_TILE_ROWS) {
        struct cpu_chunk c = cpu_chunk(s, row);
        modify_begin(&modify, args, MODIFY_WEIGHTS, s->b, s->h, 1, s->first + row, c.rows, 1);
        while (cpu_chunk_next(&c, &keys)) {
            modify_keys(&modify, keys.keys.key, keys.keys.n);
            for (int32_t j = 0; j < keys.keys.n; j++) {
                keep[0][j] = (uint32_t)modify.keep[j];
                keep[1][j] = (uint32_t)(modify.keep[j] >> 32);
            }
            for (int64_t r = 0; r < c.rows; r++)
                row_drop(s->scores + (row + r) * s->width, &keys, keep[r / 32],
                         UINT32_C(1) << r % 32);
        }
    }
}

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct kernel_args *args = context;
    (void)thread;
    struct cpu_block_row s = cpu_block_row(args, &args->work.schedule->items[number]);
    struct cpu_lse lse = cpu_lse(&stage_of(args)->lse, s.b, s.h, s.first);
    for (int64_t r = 0; r < s.rows; r++) {
        float *x = s.scores + r * s.width;
        float m = row_max(x, s.width);
        double sum = row_weigh(x, s.width, m == -INFINITY ? 0 : m);
        row_scale(x, s.width, sum == 0 ? 0 : modify_factor(args, s.h, (double)m * LOG2_E, sum));
        if (lse.data)
            lse.data[r * lse.stride] = sum == 0 ? -INFINITY : (float)((double)m + log(sum));
    }
    if (args->problem->modifiers.dropped)
        block_row_drop(args, &s);
}

tess_status CPU_NAME(softmax)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    cpu_for_each(args, args->work.schedule->n_items, item_run, args);
    return TESS_OK;
}
