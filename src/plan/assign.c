/* Assignment: a heap of the workers, whoever is free first on top. */
#include "plan/assign.h"

#include <stdlib.h>

/* Last items of each worker, which are assigned longest first whatever stands in between. */
#define ASSIGN_LAST_ITEMS 4

static int costlier(const void *a, const void *b) {
    const struct assign_item *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

void assign_sort(struct assign_item *items, int64_t n, int32_t workers) {
    const int64_t last = (int64_t)workers * ASSIGN_LAST_ITEMS;
    if (n > 0)
        qsort(items + (n > last ? n - last : 0), (size_t)(n > last ? last : n), sizeof *items,
              costlier);
}

struct assign_worker {
    int64_t load;
    int32_t worker;
};

static int before(const struct assign_worker *a, const struct assign_worker *b) {
    return a->load < b->load || (a->load == b->load && a->worker < b->worker);
}

/* Moves heap[0] down to its place. */
static void settle(struct assign_worker *heap, int32_t n) {
    struct assign_worker moved = heap[0];
    int32_t at = 0;
    for (int32_t child = 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

int assign_begin(struct assignment *assignment, int32_t workers) {
    *assignment = (struct assignment){workers, malloc((size_t)workers * sizeof *assignment->heap)};
    for (int32_t w = 0; w < workers && assignment->heap; w++)
        assignment->heap[w] = (struct assign_worker){0, w};
    return assignment->heap ? 0 : -1;
}

void assign_free(struct assignment *assignment) {
    free(assignment->heap);
    *assignment = (struct assignment){0};
}

int32_t assign_next(struct assignment *assignment, int64_t cost) {
    const int32_t worker = assignment->heap[0].worker;
    assignment->heap[0].load += cost;
    settle(assignment->heap, assignment->workers);
    return worker;
}

int64_t assign_least(const struct assignment *assignment) {
    return assignment->heap[0].load;
}

int64_t assign_most(const struct assignment *assignment) {
    int64_t most = 0;
    for (int32_t i = 0; i < assignment->workers; i++)
        most = assignment->heap[i].load > most ? assignment->heap[i].load : most;
    return most;
}
