/* Decode: combining the partial results of split tiles, in the order of the parts. A CTA takes a row. */
#ifndef TESSERA_CUDA_DECODE_COMBINE_CUH
#define TESSERA_CUDA_DECODE_COMBINE_CUH

#include "decode/config.cuh"
#include "device/architecture.cuh"
#include "device/overlap.cuh"

#define DECODE_COMBINE_THREADS 128
#define DECODE_COMBINE_DIMS 4 /* of a thread */

/* Programmatic dependent launch, sm_90 and later: the combine may take room that decode leaves, and waits
 * there until decode has ended and its writes are visible. */
static __device__ __forceinline__ void decode_combine_early(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void decode_combine_wait(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Items and combines of today; 0 where this plan has not filled the image. */
static __device__ __forceinline__ int64_t decode_items(const struct decode_params &p) {
    return fill_is_of(p.image.header, p.image.layout) ? p.image.header->items : 0;
}
static __device__ __forceinline__ int64_t decode_combines(const struct decode_params &p) {
    return fill_is_of(p.image.header, p.image.layout) ? p.image.header->combines : 0;
}

#define DECODE_COMBINE_AHEAD 8 /* parts whose O is loaded before it is weighed */

/* 4 dims of parts first ... first + DECODE_COMBINE_AHEAD - 1, of those that there are. */
static __device__ __forceinline__ void decode_combine_load(float4 (&x)[DECODE_COMBINE_AHEAD],
                                                           const float *from, int64_t part,
                                                           int first, int parts) {
#pragma unroll
    for (int e = 0; e < DECODE_COMBINE_AHEAD; e++)
        if (first + e < parts)
            x[e] = *reinterpret_cast<const float4 *>(from + (first + e) * part);
}

/* One row: O = sum over parts of 2^(m_part - m) O_part / l. Lane i of each warp weighs part 32 n + i. Loads
 * do not wait for one another: those of the first parts' O, of m and of l are issued together. */
template <class T>
static __device__ __forceinline__ void
decode_combine_row(const struct decode_params &p, const struct combine_item &combine, int row) {
    const int32_t query = decode_row_query(p, row), packed = decode_row_head(p, row),
                  lane = warp_lane();
    const int32_t first = combine.batch_head * p.of.tile_heads;
    const int32_t batch = decode_quotient(first, p.of.heads_q);
    const int32_t head = first - batch * p.of.heads_q + packed;
    const int32_t i = decode_tile_query(p, combine.tile) + query;
    if (i >= decode_tile_query(p, combine.tile + 1))
        return;
    const struct attention_slot slot =
        attention_slot_of(p.of, combine.first_slot * p.of.tile_heads + packed);
    const int64_t part = p.of.tile_heads * p.of.slot_floats; /* from one to the next */
    const int d = (int)threadIdx.x * DECODE_COMBINE_DIMS;
    const float *const from =
        slot.o + query * p.of.slot_dims + min(d, p.of.slot_dims - DECODE_COMBINE_DIMS);
    float4 x[DECODE_COMBINE_AHEAD];
    decode_combine_load(x, from, part, 0, combine.parts);
    float of_m = -INFINITY, of_l = 0; /* of this lane's part */
    if (lane < combine.parts)
        of_m = slot.m[lane * part + query], of_l = slot.l[lane * part + query];
    float m = of_m;
    for (int at = lane + 32; at < combine.parts; at += 32)
        m = fmaxf(m, slot.m[at * part + query]);
    m = warp_max(m);
    const float base = attention_base(m);
    float4 sum = {0, 0, 0, 0};
    float l = 0, weight = exp2f(of_m - base);
#pragma unroll 1
    for (int at = 0; at < combine.parts; at += DECODE_COMBINE_AHEAD) {
        if (at > 0 && at % 32 == 0) {
            of_m = -INFINITY, of_l = 0;
            if (at + lane < combine.parts)
                of_m = slot.m[(at + lane) * part + query],
                of_l = slot.l[(at + lane) * part + query];
            weight = exp2f(of_m - base);
        }
        float4 next[DECODE_COMBINE_AHEAD];
        decode_combine_load(next, from, part, at + DECODE_COMBINE_AHEAD, combine.parts);
#pragma unroll
        for (int e = 0; e < DECODE_COMBINE_AHEAD; e++) {
            const float w = __shfl_sync(WARP_ALL, weight, at % 32 + e);
            const float its_l = __shfl_sync(WARP_ALL, weight * of_l, at % 32 + e);
            if (at + e < combine.parts) {
                l += its_l;
                sum.x += w * x[e].x, sum.y += w * x[e].y;
                sum.z += w * x[e].z, sum.w += w * x[e].w;
            }
        }
#pragma unroll
        for (int e = 0; e < DECODE_COMBINE_AHEAD; e++)
            x[e] = next[e];
    }
    if (d >= p.of.d_v)
        return;
    const float below = modify_denominator(p.of.modify, head, m, l);
    const float factor = l == 0 ? 0.0f : __fdividef(p.of.modify.kept, below);
    T *const o =
        reinterpret_cast<T *>(attention_head<T>(p.of.o, batch, head)) + i * p.of.o.stride[2] + d;
    const float of[DECODE_COMBINE_DIMS] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < DECODE_COMBINE_DIMS; e++)
        from_f32(&o[e], l == 0 ? 0.0f : decode_mean<T>(p, of[e] * factor));
    if (d == 0)
        attention_store_lse(p.of, batch, head, i, m, l);
}

template <class T>
static __global__ void __launch_bounds__(DECODE_COMBINE_THREADS)
    decode_combine(const __grid_constant__ struct decode_params p) {
    int64_t i = blockIdx.x;
    struct combine_item combine = p.image.combines[i]; /* not today's, maybe */
    const int64_t combines = decode_combines(p);
    decode_combine_wait(); /* all CTAs: what follows in the stream waits for this kernel alone */
    while (i < combines) {
        decode_combine_row<T>(p, combine, (int)blockIdx.y);
        i += gridDim.x;
        if (i < combines)
            combine = p.image.combines[i];
    }
}

template <class T>
static cudaError_t decode_combine_launch(const struct decode_params *p, cudaStream_t stream) {
    void *arguments[] = {(void *)p};
    bool overlaps;
    const cudaError_t code = launch_overlaps((const void *)decode_combine<T>, &overlaps);
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(attention_blocks(p->image.most_combines),
                          (unsigned)(p->of.tile_rows * p->of.tile_heads));
    launch.blockDim = dim3(DECODE_COMBINE_THREADS);
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = overlaps;
    if (code || p->image.most_combines == 0)
        return code;
    return cudaLaunchKernelExC(&launch, (const void *)decode_combine<T>, arguments);
}

#endif
