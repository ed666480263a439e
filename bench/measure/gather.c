/*
 * Rate at which threads read rows of 1152 bytes, a decode's keys of 512 + 64 dims of bf16, in any order: what bounds
 * decode on a CPU.
 *
 *   cc -O2 -fopenmp -o gather bench/measure/gather.c && OMP_WAIT_POLICY=active ./gather
 *
 * 16,384 rows, eight queries of 2048 keys each, are read by all threads from a cache of 131,072; each round has rows of
 * its own, the best of eight counts. ahead: rows whose lines are prefetched, 0: none.
 */
#define _GNU_SOURCE
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROW = 1152, LINE = 64, KEYS = 131072, ROWS = 16384, ROUNDS = 8 };

static uint64_t read_row(const char *row) {
    uint64_t sum = 0;
    for (int at = 0; at < ROW; at += LINE)
        sum += *(const volatile uint64_t *)(row + at);
    return sum;
}

static uint64_t read_rows(const char *cache, const int32_t *rows, int n, int ahead) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        for (int at = 0; ahead && i + ahead < n && at < ROW; at += LINE)
            __builtin_prefetch(cache + (size_t)rows[i + ahead] * ROW + at, 0, 3);
        sum += read_row(cache + (size_t)rows[i] * ROW);
    }
    return sum;
}

/* Seconds of the best round. */
static double best_of(const char *cache, const int32_t *order, int threads, int ahead,
                      uint64_t *sum) {
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = 0, took = 0;
        uint64_t read = 0;
#pragma omp parallel num_threads(threads) reduction(+ : read)
        {
            const int n = ROWS / threads;
#pragma omp barrier
#pragma omp master
            start = omp_get_wtime();
#pragma omp barrier
            read += read_rows(cache, order + round * ROWS + omp_get_thread_num() * n, n, ahead);
#pragma omp barrier
#pragma omp master
            took = omp_get_wtime() - start;
        }
        best = took < best ? took : best;
        *sum += read;
    }
    return best;
}

int main(void) {
    static const int ahead[] = {0, 1, 2, 4, 8};
    const size_t bytes = (size_t)KEYS * ROW;
    int32_t *const order = malloc(ROUNDS * ROWS * sizeof *order);
    uint64_t sum = 0;
    for (int i = 0; order && i < ROUNDS * ROWS; i++)
        order[i] = (int32_t)(((uint32_t)rand() * 2654435761u >> 3) % KEYS);
    for (int huge = 0; huge < 2; huge++) {
        char *const cache =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!order || cache == MAP_FAILED)
            return 1;
        madvise(cache, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        memset(cache, 1, bytes);
        for (int all = 0; all < 2; all++)
            for (size_t i = 0; i < sizeof ahead / sizeof *ahead; i++) {
                const int threads = all ? omp_get_max_threads() : 1;
                const double s = best_of(cache, order, threads, ahead[i], &sum);
                printf("%s pages, %2d threads, %d rows ahead: %6.1f GB/s, %.3f ms\n",
                       huge ? "huge" : "small", threads, ahead[i], (double)ROWS * ROW / s * 1e-9,
                       s * 1e3);
            }
        munmap(cache, bytes);
    }
    free(order);
    return sum == 0;
}
