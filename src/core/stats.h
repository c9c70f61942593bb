/* Counters. Everything here is relaxed: numbers for people, never a condition of the protocol. */
#ifndef SVI_STATS_H
#define SVI_STATS_H

#include "mapping.h"

/* A chunk that had got `reads` reads was replaced in `slot`. */
void svi_stats_count(const svi_mapping *m, unsigned char *rw, uint32_t slot, uint64_t reads);

#endif
