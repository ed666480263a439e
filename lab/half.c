/* Conversions between 16-bit floats and double, by the definition of the formats. */
#include "lab/half.h"

#include <math.h>
#include <string.h>

/* A 16-bit float: sign, exponent of `exponent_bits`, mantissa of `mantissa_bits`. */
struct format {
    int mantissa_bits, bias, infinity; /* infinity: the bits of +Inf */
};
static const struct format f16 = {10, 15, 0x7c00};
static const struct format bf16 = {7, 127, 0x7f80};

static uint16_t from_double(double x, const struct format *f) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return (uint16_t)(sign | f->infinity | 1 << (f->mantissa_bits - 1));
    if (isinf(x))
        return (uint16_t)(sign | f->infinity);
    if (x == 0)
        return sign;
    int exponent;
    frexp(x, &exponent);                        /* 2^(exponent - 1) <= |x| < 2^exponent */
    int unit = exponent - 1 - f->mantissa_bits; /* power of the last kept bit */
    int smallest = 1 - f->bias - f->mantissa_bits;
    if (unit < smallest)
        unit = smallest;
    double units = nearbyint(ldexp(fabs(x), -unit)); /* exact but for this rounding, ties to even */
    if (units == 0)
        return sign;
    /* The bits of a float count its units upwards from zero, through exponents and all. */
    double bits = units + ldexp((double)(unit - smallest), f->mantissa_bits);
    return (uint16_t)(sign | (bits >= f->infinity ? f->infinity : (int)bits));
}

uint16_t lab_double_to_f16(double x) {
    return from_double(x, &f16);
}

uint16_t lab_double_to_bf16(double x) {
    return from_double(x, &bf16);
}

/* Moves the bits into a double's place and mends the exponent by an exact multiplication. */
double lab_f16_to_double(uint16_t bits) {
    uint64_t wide = (uint64_t)(bits & 0x7fff) << 42;
    double x;
    if ((bits & 0x7c00) == 0x7c00)
        x = bits & 0x3ff ? (double)NAN : (double)INFINITY;
    else {
        memcpy(&x, &wide, sizeof x);
        x *= 0x1p1008;
    }
    return bits & 0x8000 ? -x : x;
}

double lab_bf16_to_double(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return (double)x;
}

double lab_get(const void *data, tess_type type, int64_t index) {
    if (type == TESS_F32)
        return (double)((const float *)data)[index];
    uint16_t bits = ((const uint16_t *)data)[index];
    return type == TESS_F16 ? lab_f16_to_double(bits) : lab_bf16_to_double(bits);
}

void lab_put(void *data, tess_type type, int64_t index, double x) {
    if (type == TESS_F32)
        ((float *)data)[index] = (float)x;
    else
        ((uint16_t *)data)[index] = type == TESS_F16 ? lab_double_to_f16(x) : lab_double_to_bf16(x);
}

void lab_get_row(double *out, const void *data, tess_type type, int64_t index, int64_t count) {
    const float *single = (const float *)data + (type == TESS_F32 ? index : 0);
    const uint16_t *half = (const uint16_t *)data + (type == TESS_F32 ? 0 : index);
    if (type == TESS_F32)
        for (int64_t d = 0; d < count; d++)
            out[d] = (double)single[d];
    else if (type == TESS_F16)
        for (int64_t d = 0; d < count; d++)
            out[d] = lab_f16_to_double(half[d]);
    else
        for (int64_t d = 0; d < count; d++)
            out[d] = lab_bf16_to_double(half[d]);
}
