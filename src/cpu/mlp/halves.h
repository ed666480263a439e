/* Vectors of the storage type, rounded and stored, where vectors have 16 lanes: what ends a sum of the MLP. */
#ifndef TESSERA_CPU_MLP_HALVES_H
#define TESSERA_CPU_MLP_HALVES_H

#include "isa/vector.h"
#include "tile/convert.h"

#if CPU_LANES == 16

/* x rounded to bf16, as 16 bits. */
V_INLINE __m256i halves_bf16(vf x) {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh((__m512)x);
#else
    const __m512i u = (__m512i)x,
                  odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16));
#endif
}

V_INLINE __m256i halves_of(vf x, const tess_type type) {
    return type == TESS_F16
               ? _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
               : halves_bf16(x);
}

V_INLINE vf halves_to_f32(__m256i halves, const tess_type type) {
    return type == TESS_F16 ? (vf)_mm512_cvtph_ps(halves)
                            : (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}

/* Stores x, and answers it as it was rounded. */
V_INLINE vf halves_store(void *at, vf x, const tess_type type) {
    if (type == TESS_F32) {
        v_store_any(at, x);
        return x;
    }
    const __m256i halves = halves_of(x, type);
    _mm256_storeu_si256(at, halves);
    return halves_to_f32(halves, type);
}

V_INLINE vf halves_load(const void *at, const tess_type type) {
    return type == TESS_F32 ? v_load_any(at) : halves_to_f32(_mm256_loadu_si256(at), type);
}

#endif

#endif
