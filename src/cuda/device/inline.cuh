/* Functions of a device: inlined, and known to their unit alone. */
#ifndef TESSERA_CUDA_INLINE_CUH
#define TESSERA_CUDA_INLINE_CUH

#define DEVICE static __device__ __forceinline__

#endif
