/* Whole chunks: append and replace, which reserve, fill and publish in one call. */
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "os.h"
#include "reserve.h"
#include "row.h"

#define APPEND_TIMEOUT_NS UINT64_C(1000000000)

/* Check before anything is taken, so that a bad chunk costs nothing. */
static int
replace_prepare(sv_segment *segment, const sv_chunk *chunk, uint64_t timeout_ns,
                sv_reservation *reservation, sv_error *err)
{
    const svi_mapping *m = svi_mapping_of(segment);
    int status;
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "write", "the handle is closed");
    }
    if ((status = svi_chunk_check(m, chunk, err)) != 0) {
        return status;
    }
    for (uint32_t i = 0; i < chunk->array_count; i++) {
        if (chunk->arrays[i].data == NULL && chunk->arrays[i].size_bytes != 0) {
            return svi_fail(err, SV_EINVAL, 0, "write", "array %u has no data", i);
        }
    }
    if ((status = sv_reserve(segment, timeout_ns, reservation, err)) != 0) {
        return status;
    }
    if ((status = sv_fill(reservation, chunk, err)) != 0) {
        sv_cancel(reservation);
    }
    return status;
}

int
sv_append(sv_segment *segment, const sv_chunk *chunk, uint32_t *slot, sv_error *err)
{
    sv_reservation reservation;
    const svi_mapping *m = svi_mapping_of(segment);
    uint32_t index = 0;
    if (m != NULL && svi_size(m) >= m->g.slot_count) {
        return svi_fail(err, SV_EFULL, 0, "append",
                        "all %u slots of '%s' are filled; replace one, or make the pool larger "
                        "(max_memory_size or slot_count)",
                        m->g.slot_count, m->name);
    }
    int status = replace_prepare(segment, chunk, APPEND_TIMEOUT_NS, &reservation, err);
    if (status != 0) {
        return status;
    }
    if ((status = sv_publish_next(&reservation, &index, err)) != 0) {
        sv_cancel(&reservation);
        return status;
    }
    if (slot != NULL) {
        *slot = index;
    }
    return 0;
}

/* Is the slot's current chunk pinned by the living? */
static int
replace_refuse_pinned(svi_mapping *m, uint32_t slot, sv_error *err)
{
    uint64_t word = svi_load_seq(&svi_slots(m)[slot].s_word); /* advice: a hint */
    uint32_t buffer = svi_slot_buffer(word);
    if (word == SVI_EMPTY || buffer >= m->g.buffer_count) {
        return svi_fail(err, SV_EFORMAT, 0, "replace", "slot %u of '%s' is damaged", slot, m->name);
    }
    if (svi_buffer_pins(m, buffer) == 0) {
        return 0;
    }
    int status = svi_recover(m, buffer, NULL, err);
    for (int look = 0; look < 50 && status == 0 && svi_buffer_pins(m, buffer) != 0; look++) {
        if (look == 49) {
            status = SV_EINUSE;
        }
        /* A pin that is being undone, or one around a look at the metadata, is gone in no time. */
        svi_os_sleep_ns(1000);
    }
    if (status != SV_EINUSE) {
        return status;
    }
    char holders[SVI_HOLDERS_BYTES];
    if (err == NULL) {
        return SV_EINUSE;
    }
    svi_row_holders(m, buffer, holders, sizeof holders);
    return svi_fail(err, SV_EINUSE, 0, "replace",
                    "slot %u of '%s' is in use: its chunk is pinned by %s; drop those views, or "
                    "publish into it without refusing",
                    slot, m->name, holders);
}

int
sv_replace(sv_segment *segment, uint32_t slot, const sv_chunk *chunk, uint64_t timeout_ns,
           sv_error *err)
{
    sv_reservation reservation;
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "replace", "the handle is closed");
    }
    if (slot >= svi_size(m)) {
        return svi_fail(err, SV_EINDEX, 0, "replace", "slot %u of '%s' is not there: it has %u",
                        slot, m->name, svi_size(m));
    }
    int status;
    if ((status = svi_chunk_check(m, chunk, err)) != 0) {
        return status;
    }
    if ((status = replace_refuse_pinned(m, slot, err)) != 0) {
        if (status == SV_EINUSE) {
            sv_count_blocked(segment, 1);
        }
        return status;
    }
    if ((status = replace_prepare(segment, chunk, timeout_ns, &reservation, err)) != 0) {
        return status;
    }
    if ((status = sv_publish(&reservation, slot, err)) != 0) {
        sv_cancel(&reservation);
    }
    return status;
}
