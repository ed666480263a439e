/* The launches of a fill, one after another on the stream. */
#ifndef TESSERA_CUDA_FILL_LAUNCH_CUH
#define TESSERA_CUDA_FILL_LAUNCH_CUH

#include "device/launch.cuh"
#include "work/launch.cuh"
#include "fill/lists.cuh"
#include "fill/mask.cuh"
#include "fill/ranges.cuh"

static inline cudaError_t fill_launch_one(const struct fill_launch *launch,
                                          const struct fill_params *p, cudaStream_t stream) {
    static void (*const kernels[FILL_KERNELS])(const struct fill_params) = {
        fill_claims,           fill_places,     fill_rows_tokens,   fill_rows_indices,
        fill_rows_indices_cut, fill_rows_bits,  fill_rows_bits_cut, fill_range_tiles,
        fill_mask_words,       fill_mask_lists, fill_items};
    static_assert(FILL_SURE_SHARED == LAUNCH_SURE_SHARED, "what a fill is sized by");
    const void *kernel = (const void *)kernels[launch->kernel];
    void *arguments[] = {(void *)p};
    const cudaError_t code = launch->shared <= LAUNCH_SURE_SHARED
                                 ? cudaSuccess
                                 : launch_shared<FILL_MOST_SHARED>(kernel);
    return code ? code
                : launch_early(kernel, dim3((unsigned)launch->blocks), launch->threads,
                               launch->shared, arguments, stream);
}

static inline cudaError_t fill_launch(const struct fill_params *p, cudaStream_t stream) {
    struct fill_launch launches[FILL_MOST_LAUNCHES];
    const int32_t n = fill_launches(p, launches);
    cudaError_t code = cudaSuccess;
    for (int32_t i = 0; i < n && !code; i++)
        code = fill_launch_one(&launches[i], p, stream);
    return code;
}

#endif
