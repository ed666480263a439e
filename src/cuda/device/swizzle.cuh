/*
 * The 128-byte XOR swizzle, which ldmatrix reads without bank conflicts. A panel has rows of `ROW`
 * bytes, 64 or a multiple of 128. Within each 128 bytes, the 16-byte piece c of row r is stored at
 * piece c ^ (r % 8):
 *
 *   row 0   0 1 2 3 4 5 6 7          row 2   2 3 0 1 6 7 4 5
 *   row 1   1 0 3 2 5 4 7 6          row 3   3 2 1 0 7 6 5 4     ...
 *
 * TMA and WGMMA use the same swizzle (CU_TENSOR_MAP_SWIZZLE_128B). Rows of 64 bytes have pieces 0 to 3, which
 * rows 4 to 7 of eight have in the other half. Rows r and r + 4 of eight share 128 bytes: eight rows of one
 * piece are still in eight banks of 16 bytes.
 */
#ifndef TESSERA_CUDA_SWIZZLE_CUH
#define TESSERA_CUDA_SWIZZLE_CUH

#include "device/inline.cuh"

#include <stdint.h>

/* Offset of 16-byte piece c of row r from the row's begin, in bytes; only r % 8 matters. */
DEVICE uint32_t swizzle_piece(int r, int c) {
    return (uint32_t)(c / 8 * 128 + ((c % 8) ^ (r & 7)) * 16);
}

/* Offset of the 128 bytes that row r begins or shares, from the panel's begin, in bytes. */
template <int ROW> DEVICE uint32_t swizzle_row(int r) {
    return (uint32_t)(ROW == 64 ? r / 8 * (8 * ROW) + r % 4 * 128 : r * ROW);
}

/* The address of piece c + 2 n, where `at` is the address of piece c of the same row; c is 0 or
 * 1. */
DEVICE uint32_t swizzle_piece_after(uint32_t at, int n) {
    return (at ^ (uint32_t)(n % 4 * 32)) + (uint32_t)(n / 4 * 128);
}

#endif
