/* Copying blocks: past the cache where that is faster. */
#ifndef SVI_COPY_H
#define SVI_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is a block of `bytes` better written past the cache? `around`: bytes of the memory that such blocks
 * are written to in turn, or 0 when nothing is known. */
bool svi_copy_streams(uint64_t bytes, uint64_t around);

/* memcpy on this thread; with `stream` past the cache, where the machine can. Such stores are not
 * ordered with others until svi_copy_fence(). */
void svi_copy_block(void *to, const void *from, size_t bytes, bool stream);
void svi_copy_fence(void);

/* The same on up to `threads` threads, which it leaves with all stores ordered. */
void svi_copy_parallel(void *to, const void *from, size_t bytes, bool stream, uint32_t threads);

#ifdef SVI_TESTING
extern bool svi_testing_avx2_only; /* leave the wider instructions out; x86-64 only */
#endif

#endif
