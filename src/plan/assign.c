/* Dealing: a heap of the workers, whoever is free first on top. */
#include "plan/assign.h"

#include <stdlib.h>

/* So many items for each worker, at the end, are dealt longest first whatever stands in between. */
#define DEAL_LAST_ITEMS 4

static int costlier(const void *a, const void *b) {
    const struct deal_item *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

void deal_sort(struct deal_item *items, int64_t n, int32_t workers) {
    const int64_t last = (int64_t)workers * DEAL_LAST_ITEMS;
    if (n > 0)
        qsort(items + (n > last ? n - last : 0), (size_t)(n > last ? last : n), sizeof *items,
              costlier);
}

struct deal_hand {
    int64_t load;
    int32_t worker;
};

static int before(const struct deal_hand *a, const struct deal_hand *b) {
    return a->load < b->load || (a->load == b->load && a->worker < b->worker);
}

/* Moves heap[0] down to its place. */
static void settle(struct deal_hand *heap, int32_t n) {
    struct deal_hand moved = heap[0];
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

int deal_begin(struct deal *deal, int32_t workers) {
    *deal = (struct deal){workers, malloc((size_t)workers * sizeof *deal->heap)};
    for (int32_t w = 0; w < workers && deal->heap; w++)
        deal->heap[w] = (struct deal_hand){0, w};
    return deal->heap ? 0 : -1;
}

void deal_free(struct deal *deal) {
    free(deal->heap);
    *deal = (struct deal){0};
}

int32_t deal_next(struct deal *deal, int64_t cost) {
    const int32_t worker = deal->heap[0].worker;
    deal->heap[0].load += cost;
    settle(deal->heap, deal->workers);
    return worker;
}

int64_t deal_least(const struct deal *deal) {
    return deal->heap[0].load;
}

int64_t deal_most(const struct deal *deal) {
    int64_t most = 0;
    for (int32_t i = 0; i < deal->workers; i++)
        most = deal->heap[i].load > most ? deal->heap[i].load : most;
    return most;
}
