/*
 * Stage 3, SpMM: O = P V. f32 at every height of block rows; 16-bit types where a block row has at most 8 queries. A
 * key that no row of a unit lists is not loaded, whatever it holds. Sums over 16 keys leave the tensor cores and are
 * added up for a chunk. Chunks are then added to the result, which keeps long rows accurate.
 *
 *   O^T [dims, 8 TILES] += V [16, dims]^T P [8 TILES, 16]^T      a warp, mma.sync
 *
 * Loads from L2 are the limit: a key serves the few rows of one block row. So nothing is staged. A
 * warp loads V from L2 into the registers that MMAs read, 16 bytes of 4 keys a lane. Dims are the
 * 16 rows of an MMA and queries its 8 columns, so that 8 x 8 blocks fill it.
 *
 * A unit is 8 TILES rows of a block row by the dims of a few warps. A thread block computes it, or
 * a cluster where units are few. Further warps take turns at the keys, and are added up in order.
 * Units of the same dims are neighbours, so that L2 holds a slice of V for all keys.
 */
#ifndef TESSERA_CUDA_SPMM_CUH
#define TESSERA_CUDA_SPMM_CUH

#include "device/blocks.cuh"
#include "device/cluster.cuh"
#include "device/fragment.cuh"
#include "device/words.cuh"
#include "staged/spmm/row.cuh"
#include "staged/spmm/scale.cuh"
#include "staged/block_row.cuh"
#include "staged/grid.cuh"

#define SPMM_THREADS 128
#define SPMM_TURNS 4    /* turns of a warp at least before more thread blocks share a unit's keys */
#define SPMM_COLUMNS 32 /* columns of a turn: two MMAs of 16 keys */

/* 16-byte pieces of a key for each 4 lanes: two where sums take few registers. */
template <class T, int TILES> static __host__ __device__ constexpr int spmm_pieces(void) {
    return TILES == 1 && sizeof(T) == 4 ? 2 : 1;
}

template <class T, int TILES> static __host__ __device__ constexpr int spmm_warp_dims(void) {
    return spmm_pieces<T, TILES>() * 8 * words_elements<T>();
}

/* Warps side by side: as many as there are dims for, at most 128 dims of f32. */
template <class T, int TILES>
static __host__ __device__ __forceinline__ int spmm_dim_warps(int32_t d_v) {
    int warps = 1;
    while (warps < 4 / spmm_pieces<T, TILES>() && warps * spmm_warp_dims<T, TILES>() < d_v)
        warps *= 2;
    return warps;
}

/* Accumulators, with g = lane / 4, t = lane % 4 and N elements in a piece. of[n][m][j][e]: dim (8 n
 * + g) N + 2 m + e / 2 of the warp's, row 8 j + 2 t + e % 2. */
template <class T, int TILES> struct spmm_sums {
    float x[spmm_pieces<T, TILES>()][8 / sizeof(T)][TILES][4];
};

/* A thread block's shared memory: its warps' block rows, sums over whole chunks, for which
 * registers are too few, and results of spmm_sweep. */
template <class T, int TILES> struct spmm_shared {
    static constexpr int count = sizeof(struct spmm_sums<T, TILES>) / sizeof(float);
    struct block_row block_row[SPMM_THREADS / 32];
    float sum[SPMM_THREADS / 32][count][32];
    float nonzero[SPMM_THREADS / 32][32]; /* its bits */
};

/* ---- P ---- */

/* Loads 4 elements of P; 0 past `left`. whole: they are aligned, and `left` is <= 0 or >= 4. */
DEVICE float4 spmm_four(const float *from, int32_t left, bool whole) {
    float4 w = {0, 0, 0, 0};
    if (whole) {
        if (left > 0)
            w = __ldcs(reinterpret_cast<const float4 *>(from)); /* keeps L2 for V */
        return w;
    }
    w.x = left > 0 ? from[0] : 0.0f;
    w.y = left > 1 ? from[1] : 0.0f;
    w.z = left > 2 ? from[2] : 0.0f;
    w.w = left > 3 ? from[3] : 0.0f;
    return w;
}

/* P as B operands: keys 4 t ... 4 t + 3, for two MMAs of f32 or one of 16 bits. */
DEVICE void spmm_operands(struct fragment<float, 2> (&b)[2], float4 w, float) {
    b[0] = fragment_of({__float_as_uint(w.x), __float_as_uint(w.y)}, 0.0f);
    b[1] = fragment_of({__float_as_uint(w.z), __float_as_uint(w.w)}, 0.0f);
}
template <class T> DEVICE void spmm_operands(struct fragment<T, 2> (&b)[1], float4 w, float scale) {
    struct {
        T x, y;
    } low, high;
    from_f32(&low.x, w.x * scale);
    from_f32(&low.y, w.y * scale);
    from_f32(&high.x, w.z * scale);
    from_f32(&high.y, w.w * scale);
    b[0].word[0] = *reinterpret_cast<const uint32_t *>(&low);
    b[0].word[1] = *reinterpret_cast<const uint32_t *>(&high);
}

/* ---- V ---- */

/* Word m of a piece of 4 keys, as A operands. */
DEVICE void spmm_operands(struct fragment<float, 4> (&a)[2], const struct words (&v)[4], int m) {
#pragma unroll
    for (int s = 0; s < 2; s++)
        a[s] = fragment_of({v[2 * s].x[2 * m], v[2 * s].x[2 * m + 1], v[2 * s + 1].x[2 * m],
                            v[2 * s + 1].x[2 * m + 1]},
                           0.0f);
}
template <class T>
DEVICE void spmm_operands(struct fragment<T, 4> (&a)[1], const struct words (&v)[4], int m) {
#pragma unroll
    for (int s = 0; s < 2; s++) { /* the even and the odd dims of two keys */
        a[0].word[2 * s] = __byte_perm(v[2 * s].x[m], v[2 * s + 1].x[m], 0x5410);
        a[0].word[2 * s + 1] = __byte_perm(v[2 * s].x[m], v[2 * s + 1].x[m], 0x7632);
    }
}

/* Loads the pieces from `dim` on, of 4 of the 16 keys that lanes first ... first + 15 hold. */
template <class T, int PIECES, bool WHOLE>
DEVICE void spmm_load(struct words (&to)[PIECES][4], const head_view<T> &v, int32_t dim,
                      int32_t key, int first) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t mine = __shfl_sync(WARP_ALL, key, first + warp_lane() % 4 * 4 + i);
        const T *row = v.data + mine * v.stride;
#pragma unroll
        for (int n = 0; n < PIECES; n++)
            to[n][i] = words_load<T, WHOLE>(row, v.d, dim + n * 8 * words_elements<T>(), true);
    }
}

/* ---- 16 keys ---- */

template <class T, int TILES>
DEVICE void spmm_multiply(struct spmm_sums<T, TILES> &sum,
                          const struct words (&v)[spmm_pieces<T, TILES>()][4],
                          const float4 (&probs)[TILES], float scale) {
    constexpr int MMAS = sizeof(T) == 4 ? 2 : 1;
    struct fragment<T, 2> b[TILES][MMAS];
#pragma unroll
    for (int j = 0; j < TILES; j++)
        spmm_operands(b[j], probs[j], scale);
#pragma unroll
    for (int n = 0; n < spmm_pieces<T, TILES>(); n++)
#pragma unroll
        for (int m = 0; m < 8 / (int)sizeof(T); m++) {
            struct fragment<T, 4> a[MMAS];
            spmm_operands(a, v[n], m);
#pragma unroll
            for (int j = 0; j < TILES; j++)
                fragment_multiply<false>(sum.x[n][m][j], a, b[j]);
        }
}

/* The key of each lane's column, from x on. A column that no row of row ... row + rows - 1 lists
 * gets another column's key, whose V meets a P of 0. -1: no column has a key. */
DEVICE int32_t spmm_keys_of(const struct staged_params &p, const struct block_row &s, uint32_t x,
                            uint32_t width, int64_t row, int rows) {
    int32_t key = -1;
    if (x + warp_lane() < width) {
        const struct column c = column_of(p, s, x + warp_lane());
        key = column_lists_any(p, c, row, rows) ? c.key : -1;
    }
    const unsigned listed = __ballot_sync(WARP_ALL, key >= 0);
    const int32_t other = __shfl_sync(WARP_ALL, key, __ffs(listed) - 1);
    return key >= 0 || !listed ? key : other;
}

/* Adds a chunk's sums to the warp's sums of whole chunks, each lane its own. */
template <class T, int TILES>
DEVICE void spmm_flush(float (*to)[32], struct spmm_sums<T, TILES> &part, bool first) {
    float *from = &part.x[0][0][0][0];
#pragma unroll
    for (int i = 0; i < spmm_shared<T, TILES>::count; i++) {
        float &sum = to[i][warp_lane()];
        sum = first ? from[i] : sum + from[i];
    }
    part = {};
}

/* Whether one of them is not 0, of either sign: gradients of scores have both. */
DEVICE bool spmm_any(const float4 &w) {
    return (__float_as_uint(w.x) | __float_as_uint(w.y) | __float_as_uint(w.z) |
            __float_as_uint(w.w))
           << 1;
}

/* Loads this lane's P of 16 columns. from: row g's; left: columns of the block row from there on.
 * Bit j of the answer: row 8 j + g has an element other than 0. */
template <int TILES>
DEVICE unsigned spmm_load_probs(float4 (&w)[TILES], const float *from, int64_t width, int32_t left,
                                int rows, bool whole) {
    unsigned nonzero = 0;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        w[j] = spmm_four(from + 8 * j * width, 8 * j < rows ? left : 0, whole);
        nonzero |= spmm_any(w[j]) ? 1u << j : 0;
    }
    return nonzero;
}

/* Sums over the warp's turns: every `turns`-th 32 columns, from 32 * turn on. The keys of the next
 * turn are in flight meanwhile. Bit j of the answer: row 8 j + lane / 4 has an element of P other
 * than 0. */
template <class T, int TILES, bool WHOLE>
DEVICE unsigned spmm_sweep(float (*sum)[32], const struct staged_params &p,
                           const struct block_row &s, const head_view<T> &v, int32_t dim,
                           int64_t row, int turn, int turns) {
    constexpr int PIECES = spmm_pieces<T, TILES>();
    const int g = warp_lane() / 4, t = warp_lane() % 4;
    const int rows = (int)min((int64_t)(8 * TILES), s.rows - row);
    const uint32_t width = (uint32_t)s.width; /* a block row is narrower than 2^32 */
    const uint32_t step = SPMM_COLUMNS * turns;
    const bool fours = p.block_kv % 4 == 0 && (uintptr_t)p.scores % sizeof(float4) == 0;
    struct spmm_sums<T, TILES> part = {};
    unsigned nonzero = 0;
    int turn_of = 0;
    uint32_t x = SPMM_COLUMNS * turn;
    int32_t next = spmm_keys_of(p, s, x, width, row, rows);
    for (; x < width; x += step) {
        const int32_t key = next;
        next = spmm_keys_of(p, s, x + step, width, row, rows);
        const int columns = key < 0 ? 0 : (int)min(width - x, (uint32_t)SPMM_COLUMNS);
#pragma unroll 1
        for (int from = 0; from < columns; from += 16) {
            struct words values[PIECES][4];
            float4 w[TILES];
            spmm_load<T, PIECES, WHOLE>(values, v, dim, key, from);
            nonzero |= spmm_load_probs<TILES>(w, s.scores + (row + g) * s.width + 4 * t + x + from,
                                              s.width, (int32_t)(width - x) - from - 4 * t,
                                              rows - g, fours);
            spmm_multiply<T, TILES>(part, values, w, spmm_scale(p, T()));
        }
        if (++turn_of % (CUDA_CHUNK / SPMM_COLUMNS) == 0)
            spmm_flush(sum, part, turn_of == CUDA_CHUNK / SPMM_COLUMNS);
    }
    spmm_flush(sum, part, turn_of < CUDA_CHUNK / SPMM_COLUMNS);
    nonzero |= __shfl_xor_sync(WARP_ALL, nonzero, 1);
    return nonzero | __shfl_xor_sync(WARP_ALL, nonzero, 2);
}

/* ---- results ---- */

/* Adds up the warps with this one's dims, over all thread blocks of the cluster, lane by lane and
 * in order. */
template <class T, int TILES>
DEVICE unsigned spmm_combine(struct spmm_sums<T, TILES> &sum,
                             const struct spmm_shared<T, TILES> &shared, int dim_warps) {
    const int lane = warp_lane();
    float *to = &sum.x[0][0][0][0];
    unsigned nonzero = 0;
#pragma unroll 1
    for (int block = 0; block < cluster_size(); block++)
#pragma unroll 1
        for (int w = (int)threadIdx.x / 32; w < (int)blockDim.x / 32; w += dim_warps) {
            nonzero |= __float_as_uint(cluster_load(&shared.nonzero[w][lane], block));
#pragma unroll
            for (int i = 0; i < spmm_shared<T, TILES>::count; i++)
                to[i] += cluster_load(&shared.sum[w][i][lane], block);
        }
    return nonzero;
}

/* Stores a row of O. A row whose P is all 0 is 0, even where 0 * NaN was added up. */
template <class T, int TILES>
DEVICE void spmm_results(const struct spmm_sums<T, TILES> &sum, unsigned nonzero,
                         const struct staged_params &p, const struct block_row &s, int64_t row,
                         int32_t dim) {
    constexpr int N = words_elements<T>();
    const bool whole = words_whole<T>(p.alignment, p.d_v);
    const head_view<T> o = head_of<T>(p, p.o, s.b, s.h, p.d_v);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = warp_lane() % 4 * 2 + e;
            const bool empty = !(__shfl_sync(WARP_ALL, nonzero, 4 * r) >> j & 1);
            if (row + 8 * j + r >= s.rows)
                continue;
            T *out = o.data + (s.first + row + 8 * j + r) * o.stride + dim;
#pragma unroll
            for (int n = 0; n < spmm_pieces<T, TILES>(); n++) {
                float x[N];
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[i] = empty ? 0.0f : sum.x[n][i / 2][j][i % 2 * 2 + e] * spmm_unscale(p, T());
                spmm_store(out + 8 * N * n, x, p.d_v - dim - 8 * N * n, whole, p.modify.mean_below);
            }
        }
}

/* ---- the kernel ---- */

/* Units of all block rows for one slice of dims; number of slices. */
template <int TILES>
static __host__ __device__ __forceinline__ int64_t spmm_row_units(const struct staged_params &p) {
    return (p.height + 8 * TILES - 1) / (8 * TILES);
}
template <class T, int TILES>
static __host__ __device__ __forceinline__ int64_t spmm_slices(const struct staged_params &p) {
    const int dims = spmm_dim_warps<T, TILES>(p.d_v) * spmm_warp_dims<T, TILES>();
    return (p.d_v + dims - 1) / dims;
}

template <class T, int TILES, bool WHOLE>
static __global__ void __launch_bounds__(SPMM_THREADS,
                                         !WHOLE ? 2 : (TILES == 1 ? 4 : 3) - ARCHITECTURE_AFTER)
    spmm_gather(const __grid_constant__ struct staged_params p) {
    __shared__ struct spmm_shared<T, TILES> shared;
    const int warp = (int)threadIdx.x / 32, dim_warps = spmm_dim_warps<T, TILES>(p.d_v);
    const int turns = (int)blockDim.x / 32 / dim_warps;
    struct block_row &s = shared.block_row[warp];
    const int64_t row_units = spmm_row_units<TILES>(p), of_slice = p.n_items * row_units;
    const int64_t unit = blocks_unit() / cluster_size();
    const int64_t slice = unit / of_slice, at = unit - slice * of_slice;
    const int64_t item = at / row_units, row = (at - item * row_units) * (8 * TILES);
    if (slice >= spmm_slices<T, TILES>(p))
        return;
    block_row_to_shared(s, block_row_of(p, item));
    if (row >= s.rows)
        return;
    const int32_t dim =
        ((int32_t)slice * dim_warps + warp % dim_warps) * spmm_warp_dims<T, TILES>() +
        warp_lane() / 4 * words_elements<T>();
    const head_view<T> v = head_of<T>(p, p.v, s.b, head_kv_of(p, s), p.d_v);
    shared.nonzero[warp][warp_lane()] = __uint_as_float(spmm_sweep<T, TILES, WHOLE>(
        shared.sum[warp], p, s, v, dim, row, cluster_rank() * turns + warp / dim_warps,
        cluster_size() * turns));
    __syncthreads();
    if (cluster_size() > 1)
        cluster_wait();
    if (warp < dim_warps && cluster_rank() == 0) {
        struct spmm_sums<T, TILES> sum = {};
        const unsigned nonzero = spmm_combine(sum, shared, dim_warps);
        spmm_results<T, TILES>(sum, nonzero, p, s, row, dim);
    }
    if (cluster_size() > 1)
        cluster_wait(); /* until CTA 0 has read this one's sums */
}

/* ---- launching ---- */

template <class T, int TILES>
static cudaError_t spmm_gather_launch_tiles(const struct staged_params *p, cudaStream_t stream) {
    if (p->n_items == 0)
        return cudaSuccess;
    const int64_t units = p->n_items * spmm_row_units<TILES>(*p) * spmm_slices<T, TILES>(*p);
    const int64_t turns = (p->columns / p->n_items + SPMM_COLUMNS - 1) / SPMM_COLUMNS;
    const int dim_warps = spmm_dim_warps<T, TILES>(p->d_v);
    const int most = p->architecture >= CLUSTER_ARCHITECTURE ? CLUSTER_MAX : 1;
    int warps = dim_warps, cluster = 1;
    while (2 * warps <= SPMM_THREADS / 32 && turns * dim_warps > warps)
        warps *= 2;
    while (cluster < most && cluster * units < p->multiprocessors &&
           turns * dim_warps >= SPMM_TURNS * cluster * warps)
        cluster *= 2;
    const bool whole = words_whole<T>(p->alignment, p->d_v);
    if (cluster > 1)
        return cluster_launch<0>(whole ? spmm_gather<T, TILES, true> : spmm_gather<T, TILES, false>,
                                 units * cluster, cluster, 32 * warps, p, stream);
    return blocks_launch(whole ? spmm_gather<T, TILES, true> : spmm_gather<T, TILES, false>, units,
                         32 * warps, p, stream);
}

/* The tiles that a block row fills (docs/notes/staged.md, "Tiles and clusters"). Higher block rows of
 * 16-bit types are mma.cuh's, but where this kernel is forced. */
template <class T>
static cudaError_t spmm_gather_launch(const struct staged_params *p, cudaStream_t stream) {
    if constexpr (sizeof(T) == 4) {
        static const struct grid_instance instances[] = {
            {8, 0, spmm_gather_launch_tiles<T, 1>},
            {16, 0, spmm_gather_launch_tiles<T, 2>},
            {INT64_MAX, 0, spmm_gather_launch_tiles<T, 4>},
        };
        return grid_launch_instance(instances, sizeof instances / sizeof *instances, p->height, p,
                                    stream);
    }
    return spmm_gather_launch_tiles<T, 1>(p, stream);
}

#endif
