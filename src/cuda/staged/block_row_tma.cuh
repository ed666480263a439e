/* Shared parts of SDDMM and SpMM for 16-bit types on Hopper, TMA path: tiles of STAGED_TMA_KEYS
 * consecutive keys. Blocks of keys are whole TMA tiles and have no masks. Rows past the last key
 * are zeros. */
#ifndef TESSERA_CUDA_BLOCK_ROW_TMA_CUH
#define TESSERA_CUDA_BLOCK_ROW_TMA_CUH

#include "device/copy.cuh"
#include "staged/panel_16bit.cuh"
#include "device/sm90/tma.cuh"
#include "device/sm90/tensor_map.cuh"
#include "device/sm90/wgmma.cuh"

#define STAGED_SHARED (227 * 1024) /* bytes of shared memory that a CTA can have on Hopper */
#define CHUNK_TMA_TILES (CUDA_CHUNK / STAGED_TMA_KEYS)

/* A tensor map of Q, K or V with `heads` heads of `n` rows of `d` dims, as [b][h][panel][n][64];
 * TMA tiles of `rows` rows and `box_panels` panels. A broadcast dimension (stride 0) has one
 * element, which map_index finds. Rows that share a place have no map, whatever the driver takes. NULL, or why
 * there is none, in words. */
template <class T>
static const char *block_rows_map(CUtensorMap *map, const struct staged_params *p,
                                  const struct rows_view &view, int64_t heads, int64_t n, int64_t d,
                                  int rows, int box_panels, T) {
    const cuuint64_t panels = d > 64 ? d / 64 : 1;
    const cuuint64_t size[5] = {d > 64 ? 64 : (cuuint64_t)d, (cuuint64_t)n, panels,
                                view.stride[1] ? (cuuint64_t)heads : 1,
                                view.stride[0] ? (cuuint64_t)p->batch : 1};
    const int64_t stride[4] = {view.stride[2], 64, view.stride[1], view.stride[0]};
    const cuuint32_t box[5] = {64, (cuuint32_t)rows, (cuuint32_t)box_panels, 1, 1};
    const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    cuuint64_t bytes[4];
    for (int i = 0; i < 4; i++) /* a dimension of size 1 has stride 0, which maps refuse */
        bytes[i] = size[i + 1] == 1 ? 16 : (cuuint64_t)stride[i] * sizeof(T);
    const sm90_encode encode = sm90_encode_find();
    if (!encode)
        return SM90_NO_ENCODE;
    if (n > 1 && view.stride[2] <= 0)
        return SM90_NO_MAP;
    return encode(map, sm90_map_type(T()), 5, view.data, size, bytes, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? NULL
               : SM90_NO_MAP;
}

/* Place of a head or batch in a map. */
static __device__ __forceinline__ int map_index(int index, int64_t stride) {
    return stride ? index : 0;
}

/* First key of TMA tile `lane`, of columns [x, end) of the block row whose first tile is `entry`.
 * Past the end n_kv, for which TMA fills zeros. By all lanes. */
static __device__ __forceinline__ int32_t block_row_tma_key(const struct staged_params &p,
                                                            int64_t entry, int64_t x, int64_t end) {
    x += warp_lane() * STAGED_TMA_KEYS;
    if (x >= end)
        return (int32_t)p.n_kv;
    const struct column_place at = column_place_of(p, entry, x);
    return p.image.col_idx[at.entry] * (int32_t)p.block_kv + (int32_t)at.c;
}

/* Stage and phase parity of the index-th use of a ring. */
template <int STAGES> static __device__ __forceinline__ int staged_stage(int index) {
    return index % STAGES;
}
template <int STAGES> static __device__ __forceinline__ uint32_t staged_parity(int index) {
    return (uint32_t)(index / STAGES & 1);
}

#endif
