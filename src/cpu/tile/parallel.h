/* Work shared among threads: the one place of the backend that knows OpenMP. */
#ifndef TESSERA_CPU_PARALLEL_H
#define TESSERA_CPU_PARALLEL_H

#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Calls work(context, i, thread) for i in 0 ... n - 1, each taken by whoever is free, with thread
 * in 0 ... threads - 1; returns when all are done. */
static inline void cpu_for_each(int32_t threads, int64_t n,
                                void (*work)(const void *context, int64_t i, int32_t thread),
                                const void *context) {
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++)
        work(context, i, omp_get_thread_num());
#else
    (void)threads;
    for (int64_t i = 0; i < n; i++)
        work(context, i, 0);
#endif
}

#endif
