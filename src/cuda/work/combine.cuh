/*
 * Partial results of split tiles, combined: O = sum over parts of 2^(m_part - m) O_part / l. A warp takes 128 dims of
 * a row, and the parts in their order. Filled images whose rows a GPU's multiprocessors hold at once have 8 warps a
 * row, which deal its parts. Sums are added in the order of warps. A unit of its own, for all kernels.
 */
#ifndef TESSERA_CUDA_COMBINE_CUH
#define TESSERA_CUDA_COMBINE_CUH

#include "device/architecture.cuh"
#include "work/base.cuh"
#include "work/image.cuh"
#include "work/launch.cuh"
#include "work/slots.cuh"

#include <stddef.h>

#define COMBINE_WAYS 8  /* warps that deal parts */
#define COMBINE_WARPS 4 /* warps of a CTA that deal none: a row each */
#define COMBINE_DIMS 4  /* dims of a lane */
#define COMBINE_SLICE (32 * COMBINE_DIMS)
#define COMBINE_AHEAD 8    /* parts of a warp whose O is loaded before it is weighed */
#define COMBINE_RESIDENT 4 /* CTAs of a multiprocessor whose warps deal parts */
#define COMBINE_STAY 8     /* likewise at most, whose warps do not: lists may have no combine */
#define COMBINE_BOUND (ARCHITECTURE_FITTED ? COMBINE_RESIDENT : 2)     /* or registers spill */
#define COMBINE_CTA(ways) (32 * ((ways) > 1 ? (ways) : COMBINE_WARPS)) /* threads */

/* ---- rows, of images of either kind ---- */

/* A row of a split tile: where its first part stands, and where O goes. */
struct combine_row {
    struct attention_slot slot;
    int64_t part; /* floats from a part to the next */
    int32_t parts, batch, head, query;
    bool is; /* the tile has such a row */
};

DEVICE struct combine_row combine_row_at(const struct attention_params &run, int64_t slot,
                                         int row) {
    const struct attention_slot first = attention_slot_of(run, slot);
    return {{first.o + row * run.slot_dims, first.m + row, first.l + row}};
}

/* Lists of the host: a head's parts have slots side by side. */
DEVICE struct combine_row combine_row_of(const struct attention_params &p,
                                         const struct granule_item &combine, int row) {
    struct combine_row to = combine_row_at(p, combine.slot, row);
    to.part = p.slot_floats, to.parts = combine.parts;
    to.batch = combine.batch, to.head = combine.head, to.query = combine.row + row;
    to.is = row < combine.rows;
    return to;
}
DEVICE int64_t combine_count(const struct attention_params &p) {
    return p.header->array[ATTENTION_IMAGE_COMBINES].count;
}
DEVICE struct granule_item combine_at(const struct attention_params &p, int64_t i) {
    return p.image.combines[i];
}
DEVICE const struct attention_params &combine_run(const struct attention_params &p) {
    return p;
}

/* Filled lists: packed heads of a part have slots side by side. */
DEVICE struct combine_row combine_row_of(const struct decode_params &p,
                                         const struct combine_item &combine, int row) {
    const bool one = p.run.tile_heads == 1; /* tiles of any height, a power of two or not */
    const int32_t query = one ? row : filled_row_query(p, row);
    const int32_t packed = one ? 0 : filled_row_head(p, row);
    const int32_t first = combine.batch_head * p.run.tile_heads;
    struct combine_row to =
        combine_row_at(p.run, combine.first_slot * p.run.tile_heads + packed, query);
    to.part = p.run.tile_heads * p.run.slot_floats, to.parts = combine.parts;
    to.batch = (int32_t)fill_quotient((uint32_t)first, (uint32_t)p.run.heads_q);
    to.head = first - to.batch * p.run.heads_q + packed;
    to.query = filled_tile_query(p, combine.tile) + query;
    to.is = packed < p.run.tile_heads && to.query < filled_tile_query(p, combine.tile + 1);
    return to;
}
DEVICE int64_t combine_count(const struct decode_params &p) {
    return p.given.indices ? p.image.most_combines : filled_count(p, &p.image.header->combines);
}
/* Lists that are given have every tile split, into parts whose slots stand side by side. */
DEVICE struct combine_item combine_at(const struct decode_params &p, int64_t i) {
    if (!p.given.indices)
        return p.image.combines[i];
    const uint32_t pack = fill_quotient((uint32_t)i, (uint32_t)p.tiles);
    return {(int32_t)pack, (int32_t)i - (int32_t)pack * (int32_t)p.tiles, p.given.parts,
            i * p.given.parts};
}
DEVICE const struct attention_params &combine_run(const struct decode_params &p) {
    return p.run;
}

/* Beginning of a CTA's combines, where it is read before the kernel in front has ended. */
union combine_entry {
    uint64_t words[3 + sizeof(struct combine_item) / 8];
    struct {
        uint64_t magic, layout, combines;
        struct combine_item read; /* not today's, maybe */
    };
};

/* Reads it past an L1 which may hold an earlier fill's. A thread reads a word: all CTAs ask for the same line. */
DEVICE void combine_enter(union combine_entry &entry, const struct decode_params &p,
                          int64_t combine) {
    const uint64_t *const header = reinterpret_cast<const uint64_t *>(p.image.header);
    const uint64_t *const quads = reinterpret_cast<const uint64_t *>(p.image.combines + combine);
    const int i = (int)threadIdx.x;
    if (i >= (int)(sizeof entry / 8))
        return;
    const uint64_t *const from =
        i >= 3 ? quads + (i - 3)
               : header + (i < 2 ? i : (int)(offsetof(struct fill_header, combines) / 8));
    uint64_t x;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    entry.words[i] = x;
}

/* ---- parts ---- */

/* 4 dims of parts first, first + WAYS ..., of those that there are. from: the first one's. */
template <int WAYS>
DEVICE void combine_load(float4 (&x)[COMBINE_AHEAD], const float *from, int64_t part, int first,
                         int parts) {
#pragma unroll
    for (int e = 0; e < COMBINE_AHEAD; e++, from += WAYS * part)
        if (first + WAYS * e < parts)
            x[e] = *reinterpret_cast<const float4 *>(from);
}

/* m and l of the next N parts from `first` on: lane i has those of part first + i, + 32 ... */
template <int N>
DEVICE void combine_weights(float (&m)[(N + 31) / 32], float (&l)[(N + 31) / 32],
                            const struct attention_slot &slot, int64_t part, int first, int parts) {
#pragma unroll
    for (int j = 0; j < (N + 31) / 32; j++) {
        const int at = warp_lane() + 32 * j;
        const bool is = at < N && first + at < parts;
        m[j] = is ? slot.m[(first + at) * part] : -INFINITY;
        l[j] = is ? slot.l[(first + at) * part] : 0;
    }
}

/* A warp's sums over a row's parts. */
struct combine_sums {
    float m, l; /* maximum and sum of all parts */
    float4 o;   /* the warp's O, not yet over l */
};

/* O = sum over parts of 2^(m_part - m) O_part, of parts way, way + WAYS ... Loads do not wait for one another: those of
 * the first round's O, of m and of l are issued together. EXACT: l is summed in the order of parts, not by lanes. */
template <int WAYS, bool EXACT>
DEVICE struct combine_sums combine_parts(const struct attention_slot &slot, const float *from,
                                         int64_t part, int way, int32_t parts) {
    constexpr int ROUND = WAYS * COMBINE_AHEAD, LANES = (ROUND + 31) / 32;
    static_assert(WAYS == 1 || !EXACT, "a warp has all parts");
    float4 x[COMBINE_AHEAD];
    float of_m[LANES], of_l[LANES];
    from += way * part;
    combine_load<WAYS>(x, from, part, way, parts);
    combine_weights<ROUND>(of_m, of_l, slot, part, 0, parts);
    float m = -INFINITY;
#pragma unroll
    for (int j = 0; j < LANES; j++)
        m = fmaxf(m, of_m[j]);
    for (int at = ROUND + warp_lane(); at < parts; at += 32)
        m = fmaxf(m, slot.m[at * part]);
    struct combine_sums sums = {warp_max(m), 0, {0, 0, 0, 0}};
    const float base = attention_base(sums.m);
#pragma unroll 1
    for (int at = 0;;) {
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            of_m[j] = exp2f(of_m[j] - base);
            if (!EXACT)
                sums.l += of_m[j] * of_l[j];
        }
#pragma unroll
        for (int e = 0; e < COMBINE_AHEAD; e++) {
            const float w = __shfl_sync(WARP_ALL, of_m[WAYS * e / 32], (WAYS * e + way) % 32);
            const float l = EXACT ? __shfl_sync(WARP_ALL, of_l[0], e) : 0;
            if (at + WAYS * e + way < parts) {
                sums.o.x += w * x[e].x, sums.o.y += w * x[e].y;
                sums.o.z += w * x[e].z, sums.o.w += w * x[e].w;
                if (EXACT)
                    sums.l += w * l;
            }
        }
        at += ROUND;
        if (at >= parts)
            break;
        from += ROUND * part;
        combine_load<WAYS>(x, from, part, at + way, parts);
        combine_weights<ROUND>(of_m, of_l, slot, part, at, parts);
    }
    if (!EXACT)
#pragma unroll
        for (int step = 16; step; step /= 2)
            sums.l += __shfl_xor_sync(WARP_ALL, sums.l, step);
    return sums;
}

/* A slice of a row, way of WAYS. of_warps: room for their sums. EXACT: O is divided by l, not multiplied by its
 * inverse. */
template <class T, int WAYS, bool EXACT>
DEVICE void combine_slice(float4 (&of_warps)[WAYS][32], const struct attention_params &run,
                          const struct combine_row &row, int slice, int way) {
    const int lane = warp_lane(), d = slice * COMBINE_SLICE + lane * COMBINE_DIMS;
    if (!row.is) /* alike for all threads that meet below */
        return;
    const struct combine_sums sums = combine_parts<WAYS, EXACT>(
        row.slot, row.slot.o + min(d, run.slot_dims - COMBINE_DIMS), row.part, way, row.parts);
    float4 sum = sums.o;
    if (WAYS > 1) {
        __syncthreads(); /* the sums before have been read */
        of_warps[way][lane] = sum;
        __syncthreads();
#pragma unroll
        for (int other = 1; other < (way == 0 ? WAYS : 0); other++) {
            const float4 x = of_warps[other][lane];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
    }
    if (way > 0 || d >= run.d_v)
        return;
    const float kept = run.modify.kept;
    float m = sums.m, l = sums.l;
    const float below = modify_denominator(run.modify, row.head, m, l);
    const float factor = l == 0 ? 0.0f : __fdividef(kept, below);
    const float dims[COMBINE_DIMS] = {sum.x, sum.y, sum.z, sum.w};
    const bool based = run.base.o.data != NULL;
    int32_t head = row.head;
    asm volatile("" : "+r"(head)); /* addresses are found here: registers are short before */
    struct base_shares shares = {};
    const T *base = NULL;
    if (based) {
        shares = base_join(run, row.batch, head, row.query, m, l);
        base = base_row<T>(run, row.batch, head, row.query) + d;
    }
    T *const o = static_cast<T *>(run.o.data) + row.batch * run.o.stride[0] +
                 head * run.o.stride[1] + row.query * run.o.stride[2] + d;
#pragma unroll
    for (int e = 0; e < COMBINE_DIMS; e++)
        if (d + e < run.d_v)
            from_f32(&o[e], mean_in_range(based         ? base_add(shares, dims[e], base + e)
                                          : sums.l == 0 ? 0.0f
                                          : EXACT       ? dims[e] * kept / below
                                                        : dims[e] * factor,
                                          run.modify.mean_below, T()));
    if (d == 0)
        attention_store_lse(run, row.batch, row.head, row.query, m, l);
}

/* A CTA takes rows of combine blockIdx.x. WAYS warps share a row; WAYS 1: each has its own, and the CTA goes on with
 * every gridDim.x-th combine. */
template <class T, int WAYS, bool EXACT, class params, class item>
static __global__ void __launch_bounds__(COMBINE_CTA(WAYS), WAYS > 1 ? COMBINE_BOUND : 1)
    combine_tiles(const __grid_constant__ params p) {
    __shared__ float4 of_warps[WAYS][32];
    const int warp = (int)threadIdx.x / 32;
    const int row = WAYS > 1 ? (int)blockIdx.y : (int)blockIdx.y * COMBINE_WARPS + warp;
    int64_t i = blockIdx.x, combines = 0;
    if constexpr (WAYS > 1) { /* a CTA for each combine */
        __shared__ union combine_entry entry;
        item combine = {};
        if (!p.given.indices)
            combine_enter(entry, p, i);
        early_fetch(p, of_warps);
        __syncthreads();
        if (p.given.indices)
            combine = combine_at(p, i), combines = combine_count(p);
        else if (entry.magic == FILL_MAGIC && entry.layout == p.image.layout)
            combine = entry.read, combines = (int64_t)entry.combines;
        const struct combine_row at = combine_row_of(p, combine, row);
        early_wait(); /* all CTAs: what follows in the stream waits for this kernel alone */
        early_next();
        if (i < combines)
            combine_slice<T, WAYS, EXACT>(of_warps, combine_run(p), at, (int)blockIdx.z,
                                          warp % WAYS);
    } else {
        early_fetch(p, of_warps);
        early_wait();
        early_next(); /* CTAs of many rows come in waves, each of which would wait for L2 */
        item combine = combine_at(p, i);
        combines = combine_count(p);
        while (i < combines) {
            combine_slice<T, 1, EXACT>(of_warps, combine_run(p), combine_row_of(p, combine, row),
                                       (int)blockIdx.z, 0);
            i += gridDim.x;
            if (i < combines)
                combine = combine_at(p, i);
        }
    }
}

/* ---- launching ---- */

static inline int combine_slices(const struct attention_params &run) {
    return (run.slot_dims + COMBINE_SLICE - 1) / COMBINE_SLICE;
}

/* combines: `most` of them at most, of tiles of `rows` rows. */
template <class T, int WAYS, bool EXACT, class params, class item>
static cudaError_t combine_grid(const params *p, const item *, int64_t most, int rows, int slices,
                                cudaStream_t stream) {
    constexpr int each = WAYS > 1 ? 1 : COMBINE_WARPS; /* rows of a CTA */
    const dim3 grid(attention_blocks(most), (unsigned)((rows + each - 1) / each), (unsigned)slices);
    void *arguments[] = {(void *)p};
    return most == 0 ? cudaSuccess
                     : launch_early((const void *)combine_tiles<T, WAYS, EXACT, params, item>, grid,
                                    COMBINE_CTA(WAYS), 0, arguments, stream);
}

template <class T>
static cudaError_t combine_launch(const struct attention_params *p, cudaStream_t stream) {
    return combine_grid<T, 1, true>(p, p->image.combines, p->n_combines, p->tile_rows,
                                    combine_slices(*p), stream);
}
template <class T>
static cudaError_t combine_launch(const struct decode_params *p, cudaStream_t stream) {
    const int rows = p->run.tile_rows * p->run.tile_heads, slices = combine_slices(p->run);
    const struct combine_item *const all = p->image.combines;
    const int64_t most = p->image.most_combines;
    const int64_t of_rows = (int64_t)(rows + COMBINE_WARPS - 1) / COMBINE_WARPS * slices; /* CTAs */
    const int64_t stay = (int64_t)COMBINE_STAY * p->multiprocessors / of_rows;
    return most * rows * slices <= (int64_t)COMBINE_RESIDENT * p->multiprocessors
               ? combine_grid<T, COMBINE_WAYS, false>(p, all, most, rows, slices, stream)
               : combine_grid<T, 1, false>(p, all, fill_least(most, fill_most(1, stay)), rows,
                                           slices, stream);
}

template <class params>
static cudaError_t combine_launch_type(const params *p, tess_type o, cudaStream_t stream) {
    return o == TESS_F32   ? combine_launch<float>(p, stream)
           : o == TESS_F16 ? combine_launch<__half>(p, stream)
                           : combine_launch<__nv_bfloat16>(p, stream);
}

#endif
