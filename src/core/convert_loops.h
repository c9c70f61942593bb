/*
 * The loops of convert.h, for one instruction set. Included by convert_plain.c and convert_avx2.c,
 * which define LOOPS_TARGET (function attributes), LOOPS_SET (the table's name), and the functions
 * loop_f16_to_f32, loop_f32_to_f16 and loop_f64_to_f16; with LOOPS_HAS_CUTS also those from floats
 * to integers of one and two bytes and to int32.
 *
 * To integers: clipped, cut towards zero, NaN becomes 0. To floats: rounded to nearest, even.
 */
/* Rows of arrays need not be aligned to their elements. */
#define LOOPS_LOOSE __attribute__((aligned(1), may_alias))
typedef uint8_t loops_u8 LOOPS_LOOSE;
typedef int8_t loops_i8 LOOPS_LOOSE;
typedef uint16_t loops_u16 LOOPS_LOOSE;
typedef int16_t loops_i16 LOOPS_LOOSE;
typedef uint32_t loops_u32 LOOPS_LOOSE;
typedef int32_t loops_i32 LOOPS_LOOSE;
typedef uint64_t loops_u64 LOOPS_LOOSE;
typedef int64_t loops_i64 LOOPS_LOOSE;
typedef float loops_f32 LOOPS_LOOSE;
typedef double loops_f64 LOOPS_LOOSE;

#define LOOPS_INLINE static inline LOOPS_TARGET

/* ---- one number to an integer -------------------------------------------------------------- */

/* Clip `value`; the bounds are cut to what its type can be, so that nothing is compared in vain. */
LOOPS_INLINE int32_t
loops_clip_i32(int32_t value, int64_t low, uint64_t high)
{
    int32_t least = low < INT32_MIN ? INT32_MIN : (int32_t)low;
    int32_t most = high > INT32_MAX ? INT32_MAX : (int32_t)high;
    value = value < least ? least : value;
    return value > most ? most : value;
}

LOOPS_INLINE int64_t
loops_clip_i64(int64_t value, int64_t low, uint64_t high)
{
    int64_t most = high > INT64_MAX ? INT64_MAX : (int64_t)high;
    value = value < low ? low : value;
    return value > most ? most : value;
}

LOOPS_INLINE uint64_t
loops_clip_u64(uint64_t value, uint64_t high)
{
    return value > high ? high : value;
}

LOOPS_INLINE uint32_t
loops_clip_u32(uint32_t value, uint64_t high)
{
    uint32_t most = high > UINT32_MAX ? UINT32_MAX : (uint32_t)high;
    return value > most ? most : value;
}

#ifndef LOOPS_HAS_CUTS
/* Cut a float that is clipped to [low, high] first: both bounds exist as floats. */
LOOPS_INLINE int32_t
loops_cut_f32(float value, float low, float high)
{
    value = value == value ? value : 0.0f;
    value = value < low ? low : value;
    value = value > high ? high : value;
    return (int32_t)value;
}

LOOPS_INLINE int32_t
loops_cut_f64(double value, double low, double high)
{
    value = value == value ? value : 0.0;
    value = value < low ? low : value;
    value = value > high ? high : value;
    return (int32_t)value;
}
#endif

/* Cut a float where the largest integer may not exist as one: `below` is the largest float that is
 * none too large, and whatever is above it becomes the integer. */
#define LOOPS_CUT_WIDE(name, F, T, low, below, high)                                               \
    LOOPS_INLINE T name(F value)                                                                   \
    {                                                                                              \
        F clipped = value == value ? value : (F)0;                                                 \
        clipped = clipped < (low) ? (low) : clipped;                                               \
        clipped = clipped > (below) ? (below) : clipped;                                           \
        return value > (below) ? (high) : (T)clipped;                                              \
    }
LOOPS_CUT_WIDE(loops_f32_u32, float, uint32_t, 0.0f, 0x1.fffffep31f, UINT32_MAX)
LOOPS_CUT_WIDE(loops_f32_u64, float, uint64_t, 0.0f, 0x1.fffffep63f, UINT64_MAX)
LOOPS_CUT_WIDE(loops_f32_i64, float, int64_t, -0x1p63f, 0x1.fffffep62f, INT64_MAX)
LOOPS_CUT_WIDE(loops_f64_u32, double, uint32_t, 0.0, 0x1.fffffffep31, UINT32_MAX)
LOOPS_CUT_WIDE(loops_f64_u64, double, uint64_t, 0.0, 0x1.fffffffffffffp63, UINT64_MAX)
LOOPS_CUT_WIDE(loops_f64_i64, double, int64_t, -0x1p63, 0x1.fffffffffffffp62, INT64_MAX)

#ifndef LOOPS_HAS_CUTS
LOOPS_CUT_WIDE(loops_f32_i32, float, int32_t, -0x1p31f, 0x1.fffffep30f, INT32_MAX)
LOOPS_CUT_WIDE(loops_f64_i32, double, int32_t, -0x1p31, 0x1.fffffffcp30, INT32_MAX)
#endif

/* ---- loops --------------------------------------------------------------------------------- */

#define LOOPS_NAME(from, to) loop_##from##_to_##to
#define LOOPS_ONE(from, to, expression)                                                            \
    static LOOPS_TARGET void LOOPS_NAME(from, to)(void *to_, const void *from_, size_t count)      \
    {                                                                                              \
        loops_##to *restrict out = to_;                                                            \
        const loops_##from *restrict in = from_;                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            loops_##from x = in[i];                                                                \
            out[i] = (loops_##to)(expression);                                                     \
        }                                                                                          \
    }

/* Every loop from one type; `clip` cuts to the range that it is given. */
#define LOOPS_FROM_INTEGER(from, clip)                                                             \
    LOOPS_ONE(from, u8, clip(x, 0, UINT8_MAX))                                                     \
    LOOPS_ONE(from, i8, clip(x, INT8_MIN, INT8_MAX))                                               \
    LOOPS_ONE(from, u16, clip(x, 0, UINT16_MAX))                                                   \
    LOOPS_ONE(from, i16, clip(x, INT16_MIN, INT16_MAX))                                            \
    LOOPS_ONE(from, u32, clip(x, 0, UINT32_MAX))                                                   \
    LOOPS_ONE(from, i32, clip(x, INT32_MIN, INT32_MAX))                                            \
    LOOPS_ONE(from, u64, clip(x, 0, UINT64_MAX))                                                   \
    LOOPS_ONE(from, i64, clip(x, INT64_MIN, INT64_MAX))                                            \
    LOOPS_ONE(from, f32, x)                                                                        \
    LOOPS_ONE(from, f64, x)

#define LOOPS_CLIP_U32(x, low, high) loops_clip_u32(x, high)
#define LOOPS_CLIP_U64(x, low, high) loops_clip_u64(x, high)
LOOPS_FROM_INTEGER(u8, loops_clip_i32)
LOOPS_FROM_INTEGER(i8, loops_clip_i32)
LOOPS_FROM_INTEGER(u16, loops_clip_i32)
LOOPS_FROM_INTEGER(i16, loops_clip_i32)
LOOPS_FROM_INTEGER(i32, loops_clip_i32)
LOOPS_FROM_INTEGER(u32, LOOPS_CLIP_U32)
LOOPS_FROM_INTEGER(i64, loops_clip_i64)
LOOPS_FROM_INTEGER(u64, LOOPS_CLIP_U64)

#ifndef LOOPS_HAS_CUTS
#define LOOPS_CUTS(from)                                                                           \
    LOOPS_ONE(from, u8, loops_cut_##from(x, 0, UINT8_MAX))                                         \
    LOOPS_ONE(from, i8, loops_cut_##from(x, INT8_MIN, INT8_MAX))                                   \
    LOOPS_ONE(from, u16, loops_cut_##from(x, 0, UINT16_MAX))                                       \
    LOOPS_ONE(from, i16, loops_cut_##from(x, INT16_MIN, INT16_MAX))                                \
    LOOPS_ONE(from, i32, loops_##from##_i32(x))
LOOPS_CUTS(f32)
LOOPS_CUTS(f64)
#endif

#define LOOPS_FROM_FLOAT(from)                                                                     \
    LOOPS_ONE(from, u32, loops_##from##_u32(x))                                                    \
    LOOPS_ONE(from, u64, loops_##from##_u64(x))                                                    \
    LOOPS_ONE(from, i64, loops_##from##_i64(x))                                                    \
    LOOPS_ONE(from, f32, x)                                                                        \
    LOOPS_ONE(from, f64, x)
LOOPS_FROM_FLOAT(f32)
LOOPS_FROM_FLOAT(f64)

/* value * scale + offset, to the type that it is computed in. */
#define LOOPS_SCALED(from, to, F)                                                                  \
    static LOOPS_TARGET void loop_##from##_scaled_##to(void *to_, const void *from_, size_t count, \
                                                       const sv_scale *by)                         \
    {                                                                                              \
        loops_##to *restrict out = to_;                                                            \
        const loops_##from *restrict in = from_;                                                   \
        F scale = (F)by->scale, offset = (F)by->offset;                                            \
        for (size_t i = 0; i < count; i++) {                                                       \
            out[i] = (F)in[i] * scale + offset;                                                    \
        }                                                                                          \
    }
LOOPS_SCALED(u8, f32, float)
LOOPS_SCALED(i8, f32, float)
LOOPS_SCALED(u16, f32, float)
LOOPS_SCALED(i16, f32, float)
LOOPS_SCALED(f32, f32, float)
LOOPS_SCALED(u8, f64, double)
LOOPS_SCALED(i8, f64, double)
LOOPS_SCALED(u16, f64, double)
LOOPS_SCALED(i16, f64, double)
LOOPS_SCALED(u32, f64, double)
LOOPS_SCALED(i32, f64, double)
LOOPS_SCALED(u64, f64, double)
LOOPS_SCALED(i64, f64, double)
LOOPS_SCALED(f32, f64, double)
LOOPS_SCALED(f64, f64, double)

/* ---- table --------------------------------------------------------------------------------- */

#define LOOPS_ROW(to)                                                                              \
    {                                                                                              \
        [SV_U8] = LOOPS_NAME(u8, to),   [SV_I8] = LOOPS_NAME(i8, to),                              \
        [SV_U16] = LOOPS_NAME(u16, to), [SV_I16] = LOOPS_NAME(i16, to),                            \
        [SV_U32] = LOOPS_NAME(u32, to), [SV_I32] = LOOPS_NAME(i32, to),                            \
        [SV_U64] = LOOPS_NAME(u64, to), [SV_I64] = LOOPS_NAME(i64, to),                            \
        [SV_F32] = LOOPS_NAME(f32, to), [SV_F64] = LOOPS_NAME(f64, to)}

const svi_convert_set LOOPS_SET = {
    .loops = {[SV_U8] = LOOPS_ROW(u8),
              [SV_I8] = LOOPS_ROW(i8),
              [SV_U16] = LOOPS_ROW(u16),
              [SV_I16] = LOOPS_ROW(i16),
              [SV_U32] = LOOPS_ROW(u32),
              [SV_I32] = LOOPS_ROW(i32),
              [SV_U64] = LOOPS_ROW(u64),
              [SV_I64] = LOOPS_ROW(i64),
              [SV_F16] = {[SV_F32] = loop_f32_to_f16, [SV_F64] = loop_f64_to_f16},
              [SV_F32] = LOOPS_ROW(f32),
              [SV_F64] = LOOPS_ROW(f64)},
    .from_f16 = loop_f16_to_f32,
    .scaled_f32 = {[SV_U8] = loop_u8_scaled_f32,
                   [SV_I8] = loop_i8_scaled_f32,
                   [SV_U16] = loop_u16_scaled_f32,
                   [SV_I16] = loop_i16_scaled_f32,
                   [SV_F32] = loop_f32_scaled_f32},
    .scaled_f64 = {[SV_U8] = loop_u8_scaled_f64,
                   [SV_I8] = loop_i8_scaled_f64,
                   [SV_U16] = loop_u16_scaled_f64,
                   [SV_I16] = loop_i16_scaled_f64,
                   [SV_U32] = loop_u32_scaled_f64,
                   [SV_I32] = loop_i32_scaled_f64,
                   [SV_U64] = loop_u64_scaled_f64,
                   [SV_I64] = loop_i64_scaled_f64,
                   [SV_F32] = loop_f32_scaled_f64,
                   [SV_F64] = loop_f64_scaled_f64},
};
