/* Dealing: a heap of the workers, whoever is free first on top. */
#include "deal.h"

#include <stdlib.h>

struct hand {
    int64_t load;
    int32_t worker;
};

static int before(const struct hand *a, const struct hand *b) {
    return a->load < b->load || (a->load == b->load && a->worker < b->worker);
}

/* Moves heap[0] down to its place. */
static void settle(struct hand *heap, int32_t n) {
    struct hand moved = heap[0];
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

int deal(int32_t *worker, const int64_t *cost, int64_t items, int32_t workers) {
    struct hand *heap = malloc((size_t)workers * sizeof *heap);
    if (!heap)
        return -1;
    for (int32_t w = 0; w < workers; w++)
        heap[w] = (struct hand){0, w};
    for (int64_t i = 0; i < items; i++) {
        worker[i] = heap[0].worker;
        heap[0].load += cost[i];
        settle(heap, workers);
    }
    free(heap);
    return 0;
}
