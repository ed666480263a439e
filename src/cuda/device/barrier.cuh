/* Named barriers of a CTA: number 0 is __syncthreads. Kernels name theirs by an enum. */
#ifndef TESSERA_CUDA_BARRIER_CUH
#define TESSERA_CUDA_BARRIER_CUH

#include "device/inline.cuh"

/* Barrier `id` among `threads` threads: sync waits, arrive does not. */
DEVICE void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void warpgroup_sync(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

#endif
