/* Moving strided arrays, for the modules above. */
#ifndef SVI_MOVE_H
#define SVI_MOVE_H

#include <stdbool.h>

#include "convert.h"
#include "sharedvector/sharedvector.h"

typedef struct svi_axis {
    uint64_t count;
    int64_t to; /* bytes from one element to the next */
    int64_t from;
} svi_axis;

/* A move in its simplest form: axes merged and in the order of the destination. */
typedef struct svi_move {
    unsigned char *to;
    const unsigned char *from;
    uint32_t to_bytes; /* one element */
    uint32_t from_bytes;
    uint32_t axis_count; /* at least 1 */
    bool converts;
    bool stream;
    svi_axis axes[SV_MAX_NDIM + 1];
    svi_conversion conversion;
} svi_move;

/* Check and plan; the errors of sv_move(). */
int svi_move_plan(const sv_strided *to, const sv_strided *from, const sv_scale *scale,
                  svi_move *out, sv_error *err);

/* Bytes that are written. */
uint64_t svi_move_bytes(const svi_move *move);

/* Write past the cache, where rows are long enough for that? A plan alone decides by its own size. */
void svi_move_set_stream(svi_move *move, bool stream);

/* Move part `part` of `parts` on this thread, fenced. */
void svi_move_part(const svi_move *move, uint64_t part, uint64_t parts);

#endif
