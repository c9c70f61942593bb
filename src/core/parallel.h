/* Work of one call spread over threads that live no longer than the call. */
#ifndef SVI_PARALLEL_H
#define SVI_PARALLEL_H

#include <stdint.h>

#define SVI_THREADS_MAX 16

/* How many threads `bytes` of work are worth: `wished` of them (0: as many as there are
 * processors), but no more than one for each `each` bytes. At least 1. */
uint32_t svi_parallel_threads(uint32_t wished, uint64_t bytes, uint64_t each);

/*
 * Call run(context, part) for each part from 0 to parts - 1, on up to `threads` threads with this
 * one among them; returns when all are done. Where threads cannot be had, this one does it all.
 */
void svi_parallel(uint32_t threads, uint64_t parts, void (*run)(void *context, uint64_t part),
                  void *context);

#endif
