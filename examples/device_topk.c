/*
 * A list of keys for each query that changes every step, as learned sparse attention chooses it: one plan is reserved
 * for KEEP keys of a query; a step writes indices, fills and runs. What a list says is not refused, unless the plan is strict: an index that is
 * no key is not listed, and counted. The fill's report tells how many, and where the first is; it is read each step,
 * and the last step has such an index on purpose. To build it:
 *
 *     cc device_topk.c $(pkg-config --cflags --libs tessera) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera.h>

enum { HEADS = 2, QUERIES = 4, KEYS = 500, DIM = 32, KEEP = 24, STEPS = 5 };

static float q[HEADS][QUERIES][DIM], k[HEADS][KEYS][DIM], v[HEADS][KEYS][DIM];
static float o[HEADS][QUERIES][DIM];
static int32_t indices[HEADS][QUERIES][KEEP];

static void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

static void *allocate(size_t size) {
    void *memory = aligned_alloc(256, (size / 256 + 1) * 256);
    if (!memory)
        exit(EXIT_FAILURE);
    return memory;
}

static void draw(float *x, size_t count) {
    static unsigned seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static float dot(const float *a, const float *b) {
    float sum = 0;
    for (int d = 0; d < DIM; d++)
        sum += a[d] * b[d];
    return sum;
}

/* The KEEP keys of highest score, in any order; a query of few keys would have -1 behind them. */
static void keep_highest(int h, int i) {
    static int kept[KEYS];
    for (int j = 0; j < KEYS; j++)
        kept[j] = 0;
    for (int n = 0; n < KEEP; n++) {
        int best = -1;
        for (int j = 0; j < KEYS; j++)
            if (!kept[j] && (best < 0 || dot(q[h][i], k[h][j]) > dot(q[h][i], k[h][best])))
                best = j;
        kept[best] = 1;
        indices[h][i][n] = best;
    }
}

/* How far o is from the definition, over the indices that are keys. */
static double difference(int h, int i) {
    double sum = 0, weighted[DIM] = {0}, worst = 0;
    for (int n = 0; n < KEEP; n++) {
        const int j = indices[h][i][n];
        if (j < 0 || j >= KEYS)
            continue;
        const double w = exp((double)dot(q[h][i], k[h][j]) / sqrt(DIM));
        sum += w;
        for (int d = 0; d < DIM; d++)
            weighted[d] += w * (double)v[h][j][d];
    }
    for (int d = 0; d < DIM; d++)
        worst = fmax(worst, fabs(weighted[d] / sum - (double)o[h][i][d]));
    return worst;
}

int main(void) {
    tess_error error = tess_error_init();
    tess_fill_report report = tess_fill_report_init();
    tess_problem problem = tess_problem_init();
    tess_plan *plan;
    const tess_device_pattern lists =
        tess_device_pattern_topk(&indices[0][0][0], NULL, 1, HEADS, QUERIES, KEYS, KEEP);
    const tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, HEADS, QUERIES, DIM);
    const tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, HEADS, KEYS, DIM);
    const tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, 1, HEADS, KEYS, DIM);
    const tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, HEADS, QUERIES, DIM);
    require(tess_problem_from_tensors(&problem, &tq, &tk, &tv, &to, &error), &error);
    require(tess_plan_reserve(&plan, &problem, &lists, NULL, &error), &error);

    tess_arguments arguments = tess_arguments_init();
    const size_t image_size = tess_plan_image_size(plan);
    void *image = allocate(image_size);
    arguments.q = &tq, arguments.k = &tk, arguments.v = &tv, arguments.o = &to;
    arguments.workspace_size = tess_plan_workspace_size(plan);
    arguments.workspace = allocate(arguments.workspace_size);
    draw(k[0][0], sizeof k / sizeof(float));
    draw(v[0][0], sizeof v / sizeof(float));

    double worst = 0;
    int told = 0;
    for (int step = 0; step < STEPS; step++) {
        draw(q[0][0], sizeof q / sizeof(float));
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < QUERIES; i++)
                keep_highest(h, i);
        if (step + 1 == STEPS)
            indices[1][2][7] = KEYS; /* no key */
        require(tess_plan_fill_run(plan, &lists, image, image_size, NULL, &arguments, &error, NULL),
                &error);
        require(tess_plan_report(plan, image, &report, &error), &error);
        if (report.first_fault) {
            printf("step %d: %lld fault, the first is %s: head %lld, query %lld, entry %lld\n",
                   step, (long long)report.faults, tess_list_fault_name(report.first_fault),
                   (long long)report.head, (long long)report.row, (long long)report.position);
            told += report.head == 1 && report.row == 2 && report.position == 7;
        }
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < QUERIES; i++)
                worst = fmax(worst, difference(h, i));
    }
    printf("%d steps by one plan; outputs differ from the definition by %.2g at most\n", STEPS,
           worst);
    tess_plan_free(plan);
    free(image);
    free(arguments.workspace);
    return worst < 1e-5 && told == 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
