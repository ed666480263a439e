/*
 * How long fills on a device take, by replays of a captured graph: microseconds of a fill, of which 20
 * stand in one graph, after as many that warm up; the median of 51 replays. Usage: cuda_fill_times
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/device.h"
#include "lab/rng.h"
#include "plan/reserve.h"

enum { FILLS = 20, REPLAYS = 51 };

/* Lists of one kind: `listed` of the blocks of a row, or all of `listed` entries. */
static const struct kind {
    const char *name;
    tess_form form;
    int64_t heads, n_q, n_kv, block, listed;
    int shuffled, counts;
} kinds[] = {
    {"8 rows x 2048 indices", TESS_INDICES, 1, 8, 131072, 1, 2048, 0, 0},
    {"64 rows x 2048 indices, near each other", TESS_INDICES, 1, 64, 2100, 1, 2048, 0, 0},
    {"64 rows x 2048 indices, ascending", TESS_INDICES, 1, 64, 131072, 1, 2048, 0, 0},
    {"64 rows x 2048 indices, any order", TESS_INDICES, 1, 64, 131072, 1, 2048, 1, 0},
    {"64 rows x 2048 indices, counts", TESS_INDICES, 1, 64, 131072, 1, 2048, 0, 1},
    {"1024 rows x 2048 indices, any order", TESS_INDICES, 1, 1024, 131072, 1, 2048, 1, 0},
    {"16384, 12 heads, .1 of 64x64, indices", TESS_INDICES, 12, 16384, 16384, 64, 26, 0, 0},
    {"16384, 12 heads, .1 of 64x64, block rows", TESS_BLOCK_ROWS, 12, 16384, 16384, 64, 26, 0, 0},
    {"16384, 12 heads, .1 of 64x64, block bits", TESS_BLOCK_BITS, 12, 16384, 16384, 64, 26, 0, 0},
    {"65536, 12 heads, .1 of 64x64, indices", TESS_INDICES, 12, 65536, 65536, 64, 102, 0, 0},
    {"65536, 12 heads, .1 of 64x64, block rows", TESS_BLOCK_ROWS, 12, 65536, 65536, 64, 102, 0, 0},
    {"65536, 12 heads, .1 of 64x64, block bits", TESS_BLOCK_BITS, 12, 65536, 65536, 64, 102, 0, 0},
    {"65536, 12 heads, a range, causal", TESS_RANGES, 12, 65536, 65536, 64, 1, 0, 0},
};

static void done(const char *why) {
    if (!why)
        return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void *host_take(size_t size) {
    void *memory = aligned_alloc(256, (size + 255) / 256 * 256);
    done(memory ? NULL : "no memory");
    return memory;
}

static void *device_take(const void *from, size_t size) {
    void *memory = lab_device_alloc(TESS_CUDA, size);
    done(memory ? NULL : "no memory on the device");
    if (from)
        done(lab_device_to_device(TESS_CUDA, memory, from, size));
    return memory;
}

/* `listed` of `cols` columns, ascending and about evenly spread, or in another order. */
static void row_draw(int32_t *index, int64_t row, const struct kind *k, int64_t cols) {
    for (int64_t i = 0; i < k->listed; i++) {
        const int64_t at = k->shuffled ? i * 997 % k->listed : i, step = cols / k->listed;
        index[i] = (int32_t)(at * step + lab_below(1, (uint64_t)row, (uint64_t)at, step));
    }
}

static void pattern_make(tess_device_pattern *p, const struct kind *k) {
    const int64_t rows = k->n_q / k->block < 1 ? k->n_q : k->n_q / k->block;
    const int64_t all = k->heads * rows, cols = k->n_kv / k->block, words = (cols + 63) / 64;
    int32_t *index = host_take((size_t)(all * k->listed) * 8);
    int32_t *counts = host_take((size_t)all * 4);
    int64_t *row_ptr = host_take((size_t)(all + k->heads) * 8);
    uint64_t *bits = host_take((size_t)(all * words) * 8);
    memset(bits, 0, (size_t)(all * words) * 8);
    for (int64_t row = 0; row < all; row++) {
        int32_t *of_row = index + row * k->listed;
        row_draw(of_row, row, k, cols);
        counts[row] = (int32_t)lab_below(2, 2, (uint64_t)row, k->listed);
        for (int64_t i = 0; i < k->listed; i++)
            bits[row * words + of_row[i] / 64] |= UINT64_C(1) << of_row[i] % 64;
    }
    for (int64_t i = 0; i < all + k->heads; i++)
        row_ptr[i] = (i - i / (rows + 1)) * k->listed;
    for (int64_t i = 0; i < all && k->form == TESS_RANGES; i++)
        index[2 * i] = 0, index[2 * i + 1] = -1;
    const int ranges = k->form == TESS_RANGES;
    if (k->form != TESS_BLOCK_BITS)
        p->indices = device_take(index, (size_t)(all * k->listed) * (ranges ? 8 : 4));
    if (k->form == TESS_BLOCK_ROWS)
        p->row_ptr = device_take(row_ptr, (size_t)(all + k->heads) * 8);
    if (k->form == TESS_BLOCK_BITS)
        p->bits = device_take(bits, (size_t)(all * words) * 8);
    if (k->counts)
        p->counts = device_take(counts, (size_t)all * 4);
    free(index), free(counts), free(row_ptr), free(bits);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void kind_time(const struct kind *k, const tess_target *target) {
    tess_problem problem = tess_problem_init();
    tess_device_pattern p = tess_device_pattern_init();
    tess_error error = tess_error_init();
    struct lab_device_timer timer;
    tess_stream stream;
    tess_plan *plan;
    void *graph;
    double ms[REPLAYS];
    const int64_t rows = (k->n_q + k->block - 1) / k->block;
    problem.batch = 1, problem.heads_q = k->heads == 1 ? 16 : k->heads, problem.heads_kv = k->heads;
    problem.n_q = k->n_q, problem.n_kv = k->n_kv, problem.d_qk = problem.d_v = 128;
    p.form = k->form, p.n_q = k->n_q, p.n_kv = k->n_kv, p.heads = k->heads;
    p.block_q = k->block, p.block_kv = k->form == TESS_RANGES ? 1 : k->block;
    p.capacity =
        k->form == TESS_INDICES || k->form == TESS_RANGES ? k->listed : k->heads * rows * k->listed;
    p.cut_lo = k->form == TESS_RANGES ? INT64_MIN : 0;
    if (tess_plan_reserve(&plan, &problem, &p, NULL, &error))
        done(error.message);
    pattern_make(&p, k);
    struct fill_job job = reserve_job(plan, &p, device_take(NULL, tess_plan_image_size(plan)));
    job.target = target;
    job.scratch = device_take(NULL, backend_get(TESS_CUDA)->fill_scratch(job.shape));
    done(lab_device_stream_make(TESS_CUDA, &stream));
    done(lab_device_timer_make(&timer, TESS_CUDA));
    job.stream = stream;
    done(lab_device_graph_begin(TESS_CUDA, stream));
    for (int i = 0; i < FILLS; i++)
        if (backend_get(TESS_CUDA)->fill(&job, &error))
            done(error.message);
    done(lab_device_graph_end(TESS_CUDA, stream, &graph));
    for (int i = -1; i < REPLAYS; i++) {
        double took;
        done(lab_device_timer_start(&timer, stream));
        done(lab_device_graph_launch(TESS_CUDA, graph, stream));
        done(lab_device_timer_stop(&timer, stream, &took));
        if (i >= 0)
            ms[i] = took;
    }
    qsort(ms, REPLAYS, sizeof *ms, ascending);
    printf("%-44s %8.2f us\n", k->name, 1e3 * ms[REPLAYS / 2] / FILLS);
    lab_device_graph_free(TESS_CUDA, graph);
    lab_device_timer_free(&timer);
    lab_device_stream_free(TESS_CUDA, stream);
    void *const all[] = {(void *)(uintptr_t)p.indices,
                         (void *)(uintptr_t)p.counts,
                         (void *)(uintptr_t)p.row_ptr,
                         (void *)(uintptr_t)p.bits,
                         job.header,
                         job.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lab_device_free(TESS_CUDA, all[i]);
    tess_plan_free(plan);
}

int main(void) {
    tess_target target = tess_target_init();
    tess_error error = tess_error_init();
    if (tess_target_query(&target, TESS_CUDA, -1, &error))
        done(error.message);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        kind_time(&kinds[i], &target);
    return 0;
}
