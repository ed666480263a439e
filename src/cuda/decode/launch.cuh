/* Decode: launches. A kernel has variants: V apart or in K, scores plain or modified (kernel.cuh). */
#ifndef TESSERA_CUDA_DECODE_LAUNCH_CUH
#define TESSERA_CUDA_DECODE_LAUNCH_CUH

#include "device/launch.cuh"
#include "work/image.cuh"
#include "work/launch.cuh"
#include "work/slots.cuh"

struct decode_variant {
    void (*kernel)(const struct decode_params);
    int threads;            /* threads of a CTA */
    int bytes, with_scales; /* bytes of shared memory; with_scales: where K or V has 8 bits */
    cudaError_t (*allow)(const void *kernel); /* launch_shared of the larger */
};

/* T: o's type, unless p->o_f32. At most `ctas` CTAs take items in turn. The combine follows. */
template <class T>
static cudaError_t decode_launch_variant(const struct decode_variant &variant,
                                         const struct decode_params *p, int64_t ctas,
                                         cudaStream_t stream) {
    const int bytes = p->stored ? variant.with_scales : variant.bytes;
    void *arguments[] = {(void *)p};
    cudaError_t code = variant.allow((const void *)variant.kernel);
    ctas = ctas < p->image.most_items ? ctas : p->image.most_items;
    if (!code && ctas > 0)
        code = launch_early((const void *)variant.kernel, dim3(attention_blocks(ctas)),
                            variant.threads, (size_t)bytes, arguments, stream);
    if (code)
        return code;
    return cuda_decode_combine(p, p->o_f32 ? TESS_F32 : attention_type(T()), stream);
}

#endif
