/* Decode: merging the partial results of split tiles, in the order of the parts. A CTA takes a row. */
#ifndef TESSERA_CUDA_DECODE_MERGE_CUH
#define TESSERA_CUDA_DECODE_MERGE_CUH

#include "decode/config.cuh"
#include "device/architecture.cuh"

#define DECODE_MERGE_THREADS 128
#define DECODE_MERGE_DIMS 4 /* of a thread */

/* Programmatic dependent launch, sm_90 and later: the merge may take room that decode leaves, and waits
 * there until decode has ended and its writes are visible. */
static __device__ __forceinline__ void decode_merge_early(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void decode_merge_wait(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Items and merges of today; 0 where this plan has not filled the image. */
static __device__ __forceinline__ int64_t decode_items(const struct decode_params &p) {
    return fill_is_of(p.image.header, p.image.layout) ? p.image.header->items : 0;
}
static __device__ __forceinline__ int64_t decode_merges(const struct decode_params &p) {
    return fill_is_of(p.image.header, p.image.layout) ? p.image.header->merges : 0;
}

/* One row: O = sum over parts of 2^(m_part - m) O_part / l. Lane i of each warp weighs part 32 n + i. */
template <class T>
static __device__ __forceinline__ void decode_merge_row(const struct decode_params &p,
                                                        const struct merge_item &merge, int row) {
    const int32_t query = decode_row_query(p, row), packed = decode_row_head(p, row),
                  lane = warp_lane();
    const int32_t first = merge.batch_head * p.of.tile_heads;
    const int32_t batch = decode_quotient(first, p.of.heads_q);
    const int32_t head = first - batch * p.of.heads_q + packed;
    const int32_t i = decode_tile_query(p, merge.tile) + query;
    if (i >= decode_tile_query(p, merge.tile + 1))
        return;
    const struct attention_slot slot =
        attention_slot_of(p.of, merge.first_slot * p.of.tile_heads + packed);
    const int64_t part = p.of.tile_heads * p.of.slot_floats; /* from one to the next */
    float m = -INFINITY;
    for (int at = lane; at < merge.parts; at += 32)
        m = fmaxf(m, slot.m[at * part + query]);
    m = warp_max(m);
    const float base = attention_base(m);
    const int d = (int)threadIdx.x * DECODE_MERGE_DIMS;
    const float *from =
        slot.o + query * p.of.slot_dims + min(d, p.of.slot_dims - DECODE_MERGE_DIMS);
    float4 sum = {0, 0, 0, 0};
    float l = 0;
#pragma unroll 1
    for (int at = 0; at < merge.parts; at += 32) {
        const int n = min(32, merge.parts - at);
        float weight = 0, of_lane = 0;
        if (lane < n) {
            weight = exp2f(slot.m[(at + lane) * part + query] - base);
            of_lane = weight * slot.l[(at + lane) * part + query];
        }
#pragma unroll 8
        for (int j = 0; j < n; j++, from += part) {
            const float w = __shfl_sync(WARP_ALL, weight, j);
            const float4 x = *reinterpret_cast<const float4 *>(from);
            l += __shfl_sync(WARP_ALL, of_lane, j);
            sum.x += w * x.x, sum.y += w * x.y, sum.z += w * x.z, sum.w += w * x.w;
        }
    }
    if (d >= p.of.d_v)
        return;
    const float below = modify_denominator(p.of.modify, head, m, l);
    const float factor = l == 0 ? 0.0f : __fdividef(p.of.modify.kept, below);
    T *const o =
        reinterpret_cast<T *>(attention_head<T>(p.of.o, batch, head)) + i * p.of.o.stride[2] + d;
    const float x[DECODE_MERGE_DIMS] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < DECODE_MERGE_DIMS; e++)
        from_f32(&o[e], l == 0 ? 0.0f : mean_in_range(x[e] * factor, T()));
    if (d == 0)
        attention_store_lse(p.of, batch, head, i, m, l);
}

template <class T>
static __global__ void __launch_bounds__(DECODE_MERGE_THREADS)
    decode_merge(const __grid_constant__ struct decode_params p) {
    int64_t i = blockIdx.x;
    struct merge_item merge = p.image.merges[i]; /* not today's, maybe */
    const int64_t merges = decode_merges(p);
    decode_merge_wait(); /* all CTAs: what follows in the stream waits for this kernel alone */
    while (i < merges) {
        decode_merge_row<T>(p, merge, (int)blockIdx.y);
        i += gridDim.x;
        if (i < merges)
            merge = p.image.merges[i];
    }
}

template <class T>
static cudaError_t decode_merge_launch(const struct decode_params *p, cudaStream_t stream) {
    void *arguments[] = {(void *)p};
    int driver = 0; /* drivers before 12.3 cannot capture such launches */
    cudaDriverGetVersion(&driver);
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(attention_blocks(p->image.most_merges),
                          (unsigned)(p->of.tile_rows * p->of.tile_heads));
    launch.blockDim = dim3(DECODE_MERGE_THREADS);
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = p->early && driver >= 12030;
    if (p->image.most_merges == 0)
        return cudaSuccess;
    return cudaLaunchKernelExC(&launch, (const void *)decode_merge<T>, arguments);
}

#endif
