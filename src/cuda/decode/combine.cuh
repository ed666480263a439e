/* Decode: combining the partial results of split tiles. A warp takes 128 dims of a row. Where a GPU's multiprocessors
 * hold them all, 8 warps deal the parts among them, and their sums are added in the order of warps; of more rows a
 * warp takes all parts, in their order. A unit of its own, for all kernels. */
#ifndef TESSERA_CUDA_DECODE_COMBINE_CUH
#define TESSERA_CUDA_DECODE_COMBINE_CUH

#include "decode/begin.cuh"
#include "device/overlap.cuh"

#include <stddef.h>

#define DECODE_COMBINE_WAYS 8  /* warps that deal parts */
#define DECODE_COMBINE_WARPS 4 /* of a CTA whose warps do not */
#define DECODE_COMBINE_DIMS 4  /* of a lane */
#define DECODE_COMBINE_SLICE (32 * DECODE_COMBINE_DIMS)
#define DECODE_COMBINE_AHEAD 8    /* parts of a warp whose O is loaded before it is weighed */
#define DECODE_COMBINE_RESIDENT 4 /* CTAs of a multiprocessor whose warps deal parts */
#define DECODE_COMBINE_CTA(ways) (32 * ((ways) > 1 ? (ways) : DECODE_COMBINE_WARPS)) /* threads */

/* What a CTA's combines begin with, where it is read before decode has ended. */
union decode_combine_entry {
    uint64_t words[3 + sizeof(struct combine_item) / 8];
    struct {
        uint64_t magic, layout, combines;
        struct combine_item of; /* not today's, maybe */
    };
};

/* Reads it past an L1 which may hold an earlier fill's. A thread reads a word: all CTAs ask for the same line. */
static __device__ __forceinline__ void decode_combine_enter(union decode_combine_entry &entry,
                                                            const struct decode_params &p,
                                                            int64_t combine) {
    const uint64_t *const header = reinterpret_cast<const uint64_t *>(p.image.header);
    const uint64_t *const of = reinterpret_cast<const uint64_t *>(p.image.combines + combine);
    const int i = (int)threadIdx.x;
    if (i >= (int)(sizeof entry / 8))
        return;
    const uint64_t *const from =
        i >= 3 ? of + (i - 3)
               : header + (i < 2 ? i : (int)(offsetof(struct fill_header, combines) / 8));
    uint64_t x;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    entry.words[i] = x;
}

/* 4 dims of parts first, first + WAYS ..., of those that there are. from: the first one's. */
template <int WAYS>
static __device__ __forceinline__ void decode_combine_load(float4 (&x)[DECODE_COMBINE_AHEAD],
                                                           const float *from, int64_t part,
                                                           int first, int parts) {
#pragma unroll
    for (int e = 0; e < DECODE_COMBINE_AHEAD; e++, from += WAYS * part)
        if (first + WAYS * e < parts)
            x[e] = *reinterpret_cast<const float4 *>(from);
}

/* m and l of the next N parts from `first` on: lane i has those of part first + i, + 32 ... */
template <int N>
static __device__ __forceinline__ void
decode_combine_weights(float (&m)[(N + 31) / 32], float (&l)[(N + 31) / 32],
                       const struct attention_slot &slot, int64_t part, int first, int parts) {
#pragma unroll
    for (int j = 0; j < (N + 31) / 32; j++) {
        const int at = warp_lane() + 32 * j;
        const bool is = at < N && first + at < parts;
        m[j] = is ? slot.m[(first + at) * part] : -INFINITY;
        l[j] = is ? slot.l[(first + at) * part] : 0;
    }
}

/* What a warp knows of a row's parts. */
struct decode_combine_sums {
    float m, l; /* of all parts */
    float4 o;   /* of the warp's, not yet over l */
};

/* O = sum over parts of 2^(m_part - m) O_part, of parts way, way + WAYS ... Loads do not wait for one another: those of
 * the first round's O, of m and of l are issued together. */
template <int WAYS>
static __device__ __forceinline__ struct decode_combine_sums
decode_combine_parts(const struct attention_slot &slot, const float *from, int64_t part, int way,
                     int32_t parts) {
    constexpr int ROUND = WAYS * DECODE_COMBINE_AHEAD, LANES = (ROUND + 31) / 32;
    float4 x[DECODE_COMBINE_AHEAD];
    float of_m[LANES], of_l[LANES];
    from += way * part;
    decode_combine_load<WAYS>(x, from, part, way, parts);
    decode_combine_weights<ROUND>(of_m, of_l, slot, part, 0, parts);
    float m = -INFINITY;
#pragma unroll
    for (int j = 0; j < LANES; j++)
        m = fmaxf(m, of_m[j]);
    for (int at = ROUND + warp_lane(); at < parts; at += 32)
        m = fmaxf(m, slot.m[at * part]);
    struct decode_combine_sums sums = {warp_max(m), 0, {0, 0, 0, 0}};
    const float base = attention_base(sums.m);
#pragma unroll 1
    for (int at = 0;;) {
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            of_m[j] = exp2f(of_m[j] - base);
            sums.l += of_m[j] * of_l[j];
        }
#pragma unroll
        for (int e = 0; e < DECODE_COMBINE_AHEAD; e++) {
            const float w = __shfl_sync(WARP_ALL, of_m[WAYS * e / 32], (WAYS * e + way) % 32);
            if (at + WAYS * e + way < parts) {
                sums.o.x += w * x[e].x, sums.o.y += w * x[e].y;
                sums.o.z += w * x[e].z, sums.o.w += w * x[e].w;
            }
        }
        at += ROUND;
        if (at >= parts)
            break;
        from += ROUND * part;
        decode_combine_load<WAYS>(x, from, part, at + way, parts);
        decode_combine_weights<ROUND>(of_m, of_l, slot, part, at, parts);
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        sums.l += __shfl_xor_sync(WARP_ALL, sums.l, step);
    return sums;
}

/* A slice of a row, way of WAYS. of_warps: room for their sums. */
template <class T, int WAYS>
static __device__ __forceinline__ void
decode_combine_row(float4 (&of_warps)[WAYS][32], const struct decode_params &p,
                   const struct combine_item &combine, int row, int slice, int way) {
    const int32_t query = decode_row_query(p, row), packed = decode_row_head(p, row),
                  lane = warp_lane();
    const int32_t first = combine.batch_head * p.of.tile_heads;
    const int32_t batch = decode_quotient(first, p.of.heads_q);
    const int32_t head = first - batch * p.of.heads_q + packed;
    const int32_t i = decode_tile_query(p, combine.tile) + query;
    if (i >= decode_tile_query(p, combine.tile + 1)) /* the same for all threads */
        return;
    struct attention_slot slot =
        attention_slot_of(p.of, combine.first_slot * p.of.tile_heads + packed);
    slot.m += query, slot.l += query;
    const int64_t part = p.of.tile_heads * p.of.slot_floats; /* from one to the next */
    const int d = slice * DECODE_COMBINE_SLICE + lane * DECODE_COMBINE_DIMS;
    const float *const from =
        slot.o + query * p.of.slot_dims + min(d, p.of.slot_dims - DECODE_COMBINE_DIMS);
    const struct decode_combine_sums sums =
        decode_combine_parts<WAYS>(slot, from, part, way, combine.parts);
    float4 sum = sums.o;
    if (WAYS > 1) {
        __syncthreads(); /* the sums before have been read */
        of_warps[way][lane] = sum;
        __syncthreads();
#pragma unroll
        for (int of = 1; of < (way == 0 ? WAYS : 0); of++) {
            const float4 x = of_warps[of][lane];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
    }
    if (way > 0 || d >= p.of.d_v)
        return;
    const float m = sums.m, l = sums.l;
    const float below = modify_denominator(p.of.modify, head, m, l);
    const float factor = l == 0 ? 0.0f : __fdividef(p.of.modify.kept, below);
    T *const o =
        reinterpret_cast<T *>(attention_head<T>(p.of.o, batch, head)) + i * p.of.o.stride[2] + d;
    const float of[DECODE_COMBINE_DIMS] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < DECODE_COMBINE_DIMS; e++)
        from_f32(&o[e], l == 0 ? 0.0f : mean_in_range(of[e] * factor, p.of.modify.mean_below, T()));
    if (d == 0)
        attention_store_lse(p.of, batch, head, i, m, l);
}

/* A CTA begins with a row of combine blockIdx.x, and goes on with that of every gridDim.x-th: slices of its warps' WAYS,
 * or one to each where WAYS is 1. */
template <class T, int WAYS>
static __global__ void __launch_bounds__(DECODE_COMBINE_CTA(WAYS),
                                         WAYS > 1 ? DECODE_COMBINE_RESIDENT : 1)
    decode_combine(const __grid_constant__ struct decode_params p) {
    __shared__ float4 of_warps[WAYS][32];
    __shared__ union decode_combine_entry entry; /* unless WAYS is 1 */
    const int warp = (int)threadIdx.x / 32;
    const int slice = (int)blockIdx.z * (DECODE_COMBINE_CTA(WAYS) / 32 / WAYS) + warp / WAYS;
    int64_t i = blockIdx.x, combines;
    struct combine_item combine;
    if (WAYS > 1)
        decode_combine_enter(entry, p, i);
    decode_fetch(p, reinterpret_cast<char *>(of_warps));
    if (WAYS > 1) {
        __syncthreads();
        combine = entry.of;
        combines = entry.magic == FILL_MAGIC && entry.layout == p.image.layout
                       ? (int64_t)entry.combines
                       : 0;
    }
    decode_wait(); /* all CTAs: what follows in the stream waits for this kernel alone */
    decode_early();
    if (WAYS == 1) { /* CTAs of many rows come in waves, each of which would wait for L2 */
        combine = p.image.combines[i];
        combines = decode_count(p, &p.image.header->combines);
    }
    while (i < combines) {
        decode_combine_row<T, WAYS>(of_warps, p, combine, (int)blockIdx.y, slice, warp % WAYS);
        i += gridDim.x;
        if (i < combines)
            combine = p.image.combines[i];
    }
}

template <class T, int WAYS>
static cudaError_t decode_combine_grid(const struct decode_params *p, int rows, int slices,
                                       cudaStream_t stream) {
    constexpr int each = DECODE_COMBINE_CTA(WAYS) / 32 / WAYS; /* slices of a CTA */
    return launch_early((const void *)decode_combine<T, WAYS>,
                        dim3(attention_blocks(p->image.most_combines), (unsigned)rows,
                             (unsigned)((slices + each - 1) / each)),
                        DECODE_COMBINE_CTA(WAYS), 0, p, stream);
}

template <class T>
static cudaError_t decode_combine_launch(const struct decode_params *p, cudaStream_t stream) {
    const int rows = p->of.tile_rows * p->of.tile_heads;
    const int slices = (p->of.slot_dims + DECODE_COMBINE_SLICE - 1) / DECODE_COMBINE_SLICE;
    if (p->image.most_combines == 0)
        return cudaSuccess;
    return p->image.most_combines * rows * slices <=
                   (int64_t)DECODE_COMBINE_RESIDENT * p->multiprocessors
               ? decode_combine_grid<T, DECODE_COMBINE_WAYS>(p, rows, slices, stream)
               : decode_combine_grid<T, 1>(p, rows, slices, stream);
}

static inline cudaError_t decode_combine_launch_type(const struct decode_params *p, tess_type o,
                                                     cudaStream_t stream) {
    return o == TESS_F32   ? decode_combine_launch<float>(p, stream)
           : o == TESS_F16 ? decode_combine_launch<__half>(p, stream)
                           : decode_combine_launch<__nv_bfloat16>(p, stream);
}

#endif
