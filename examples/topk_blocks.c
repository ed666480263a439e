/*
 * Block-top-k: every head keeps, for each block of queries, the blocks of keys whose means score
 * highest. A byte for each block says which are kept; what must not be seen of them, the future, is
 * cut off by intersection with `causal`, exactly and without a line about diagonals. To build it:
 *
 *     cc topk_blocks.c $(pkg-config --cflags --libs tessera) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera.h>

enum { HEADS = 4, N = 1000, DIM = 64, BLOCK = 64, ROWS = (N + BLOCK - 1) / BLOCK, KEEP = 4 };

static float q[HEADS][N][DIM], k[HEADS][N][DIM], v[HEADS][N][DIM], o[HEADS][N][DIM];

static void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

static void fill(float *x, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

/* The mean of each block of tokens. */
static void block_means(float x[N][DIM], float mean[ROWS][DIM]) {
    for (int b = 0; b < ROWS; b++) {
        int begin = b * BLOCK, end = begin + BLOCK < N ? begin + BLOCK : N;
        for (int d = 0; d < DIM; d++) {
            mean[b][d] = 0;
            for (int i = begin; i < end; i++)
                mean[b][d] += x[i][d] / (float)(end - begin);
        }
    }
}

static float dot(const float *a, const float *b) {
    float sum = 0;
    for (int d = 0; d < DIM; d++)
        sum += a[d] * b[d];
    return sum;
}

/* Marks the KEEP highest of n scores, and the last: queries always see their own block. */
static void keep_highest(const float *score, int n, unsigned char *kept) {
    for (int j = 0; j < n; j++)
        kept[j] = j == n - 1;
    for (int taken = 1; taken < KEEP && taken < n; taken++) {
        int best = -1;
        for (int j = 0; j < n; j++)
            if (!kept[j] && (best < 0 || score[j] > score[best]))
                best = j;
        kept[best] = 1;
    }
}

/* The kept blocks of each head: a byte for each block. */
static tess_pattern *choose(void) {
    static unsigned char kept[HEADS][ROWS][ROWS];
    static float mean_q[ROWS][DIM], mean_k[ROWS][DIM];
    for (int h = 0; h < HEADS; h++) {
        block_means(q[h], mean_q);
        block_means(k[h], mean_k);
        for (int row = 0; row < ROWS; row++) {
            float score[ROWS];
            for (int col = 0; col <= row; col++)
                score[col] = dot(mean_q[row], mean_k[col]);
            keep_highest(score, row + 1, kept[h][row]);
        }
    }
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *blocks;
    shape.n_q = N, shape.block_q = shape.block_kv = BLOCK, shape.heads = HEADS;
    require(tess_pattern_from_blocks(&blocks, kept[0][0], &shape, &error), &error);
    return blocks;
}

/* The definition, for one query: the largest error of its output. */
static double query_error(const tess_pattern *pattern, int head, int query) {
    int64_t keys[N], count;
    double out[DIM] = {0}, sum = 0, worst = 0;
    tess_error error = tess_error_init();
    require(tess_pattern_row(pattern, 0, head, query, keys, N, &count, &error), &error);
    for (int64_t i = 0; i < count; i++) {
        double score = 0;
        for (int d = 0; d < DIM; d++)
            score += (double)q[head][query][d] * k[head][keys[i]][d];
        double weight = exp(score / sqrt(DIM));
        sum += weight;
        for (int d = 0; d < DIM; d++)
            out[d] += weight * v[head][keys[i]][d];
    }
    for (int d = 0; d < DIM; d++)
        worst = fmax(worst, fabs(out[d] / sum - o[head][query][d]));
    return count > 0 && keys[count - 1] == query ? worst
                                                 : INFINITY; /* sees itself, nothing later */
}

int main(void) {
    fill(q[0][0], sizeof q / sizeof(float), 1);
    fill(k[0][0], sizeof k / sizeof(float), 2);
    fill(v[0][0], sizeof v / sizeof(float), 3);
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *blocks = choose(), *causal, *pattern;
    shape.n_q = N;
    require(tess_pattern_from_spec(&causal, "causal", &shape, &error), &error);
    require(tess_pattern_intersection(&pattern, blocks, causal, &error), &error);
    tess_pattern_free(blocks);
    tess_pattern_free(causal);

    tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, HEADS, N, DIM);
    tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, HEADS, N, DIM);
    tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, 1, HEADS, N, DIM);
    tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, HEADS, N, DIM);
    require(tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, NULL, &error), &error);

    tess_pattern_info info = tess_pattern_info_init();
    require(tess_pattern_describe(pattern, &info, &error), &error);
    double worst = 0;
    for (int query = 0; query < N; query += 37)
        for (int head = 0; head < HEADS; head++)
            worst = fmax(worst, query_error(pattern, head, query));
    printf("%lld whole blocks, %lld cut by the diagonal: %.1f %% of all pairs\n",
           (long long)info.full_tiles, (long long)info.band_tiles,
           100.0 * (double)info.pairs / ((double)HEADS * N * N));
    printf("largest error %.1e\n", worst);
    tess_pattern_free(pattern);
    return worst < 1e-5 && info.bitmask_tiles == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
