/* Open reservations, as who fills and publishes them sees them. */
#ifndef SVI_RESERVE_H
#define SVI_RESERVE_H

#include "mapping.h"

#define SVI_RESERVATION_OPEN UINT32_C(0x52455331)
#define SVI_RESERVATION_FILLED UINT32_C(0x52455332)

/* The mapping of a reservation that this very process has open (rule W7), and a writable map of it. */
int svi_reservation_check(const sv_reservation *reservation, const char *operation, svi_mapping **m,
                          unsigned char **rw, sv_error *err);

/* Forget a reservation whose buffer was published or given back. */
void svi_reservation_end(svi_mapping *m, sv_reservation *reservation);

/* Remember a buffer that may be free. A lost hint costs a walk, nothing else. */
void svi_hint(unsigned char *rw, uint32_t buffer);

/* Does any process hold a pin on the buffer, now? A scan that a hand-over of pins overlapped looks
 * again (rule F2). */
bool svi_buffer_is_pinned(const svi_mapping *m, uint32_t buffer);

/* Is any buffer free, as far as one can tell without a claim? */
bool svi_is_any_free(const svi_mapping *m, unsigned char *rw);

/* Does the chunk fit into a buffer, and is it what it says? */
int svi_chunk_check(const svi_mapping *m, const sv_chunk *chunk, sv_error *err);

#endif
