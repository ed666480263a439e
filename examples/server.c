/*
 * A server with threads of its own: workers take requests off one queue and share one plan. A plan
 * never changes, so it needs no lock; what a run writes is its request's output and its worker's
 * workspace. A run uses one thread (problem.threads), since the workers are the parallelism. To
 * build it:
 *
 *     cc server.c $(pkg-config --cflags --libs tessera) -lpthread
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera.h>

enum { WORKERS = 4, REQUESTS = 32, HEADS = 4, N = 512, DIM = 64, COUNT = HEADS * N * DIM };

struct server {
    tess_plan *plan;
    atomic_int next;   /* the first request that nobody has taken */
    atomic_int failed; /* runs */
    float *o[REQUESTS];
};

static void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

static void *allocate(size_t size) {
    void *p = aligned_alloc(64, (size / 64 + 1) * 64);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(EXIT_FAILURE);
    }
    return p;
}

/* Stands for what a request brings. Requests i and i + REQUESTS / 2 are the same. */
static void receive(float *x, int request, unsigned tensor) {
    unsigned seed = (unsigned)(request % (REQUESTS / 2)) * 3 + tensor;
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void *work(void *argument) {
    struct server *server = argument;
    size_t size = tess_plan_workspace_size(server->plan);
    void *workspace = allocate(size);
    float *x[3];
    tess_tensor t[4];
    for (unsigned i = 0; i < 3; i++) {
        x[i] = allocate(COUNT * sizeof(float));
        t[i] = tess_tensor_bhnd(x[i], TESS_F32, 1, HEADS, N, DIM);
    }
    for (int r; (r = atomic_fetch_add(&server->next, 1)) < REQUESTS;) {
        for (unsigned i = 0; i < 3; i++)
            receive(x[i], r, i);
        t[3] = tess_tensor_bhnd(server->o[r], TESS_F32, 1, HEADS, N, DIM);
        tess_arguments arguments = tess_arguments_init();
        arguments.q = &t[0], arguments.k = &t[1], arguments.v = &t[2], arguments.o = &t[3];
        arguments.workspace = workspace, arguments.workspace_size = size;
        if (tess_run(server->plan, &arguments, NULL, NULL))
            atomic_fetch_add(&server->failed, 1);
    }
    for (int i = 0; i < 3; i++)
        free(x[i]);
    free(workspace);
    return NULL;
}

int main(void) {
    static struct server server;
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_problem problem = tess_problem_init();
    tess_pattern *pattern;
    shape.n_q = N;
    problem.batch = 1, problem.heads_q = problem.heads_kv = HEADS;
    problem.n_q = problem.n_kv = N, problem.d_qk = problem.d_v = DIM;
    problem.threads = 1;
    require(tess_pattern_from_spec(&pattern, "causal&window(127,0)", &shape, &error), &error);
    require(tess_plan_create(&server.plan, &problem, pattern, NULL, &error), &error);
    tess_pattern_free(pattern);
    for (int r = 0; r < REQUESTS; r++)
        server.o[r] = allocate(COUNT * sizeof(float));

    pthread_t worker[WORKERS];
    for (int w = 0; w < WORKERS; w++)
        if (pthread_create(&worker[w], NULL, work, &server)) {
            fprintf(stderr, "no thread\n");
            return EXIT_FAILURE;
        }
    for (int w = 0; w < WORKERS; w++)
        pthread_join(worker[w], NULL);

    /* Whoever computed them, and whenever: equal requests have equal answers, bit by bit. */
    int same = 0;
    for (int r = 0; r < REQUESTS / 2; r++)
        same += memcmp(server.o[r], server.o[r + REQUESTS / 2], COUNT * sizeof(float)) == 0;
    int failed = atomic_load(&server.failed);
    printf("%d workers, %d requests: %d failed; %d of %d pairs have the same bits\n", WORKERS,
           REQUESTS, failed, same, REQUESTS / 2);
    tess_plan_free(server.plan);
    for (int r = 0; r < REQUESTS; r++)
        free(server.o[r]);
    return failed == 0 && same == REQUESTS / 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
