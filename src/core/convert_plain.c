/* The conversions of convert.h for any machine. */
#include "convert.h"

#include <stdint.h>

#include "half.h"

#define LOOPS_TARGET
#define LOOPS_SET svi_convert_plain

#ifdef __aarch64__
/* Every such processor converts float16. */
#define HALF_LOOSE __attribute__((aligned(1), may_alias))
typedef __fp16 half_f16 HALF_LOOSE;
typedef float half_f32 HALF_LOOSE;
typedef double half_f64 HALF_LOOSE;

#define HALF_LOOP(from, to)                                                                        \
    static void loop_##from##_to_##to(void *to_, const void *from_, size_t count)                  \
    {                                                                                              \
        half_##to *restrict out = to_;                                                             \
        const half_##from *restrict in = from_;                                                    \
        for (size_t i = 0; i < count; i++) {                                                       \
            out[i] = (half_##to)in[i];                                                             \
        }                                                                                          \
    }
HALF_LOOP(f16, f32)
HALF_LOOP(f32, f16)
HALF_LOOP(f64, f16)
#else
static void
loop_f16_to_f32(void *to, const void *from, size_t count)
{
    svi_half_to_floats(to, from, count);
}

static void
loop_f32_to_f16(void *to, const void *from, size_t count)
{
    svi_half_from_floats(to, from, count);
}

static void
loop_f64_to_f16(void *to, const void *from, size_t count)
{
    svi_half_from_doubles(to, from, count);
}
#endif

#include "convert_loops.h"
