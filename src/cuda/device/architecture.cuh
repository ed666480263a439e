/* Features of the architecture being compiled for; none on the host. No other file asks the
 * compiler. */
#ifndef TESSERA_CUDA_ARCHITECTURE_CUH
#define TESSERA_CUDA_ARCHITECTURE_CUH

/* Thread block clusters: sm_90 and later. */
#define ARCHITECTURE_CLUSTERS (__CUDA_ARCH__ >= 900)

/* WGMMA (sm90/wgmma.cuh): sm_90a only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ARCHITECTURE_WGMMA true
#else
#define ARCHITECTURE_WGMMA false
#endif

/* FITTED: sm_90, on whose register counts the launch bounds were chosen. AFTER: later
 * architectures, on which the same code may take more registers. */
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

/* CTAs that a multiprocessor holds: ptxas refuses launch bounds past that. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860 && __CUDA_ARCH__ < 890
#define ARCHITECTURE_CTAS 16
#else
#define ARCHITECTURE_CTAS 24
#endif

#endif
