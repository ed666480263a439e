/* Decode: launches. A kernel has four variants: V apart or in K, scores plain or modified (kernel.cuh). */
#ifndef TESSERA_CUDA_DECODE_LAUNCH_CUH
#define TESSERA_CUDA_DECODE_LAUNCH_CUH

#include "decode/combine.cuh"

struct decode_variant {
    void (*kernel)(const struct decode_params);
    int threads;            /* of a CTA */
    int bytes, with_scales; /* of shared memory, where K or V has 8 bits the latter */
};

/* Whether v is the first dims of k. */
static inline bool decode_v_in_k(const struct attention_params *p) {
    return p->v.data == p->k.data && p->d_v <= p->d_qk && p->v.stride[0] == p->k.stride[0] &&
           p->v.stride[1] == p->k.stride[1] && p->v.stride[2] == p->k.stride[2];
}

/* variants: [v in k][modified]. O: o's type. At most `ctas` CTAs take items in turn. The combine follows. */
template <class O>
static cudaError_t decode_launch_variants(const struct decode_variant (&variants)[2][2],
                                          const struct decode_params *p, int64_t ctas,
                                          cudaStream_t stream) {
    const bool in_k = decode_v_in_k(&p->of) && p->k.eight_bit == p->v.eight_bit;
    const struct decode_variant of = variants[in_k][p->of.modify.each != 0 || p->stored];
    const int bytes = p->stored ? of.with_scales : of.bytes;
    /* The most that any launch asks for: threads launch it with either size. */
    cudaError_t code = cudaFuncSetAttribute(
        (const void *)of.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, of.with_scales);
    void *arguments[] = {(void *)p};
    ctas = ctas < p->image.most_items ? ctas : p->image.most_items;
    if (!code && ctas > 0)
        code = cudaLaunchKernel((const void *)of.kernel, dim3(attention_blocks(ctas)),
                                dim3(of.threads), arguments, bytes, stream);
    return code ? code : decode_combine_launch<O>(p, stream);
}

#endif
