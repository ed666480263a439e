/* What the device that code is being compiled for has; nothing on the host. The one place that asks
 * the compiler. */
#ifndef TESSERA_CUDA_ARCHITECTURE_CUH
#define TESSERA_CUDA_ARCHITECTURE_CUH

/* Clusters of blocks, from 9.0 on. */
#define ARCHITECTURE_CLUSTERS (__CUDA_ARCH__ >= 900)

/* Products by warpgroups (sm90/wgmma.cuh): 9.0 alone. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ARCHITECTURE_WGMMA true
#else
#define ARCHITECTURE_WGMMA false
#endif

/* 9.0, whose registers the kernels were fitted to; and what came after it, where they take more. */
#define ARCHITECTURE_OF_FIT 90
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 10 * ARCHITECTURE_OF_FIT
#define ARCHITECTURE_FITTED true
#else
#define ARCHITECTURE_FITTED false
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
#define ARCHITECTURE_AFTER true
#else
#define ARCHITECTURE_AFTER false
#endif

#endif
