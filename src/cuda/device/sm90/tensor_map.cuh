/* Tensor maps for TMA. Maps hold the tensor's address, so the host encodes them for each run.
 * Nothing is allocated. */
#ifndef TESSERA_CUDA_SM90_TENSOR_MAP_CUH
#define TESSERA_CUDA_SM90_TENSOR_MAP_CUH

#include "host/rows.h"

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

typedef CUresult (*sm90_encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* cuTensorMapEncodeTiled, found through the runtime: the library does not link the driver. */
static inline sm90_encode sm90_encode_find(void) {
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return (sm90_encode)found;
}

/* Why a run by TMA alone is refused. */
#define SM90_NO_ENCODE "it copies by TMA, and the driver has no cuTensorMapEncodeTiled: update it"
#define SM90_NO_MAP                                                                                \
    "it copies by TMA, which cannot address these tensors (rows 2^40 bytes apart, say)"

/* A map of [batch][heads][n][d] with TMA tiles of `rows` rows of 64 columns. False where the map
 * cannot be encoded. L2 promotion is asked for only where rows end with a panel
 * (docs/notes/hopper.md, "Tensor maps"). */
static inline bool sm90_map_make(CUtensorMap *map, sm90_encode encode, CUtensorMapDataType type,
                                 const struct rows_view &view, const int64_t (&size)[4],
                                 cuuint32_t rows) {
    const cuuint64_t sizes[4] = {(cuuint64_t)size[3], (cuuint64_t)size[2], (cuuint64_t)size[1],
                                 (cuuint64_t)size[0]};
    const cuuint32_t box[4] = {64, rows, 1, 1}, step[4] = {1, 1, 1, 1};
    cuuint64_t bytes[3];
    for (int i = 0; i < 3; i++) /* a dimension of size 1 has stride 0, which maps refuse */
        bytes[i] = size[2 - i] == 1 ? 16 : (cuuint64_t)view.stride[2 - i] * 2;
    const CUtensorMapL2promotion around =
        size[3] % 64 ? CU_TENSOR_MAP_L2_PROMOTION_NONE : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    return encode(map, type, 4, view.data, sizes, bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, around,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static inline CUtensorMapDataType sm90_map_type(__half) {
    return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}
static inline CUtensorMapDataType sm90_map_type(__nv_bfloat16) {
    return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

#endif
