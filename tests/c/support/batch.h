/* Gathering whole chunks, for tests that are not about gathering. */
#ifndef BATCH_H
#define BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "sharedvector/sharedvector.h"

/* sv_gather() of chunks of the shape that the first of them has now. Its code, or that of looking at
 * this chunk. */
int batch_gather(sv_segment *segment, const uint32_t *slots, size_t count, void *out,
                 uint64_t stride_bytes, uint32_t threads, sv_error *err);

#endif
