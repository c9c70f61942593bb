/* Invariants of a segment, checked while others go on (docs/PROTOCOL.md, "What always holds"). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "fork.h"
#include "pin.h"
#include "row.h"

static int
check_size(const svi_mapping *m, sv_error *err)
{
    uint64_t size = svi_load_seq(&svi_header(m)->h_size); /* E5 */
    if (size > m->g.slot_count) {
        return svi_fail(err, SV_EFORMAT, 0, "check", "size is %llu, there are %u slots",
                        (unsigned long long)size, m->g.slot_count);
    }
    uint64_t high = svi_load_seq(&svi_header(m)->h_high_rows); /* E8 */
    if (high > m->g.max_rows) {
        return svi_fail(err, SV_EFORMAT, 0, "check", "high-water mark is %llu of %u rows",
                        (unsigned long long)high, m->g.max_rows);
    }
    return 0;
}

/* A counted slot names a buffer that says so itself, and whose arrays fit. The slot is pinned
 * meanwhile, so that both belong to one publication. */
static int
check_slot(sv_segment *segment, const svi_mapping *m, uint32_t slot, sv_error *err)
{
    sv_view view;
    svi_gate_enter(); /* no child inherits this pin */
    int status = sv_pin_quiet(segment, slot, &view);
    if (status != 0) {
        svi_gate_leave();
    }
    if (status == SV_EMODIFIED || status == SV_ENOENT) { /* ENOENT: a block that was removed */
        return 0;
    }
    if (status != 0) {
        return svi_fail(err, SV_EFORMAT, 0, "check", "slot %u cannot be pinned: %s", slot,
                        sv_error_text(status));
    }
    /* relaxed: constant while pinned (I1) */
    uint64_t named = svi_load_relaxed(&svi_buffer(m, view.buffer_)->b_slot);
    uint64_t version = svi_load_relaxed(&svi_buffer(m, view.buffer_)->b_version);
    for (uint32_t i = 0; i < view.array_count && status == 0; i++) {
        sv_array array;
        status = sv_view_array(&view, i, &array);
    }
    sv_unpin(&view);
    svi_gate_leave();
    if (named != (uint64_t)slot + 1 || version == 0 || status != 0) {
        return svi_fail(err, SV_EFORMAT, 0, "check",
                        "the buffer of slot %u says slot+1 = %llu, version %llu, arrays %s", slot,
                        (unsigned long long)named, (unsigned long long)version,
                        status == 0 ? "good" : "damaged");
    }
    return 0;
}

/* No buffer is named by two slots. Publications move while we look, so a clash counts only when it
 * is still there at a second look. */
static int
check_distinct(const svi_mapping *m, sv_error *err)
{
    uint32_t size = svi_size(m);
    uint32_t *seen = calloc(m->g.buffer_count, sizeof *seen);
    if (seen == NULL) {
        return svi_fail(err, SV_ENOMEM, ENOMEM, "check", "no memory");
    }
    int status = 0;
    for (uint32_t slot = 0; slot < size && status == 0; slot++) {
        uint64_t word = svi_load_seq(&svi_slots(m)[slot].s_word); /* I2 */
        uint32_t buffer = svi_slot_buffer(word);
        if (buffer >= m->g.buffer_count) {
            status = svi_fail(err, SV_EFORMAT, 0, "check", "slot %u names buffer %u of %u", slot,
                              buffer, m->g.buffer_count);
        } else if (seen[buffer] != 0) {
            uint32_t other = seen[buffer] - 1;
            uint64_t first = svi_load_seq(&svi_slots(m)[other].s_word); /* I2 */
            if (svi_slot_buffer(first) == buffer &&
                svi_load_seq(&svi_slots(m)[slot].s_word) == word &&   /* I2 */
                svi_load_seq(&svi_slots(m)[other].s_word) == first) { /* I2 */
                status = svi_fail(err, SV_EFORMAT, 0, "check", "slots %u and %u name buffer %u",
                                  other, slot, buffer);
            }
            seen[buffer] = slot + 1;
        } else {
            seen[buffer] = slot + 1;
        }
    }
    free(seen);
    return status;
}

static int
check_rows(const svi_mapping *m, sv_error *err)
{
    int status = svi_rows_check(m, "check", err);
    uint32_t high = status == 0 ? svi_high_rows(m) : 0;
    for (uint32_t r = 0; r < high; r++) {
        uint64_t state = svi_load_seq(&svi_row(m, r)->r_state); /* R4 */
        if (state != SVI_ROW_FREE && state != SVI_ROW_LIVE) {
            return svi_fail(err, SV_EFORMAT, 0, "check", "row %u has state %llu", r,
                            (unsigned long long)state);
        }
    }
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        uint64_t writer = svi_load_relaxed(&svi_buffer(m, b)->b_writer); /* relaxed: its range */
        if (writer > m->g.max_rows) {
            return svi_fail(err, SV_EFORMAT, 0, "check", "buffer %u is claimed by row %llu of %u",
                            b, (unsigned long long)writer - 1, m->g.max_rows);
        }
    }
    return status;
}

int
sv_check(sv_segment *segment, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "check", "the handle is closed");
    }
    int status = check_size(m, err);
    uint32_t size = svi_size(m);
    for (uint32_t slot = 0; slot < size && status == 0; slot++) {
        status = check_slot(segment, m, slot, err);
    }
    if (status == 0) {
        status = check_distinct(m, err);
    }
    if (status == 0) {
        status = check_rows(m, err);
    }
    return status;
}
