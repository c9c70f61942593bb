/*
 * Which steps lead from one type to another, and taking a block through them. The compute type of
 * scale and offset is float32, and float64 where float32 would lose digits of what comes in or goes
 * out: float64 and integers of four bytes or more.
 */
#include "convert.h"

#include "atomic.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

static const uint8_t convert_bytes[SVI_TYPES] = {
    [SV_U8] = 1,  [SV_I8] = 1,  [SV_U16] = 2, [SV_I16] = 2, [SV_U32] = 4, [SV_I32] = 4,
    [SV_U64] = 8, [SV_I64] = 8, [SV_F16] = 2, [SV_F32] = 4, [SV_F64] = 8,
};

uint32_t
svi_type_bytes(uint32_t type)
{
    return type < SVI_TYPES ? convert_bytes[type] : 0;
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Not every compiler's __builtin_cpu_supports() knows F16C, and the instruction that tells is slow
 * in virtual machines: it is asked once. */
static bool
convert_has_f16c(void)
{
    static svi_word known; /* 0: not yet, 1: no, 2: yes */
    uint64_t state = svi_load_relaxed(&known);
    if (state == 0) {
        unsigned int a = 0, b = 0, c = 0, d = 0;
        state = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 ? 2 : 1;
        svi_store_relaxed(&known, state);
    }
    return state == 2;
}
#endif

static const svi_convert_set *
convert_set(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && convert_has_f16c()) {
        return &svi_convert_avx2;
    }
#endif
    return &svi_convert_plain;
}

static uint32_t
convert_compute_type(uint32_t to, uint32_t from)
{
    bool wide = to == SV_F64 || from == SV_F64 || (from >= SV_U32 && from <= SV_I64);
    return wide ? SV_F64 : SV_F32;
}

static void
convert_add(svi_conversion *conversion, svi_convert_loop *loop)
{
    conversion->steps[conversion->count++].convert = loop;
}

bool
svi_conversion_find(uint32_t to, uint32_t from, const sv_scale *scale, svi_conversion *out)
{
    const svi_convert_set *set = convert_set();
    svi_conversion made = {.count = 0};
    if (svi_type_bytes(to) == 0 || svi_type_bytes(from) == 0 || (scale != NULL && to < SV_F16)) {
        return false;
    }
    uint32_t middle = to;
    if (scale != NULL) {
        middle = convert_compute_type(to, from);
    } else if (to == SV_F16 && from != SV_F64) {
        middle = SV_F32; /* the digits that an integer loses there are beyond float16 */
    }
    if (from == SV_F16) {
        convert_add(&made, set->from_f16);
        from = SV_F32;
    }
    if (scale != NULL) {
        made.scale = *scale;
        made.steps[made.count++].apply =
            middle == SV_F64 ? set->scaled_f64[from] : set->scaled_f32[from];
    } else if (from != middle) {
        convert_add(&made, set->loops[middle][from]);
    }
    if (middle != to) {
        convert_add(&made, set->loops[to][middle]);
    }
    *out = made;
    return true;
}

void
svi_conversion_run(const svi_conversion *conversion, void *to, const void *from, size_t count)
{
    double blocks[2][SVI_CONVERT_BLOCK];
    const void *at = from;
    for (uint32_t i = 0; i < conversion->count; i++) {
        void *next = i + 1 == conversion->count ? to : blocks[i % 2];
        if (conversion->steps[i].convert != NULL) {
            conversion->steps[i].convert(next, at, count);
        } else {
            conversion->steps[i].apply(next, at, count, &conversion->scale);
        }
        at = next;
    }
}
