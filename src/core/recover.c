/*
 * Giving back what the dead held (rules R4-R6, A3): pins, claims, rows, and slots that were filled and
 * not counted. Whoever recovers may die at any point; the next one repeats it.
 */
#include <errno.h>

#include "error.h"
#include "event.h"
#include "fork.h"
#include "os.h"
#include "row.h"
#include "share.h"

void
svi_row_clean(const svi_mapping *m, unsigned char *rw, uint32_t row)
{
    svm_row *r = svi_row_at(m, rw, row);
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        /* relaxed: the dead one's last store is older than the lock we took (R5) */
        if (svi_cell_pins(svi_load_relaxed(&r->r_cells[b])) != 0) {
            /* Never a store of 0: the reads stay, and repeating it is harmless. */
            svi_and_seq(&r->r_cells[b], ~SVI_PINS_MASK); /* E10 */
            SVI_STEP("recover.unpinned");
        }
    }
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        svm_buffer *header = svi_buffer_at(m, rw, b);
        if (svi_load_relaxed(&header->b_writer) == (uint64_t)row + 1) { /* relaxed (R5) */
            (void)svi_cas_seq(&header->b_writer, (uint64_t)row + 1, 0); /* E6 */
            SVI_STEP("recover.unclaimed");
        }
    }
    svi_store_seq(&r->r_state, SVI_ROW_FREE); /* E7 */
    SVI_STEP("recover.freed");
    svi_event_tell(rw, SVI_EVENT_FREE);
}

bool
svi_row_alive(int probe, uint32_t row)
{
    return probe < 0 || svi_os_lock_test(probe, SVI_LOCK_ROW + row) != 0;
}

/* Take the byte of a dead row through a fresh description (an own one never conflicts with itself)
 * and clean it. 1: cleaned, 0: it lives or is clean, negative: -errno. */
static int
recover_row(svi_mapping *m, unsigned char *rw, uint32_t row)
{
    int cleaned = 0;
    int fd = svi_fresh(m);
    if (fd < 0) {
        return fd;
    }
    int status = svi_os_lock_try(fd, SVI_LOCK_ROW + row, true);
    if (status == 0) {
        SVI_STEP("recover.locked");
        if (svi_load_seq(&svi_row(m, row)->r_state) != SVI_ROW_FREE) { /* E7 */
            svi_row_clean(m, rw, row);
            cleaned = 1;
        }
        /* Explicitly: a child forked in between could keep the description open. */
        (void)svi_os_unlock(fd, SVI_LOCK_ROW + row);
        SVI_STEP("recover.unlocked");
    }
    svi_os_close(fd);
    return status == -EAGAIN ? 0 : status != 0 ? status : cleaned;
}

/* Slots that a dead appender filled and did not count (rule A3). */
static void
recover_count_filled(const svi_mapping *m, unsigned char *rw)
{
    svm_header *header = svi_header_at(rw);
    for (;;) {
        uint64_t size = svi_load_seq(&header->h_size); /* E5 */
        if (size >= m->g.slot_count ||
            svi_load_seq(&svi_slots_at(m, rw)[size].s_word) == SVI_EMPTY) { /* A3 */
            return;
        }
        (void)svi_cas_seq(&header->h_size, size, size + 1); /* E5, E15 */
        SVI_STEP("recover.counted");
        svi_event_tell(rw, SVI_EVENT_FILLED);
    }
}

/* Does a row look dead, and as if it pinned the buffer? Hints (R5): what counts is looked at again
 * under the row's lock. */
static bool
recover_is_due(const svi_look *look, uint32_t r, uint32_t buffer)
{
    const svi_mapping *m = look->m;
    const svm_row *row = svi_row(m, r);
    if (svi_load_seq(&row->r_state) == SVI_ROW_FREE) { /* hint (R5) */
        return false;
    }
    bool pins = buffer == SVI_ANY_BUFFER ||
                svi_cell_pins(svi_load_relaxed(&row->r_cells[buffer])) != 0; /* hint (R5) */
    return pins && !svi_row_alive(look->probe, r);
}

/* One row, or with SVI_NO_ROW the uncounted slots. Under the process lock: no child may inherit the
 * description that holds the row's byte, nor the map for writing. As recover_row(), or an SV_E code. */
static int
recover_one(svi_mapping *m, uint32_t row, sv_error *err)
{
    unsigned char *rw = NULL;
    int status = svi_process_lock(err);
    if (status != 0) {
        return status;
    }
    if ((status = svi_writable_borrow(m, &rw, err)) == 0) {
        if (row == SVI_NO_ROW) {
            recover_count_filled(m, rw);
        } else if ((status = recover_row(m, rw, row)) < 0) {
            status = svi_fail(err, SV_ESYS, -status, "recover", "cannot recover row %u of '%s'",
                              row, m->name);
        }
        svi_writable_return(m, rw);
    }
    svi_process_unlock();
    return status;
}

/* Each dead row that is due, then what was filled and not counted, whatever became of the rows. */
static int
recover_all(const svi_look *look, uint32_t buffer, uint32_t *count, sv_error *err)
{
    int status = 0;
    uint32_t high = svi_high_rows(look->m);
    for (uint32_t r = 0; r < high && status >= 0; r++) {
        status = recover_is_due(look, r, buffer) ? recover_one(look->m, r, err) : 0;
        *count += status > 0;
    }
    int counted = recover_one(look->m, SVI_NO_ROW, status < 0 ? NULL : err);
    return status < 0 ? status : counted;
}

int
svi_recover(svi_mapping *m, uint32_t buffer, uint32_t *recovered, sv_error *err)
{
    svi_look look;
    uint32_t count = 0;
    int status = svi_look_begin(m, &look, err);
    if (status != 0) {
        return status;
    }
    if ((status = svi_rows_check(m, "recover", err)) == 0 && look.probe < 0) {
        status = svi_fail(err, SV_ESYS, EBADF, "recover", "cannot open '%s' again", m->name);
    }
    if (status == 0 && (status = svi_process_lock(err)) == 0) {
        svi_share_settle(m);
        svi_process_unlock();
        status = recover_all(&look, buffer, &count, err);
    }
    svi_look_end(&look);
    if (status == 0 && recovered != NULL) {
        *recovered = count;
    }
    return status;
}

int
sv_recover(sv_segment *segment, uint32_t *recovered, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "recover", "the handle is closed");
    }
    return svi_recover(m, SVI_ANY_BUFFER, recovered, err);
}
