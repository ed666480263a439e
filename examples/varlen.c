/*
 * Documents of unequal lengths, packed in one sequence without padding: each has its own BigBird,
 * global tokens and random blocks included, and none sees another. In words where all have one
 * pattern, by tess_pattern_concat where they differ. To build it:
 *
 *     cc varlen.c $(pkg-config --cflags --libs tessera) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera.h>

enum { HEADS = 4, DIM = 32, DOCUMENTS = 3, N = 700 + 333 + 503 };

static const int length[DOCUMENTS] = {700, 333, 503};
static const char *const own[DOCUMENTS] = {"longformer(64,16)", "causal",
                                           "dilated(20,7)+global(1)"};
static float q[N][HEADS][DIM], k[N][HEADS][DIM], v[N][HEADS][DIM];
static float o[N][HEADS][DIM], alone[N][HEADS][DIM];

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

static tess_pattern *from_spec(const char *spec, int n) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = n;
    require(tess_pattern_from_spec(&pattern, spec, &shape, &error), &error);
    return pattern;
}

/* Attention over tokens begin ... begin + n - 1 alone. */
static void attend(const tess_pattern *pattern, int begin, int n, float out[][HEADS][DIM]) {
    tess_error error = tess_error_init();
    tess_tensor tq = tess_tensor_bnhd(q[begin], TESS_F32, 1, n, HEADS, DIM);
    tess_tensor tk = tess_tensor_bnhd(k[begin], TESS_F32, 1, n, HEADS, DIM);
    tess_tensor tv = tess_tensor_bnhd(v[begin], TESS_F32, 1, n, HEADS, DIM);
    tess_tensor to = tess_tensor_bnhd(out[begin], TESS_F32, 1, n, HEADS, DIM);
    require(tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, NULL, &error), &error);
}

/* How many of the packed outputs are those of the documents by themselves. */
static int count_right(void) {
    const float *a = o[0][0], *b = alone[0][0];
    int right = 0;
    for (int i = 0; i < N * HEADS * DIM; i++)
        right += fabsf(a[i] - b[i]) < 1e-5f;
    return right;
}

int main(void) {
    fill(q[0][0], sizeof q / sizeof(float), 1);
    fill(k[0][0], sizeof k / sizeof(float), 2);
    fill(v[0][0], sizeof v / sizeof(float), 3);
    tess_error error = tess_error_init();

    /* Every document its own pattern. */
    tess_pattern *parts[DOCUMENTS], *packed;
    for (int d = 0, begin = 0; d < DOCUMENTS; begin += length[d++]) {
        parts[d] = from_spec(own[d], length[d]);
        attend(parts[d], begin, length[d], alone);
    }
    require(tess_pattern_concat(&packed, (const tess_pattern *const *)parts, DOCUMENTS, &error),
            &error);
    attend(packed, 0, N, o);
    int right = count_right();
    for (int d = 0; d < DOCUMENTS; d++)
        tess_pattern_free(parts[d]);
    tess_pattern_free(packed);

    /* One pattern for all, laid out anew in each. */
    packed = from_spec("each(700,333,503; bigbird(64,16,2,1))", N);
    attend(packed, 0, N, o);
    for (int d = 0, begin = 0; d < DOCUMENTS; begin += length[d++]) {
        tess_pattern *part;
        int end = begin + length[d];
        require(tess_pattern_select(&part, packed, begin, end, begin, end, &error), &error);
        attend(part, begin, length[d], alone);
        tess_pattern_free(part);
    }
    right += count_right();

    /* The first tokens of a document are global in it, and nowhere else. */
    int64_t keys[N], count;
    int query = 1500, first = 700 + 333, global = 0;
    require(tess_pattern_row(packed, 0, 0, query, keys, N, &count, &error), &error);
    for (int64_t i = 0; i < count; i++)
        global += keys[i] >= first && keys[i] < first + 16;
    tess_pattern_free(packed);
    printf("token %d sees %lld keys, from %lld on; %d of its document's 16 global tokens\n", query,
           (long long)count, (long long)keys[0], global);
    printf("%d of %d outputs are those of the documents by themselves\n", right,
           2 * N * HEADS * DIM);
    return right == 2 * N * HEADS * DIM && keys[0] == first && global == 16 ? EXIT_SUCCESS
                                                                            : EXIT_FAILURE;
}
