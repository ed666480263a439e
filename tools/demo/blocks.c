/* The demonstration's choice of blocks from the data, and its drawing of patterns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo/demo.h"
#include "lab/fill/half.h"

/* The mean row of each block of each head, [heads][n / block][dim]. */
static double *block_means(const struct demo_input *in, const tess_tensor *t, int64_t block) {
    int64_t blocks = in->n / block;
    double *means = demo_allocate((size_t)(in->heads * blocks * in->dim), sizeof *means);
    for (int64_t b = 0; b < in->heads * blocks; b++) {
        for (int64_t d = 0; d < in->dim; d++) {
            double sum = 0.0;
            for (int64_t i = 0; i < block; i++)
                sum += lab_get(t->data, TESS_F16, (b * block + i) * in->dim + d);
            means[b * in->dim + d] = sum / (double)block;
        }
    }
    return means;
}

/*
 * Writes the columns of the `top` greatest of `count` scores, ascending; of equal scores the first
 * wins. Answers how many it wrote.
 */
static int64_t select_columns(int32_t *columns, int64_t top, const double *scores, int64_t count) {
    int64_t chosen = 0;
    for (int64_t j = 0; j < count; j++) {
        int64_t better = 0;
        for (int64_t other = 0; other < count; other++)
            better += scores[other] > scores[j] || (scores[other] == scores[j] && other < j);
        if (better < top)
            columns[chosen++] = (int32_t)j;
    }
    return chosen;
}

/* The mean of q.k over a block is the mean q times the mean k: this costs blocks^2 dot products a
 * head and looks at no single score. */
tess_pattern *demo_top_blocks(const struct demo_input *in, int64_t block, int64_t top) {
    int64_t blocks = in->n / block, dim = in->dim, n_tiles = 0;
    double *q = block_means(in, &in->q, block), *k = block_means(in, &in->k, block);
    double *scores = demo_allocate((size_t)blocks, sizeof *scores);
    int64_t *row_ptr = demo_allocate((size_t)(in->heads * (blocks + 1)), sizeof *row_ptr);
    int32_t *col_idx = demo_allocate((size_t)(in->heads * blocks * top), sizeof *col_idx);
    for (int64_t h = 0; h < in->heads; h++) {
        for (int64_t i = 0; i < blocks; i++) {
            row_ptr[h * (blocks + 1) + i] = n_tiles;
            for (int64_t j = 0; j < blocks; j++) {
                scores[j] = 0.0;
                for (int64_t d = 0; d < dim; d++)
                    scores[j] += q[(h * blocks + i) * dim + d] * k[(h * blocks + j) * dim + d];
            }
            n_tiles += select_columns(col_idx + n_tiles, top, scores, blocks);
        }
        row_ptr[h * (blocks + 1) + blocks] = n_tiles;
    }

    tess_lists lists = tess_lists_init();
    lists.n_q = lists.n_kv = in->n;
    lists.block_q = lists.block_kv = block;
    lists.heads = in->heads;
    lists.n_tiles = n_tiles;
    lists.row_ptr = row_ptr;
    lists.col_idx = col_idx;
    tess_pattern *pattern;
    tess_error error = tess_error_init();
    demo_require(tess_pattern_from_lists(&pattern, &lists, &error), &error);
    free(q);
    free(k);
    free(scores);
    free(row_ptr);
    free(col_idx);
    return pattern;
}

/* How many pairs each cell lists, [n / cell][n / cell]. */
static int64_t *count_cells(const struct demo_picture *picture, int64_t n, int64_t cell) {
    int64_t cells = n / cell;
    int64_t *keys = demo_allocate((size_t)n, sizeof *keys);
    int64_t *count = demo_allocate((size_t)(cells * cells), sizeof *count);
    memset(count, 0, sizeof *count * (size_t)(cells * cells));
    tess_error error = tess_error_init();
    for (int64_t i = 0; i < n; i++) {
        int64_t listed;
        demo_require(
            tess_pattern_row(picture->pattern, 0, picture->head, i, keys, n, &listed, &error),
            &error);
        for (int64_t e = 0; e < listed; e++)
            count[i / cell * cells + keys[e] / cell]++;
    }
    free(keys);
    return count;
}

void demo_draw(const struct demo_picture pictures[2], int64_t n, int64_t cell) {
    static const char shades[] = ".:+#"; /* up to a third of the pairs, two thirds, more; all */
    int64_t cells = n / cell, all = cell * cell;
    int64_t *count[2];
    for (int side = 0; side < 2; side++)
        count[side] = count_cells(&pictures[side], n, cell);
    printf("   %-*s    %s", (int)(2 * cells), pictures[0].title, pictures[1].title);
    for (int64_t row = 0; row < cells; row++) {
        printf("\n");
        for (int side = 0; side < 2; side++) {
            printf("  |");
            for (int64_t col = 0; col < cells; col++) {
                int64_t c = count[side][row * cells + col];
                char shade = shades[3 * c / all];
                if (c == 0)
                    shade = ' ';
                printf("%c%c", shade, shade);
            }
            printf("|");
        }
    }
    printf("\n");
    free(count[0]);
    free(count[1]);
}
