/*
 * A caller's own block lists: 8 x 8 blocks of 16 tokens, a list per head. Head 0 sees its own block
 * and the first, head 1 the two blocks before and after its own. Tensors are laid out as
 * projections write them, [batch, token, head, feature]; the log-sum-exp of every row comes out
 * too. To build it:
 *
 *     cc block_lists.c $(pkg-config --cflags --libs tessera) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera.h>

enum { HEADS = 2, N = 128, DIM = 32, BLOCK = 16, ROWS = N / BLOCK, COUNT = N * HEADS * DIM };

static void fill(float *x, unsigned seed) {
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static int lists_block(int head, int row, int col) {
    return head == 0 ? col == 0 || col == row : abs(row - col) == 1 || abs(row - col) == 2;
}

static const float *at(const float *x, int token, int head) {
    return x + ((size_t)token * HEADS + (size_t)head) * DIM;
}

/* The definition, for one query: writes its output and answers its log-sum-exp. */
static double attend(const float *q, const float *k, const float *v, int query, int head,
                     double *out) {
    double sum = 0.0;
    for (int d = 0; d < DIM; d++)
        out[d] = 0.0;
    for (int key = 0; key < N; key++) {
        if (!lists_block(head, query / BLOCK, key / BLOCK))
            continue;
        double score = 0.0;
        for (int d = 0; d < DIM; d++)
            score += (double)at(q, query, head)[d] * at(k, key, head)[d];
        double weight = exp(score / sqrt(DIM));
        sum += weight;
        for (int d = 0; d < DIM; d++)
            out[d] += weight * at(v, key, head)[d];
    }
    for (int d = 0; d < DIM; d++)
        out[d] /= sum;
    return log(sum);
}

int main(void) {
    static float q[COUNT], k[COUNT], v[COUNT], o[COUNT], lse[HEADS * N];
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);

    /* Head by head and block row by block row: where the row begins, then its columns, ascending.
     */
    int64_t row_ptr[HEADS][ROWS + 1], n_tiles = 0;
    int32_t col_idx[HEADS * ROWS * ROWS];
    for (int head = 0; head < HEADS; head++) {
        for (int row = 0; row < ROWS; row++) {
            row_ptr[head][row] = n_tiles;
            for (int col = 0; col < ROWS; col++)
                if (lists_block(head, row, col))
                    col_idx[n_tiles++] = col;
        }
        row_ptr[head][ROWS] = n_tiles;
    }
    tess_lists lists = tess_lists_init();
    lists.n_q = lists.n_kv = N;
    lists.block_q = lists.block_kv = BLOCK;
    lists.heads = HEADS;
    lists.n_tiles = n_tiles;
    lists.row_ptr = row_ptr[0];
    lists.col_idx = col_idx;

    tess_tensor tq = tess_tensor_bnhd(q, TESS_F32, 1, N, HEADS, DIM);
    tess_tensor tk = tess_tensor_bnhd(k, TESS_F32, 1, N, HEADS, DIM);
    tess_tensor tv = tess_tensor_bnhd(v, TESS_F32, 1, N, HEADS, DIM);
    tess_tensor to = tess_tensor_bnhd(o, TESS_F32, 1, N, HEADS, DIM);
    tess_tensor tl = tess_tensor_bhnd(lse, TESS_F32, 1, HEADS, N, 1);
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    tess_status status = tess_pattern_from_lists(&pattern, &lists, &error);
    if (!status)
        status = tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, &tl, &error);
    tess_pattern_free(pattern);
    if (status) {
        fprintf(stderr, "%s: %s (head %lld, row %lld, position %lld)\n", tess_status_name(status),
                error.message, (long long)error.head, (long long)error.row,
                (long long)error.position);
        return EXIT_FAILURE;
    }

    int head = 1, query = 77;
    double by_hand[DIM], by_hand_lse = attend(q, k, v, query, head, by_hand), worst = 0.0;
    for (int d = 0; d < DIM; d++)
        worst = fmax(worst, fabs(by_hand[d] - at(o, query, head)[d]));
    worst = fmax(worst, fabs(by_hand_lse - lse[head * N + query]));
    printf("%lld of %d tiles listed\n", (long long)n_tiles, HEADS * ROWS * ROWS);
    printf("query %d of head %d: o[0] = %.6f, by hand %.6f\n", query, head, at(o, query, head)[0],
           by_hand[0]);
    printf("lse = %.6f, by hand %.6f; largest difference %.1e\n", lse[head * N + query],
           by_hand_lse, worst);
    return worst < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
}
