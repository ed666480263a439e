/* What the device that code is being compiled for has; nothing on the host. The one place that asks
 * the compiler. */
#ifndef TESSERA_CUDA_ARCHITECTURE_CUH
#define TESSERA_CUDA_ARCHITECTURE_CUH

/* Clusters of blocks, from 9.0 on. */
#define ARCHITECTURE_CLUSTERS (__CUDA_ARCH__ >= 900)

/* Products by warpgroups (sm90/wgmma.cuh): 9.0 alone. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ARCHITECTURE_GROUPS true
#else
#define ARCHITECTURE_GROUPS false
#endif

#endif
