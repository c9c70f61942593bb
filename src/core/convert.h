/* Conversions between the native numbers, a block of neighbours at a time. */
#ifndef SVI_CONVERT_H
#define SVI_CONVERT_H

#include <stdbool.h>
#include <stddef.h>

#include "sharedvector/sharedvector.h"

#define SVI_CONVERT_BLOCK 1024 /* numbers: a block and its steps stay in the first-level cache */
#define SVI_TYPES (SV_F64 + 1)

/* Convert `count` numbers; no address needs to be aligned, the two blocks must not overlap. */
typedef void svi_convert_loop(void *to, const void *from, size_t count);
typedef void svi_scale_loop(void *to, const void *from, size_t count, const sv_scale *scale);

/* Steps from one type to another; one without `convert` scales. */
typedef struct svi_conversion {
    struct {
        svi_convert_loop *convert;
        svi_scale_loop *apply;
    } steps[3];
    uint32_t count;
    sv_scale scale;
} svi_conversion;

/* Bytes of one number; 0 for SV_OPAQUE and what is no type. */
uint32_t svi_type_bytes(uint32_t type);

/* The steps for two types that differ, or with `scale` (NULL: none). False: not converted here. */
bool svi_conversion_find(uint32_t to, uint32_t from, const sv_scale *scale, svi_conversion *out);

/* Take at most SVI_CONVERT_BLOCK numbers through all steps. */
void svi_conversion_run(const svi_conversion *conversion, void *to, const void *from, size_t count);

/* The loops for one instruction set: [to][from], NULL where a conversion takes several steps. */
typedef struct svi_convert_set {
    svi_convert_loop *loops[SVI_TYPES][SVI_TYPES];
    svi_convert_loop *from_f16;            /* to SV_F32; other ways from SV_F16 begin with it */
    svi_scale_loop *scaled_f32[SVI_TYPES]; /* from types that float32 holds */
    svi_scale_loop *scaled_f64[SVI_TYPES];
} svi_convert_set;

extern const svi_convert_set svi_convert_plain;
#if defined(__x86_64__) && defined(__GNUC__)
extern const svi_convert_set svi_convert_avx2; /* needs avx2 and f16c */
#endif

#endif
