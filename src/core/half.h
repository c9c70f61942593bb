/* float16 in software: exact, rounded to nearest with ties to even; NaN stays NaN. */
#ifndef SVI_HALF_H
#define SVI_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float
svi_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t fraction = half & 0x3ff;
    uint32_t bits;
    float value;
    if (exponent == 0) {
        value = (float)fraction * 0x1p-24f; /* zero and subnormal numbers */
        memcpy(&bits, &value, sizeof bits);
    } else if (exponent == 0x1f) {
        bits = 0x7f800000 | fraction << 13 | (fraction != 0 ? 0x400000 : 0); /* NaNs get quiet */
    } else {
        bits = (exponent + 112) << 23 | fraction << 13;
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round off the last `bits` bits. A carry goes into the exponent, as it should. */
static inline uint32_t
svi_half_round(uint64_t fraction, uint32_t bits)
{
    uint64_t rest = fraction & ((UINT64_C(1) << bits) - 1);
    uint64_t middle = UINT64_C(1) << (bits - 1);
    uint64_t kept = fraction >> bits;
    return (uint32_t)(kept + (rest > middle || (rest == middle && (kept & 1) != 0)));
}

/* A float is no special case: each one is a double exactly. */
static inline uint16_t
svi_half_from_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = (uint32_t)(bits >> 63) << 15;
    int32_t exponent = (int32_t)(bits >> 52 & 0x7ff) - 1023;
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    uint64_t whole = fraction | UINT64_C(1) << 52;
    uint32_t half = 0;
    if (exponent == 1024) {
        half = 0x7c00 | (fraction != 0 ? 0x200 | (uint32_t)(fraction >> 42) : 0);
    } else if (exponent > 15) {
        half = 0x7c00;
    } else if (exponent >= -14) {
        /* The leading bit of `whole` adds the missing one to the exponent. */
        half = ((uint32_t)(exponent + 14) << 10) + svi_half_round(whole, 42);
    } else if (exponent >= -25) {
        half = svi_half_round(whole, (uint32_t)(28 - exponent));
    }
    return (uint16_t)(sign | half);
}

/* ---- blocks; addresses need not be aligned ------------------------------------------------- */

static inline void
svi_half_to_floats(void *to, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, (const unsigned char *)from + i * sizeof half, sizeof half);
        float value = svi_half_to_float(half);
        memcpy((unsigned char *)to + i * sizeof value, &value, sizeof value);
    }
}

static inline void
svi_half_from_floats(void *to, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const unsigned char *)from + i * sizeof value, sizeof value);
        uint16_t half = svi_half_from_double((double)value);
        memcpy((unsigned char *)to + i * sizeof half, &half, sizeof half);
    }
}

static inline void
svi_half_from_doubles(void *to, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, (const unsigned char *)from + i * sizeof value, sizeof value);
        uint16_t half = svi_half_from_double(value);
        memcpy((unsigned char *)to + i * sizeof half, &half, sizeof half);
    }
}

#endif
