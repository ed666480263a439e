/*
 * Panels of 16-bit elements that ldmatrix reads without bank conflicts: rows of `ROW` bytes, a
 * multiple of 128, whose 16-byte pieces stand at exchanged places: piece c of row r is at piece
 * c ^ (r & 7), within each 128 bytes. Addresses are those of the shared window.
 */
#ifndef TESSERA_CUDA_SWIZZLE_CUH
#define TESSERA_CUDA_SWIZZLE_CUH

#include <stdint.h>

/* Where piece c of a row r is, from the row's begin; only r % 8 counts. */
static __device__ __forceinline__ uint32_t swizzle_piece(int r, int c) {
    return (uint32_t)(c / 8 * 128 + ((c % 8) ^ (r & 7)) * 16);
}

/* From where piece c of a row is, to where piece c + 2 n is, for c = 0 or 1. */
static __device__ __forceinline__ uint32_t swizzle_piece_after(uint32_t at, int n) {
    return (at ^ (uint32_t)(n % 4 * 32)) + (uint32_t)(n / 4 * 128);
}

#endif
