/* Conversions between floats of 8 and 16 bits and double, by the definition of the formats. */
#include "lab/fill/half.h"

#include <math.h>
#include <string.h>

/* A float: sign, exponent, mantissa of `mantissa_bits`. */
struct format {
    int mantissa_bits, bias;
    int infinity, nan; /* the bits of +Inf, of e4m3 of NaN; and of NaN */
    int sign;
};
static const struct format f16 = {10, 15, 0x7c00, 0x7e00, 0x8000};
static const struct format bf16 = {7, 127, 0x7f80, 0x7fc0, 0x8000};
static const struct format e5m2 = {2, 15, 0x7c, 0x7e, 0x80};
static const struct format e4m3 = {3, 7, 0x7f, 0x7f, 0x80};

static uint16_t from_double(double x, const struct format *f) {
    uint16_t sign = signbit(x) ? (uint16_t)f->sign : 0;
    if (isnan(x))
        return (uint16_t)(sign | f->nan);
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

uint8_t lab_double_to_e4m3(double x) {
    return (uint8_t)from_double(x, &e4m3);
}

uint8_t lab_double_to_e5m2(double x) {
    return (uint8_t)from_double(x, &e5m2);
}

double lab_e4m3_to_double(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double x = exponent == 0           ? ldexp(mantissa, -9)
                     : (bits & 0x7f) == 0x7f ? (double)NAN
                                             : ldexp(8 + mantissa, exponent - 10);
    return bits & 0x80 ? -x : x;
}

double lab_e5m2_to_double(uint8_t bits) {
    return lab_f16_to_double((uint16_t)(bits << 8)); /* its upper byte */
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
    if (type == TESS_E4M3)
        return lab_e4m3_to_double(((const uint8_t *)data)[index]);
    if (type == TESS_E5M2)
        return lab_e5m2_to_double(((const uint8_t *)data)[index]);
    uint16_t bits = ((const uint16_t *)data)[index];
    return type == TESS_F16 ? lab_f16_to_double(bits) : lab_bf16_to_double(bits);
}

void lab_put(void *data, tess_type type, int64_t index, double x) {
    if (type == TESS_F32)
        ((float *)data)[index] = (float)x;
    else if (type == TESS_E4M3)
        ((uint8_t *)data)[index] = lab_double_to_e4m3(x);
    else if (type == TESS_E5M2)
        ((uint8_t *)data)[index] = lab_double_to_e5m2(x);
    else
        ((uint16_t *)data)[index] = type == TESS_F16 ? lab_double_to_f16(x) : lab_double_to_bf16(x);
}

void lab_get_row(double *out, const void *data, tess_type type, int64_t index, int64_t count) {
    const int halves = type == TESS_F16 || type == TESS_BF16;
    const float *single = (const float *)data + (type == TESS_F32 ? index : 0);
    const uint16_t *half = (const uint16_t *)data + (halves ? index : 0);
    if (type == TESS_F32)
        for (int64_t d = 0; d < count; d++)
            out[d] = (double)single[d];
    else if (!halves)
        for (int64_t d = 0; d < count; d++)
            out[d] = lab_get(data, type, index + d);
    else if (type == TESS_F16)
        for (int64_t d = 0; d < count; d++)
            out[d] = lab_f16_to_double(half[d]);
    else
        for (int64_t d = 0; d < count; d++)
            out[d] = lab_bf16_to_double(half[d]);
}
