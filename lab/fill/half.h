/*
 * f16, bf16, e4m3 and e5m2 to and from double, and elements of tensors as doubles. Written apart from src/cpu,
 * so that the oracle does not share its mistakes. Rounding is to nearest, ties to even; values past
 * the largest finite one (after rounding) become infinite, and NaN in e4m3; NaN stays NaN.
 */
#ifndef LAB_HALF_H
#define LAB_HALF_H

#include "tessera.h"

double lab_e4m3_to_double(uint8_t bits);
double lab_e5m2_to_double(uint8_t bits);
double lab_f16_to_double(uint16_t bits);
double lab_bf16_to_double(uint16_t bits);
uint8_t lab_double_to_e4m3(double x);
uint8_t lab_double_to_e5m2(double x);
uint16_t lab_double_to_f16(double x);
uint16_t lab_double_to_bf16(double x);

/* Element `index` of an array of a type. lab_put rounds to the type. */
double lab_get(const void *data, tess_type type, int64_t index);
void lab_put(void *data, tess_type type, int64_t index, double x);

/* `count` consecutive elements from `index` on, as doubles. */
void lab_get_row(double *out, const void *data, tess_type type, int64_t index, int64_t count);

/* Index of the first element of row (b, h, i) of a view. */
static inline int64_t lab_row(const tess_tensor *t, int64_t b, int64_t h, int64_t i) {
    return b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

/* Row (b, h, i) of a tensor. */
static inline void lab_load_row(double *out, const tess_tensor *t, int64_t b, int64_t h,
                                int64_t i) {
    lab_get_row(out, t->data, t->type, lab_row(t, b, h, i), t->size[3]);
}

#endif
