/* The one place that knows which backends were built. */
#include "plan/kernels.h"

const struct backend *backend_get(tess_backend backend) {
    switch (backend) {
    case TESS_CPU:
        return cpu_kernels();
    case TESS_CUDA:
#ifdef TESSERA_WITH_CUDA
        return cuda_kernels();
#else
        return NULL;
#endif
    }
    return NULL;
}
