/*
 * Arithmetic on the two packed words of the format. No memory is touched here.
 *
 *   cell        63                              24 23                     0
 *               |   cumulative reads (40 bits)    |   pins (24 bits)      |
 *
 *   slot word   63                              32 31                     0
 *               |   stamp of the publication      |   buffer index        |
 *
 * The reads are above the pins, so that a wrapped read count is lost and never carries into them.
 * A stamp is never 0; the whole word 0 means EMPTY.
 */
#ifndef SVI_CELL_H
#define SVI_CELL_H

#include <stdbool.h>
#include <stdint.h>

#define SVI_PIN_BITS 24
#define SVI_PIN UINT64_C(1)
#define SVI_READ (UINT64_C(1) << SVI_PIN_BITS)
#define SVI_PINS_MASK (SVI_READ - 1)
#define SVI_READS_MASK (UINT64_MAX >> SVI_PIN_BITS)
/* Half of what fits: other threads may add one each before the first one undoes its own. */
#define SVI_PINS_LIMIT (SVI_READ / 2)

static inline uint64_t
svi_cell_pins(uint64_t cell)
{
    return cell & SVI_PINS_MASK;
}

static inline uint64_t
svi_cell_reads(uint64_t cell)
{
    return cell >> SVI_PIN_BITS;
}

/* Reads since `base`, both sums of cumulative reads modulo 2^40. A pin that failed its re-check is
 * taken back and may make the difference negative for a moment: that counts as 0. */
static inline uint64_t
svi_reads_since(uint64_t sum, uint64_t base)
{
    uint64_t delta = (sum - base) & SVI_READS_MASK;
    return delta > SVI_READS_MASK / 2 ? 0 : delta;
}

#define SVI_EMPTY UINT64_C(0)

static inline uint64_t
svi_slot_word(uint32_t buffer, uint32_t stamp)
{
    return ((uint64_t)(stamp == 0 ? 1 : stamp) << 32) | buffer;
}

static inline uint32_t
svi_slot_buffer(uint64_t word)
{
    return (uint32_t)word;
}

static inline uint32_t
svi_slot_stamp(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline uint64_t
svi_slot_successor(uint64_t word, uint32_t buffer)
{
    return svi_slot_word(buffer, svi_slot_stamp(word) + 1);
}

#endif
