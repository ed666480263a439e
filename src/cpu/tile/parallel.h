/* Work shared among threads: the one place of the backend's kernels that knows OpenMP. */
#ifndef TESSERA_CPU_PARALLEL_H
#define TESSERA_CPU_PARALLEL_H

#include "plan/kernels.h"
#include "base/threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* Calls work(context, i, thread) for i in 0 ... n - 1, each taken by whoever is free, with thread
 * below the problem's threads; returns when all are done. A run that pays for no team is done by
 * the caller. */
static inline void cpu_for_each(const struct kernel_args *args, int64_t n,
                                void (*work)(const void *context, int64_t i, int32_t thread),
                                const void *context) {
#ifdef _OPENMP
    const int32_t threads = threads_team(args->problem->threads, n);
    const int shared = n > 1 && threads_pay(args->seconds);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (shared)
    for (int64_t i = 0; i < n; i++)
        work(context, i, omp_get_thread_num());
#else
    (void)args;
    for (int64_t i = 0; i < n; i++)
        work(context, i, 0);
#endif
}

#endif
