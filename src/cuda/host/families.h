/* Families that rows of the table (table.c) name. */
#ifndef TESSERA_CUDA_FAMILIES_H
#define TESSERA_CUDA_FAMILIES_H

#include "lists/prepare.h"

extern const struct family family_staged, family_delta;
extern const struct cuda_family family_sm90, family_sm90_r192, family_sm90_sums,
    family_sm90_r192_sums, family_sm90_r64, family_sm90_wide, family_sm90_pair, family_sm80,
    family_sm80_f32, family_small_m, family_small_m_16bit, family_gradient_16bit,
    family_gradient_f32, family_gradient_sm90_keys, family_gradient_sm90_rows,
    family_gradient_wide_keys, family_gradient_wide_rows, family_decode_4, family_decode_8,
    family_decode_16, family_decode_16f, family_decode_32, family_decode_64, family_decode_sm90,
    family_decode_blocks, family_decode_blocks128, family_decode_columns, family_decode_columns128,
    family_decode_columns192, family_column_sums, family_mlp_up, family_mlp_down,
    family_mlp_sm90_up, family_mlp_sm90_down;

#endif
