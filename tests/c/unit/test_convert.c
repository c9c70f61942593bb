/* Conversions of numbers, each instruction set against the definition, and float16 in software. */
#include "convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "world.h"

#define COUNT 997

static const char *const names[SVI_TYPES] = {"opaque", "u8",  "i8",  "u16", "i16", "u32",
                                             "i32",    "u64", "i64", "f16", "f32", "f64"};

/* ---- the definition ------------------------------------------------------------------------ */

/* Any number of any type; long double holds 64 bits of fraction at least. */
static long double
number_read(uint32_t type, const void *at)
{
#define READ(symbol, T)                                                                            \
    case symbol: {                                                                                 \
        T value;                                                                                   \
        memcpy(&value, at, sizeof value);                                                          \
        return (long double)value;                                                                 \
    }
    switch (type) {
        READ(SV_U8, uint8_t)
        READ(SV_I8, int8_t)
        READ(SV_U16, uint16_t)
        READ(SV_I16, int16_t)
        READ(SV_U32, uint32_t)
        READ(SV_I32, int32_t)
        READ(SV_U64, uint64_t)
        READ(SV_I64, int64_t)
        READ(SV_F32, float)
        READ(SV_F64, double)
    default: {
        uint16_t half;
        memcpy(&half, at, sizeof half);
        return (long double)svi_half_to_float(half);
    }
    }
}

static void
number_write(uint32_t type, long double value, void *at)
{
#define WRITE(symbol, T, low, high)                                                                \
    case symbol: {                                                                                 \
        T result = isnan(value)                   ? 0                                              \
                   : value <= (long double)(low)  ? (low)                                          \
                   : value >= (long double)(high) ? (high)                                         \
                                                  : (T)value;                                      \
        memcpy(at, &result, sizeof result);                                                        \
        return;                                                                                    \
    }
    switch (type) {
        WRITE(SV_U8, uint8_t, 0, UINT8_MAX)
        WRITE(SV_I8, int8_t, INT8_MIN, INT8_MAX)
        WRITE(SV_U16, uint16_t, 0, UINT16_MAX)
        WRITE(SV_I16, int16_t, INT16_MIN, INT16_MAX)
        WRITE(SV_U32, uint32_t, 0, UINT32_MAX)
        WRITE(SV_I32, int32_t, INT32_MIN, INT32_MAX)
        WRITE(SV_U64, uint64_t, 0, UINT64_MAX)
        WRITE(SV_I64, int64_t, INT64_MIN, INT64_MAX)
    case SV_F32: {
        float result = (float)value;
        memcpy(at, &result, sizeof result);
        return;
    }
    case SV_F64: {
        double result = (double)value;
        memcpy(at, &result, sizeof result);
        return;
    }
    default: {
        /* Every double is exact here; integers that are none are beyond float16. */
        uint16_t half = svi_half_from_double((double)value);
        memcpy(at, &half, sizeof half);
    }
    }
}

/* Equal bits, or both NaN: its payload is nobody's business. */
static bool
number_same(uint32_t type, const void *a, const void *b)
{
    return memcmp(a, b, svi_type_bytes(type)) == 0 ||
           (isnan(number_read(type, a)) && isnan(number_read(type, b)));
}

/* ---- every pair ---------------------------------------------------------------------------- */

static const double borders[] = {0.0,          -0.0,       0.5,          -0.5,    0.999,
                                 -0.999,       126.9,      127.0,        127.1,   128.0,
                                 -128.9,       -129.0,     254.9,        255.0,   255.9,
                                 256.0,        32766.9,    32767.0,      32767.9, 32768.0,
                                 -32768.0,     -32768.9,   -32769.0,     65534.9, 65535.0,
                                 65535.9,      65536.0,    65519.9,      65520.0, 0x1p31,
                                 -0x1p31,      0x1p31 - 1, 0x1p31 - 128, 0x1p32,  0x1p32 - 1,
                                 0x1p32 - 256, 0x1p63,     -0x1p63,      0x1p64,  0x1p53,
                                 -0x1p64,      1e300,      -1e300,       0x1p-24, 0x1p-25,
                                 0x1.8p-25,    0x1p-14,    0x1p-150};

/* Random bits, small numbers, and the borders of all ranges. */
static void
fill_numbers(uint32_t type, unsigned char *out)
{
    const size_t special = sizeof borders / sizeof borders[0];
    uint32_t bytes = svi_type_bytes(type);
    for (size_t i = 0; i < COUNT; i++) {
        if (i < special) {
            number_write(type, (long double)borders[i], out + i * bytes);
        } else if (i % 2 == 0) {
            number_write(type, (long double)(rand() % 2000000 - 1000000) / 7.0L, out + i * bytes);
        } else {
            for (uint32_t k = 0; k < bytes; k++) {
                out[i * bytes + k] = (unsigned char)rand();
            }
        }
    }
    if (type >= SV_F16) {
        number_write(type, (long double)INFINITY, out + special * bytes);
        number_write(type, -(long double)INFINITY, out + (special + 1) * bytes);
        number_write(type, (long double)NAN, out + (special + 2) * bytes);
    }
}

static void
check_loop(const char *set, svi_convert_loop *loop, uint32_t to, uint32_t from)
{
    unsigned char *in = world_memory(COUNT * 8 + 1);
    unsigned char *out = world_memory(COUNT * 8 + 2);
    uint32_t bytes = svi_type_bytes(to);
    unsigned wrong = 0;
    /* One byte off, and one number too few for any vector. */
    fill_numbers(from, in + 1);
    memset(out, 0x5a, COUNT * 8 + 2);
    loop(out + 1, in + 1, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        unsigned char wanted[8];
        const unsigned char *at = in + 1 + i * svi_type_bytes(from);
        number_write(to, number_read(from, at), wanted);
        if (!number_same(to, wanted, out + 1 + i * bytes) && wrong++ == 0) {
            tap_context("%s: %s to %s, number %zu: %.20Lg gives %.20Lg, wanted %.20Lg", set,
                        names[from], names[to], i, number_read(from, at),
                        number_read(to, out + 1 + i * bytes), number_read(to, wanted));
        }
    }
    EQ(wrong, 0);
    EQ(out[0], 0x5a);
    EQ(out[1 + COUNT * bytes], 0x5a); /* nothing beyond the end */
    free(in);
    free(out);
}

static void
check_set(const char *name, const svi_convert_set *set)
{
    unsigned pairs = 0;
    for (uint32_t to = SV_U8; to <= SV_F64; to++) {
        for (uint32_t from = SV_U8; from <= SV_F64; from++) {
            if (set->loops[to][from] != NULL) {
                check_loop(name, set->loops[to][from], to, from);
                pairs++;
            }
        }
    }
    check_loop(name, set->from_f16, SV_F32, SV_F16);
    EQ(pairs, 10 * 10 + 2);
}

static void
the_plain_loops(void)
{
    check_set("plain", &svi_convert_plain);
}

static void
the_avx2_loops(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        tap_skip("this processor has no AVX2");
        return;
    }
    check_set("avx2", &svi_convert_avx2);
#else
    tap_skip("not an x86-64 processor");
#endif
}

/* ---- chains of steps ----------------------------------------------------------------------- */

static void
every_pair_in_steps(void)
{
    for (uint32_t to = SV_U8; to <= SV_F64; to++) {
        for (uint32_t from = SV_U8; from <= SV_F64; from++) {
            unsigned char in[COUNT * 8], out[COUNT * 8];
            svi_conversion conversion;
            unsigned wrong = 0;
            if (to == from) {
                continue;
            }
            REQUIRE(svi_conversion_find(to, from, NULL, &conversion));
            fill_numbers(from, in);
            svi_conversion_run(&conversion, out, in, COUNT);
            for (size_t i = 0; i < COUNT; i++) {
                unsigned char wanted[8];
                number_write(to, number_read(from, in + i * svi_type_bytes(from)), wanted);
                wrong += !number_same(to, wanted, out + i * svi_type_bytes(to));
            }
            tap_context("%s to %s", names[from], names[to]);
            EQ(wrong, 0);
        }
    }
}

static bool
computes_in_double(uint32_t to, uint32_t from)
{
    return to == SV_F64 || from == SV_F64 || (from >= SV_U32 && from <= SV_I64);
}

static void
scale_and_offset(void)
{
    const sv_scale scale = {1.0 / 3.0, -17.25};
    for (uint32_t to = SV_F16; to <= SV_F64; to++) {
        for (uint32_t from = SV_U8; from <= SV_F64; from++) {
            unsigned char in[COUNT * 8], out[COUNT * 8];
            svi_conversion conversion;
            unsigned wrong = 0;
            REQUIRE(svi_conversion_find(to, from, &scale, &conversion));
            fill_numbers(from, in);
            svi_conversion_run(&conversion, out, in, COUNT);
            for (size_t i = 0; i < COUNT; i++) {
                unsigned char wanted[8];
                long double x = number_read(from, in + i * svi_type_bytes(from));
                if (computes_in_double(to, from)) {
                    double product = (double)x * scale.scale;
                    number_write(to, (long double)(product + scale.offset), wanted);
                } else {
                    float product = (float)x * (float)scale.scale;
                    number_write(to, (long double)(product + (float)scale.offset), wanted);
                }
                wrong += !number_same(to, wanted, out + i * svi_type_bytes(to));
            }
            tap_context("%s to %s", names[from], names[to]);
            EQ(wrong, 0);
        }
    }
}

static void
what_is_not_converted(void)
{
    const sv_scale scale = {1.0, 0.0};
    svi_conversion conversion = {.count = 77};
    CHECK(!svi_conversion_find(SV_OPAQUE, SV_U8, NULL, &conversion));
    CHECK(!svi_conversion_find(SV_U8, SV_OPAQUE, NULL, &conversion));
    CHECK(!svi_conversion_find(SV_F32, SVI_TYPES, NULL, &conversion));
    CHECK(!svi_conversion_find(UINT32_MAX, SV_F32, NULL, &conversion));
    CHECK(!svi_conversion_find(SV_I16, SV_F32, &scale, &conversion));
    EQ(conversion.count, 77);
    EQ(svi_type_bytes(SV_OPAQUE), 0);
    EQ(svi_type_bytes(SVI_TYPES), 0);
}

/* ---- float16 ------------------------------------------------------------------------------- */

/* What the bits of a positive, finite float16 mean. */
static double
half_value(uint16_t half)
{
    uint32_t exponent = half >> 10;
    uint32_t fraction = half & 0x3ff;
    return exponent == 0 ? fraction * 0x1p-24
                         : (1024 + fraction) * (double)(1u << exponent) * 0x1p-25;
}

/* The double that is `steps` after a positive one. */
static double
neighbour(double value, int64_t steps)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits += steps;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static void
every_float16(void)
{
    unsigned wrong = 0;
    for (uint32_t bits = 0; bits < 0x7c00; bits++) {
        double value = half_value((uint16_t)bits);
        wrong += (double)svi_half_to_float((uint16_t)bits) != value;
        wrong += (double)svi_half_to_float((uint16_t)(bits | 0x8000)) != -value;
        wrong += svi_half_from_double(value) != bits;
        wrong += svi_half_from_double(-value) != (bits | 0x8000);
    }
    EQ(wrong, 0);
    EQ(svi_half_from_double(INFINITY), 0x7c00);
    EQ(svi_half_from_double(-INFINITY), 0xfc00);
    CHECK(isinf(svi_half_to_float(0x7c00)) && isnan(svi_half_to_float(0x7c01)));
    CHECK((svi_half_from_double(NAN) & 0x7fff) > 0x7c00);
    CHECK(signbit(svi_half_to_float(0x8000)) != 0);
}

/* Between two neighbours the nearer one is right, in the middle the even one. */
static void
every_middle_of_two_float16(void)
{
    unsigned wrong = 0;
    for (uint32_t bits = 0; bits < 0x7c00; bits++) {
        double low = half_value((uint16_t)bits);
        double high = bits + 1 == 0x7c00 ? 65536.0 : half_value((uint16_t)(bits + 1));
        double middle = (low + high) / 2;
        wrong += svi_half_from_double(middle) != bits + (bits & 1);
        wrong += svi_half_from_double(neighbour(middle, -1)) != bits;
        wrong += svi_half_from_double(neighbour(middle, 1)) != bits + 1;
    }
    EQ(wrong, 0);
}

/* The instruction and the software agree on float32 of all magnitudes. */
static void
float16_of_the_processor(void)
{
#if defined(__x86_64__)
    enum { BLOCK = 1021 };
    if (!__builtin_cpu_supports("avx2")) {
        tap_skip("this processor has no AVX2");
        return;
    }
    float values[BLOCK];
    uint16_t fast[BLOCK];
    unsigned wrong = 0;
    uint32_t bits = 1;
    for (int round = 0; round < 500; round++) {
        for (size_t i = 0; i < BLOCK; i++, bits += 8191) { /* odd: passes every residue */
            memcpy(&values[i], &bits, sizeof bits);
        }
        svi_convert_avx2.loops[SV_F16][SV_F32](fast, values, BLOCK);
        for (size_t i = 0; i < BLOCK; i++) {
            uint16_t slow = svi_half_from_double((double)values[i]);
            wrong += !number_same(SV_F16, &fast[i], &slow);
        }
    }
    EQ(wrong, 0);
#else
    tap_skip("not an x86-64 processor");
#endif
}

/* What is expected is computed in long double, which holds every integer of 64 bits; valgrind
 * computes it in 64 bits in all. */
static bool
long_double_is_wide(void)
{
    volatile long double sum = 9223372036854775808.0L;
    sum += 1;
    return (uint64_t)sum == (UINT64_C(1) << 63) + 1;
}

static void
conversions(void)
{
    tap_skip("long double does not hold integers of 64 bits here, as under valgrind");
}

int
main(void)
{
    world_begin(50);
    srand(1);
    if (!long_double_is_wide()) {
        RUN(conversions);
        return world_end();
    }
    RUN(every_float16);
    RUN(every_middle_of_two_float16);
    RUN(the_plain_loops);
    RUN(the_avx2_loops);
    RUN(float16_of_the_processor);
    RUN(every_pair_in_steps);
    RUN(scale_and_offset);
    RUN(what_is_not_converted);
    return world_end();
}
