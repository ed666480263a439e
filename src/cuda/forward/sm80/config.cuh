/* Fused attention with mma.sync: shapes of a thread block, and its shared memory. */
#ifndef TESSERA_CUDA_SM80_CONFIG_CUH
#define TESSERA_CUDA_SM80_CONFIG_CUH

#include "device/tile.cuh"
#include "work/gather.cuh"
#include "work/slots.cuh"

/* Bytes of a thread block's shared memory for flushed sums (tile_f32.cuh). */
template <int M, int D, class T>
static __host__ __device__ __forceinline__ constexpr int attention_flushed_bytes(T) {
    return 0;
}
template <int M, int D>
static __host__ __device__ __forceinline__ constexpr int attention_flushed_bytes(float) {
    return M * (D + 8) * (int)sizeof(float); /* O, and 4 or 8 floats of l for a row */
}

/* Keys of a granule at most. */
template <class T>
static __host__ __device__ __forceinline__ constexpr int attention_granule(void) {
    return sizeof(T) == 4 ? ATTENTION_GRANULE_F32 : ATTENTION_GRANULE;
}

/* Config: D dims of type T, R rows of each of WARPS warps, steps of KEYS keys (whole granules). */
template <class T, int D, int R, int WARPS, int KEYS> struct attention_shape {
    static constexpr int M = R * WARPS, THREADS = 32 * WARPS;
    static constexpr int ROW = sizeof(T) * D <= 64 ? 64 : ((int)sizeof(T) * D + 127) / 128 * 128;
    static constexpr int PANEL = KEYS * ROW;
    static constexpr int WORDS = (M + 63) / 64; /* words of a row mask */
    /* Groups of 8 keys whose scores a warp holds at a time. Where O takes many registers there is
     * room for fewer. */
    static constexpr bool FEW = R * D > 2048 || (R == 16 && attention_has_small(T()));
    static constexpr int GROUPS = KEYS < 32 ? KEYS / 8 : FEW || KEYS < 64 ? 4 : 8;
    static constexpr int TIMES = KEYS / (8 * GROUPS); /* rounds of GROUPS groups in a step */
    /* APART: half of the warps gather K and half V. ROWS_KV: rows that a warp gathers of a step, of
     * K and of V or of one of them. EIGHTS: the same in eights. INTERLEAVED: copies are issued in PARTS
     * parts between MMAs. High tiles wait for copies; where small P are handled no register is left. */
    static constexpr bool APART = KEYS / WARPS < 8;
    static constexpr int ROWS_KV = APART ? 2 * KEYS / WARPS : KEYS / WARPS;
    static constexpr int EIGHTS = ROWS_KV / 8;
    static constexpr bool INTERLEAVED = R == 32 && !attention_has_small(T());
    static constexpr int PARTS = INTERLEAVED && TIMES < EIGHTS ? TIMES : EIGHTS;
    static constexpr int K = M * ROW, V = K + 2 * PANEL, FLUSHED = V + 2 * PANEL;
    static constexpr int LISTS = FLUSHED + attention_flushed_bytes<M, D>(T());
    static constexpr int BYTES = LISTS + (int)sizeof(attention_lists<KEYS, WORDS>);
};

#endif
