/* Counters. Everything here is relaxed: numbers for people, never a condition of the protocol. */
#ifndef SVI_STATS_H
#define SVI_STATS_H

#include "mapping.h"

/* A chunk that had got `reads` reads was replaced in `slot`. */
void svi_stats_count(const svi_mapping *m, unsigned char *rw, uint32_t slot, uint64_t reads);

/* Counters of one slot, without a pin: the slot word is read before and after, and its stamp tells
 * whether everything between belongs to one publication. SV_EINDEX, SV_EFORMAT, SV_EMODIFIED. */
int svi_stats_slot(const svi_mapping *m, uint32_t slot, bool with_pins, sv_slot_stats *out);

#endif
