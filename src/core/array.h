/* The one arithmetic on shapes that writers and readers share. */
#ifndef SVI_ARRAY_H
#define SVI_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

#include "sharedvector/sharedvector.h"

/* Bytes of an array in C order. false: too many dimensions, no itemsize, or extents whose product is
 * beyond INT64_MAX (extents of 0 left out, as NumPy does), so that every stride of it is a number. */
static inline bool
svi_array_bytes(uint32_t itemsize, uint32_t ndim, const uint64_t *shape, uint64_t *bytes)
{
    uint64_t product = itemsize;
    bool empty = false;
    if (ndim > SV_MAX_NDIM || itemsize == 0) {
        return false;
    }
    for (uint32_t i = 0; i < ndim; i++) {
        empty = empty || shape[i] == 0;
        if (shape[i] != 0 && __builtin_mul_overflow(product, shape[i], &product)) {
            return false;
        }
    }
    *bytes = empty ? 0 : product;
    return product <= INT64_MAX;
}

#endif
