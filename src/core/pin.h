/* Pins without views, for the modules above. */
#ifndef SVI_PIN_H
#define SVI_PIN_H

#include "mapping.h"

/* Pin the current buffer of a slot; `amount` is SVI_PIN, or SVI_PIN + SVI_READ to count a read. */
int svi_pin_buffer(svi_mapping *m, uint32_t slot, uint64_t amount, uint32_t *buffer);

void svi_unpin_buffer(svi_mapping *m, uint32_t buffer);

#endif
