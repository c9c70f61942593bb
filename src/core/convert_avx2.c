/* The conversions of convert.h for x86-64 machines with AVX2 and F16C. */
#include "convert.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <stdint.h>

#include "half.h"

#define LOOPS_TARGET __attribute__((target("avx2,f16c")))
#define LOOPS_SET svi_convert_avx2
#define LOOPS_HAS_CUTS 1

#define HALF_LANES 8

static LOOPS_TARGET void
loop_f16_to_f32(void *to, const void *from, size_t count)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    for (; count >= HALF_LANES; count -= HALF_LANES, in += 16, out += 32) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)in);
        _mm256_storeu_ps((float *)(void *)out, _mm256_cvtph_ps(half));
    }
    svi_half_to_floats(out, in, count);
}

static LOOPS_TARGET void
loop_f32_to_f16(void *to, const void *from, size_t count)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    for (; count >= HALF_LANES; count -= HALF_LANES, in += 32, out += 16) {
        __m256 values = _mm256_loadu_ps((const float *)(const void *)in);
        __m128i half = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)out, half);
    }
    svi_half_from_floats(out, in, count);
}

static LOOPS_TARGET void
loop_f64_to_f16(void *to, const void *from, size_t count)
{
    svi_half_from_doubles(to, from, count); /* a detour over float would round twice */
}

/* ---- floats to integers -------------------------------------------------------------------- */

/* Compilers make twenty instructions of what takes five; memory then waits for the processor. */
#define CUT_LANES 16
#define CUT_INLINE static inline LOOPS_TARGET

/* Eight numbers, NaN as 0, clipped to [low, high] and cut. */
CUT_INLINE __m256i
cut_f32(const unsigned char *in, float low, float high)
{
    __m256 x = _mm256_loadu_ps((const float *)(const void *)in);
    x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(low)), _mm256_set1_ps(high));
    return _mm256_cvttps_epi32(x);
}

/* To int32, whose largest value is no float: too large a number gives INT32_MIN, the inversion of
 * what it should be. */
CUT_INLINE __m256i
cut_f32_i32(const unsigned char *in, float low, float high)
{
    __m256 x = _mm256_loadu_ps((const float *)(const void *)in);
    __m256 large = _mm256_cmp_ps(x, _mm256_set1_ps(high), _CMP_GE_OQ);
    return _mm256_xor_si256(cut_f32(in, low, high), _mm256_castps_si256(large));
}

CUT_INLINE __m128i
cut_f64_four(const unsigned char *in, double low, double high)
{
    __m256d x = _mm256_loadu_pd((const double *)(const void *)in);
    x = _mm256_and_pd(x, _mm256_cmp_pd(x, x, _CMP_ORD_Q));
    x = _mm256_min_pd(_mm256_max_pd(x, _mm256_set1_pd(low)), _mm256_set1_pd(high));
    return _mm256_cvttpd_epi32(x);
}

CUT_INLINE __m256i
cut_f64(const unsigned char *in, double low, double high)
{
    return _mm256_set_m128i(cut_f64_four(in + 32, low, high), cut_f64_four(in, low, high));
}

/* Store sixteen numbers that are in range. Packing works within halves: put the quarters right. */
CUT_INLINE __m256i
cut_pack_i16(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

CUT_INLINE void
cut_store_i16(unsigned char *out, __m256i a, __m256i b)
{
    _mm256_storeu_si256((__m256i *)(void *)out, cut_pack_i16(a, b));
}

CUT_INLINE void
cut_store_u16(unsigned char *out, __m256i a, __m256i b)
{
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)out, packed);
}

CUT_INLINE void
cut_store_i8(unsigned char *out, __m256i a, __m256i b)
{
    __m256i wide = cut_pack_i16(a, b);
    __m128i upper = _mm256_extracti128_si256(wide, 1);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_packs_epi16(_mm256_castsi256_si128(wide), upper));
}

CUT_INLINE void
cut_store_u8(unsigned char *out, __m256i a, __m256i b)
{
    __m256i wide = cut_pack_i16(a, b);
    __m128i upper = _mm256_extracti128_si256(wide, 1);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_packus_epi16(_mm256_castsi256_si128(wide), upper));
}

CUT_INLINE void
cut_store_i32(unsigned char *out, __m256i a, __m256i b)
{
    _mm256_storeu_si256((__m256i *)(void *)out, a);
    _mm256_storeu_si256((__m256i *)(void *)(out + 32), b);
}

/* The last numbers go through a full block of their own. */
#define CUT_LOOP(from, F, to, T, cut, low, high)                                                   \
    static LOOPS_TARGET void loop_##from##_to_##to(void *to_, const void *from_, size_t count)     \
    {                                                                                              \
        unsigned char *out = to_;                                                                  \
        const unsigned char *in = from_;                                                           \
        for (; count >= CUT_LANES; count -= CUT_LANES) {                                           \
            cut_store_##to(out, cut(in, low, high), cut(in + 8 * sizeof(F), low, high));           \
            in += CUT_LANES * sizeof(F);                                                           \
            out += CUT_LANES * sizeof(T);                                                          \
        }                                                                                          \
        if (count > 0) {                                                                           \
            F last[CUT_LANES] = {0};                                                               \
            T done[CUT_LANES];                                                                     \
            memcpy(last, in, count * sizeof(F));                                                   \
            loop_##from##_to_##to(done, last, CUT_LANES);                                          \
            memcpy(out, done, count * sizeof(T));                                                  \
        }                                                                                          \
    }

CUT_LOOP(f32, float, u8, uint8_t, cut_f32, 0, UINT8_MAX)
CUT_LOOP(f32, float, i8, int8_t, cut_f32, INT8_MIN, INT8_MAX)
CUT_LOOP(f32, float, u16, uint16_t, cut_f32, 0, UINT16_MAX)
CUT_LOOP(f32, float, i16, int16_t, cut_f32, INT16_MIN, INT16_MAX)
CUT_LOOP(f32, float, i32, int32_t, cut_f32_i32, -0x1p31f, 0x1p31f)
CUT_LOOP(f64, double, u8, uint8_t, cut_f64, 0, UINT8_MAX)
CUT_LOOP(f64, double, i8, int8_t, cut_f64, INT8_MIN, INT8_MAX)
CUT_LOOP(f64, double, u16, uint16_t, cut_f64, 0, UINT16_MAX)
CUT_LOOP(f64, double, i16, int16_t, cut_f64, INT16_MIN, INT16_MAX)
CUT_LOOP(f64, double, i32, int32_t, cut_f64, INT32_MIN, INT32_MAX)

#include "convert_loops.h"

#endif
