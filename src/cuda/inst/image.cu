#include "staged/image.cuh"

cudaError_t cuda_image_derive(const struct cuda_params *p, cudaStream_t stream) {
    return image_derive(p, stream);
}
