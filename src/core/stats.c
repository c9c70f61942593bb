/*
 * Statistics (rules C1-C3). Reads are counted by the pins themselves: a slot's reads are the sum of
 * its buffer's cells less the sum at publication. Exact at rest; a kill may lose one publication's.
 */
#include "stats.h"

#include <errno.h>
#include <string.h>

#include "error.h"
#include "row.h"

#define STATS_ATTEMPTS 100

/* relaxed: counters only, all in this file. */

static void
stats_ring_store(const svi_mapping *m, unsigned char *rw, uint64_t position, uint32_t sample)
{
    _Atomic(uint32_t) *ring = (_Atomic(uint32_t) *)(void *)(rw + m->g.off_ring);
    atomic_store_explicit(&ring[position % m->g.stats_capacity], sample, memory_order_relaxed);
}

static uint32_t
stats_ring_load(const svi_mapping *m, uint64_t position)
{
    const _Atomic(uint32_t) *ring =
        (const _Atomic(uint32_t) *)(const void *)(m->ro + m->g.off_ring);
    return atomic_load_explicit(&ring[position % m->g.stats_capacity], memory_order_relaxed);
}

void
svi_stats_count(const svi_mapping *m, unsigned char *rw, uint32_t slot, uint64_t reads)
{
    svm_header *header = svi_header_at(rw);
    svi_store_relaxed(&svi_slots_at(m, rw)[slot].s_last_reads, reads);
    svi_add_relaxed(&header->h_replace_events, 1);
    svi_add_relaxed(&header->h_reads_total, reads);
    svi_max_seq(&header->h_reads_max, reads); /* counter */
    uint64_t position = svi_add_relaxed(&header->h_ring_head, 1);
    stats_ring_store(m, rw, position, reads > UINT32_MAX ? UINT32_MAX : (uint32_t)reads);
}

void
sv_count_blocked(sv_segment *segment, uint64_t count)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    if (m != NULL && svi_writable(m, &rw, NULL) == 0) {
        svi_add_relaxed(&svi_header_at(rw)->h_blocked, count);
    }
}

int
svi_stats_slot(const svi_mapping *m, uint32_t slot, bool with_pins, sv_slot_stats *out)
{
    if (slot >= svi_size(m)) {
        return SV_EINDEX;
    }
    const svm_slot *place = &svi_slots(m)[slot];
    for (int attempt = 0; attempt < STATS_ATTEMPTS; attempt++) {
        uint64_t word = svi_load_seq(&place->s_word); /* counters (C3) */
        uint32_t buffer = svi_slot_buffer(word);
        if (word == SVI_EMPTY || buffer >= m->g.buffer_count) {
            return SV_EFORMAT;
        }
        const svm_buffer *header = svi_buffer(m, buffer);
        uint64_t base = svi_load_acquire(&header->b_read_base); /* C4 */
        out->reads = svi_reads_since(svi_buffer_reads(m, buffer), base);
        out->writes = svi_load_acquire(&header->b_version); /* C4 */
        out->last_reads = svi_load_relaxed(&place->s_last_reads);
        out->pins = with_pins ? svi_buffer_pins(m, buffer) : 0;
        if (svi_load_seq(&place->s_word) == word) { /* counters (C3) */
            return 0;
        }
    }
    return SV_EMODIFIED;
}

int
sv_slot_stats_get(const sv_segment *segment, uint32_t slot, sv_slot_stats *out)
{
    const svi_mapping *m = svi_mapping_of(segment);
    sv_slot_stats result;
    int status = m == NULL ? SV_ECLOSED : svi_stats_slot(m, slot, true, &result);
    if (status == 0) {
        *out = result;
    }
    return status;
}

uint32_t
sv_slot_stats_all(const sv_segment *segment, uint32_t count, uint64_t *reads, uint64_t *writes,
                  uint64_t *last_reads)
{
    const svi_mapping *m = svi_mapping_of(segment);
    uint32_t size = m == NULL ? 0 : svi_size(m);
    uint32_t done = 0;
    for (; done < count && done < size; done++) {
        sv_slot_stats one;
        if (svi_stats_slot(m, done, false, &one) != 0) {
            break;
        }
        if (reads != NULL) {
            reads[done] = one.reads;
        }
        if (writes != NULL) {
            writes[done] = one.writes;
        }
        if (last_reads != NULL) {
            last_reads[done] = one.last_reads;
        }
    }
    return done;
}

/* Samples that may be read, and the position of the oldest. */
static uint64_t
stats_samples(const svi_mapping *m, uint64_t *oldest)
{
    uint64_t head = svi_load_relaxed(&svi_header(m)->h_ring_head);
    uint64_t reset = svi_load_relaxed(&svi_header(m)->h_ring_reset);
    uint64_t count = head >= reset ? head - reset : 0;
    count = count > m->g.stats_capacity ? m->g.stats_capacity : count;
    *oldest = head - count;
    return count;
}

void
sv_stats_get(const sv_segment *segment, sv_stats *out)
{
    const svi_mapping *m = svi_mapping_of(segment);
    if (out == NULL) {
        return;
    }
    memset(out, 0, sizeof *out);
    if (m == NULL) {
        return;
    }
    const svm_header *header = svi_header(m);
    uint64_t oldest = 0;
    out->replace_events = svi_load_relaxed(&header->h_replace_events);
    out->reads_at_replace_total = svi_load_relaxed(&header->h_reads_total);
    out->reads_at_replace_max = svi_load_relaxed(&header->h_reads_max);
    out->blocked_replaces = svi_load_relaxed(&header->h_blocked);
    out->sample_count = stats_samples(m, &oldest);
    out->sample_capacity = m->g.stats_capacity;
}

int
sv_stats_reset(sv_segment *segment, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "reset statistics", "the handle is closed");
    }
    int status = svi_writable(m, &rw, err);
    if (status != 0) {
        return status;
    }
    svm_header *header = svi_header_at(rw);
    svi_store_relaxed(&header->h_replace_events, 0);
    svi_store_relaxed(&header->h_reads_total, 0);
    svi_store_relaxed(&header->h_reads_max, 0);
    svi_store_relaxed(&header->h_blocked, 0);
    svi_store_relaxed(&header->h_ring_reset, svi_load_relaxed(&header->h_ring_head));
    return 0;
}

uint32_t
sv_stats_samples(const sv_segment *segment, uint32_t *out, uint32_t count)
{
    const svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return 0;
    }
    uint64_t oldest = 0;
    uint64_t have = stats_samples(m, &oldest);
    if (have > count) {
        oldest += have - count;
        have = count;
    }
    for (uint64_t i = 0; i < have; i++) {
        out[i] = stats_ring_load(m, oldest + i);
    }
    return (uint32_t)have;
}

uint64_t
sv_counter_add(sv_segment *segment, sv_counter counter, uint64_t amount)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    if (m == NULL || (int)counter < 0 || counter >= SV_COUNTER_COUNT) {
        return 0;
    }
    if (amount == 0) {
        return svi_load_relaxed(&svi_header(m)->h_counters[counter]);
    }
    if (svi_writable(m, &rw, NULL) != 0) {
        return 0;
    }
    return svi_add_relaxed(&svi_header_at(rw)->h_counters[counter], amount);
}
