/* Work shared among threads: the one place of the backend's kernels that knows OpenMP. */
#ifndef TESSERA_CPU_PARALLEL_H
#define TESSERA_CPU_PARALLEL_H

#include "plan/kernels.h"
#include "base/threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

typedef void cpu_work(const void *context, int64_t i, int32_t thread);

/* Calls work(context, i, thread) for i in 0 ... n - 1, each taken by whoever is free, with thread
 * below `limit`; returns when all are done. What takes one thread `seconds`, and so pays for no team,
 * is done by the caller. */
static inline void cpu_share(int32_t limit, double seconds, int64_t n, cpu_work *work,
                             const void *context) {
#ifdef _OPENMP
    const int32_t threads = threads_team(limit, n);
    const int shared = n > 1 && threads_pay(seconds);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (shared)
    for (int64_t i = 0; i < n; i++)
        work(context, i, omp_get_thread_num());
#else
    (void)limit, (void)seconds;
    for (int64_t i = 0; i < n; i++)
        work(context, i, 0);
#endif
}

/* Shares the work of a run of a plan. */
static inline void cpu_for_each(const struct kernel_args *args, int64_t n, cpu_work *work,
                                const void *context) {
    cpu_share(args->problem->threads, args->work.seconds, n, work, context);
}

#endif
